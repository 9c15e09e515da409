// Measures what this rank computes in each step, and compares it with the other ranks (stragglers.h).
#include "train/run.h"
#include <inttypes.h>
#include <math.h>
#include <unistd.h>

Status run_open_stragglers(TrainingRun *run) {
    Speeds *s = &run->speeds;
    int interval = run->options->straggler_interval, ranks = comm_size(run->world);
    *s = (Speeds){.interval = ranks > 1 ? interval : 0, .slow = -1};
    if (!s->interval) return OK;
    bool opened = stragglers_open(&s->all, ranks);
    TRY(comm_agree(run->world, opened ? OK : fail(ERR_OS, "no memory for the times of %d ranks", ranks)));
    int stage = context_rank(engine_context(run->engine), ROLE_PIPELINE);
    comm_all_gather_host(run->world, &stage, s->all.work_of, sizeof stage);
    s->on_device = comm_device_transport(run->world) != NULL;
    return OK;
}

// Of the instructions of the pipeline.
static RankWork computed_so_far(TrainingRun *run) {
    RankWork work = {0};
    PipelineTimes times = engine_times(run->engine);
    for (int c = 0; c < engine_schedule(run->engine)->num_chunks; c++) {
        work.part_s[WORK_FORWARD] += times.chunks[c].forward_own_s;
        work.part_s[WORK_BACKWARD] += times.chunks[c].backward_own_s;
    }
    return work;
}

// The first step of a run is slower than all others.
static bool counts(const TrainingRun *run) { return run->control.iteration > run->first; }

void run_step_begins(TrainingRun *run) {
    Speeds *s = &run->speeds;
    if (!s->interval) return;
    if (!s->begun && counts(run)) {
        s->before = computed_so_far(run);
        s->begun = true;
    }
    s->start_s = clock_s();
    s->waited_s = rank_current()->waited_s;
}

// ---- comparing -----------------------------------------------------------------------------------------

// The time of the steps that is in no instruction. Where a device works on its own, the host's time says little.
static void complete(const Speeds *s, RankWork *work) {
    double rest = s->mine_s - work->part_s[WORK_FORWARD] - work->part_s[WORK_BACKWARD];
    work->part_s[WORK_READING] = s->reading_s;
    work->part_s[WORK_REST] = !s->on_device && rest > 0 ? rest : 0;
    work->longest_s = s->on_device ? 0 : s->longest_s;
}

static RankWork work_of_steps(TrainingRun *run) {
    RankWork work = computed_so_far(run);
    for (int i = 0; i < NUM_WORK_PARTS; i++) work.part_s[i] -= run->speeds.before.part_s[i];
    complete(&run->speeds, &work);
    return work;
}

// A rank that is slow for long, or now and then, is printed once a minute; other programs get every finding.
void reporter_slow_rank(Reporter *r, int64_t iteration, const SlowRank *slow, const char *host) {
    enum { AGAIN_S = 60 };
    r->slow = *slow;
    snprintf(r->slow_host, sizeof r->slow_host, "%s", host);
    reporter_slow_event(r, iteration, slow, host);
    if (slow->rank < 0 || (r->told_slow == slow->rank + 1 && clock_s() - r->told_slow_s < AGAIN_S)) return;
    r->told_slow = slow->rank + 1;
    r->told_slow_s = clock_s();
    reporter_clear_progress(r);
    fprintf(stderr,
            "WARNING: iteration %" PRId64
            ": rank %d on %s is slow: it computed %.3g s %s, %.3g s is usual for %s; "
            "the difference is greatest in %s, %.3g s for %.3g s a step (--straggler-interval)\n",
            iteration, slow->rank, host, slow->own_s, slow->one_step ? "in one step" : "a step",
            slow->usual_s, slow->of_past ? "this rank" : "ranks with the same work", work_parts[slow->most],
            slow->own_part_s, slow->usual_part_s);
}

// Rank 0 learns the host of the slow rank.
static void tell(TrainingRun *run, const SlowRank *slow) {
    Text host = {0};
    int me = comm_rank(run->world);
    char name[256] = "";
    gethostname(name, sizeof name - 1);
    if (me == slow->rank) text_add(&host, "%s", name);
    if (slow->rank > 0 && me == slow->rank) comm_send_text(run->world, &host, 0);
    if (slow->rank > 0 && me == 0) comm_recv_text(run->world, &host, slow->rank);
    if (run->reporter) reporter_slow_rank(run->reporter, run->control.iteration, slow, text_string(&host));
    text_free(&host);
}

static void begin_again(Speeds *s) {
    s->begun = false;
    s->mine_s = s->reading_s = s->longest_s = 0;
    s->all.steps = 0;
    s->all.samples = 0;
}

void run_step_computed(TrainingRun *run, int samples) {
    Speeds *s = &run->speeds;
    if (!s->interval || !s->begun) return;
    double waited_s = rank_current()->waited_s - s->waited_s, own_s = clock_s() - s->start_s - waited_s;
    s->mine_s += own_s;
    s->reading_s += s->step_reading_s;
    s->longest_s = fmax(s->longest_s, own_s + s->step_reading_s);
    s->all.steps++;
    s->all.samples += samples;
}

void run_compare_speeds(TrainingRun *run) {
    Speeds *s = &run->speeds;
    if (!s->interval || !s->begun || run->control.iteration % s->interval) return;
    RankWork mine = work_of_steps(run);
    comm_all_gather_host(run->world, &mine, s->all.work, sizeof mine);
    if (!stragglers_can_judge(&s->all)) return;
    SlowRank slow = stragglers_judge(&s->all);
    if (slow.rank >= 0 || s->slow >= 0) tell(run, &slow);
    s->slow = slow.rank;
    begin_again(s);
}
