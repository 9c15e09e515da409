// Finds which rank was wrong where the two results of an audit differ, from the results that all data-parallel ranks
// have when they compute the same part once more.
#include "base/hash.h"
#include "train/engine/audit.h"
#include <stdlib.h>
#include <string.h>

// A result of the part that differed, by the copy of the model of data-parallel rank `data`.
typedef struct {
    int data;
    Result result;
} Claim;

typedef struct {
    Engine *engine;
    int ranks, d;  // d: data-parallel ranks
    int audited;   // data-parallel rank whose part has two results
    int auditor;   // the one that computed it, too
    uint64_t *all; // [ranks][NUM_RESULTS]: digests
} Trial;

// What a rank finds of two claims: its first difference, and how many of its gradients differ.
typedef struct {
    uint64_t at; // UINT64_MAX: there is none
    int param;   // the first parameter whose gradients differ; -1: none
    int params;  // how many
} Difference;

typedef struct {
    Claim wrong, right; // right: of the majority, or of the other one of two
    bool known;         // which one is wrong
    bool majority;      // more than half of the data-parallel ranks have the right one
} Verdict;

// ---- who is wrong -------------------------------------------------------------------------------

// The digest of a result over all ranks of a copy of the model.
static uint64_t digest_of(const Trial *t, Claim claim) {
    uint64_t digest = 0;
    for (int rank = 0; rank < t->ranks; rank++)
        if (audit_data(t->engine, rank) == claim.data)
            digest = digest * 0x9E3779B97F4A7C15u + t->all[rank * NUM_RESULTS + (int)claim.result];
    return digest;
}

static bool same(const Trial *t, Claim a, Claim b) { return digest_of(t, a) == digest_of(t, b); }

// Returns whether more than half of the data-parallel ranks now have one result, and one of these.
static bool find_majority(const Trial *t, Claim *right) {
    for (int i = 0; i < t->d; i++) {
        int votes = 0;
        *right = (Claim){i, RESULT_AGAIN};
        for (int k = 0; k < t->d; k++) votes += same(t, *right, (Claim){k, RESULT_AGAIN});
        if (2 * votes > t->d) return true;
    }
    return false;
}

// With a majority the first result that differs from it is wrong; a first result of the two ranks that were compared
// must. Without one, a rank that does not repeat its own result is.
static Verdict find_wrong(const Trial *t) {
    Claim own = {t->audited, RESULT_OWN}, other = {t->auditor, RESULT_AUDITED}, right;
    bool majority = find_majority(t, &right);
    for (int i = 0; i < t->d && majority; i++) {
        Claim again = {i, RESULT_AGAIN};
        if (!same(t, again, right)) return (Verdict){again, right, true, true};
    }
    if (majority) return (Verdict){same(t, own, right) ? other : own, right, t->d > 1, true};
    Claim own_again = {t->audited, RESULT_AGAIN}, other_again = {t->auditor, RESULT_AGAIN};
    if (!same(t, own, own_again)) return (Verdict){own, own_again, true, false};
    if (!same(t, other, other_again)) return (Verdict){other, other_again, true, false};
    return (Verdict){own, other, false, false};
}

// ---- where --------------------------------------------------------------------------------------

// Sends this rank's part of a claim to the ranks at the same place in other copies of the model.
static Checksum *share(const Trial *t, Claim claim, int count) {
    const Context *c = &t->engine->runtime.context;
    const Evidence *mine = &t->engine->audit->results[claim.result];
    size_t bytes = (size_t)count * sizeof *mine->items;
    Checksum *out = malloc(bytes + 1);
    CHECK(out, "no memory for %d checksums of an audit", count);
    if (context_rank(c, ROLE_DATA) == claim.data) memcpy(out, mine->items, bytes);
    if (t->d > 1) comm_broadcast_host(context_group(c, ROLE_DATA), out, bytes, claim.data);
    return out;
}

// Every computation of the part notes the same tensors.
static Difference find_difference(const Trial *t, const Verdict *v) {
    int count = t->engine->audit->results[RESULT_AGAIN].count;
    Checksum *wrong = share(t, v->wrong, count), *right = share(t, v->right, count);
    Difference found = {UINT64_MAX, -1, 0};
    for (int i = 0; i < count; i++) {
        int param;
        if (wrong[i].at == right[i].at && wrong[i].hash == right[i].hash) continue;
        if (found.at == UINT64_MAX) found.at = wrong[i].at;
        if (checksum_param(wrong[i], &param) && !found.params++) found.param = param;
    }
    free(wrong);
    free(right);
    return found;
}

// ---- the message --------------------------------------------------------------------------------

// Appends "rank 1" or "ranks 1, 3": those of data-parallel rank `data` whose difference is the earliest. Several ranks
// are only named where they found it at the same time. Returns the rank where it is one, else -1.
static int add_ranks(const Trial *t, const Difference *all, uint64_t earliest, int data, Text *out) {
    Text list = {0};
    int count = 0, last = -1;
    for (int rank = 0; rank < t->ranks; rank++) {
        if (audit_data(t->engine, rank) != data || all[rank].at != earliest) continue;
        text_add(&list, "%s%d", count++ ? ", " : "", rank);
        last = rank;
    }
    text_add(out, "rank%s %s", count > 1 ? "s" : "", text_string(&list));
    text_free(&list);
    return count == 1 ? last : -1;
}

static void add_tensors(const Trial *t, const Difference *d, Text *out) {
    if (d->param < 0) {
        text_add(out, "other losses or activations");
        return;
    }
    text_add(out, "another gradient of %s", t->engine->params.items[d->param]->spec.name);
    if (d->params > 1) text_add(out, " and of %d more parameters", d->params - 1);
}

static void add_microbatches(const AuditPart *part, Text *out) {
    if (part->count == 1)
        text_add(out, "microbatch %d", part->first);
    else
        text_add(out, "microbatches %d to %d", part->first, part->first + part->count - 1);
}

static void add_verdict(const Trial *t, const Verdict *v, const char *named, Text *out) {
    if (t->d == 1)
        text_add(out, "%s has two results of the same computation", named);
    else if (!v->known)
        text_add(out, "each of them repeats its own result, so one of the two is wrong");
    else if (!v->majority)
        text_add(out, "%s was wrong: it does not repeat its own result", named);
    else if (v->wrong.result == RESULT_AGAIN)
        text_add(out,
                 "%s is wrong: all data-parallel ranks computed it once more, and most have another result",
                 named);
    else
        text_add(out, "%s was wrong once: it does not repeat its own result, which no other rank has", named);
}

static Status verdict_message(const Trial *t, const Verdict *v, const Difference *all, int64_t iteration) {
    Text text = {0}, named = {0};
    uint64_t earliest = UINT64_MAX;
    int first = 0;
    for (int rank = 0; rank < t->ranks; rank++)
        if (all[rank].at < earliest) earliest = all[rank].at, first = rank;
    for (int rank = t->ranks - 1; rank >= 0; rank--)
        if (all[rank].at == earliest) first = rank;
    int wrong = add_ranks(t, all, earliest, v->wrong.data, &named);
    rank_blame(v->known ? wrong : -1);
    text_add(&text, "in step %lld ", (long long)iteration);
    add_ranks(t, all, earliest, t->audited, &text);
    text_add(&text, " computed ");
    add_microbatches(&t->engine->audit->part, &text);
    if (t->d > 1) text_add(&text, ", and as an audit ");
    if (t->d > 1) add_ranks(t, all, earliest, t->auditor, &text);
    text_add(&text, t->d > 1 ? " computed it again, with " : " twice, with ");
    add_tensors(t, &all[first], &text);
    text_add(&text, "; ");
    add_verdict(t, v, text_string(&named), &text);
    Status status =
        fail(ERR_REPLICAS,
             "%s. Memory or a processor there may be faulty. The step changed nothing and nothing is saved; "
             "go on from the last checkpoint with --load, without that machine",
             text_string(&text));
    text_free(&named);
    text_free(&text);
    return status;
}

static Status judge(const Trial *t, int64_t iteration) {
    Verdict verdict = find_wrong(t);
    Difference mine = find_difference(t, &verdict), *all = malloc((size_t)t->ranks * sizeof *all);
    CHECK(all, "no memory for the differences of %d ranks", t->ranks);
    comm_all_gather_host(t->engine->runtime.world, &mine, all, sizeof mine);
    Status status = verdict_message(t, &verdict, all, iteration);
    free(all);
    return status;
}

Status engine_blame(Engine *e, int64_t iteration, ReadAudited *read, void *self) {
    Audit *a = e->audit;
    Comm *world = e->runtime.world;
    Batch batch;
    int d = context_ranks(&e->runtime.context, ROLE_DATA);
    TRY(comm_agree(world, read(self, a->part, a->suspect, &batch)));
    rank_doing("computing the audited part once more");
    audit_compute(e, a->suspect, batch, RESULT_AGAIN);
    Trial trial = {.engine = e,
                   .ranks = comm_size(world),
                   .d = d,
                   .audited = a->suspect,
                   .auditor = (a->suspect + d - 1) % d};
    uint64_t mine[NUM_RESULTS];
    trial.all = malloc((size_t)trial.ranks * sizeof mine);
    CHECK(trial.all, "no memory for the checksums of %d ranks", trial.ranks);
    for (int i = 0; i < NUM_RESULTS; i++) mine[i] = evidence_digest(&a->results[i]);
    comm_all_gather_host(world, mine, trial.all, sizeof mine);
    Status status = judge(&trial, iteration);
    free(trial.all);
    return status;
}
