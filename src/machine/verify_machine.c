// Compares what every core computes with known answers.
#include "machine/verify_machine.h"
#include "base/hash.h"
#include "base/rank.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { VOTES = 3 }; // of each core

typedef struct {
    const VerifyPlan *plan;
    MachineReport *report;
    KnownAnswer *known; // [NUM_ANSWERS]
    double end_s;
    pthread_mutex_t lock; // of the report
} Check;

static void bind_to(int core) {
    Cores one = {.count = 1, .ids = {core}};
    cores_bind(&one);
}

static void compute(const Check *check, AnswerBench *bench, int core, int64_t round, AnswerFamily family,
                    KnownAnswer *answer) {
    const PlantedFault *planted = check->plan->planted;
    answer_compute(bench, family, answer);
    if (planted && planted->core == core && planted->family == family && round >= planted->from_round)
        answer->data[planted->bit / 8] ^= (unsigned char)(1 << planted->bit % 8);
}

// ---- what is right ------------------------------------------------------------------------------

// The answer that most runs of all cores give; of as many votes the one that came first.
static void vote(const Check *check, AnswerBench *bench, AnswerFamily family, KnownAnswer *answer) {
    const Cores *cores = &check->report->cores;
    int count = cores->count * VOTES, most = 0, best = 0;
    uint64_t *hashes = calloc((size_t)count, sizeof *hashes);
    CHECK(hashes, "no memory for %d votes", count);
    for (int i = 0; i < count; i++) {
        bind_to(cores->ids[i % cores->count]);
        compute(check, bench, cores->ids[i % cores->count], 0, family, answer);
        hashes[i] = hash64_of(answer->data, answer->bytes);
    }
    for (int i = 0; i < count; i++) {
        int votes = 0;
        for (int j = 0; j < count; j++) votes += hashes[i] == hashes[j];
        if (votes > most) most = votes, best = i;
    }
    for (int tries = 0; hash64_of(answer->data, answer->bytes) != hashes[best] && tries < 1000; tries++) {
        bind_to(cores->ids[best % cores->count]);
        compute(check, bench, cores->ids[best % cores->count], 0, family, answer);
    }
    free(hashes);
}

static Status find_known(const Check *check, AnswerBench *bench, AnswerBench *reference) {
    KnownAnswer *far = malloc(sizeof *far);
    CHECK(far, "no memory for an answer");
    Status status = OK;
    for (AnswerFamily f = 0; f < NUM_ANSWERS && status == OK; f++) {
        if (answer_is_exact(f)) {
            answer_exact(f, &check->known[f]);
            continue;
        }
        vote(check, bench, f, &check->known[f]);
        answer_compute(reference, f, far);
        if (!answer_is_near(&check->known[f], far))
            status =
                fail(ERR_REPLICAS, "%s: what most cores compute is far from the reference: all may be faulty",
                     answer_name(f));
    }
    free(far);
    return status;
}

// ---- one core -----------------------------------------------------------------------------------

static MachineFault fault_of(const KnownAnswer *got, const KnownAnswer *want) {
    MachineFault fault = {.byte = -1};
    for (size_t i = 0; i < want->bytes; i++) {
        if (got->data[i] == want->data[i]) continue;
        if (fault.byte < 0) fault.byte = (int64_t)i;
        fault.differ++;
    }
    size_t from = (size_t)fault.byte / 4 * 4, size = want->bytes - from < 4 ? want->bytes - from : 4;
    memcpy(&fault.got, got->data + from, size);
    memcpy(&fault.want, want->data + from, size);
    return fault;
}

static void add_fault(Check *check, int place, MachineFault fault) {
    MachineReport *report = check->report;
    pthread_mutex_lock(&check->lock);
    if (report->wrong < FAULTS_KEPT) report->faults[report->wrong] = fault;
    report->wrong++;
    report->wrong_of[place]++;
    pthread_mutex_unlock(&check->lock);
}

static void check_core(Check *check, AnswerBench *bench, int place, int64_t round, KnownAnswer *answer) {
    int core = check->report->cores.ids[place];
    for (AnswerFamily f = 0; f < NUM_ANSWERS; f++) {
        const KnownAnswer *want = &check->known[f];
        compute(check, bench, core, round, f, answer);
        if (answer->bytes == want->bytes && !memcmp(answer->data, want->data, want->bytes)) continue;
        MachineFault fault = fault_of(answer, want);
        fault.core = core, fault.family = f, fault.round = round;
        add_fault(check, place, fault);
    }
}

static bool is_over(const Check *check, int64_t rounds) {
    if (rounds < check->plan->least_rounds) return false;
    return clock_s() >= check->end_s || (check->plan->stopped && atomic_load(check->plan->stopped));
}

// ---- all cores ----------------------------------------------------------------------------------

static void in_turn(Check *check, AnswerBench *bench, KnownAnswer *answer) {
    MachineReport *report = check->report;
    do {
        for (int i = 0; i < report->cores.count; i++) {
            bind_to(report->cores.ids[i]);
            check_core(check, bench, i, report->rounds, answer);
        }
        report->rounds++;
    } while (!is_over(check, report->rounds));
    report->checked = report->rounds * report->cores.count * NUM_ANSWERS;
}

typedef struct {
    Check *check;
    int place;
    int64_t rounds;
    Status status;
    char message[512];
    pthread_t thread;
    bool started;
} CoreThread;

static void *run_core(void *arg) {
    CoreThread *self = arg;
    AnswerBench bench;
    bind_to(self->check->report->cores.ids[self->place]);
    KnownAnswer *answer = malloc(sizeof *answer);
    self->status = answer ? answer_bench_open(&bench, "cpu") : fail(ERR_OS, "no memory for an answer");
    if (self->status != OK) {
        snprintf(self->message, sizeof self->message, "%s", fail_message());
    } else {
        do check_core(self->check, &bench, self->place, self->rounds++, answer);
        while (!is_over(self->check, self->rounds));
        answer_bench_close(&bench);
    }
    free(answer);
    return NULL;
}

static Status at_once(Check *check) {
    MachineReport *report = check->report;
    int count = report->cores.count;
    CoreThread *threads = calloc((size_t)count, sizeof *threads);
    if (!threads) return fail(ERR_OS, "no memory for %d threads", count);
    Status status = OK;
    for (int i = 0; i < count; i++) {
        threads[i] = (CoreThread){.check = check, .place = i};
        threads[i].started = pthread_create(&threads[i].thread, NULL, run_core, &threads[i]) == 0;
        if (!threads[i].started) status = fail(ERR_OS, "cannot start thread %d of %d", i + 1, count);
    }
    report->rounds = INT64_MAX;
    for (int i = 0; i < count; i++) {
        if (!threads[i].started) continue;
        pthread_join(threads[i].thread, NULL);
        if (threads[i].status != OK) status = fail(threads[i].status, "%s", threads[i].message);
        if (threads[i].rounds < report->rounds) report->rounds = threads[i].rounds;
        report->checked += threads[i].rounds * NUM_ANSWERS;
    }
    free(threads);
    return status;
}

static Status verdict(const MachineReport *report) {
    if (!report->wrong) return OK;
    const MachineFault *f = &report->faults[0];
    return fail(ERR_REPLICAS,
                "core %d computes wrongly: %s, round %" PRId64 ": bytes %" PRId64 " to %" PRId64
                " are 0x%08" PRIx32 ", not 0x%08" PRIx32 " (bits 0x%08" PRIx32 "), %" PRId64
                " bytes of the result differ; %" PRId64 " of %" PRId64
                " results are wrong. Take this core or machine out of use",
                f->core, answer_name(f->family), f->round, f->byte / 4 * 4, f->byte / 4 * 4 + 3, f->got,
                f->want, f->got ^ f->want, f->differ, report->wrong, report->checked);
}

static Status run(Check *check, AnswerBench *bench, AnswerBench *reference, KnownAnswer *answer) {
    TRY(find_known(check, bench, reference));
    check->end_s = clock_s() + check->plan->seconds;
    if (check->plan->at_once) return at_once(check);
    in_turn(check, bench, answer);
    return OK;
}

Status verify_machine(const VerifyPlan *plan, MachineReport *report) {
    AnswerBench bench = {0}, reference = {0};
    Check check = {.plan = plan, .report = report, .lock = PTHREAD_MUTEX_INITIALIZER};
    *report = (MachineReport){0};
    cores_allowed(&report->cores);
    check.known = calloc(NUM_ANSWERS + 1, sizeof *check.known);
    if (!check.known) return fail(ERR_OS, "no memory for known answers");
    Status status = answer_bench_open(&bench, "cpu");
    if (status == OK) status = answer_bench_open(&reference, "reference");
    if (status == OK) status = run(&check, &bench, &reference, &check.known[NUM_ANSWERS]);
    answer_bench_close(&reference);
    answer_bench_close(&bench);
    cores_bind(&report->cores);
    free(check.known);
    return status == OK ? verdict(report) : status;
}
