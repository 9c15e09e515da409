// Audits of steps: a data-parallel rank computes the first microbatches of another one's share of a step again, and
// checksums of both results are compared.
#include "train/engine/audit.h"
#include "base/hash.h"
#include <stdlib.h>
#include <string.h>

// ---- checksums ----------------------------------------------------------------------------------

// From the highest bit: 1 for a gradient, with the number of its parameter; else the microbatch, the pass, the stage in
// the order of the pass, and the number of the tensor in the compute.
enum { INDEX_BITS = 24, STAGE_BITS = 16, PASS_BITS = 2, GRADIENT_BIT = 63 };
typedef enum { PASS_FORWARD, PASS_BACKWARD, PASS_WEIGHT } Pass;

static uint64_t place_of(const Engine *e, int microbatch, Pass pass, int stage) {
    int last = e->schedule.num_ranks * e->schedule.num_chunks - 1;
    uint64_t at = (uint64_t)microbatch << PASS_BITS | (uint64_t)pass;
    return (at << STAGE_BITS | (uint64_t)(pass == PASS_FORWARD ? stage : last + 1 - stage)) << INDEX_BITS;
}

bool checksum_param(Checksum sum, int *param) {
    *param = (int)(sum.at & INT32_MAX);
    return sum.at >> GRADIENT_BIT;
}

static void note(Engine *e, uint64_t at, Tensor x) {
    Evidence *list = e->audit->now;
    if (list->count == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 256;
        list->items = realloc(list->items, (size_t)list->capacity * sizeof *list->items);
        CHECK(list->items, "no memory for %d checksums of an audit", list->capacity);
    }
    uint64_t hash = tensor_hash(e->runtime.device, e->runtime.context.stream, x, e->audit->piece, 0);
    list->items[list->count++] = (Checksum){at, hash};
}

static int compare_places(const void *a, const void *b) {
    uint64_t x = ((const Checksum *)a)->at, y = ((const Checksum *)b)->at;
    return (x > y) - (x < y);
}

uint64_t evidence_digest(const Evidence *list) {
    return hash64_of(list->items, (size_t)list->count * sizeof *list->items);
}

// ---- computes -----------------------------------------------------------------------------------

static void see_shared(void *self, Tensor x) {
    Engine *e = self;
    note(e, e->audit->at++, x);
}

// Notes what the compute gives to other ranks, if the microbatch is audited.
static bool begin_compute(Engine *e, Pass pass, int chunk, const Microbatch *mb) {
    Audit *a = e->audit;
    int microbatch = (int)(mb - e->microbatches) - a->first;
    if (!a->now || microbatch < 0 || microbatch >= a->part.count) return false;
    int rank = context_rank(&e->runtime.context, ROLE_PIPELINE);
    a->at = place_of(e, microbatch, pass, schedule_stage(&e->schedule, rank, chunk));
    e->runtime.context.shared = (SharedWatch){see_shared, e};
    return true;
}

static void end_compute(Engine *e, Tensor message) {
    e->runtime.context.shared = (SharedWatch){0};
    if (message.data) note(e, e->audit->at++, message);
}

static void audited_forward(void *self, int chunk, Slot *slot, const Microbatch *mb) {
    Engine *e = self;
    bool audited = mb->training && begin_compute(e, PASS_FORWARD, chunk, mb);
    e->stage.forward(e->stage.self, chunk, slot, mb);
    if (audited) end_compute(e, slot->output);
}

static void audited_backward(void *self, int chunk, Slot *slot, const Microbatch *mb, Halves halves,
                             bool final) {
    Engine *e = self;
    bool audited = begin_compute(e, halves == WEIGHT_HALF ? PASS_WEIGHT : PASS_BACKWARD, chunk, mb);
    e->stage.backward(e->stage.self, chunk, slot, mb, halves, final);
    if (audited) end_compute(e, halves & INPUT_HALF ? slot->input_gradient : (Tensor){0});
}

Stage audit_stage(Engine *e) {
    Stage stage = e->stage;
    stage.self = e, stage.forward = audited_forward, stage.backward = audited_backward;
    return stage;
}

// ---- noting a computation -----------------------------------------------------------------------

static void see_gradient(void *self, const Param *param) {
    Engine *e = self;
    int i = e->params.units[param->unit].first;
    while (e->params.items[i] != param) i++;
    note(e, UINT64_C(1) << GRADIENT_BIT | (uint64_t)i, param->grad);
}

// From here on checksums go to the result: of `part.count` microbatches from `first` on, which belong to leaf `leaf`.
static void begin_noting(Engine *e, Result result, int first, int leaf) {
    Audit *a = e->audit;
    a->now = &a->results[result];
    a->now->count = 0;
    a->first = first;
    a->watch = (GradWatch){{leaf, a->part.count - 1}, see_gradient, e};
    params_watch_grads(&e->params, &a->watch);
}

static void end_noting(Engine *e) {
    Audit *a = e->audit;
    int last = e->schedule.num_ranks * e->schedule.num_chunks - 1;
    params_end_watch(&e->params);
    for (int i = 0; i < a->part.count && e->last; i++)
        note(e, place_of(e, i, PASS_FORWARD, last + 1), tensor_rows(e->losses, a->first + i, 1));
    qsort(a->now->items, (size_t)a->now->count, sizeof *a->now->items, compare_places);
    a->now = NULL;
}

// The part is computed as the first leaf of a step. Where the schedule needs more microbatches than the part has, it
// begins again with its first ones.
void audit_compute(Engine *e, int of, Batch batch, Result result) {
    Audit *a = e->audit;
    Leaves leaves = e->leaves;
    leaves.first = of * leaves.count;
    engine_upload(e, &batch);
    for (int k = 0; k < batch.num_microbatches; k++) {
        LeafPlace place = {a->part.leaf, k % a->part.count};
        InStep at = {&leaves, place, a->part.microbatches, a->loss_scale, true};
        engine_set_microbatch(e, &batch, k, &at);
        e->microbatches[k].place = (LeafPlace){0, k};
    }
    params_begin_grads(&e->params);
    begin_noting(e, result, 0, 0);
    e->reducer.paused = true;
    pipeline_train(e->pipeline, e->microbatches, &e->reducer);
    e->reducer.paused = false;
    end_noting(e);
}

// ---- an audit -----------------------------------------------------------------------------------

int audit_microbatches(const EngineSpec *spec) {
    char why[512];
    int m = 1;
    for (; m < spec->num_microbatches; m++) {
        ScheduleSpec one = engine_schedule_spec(spec, m);
        if (!schedule_kind_refuse(schedule_kind(spec->schedule), &one, why, sizeof why)) break;
    }
    return m;
}

Status audit_create(Engine *e) {
    Audit *a = e->audit = calloc(1, sizeof *a);
    if (a) a->piece = malloc(TENSOR_PIECE_BYTES);
    return a && a->piece ? OK : fail(ERR_OS, "no memory for audits");
}

void audit_destroy(Engine *e) {
    if (!e->audit) return;
    for (int i = 0; i < NUM_RESULTS; i++) free(e->audit->results[i].items);
    free(e->audit->piece);
    free(e->audit);
}

AuditPart engine_audit_part(const Engine *e, int num_microbatches, int64_t number) {
    int each = num_microbatches / e->leaves.count, computed = audit_microbatches(&e->spec);
    int leaf = (int)(number % e->leaves.count);
    return (AuditPart){.microbatches = num_microbatches,
                       .leaf = leaf,
                       .first = leaf * each,
                       .count = computed < each ? computed : each,
                       .computed = computed};
}

int engine_audited_rank(const Engine *e) {
    const Context *c = &e->runtime.context;
    return (context_rank(c, ROLE_DATA) + 1) % context_ranks(c, ROLE_DATA);
}

void engine_audit(Engine *e, AuditPart part, Batch batch, double loss_scale) {
    Audit *a = e->audit;
    CHECK(a && batch.num_microbatches == part.computed, "an audit of %d microbatches, not %d",
          batch.num_microbatches, part.computed);
    a->part = part;
    a->loss_scale = loss_scale;
    // The step has not begun: scales of earlier steps may still be those of the step before.
    amax_begin(&e->amax, e->runtime.device, e->runtime.context.stream);
    audit_compute(e, engine_audited_rank(e), batch, RESULT_AUDITED);
    a->due = true;
}

void audit_begin_step(Engine *e) {
    if (e->audit && e->audit->due) begin_noting(e, RESULT_OWN, e->audit->part.first, e->audit->part.leaf);
}

void audit_end_step(Engine *e) {
    if (e->audit && e->audit->due) end_noting(e);
}

int audit_rank(const Engine *e, int rank, int data) {
    Grid grid = e->runtime.context.groups.topology.grid;
    Place place = grid_place(grid, rank);
    place.at[AXIS_DP] = data;
    return grid_rank(grid, place);
}

int audit_data(const Engine *e, int rank) {
    return grid_place(e->runtime.context.groups.topology.grid, rank).at[AXIS_DP];
}

bool audit_differs(Engine *e) {
    Audit *a = e->audit;
    Comm *world = e->runtime.world;
    if (!a || !a->due) return false;
    a->due = false;
    rank_doing("comparing the audited part of the step");
    int ranks = comm_size(world), d = context_ranks(&e->runtime.context, ROLE_DATA);
    uint64_t mine[NUM_RESULTS], *all = malloc((size_t)ranks * sizeof mine);
    CHECK(all, "no memory for the checksums of %d ranks", ranks);
    for (int i = 0; i < NUM_RESULTS; i++) mine[i] = evidence_digest(&a->results[i]);
    comm_all_gather_host(world, mine, all, sizeof mine);
    a->suspect = d;
    for (int rank = 0; rank < ranks; rank++) {
        int of = (audit_data(e, rank) + 1) % d;
        uint64_t audited = all[rank * NUM_RESULTS + RESULT_AUDITED];
        if (audited != all[audit_rank(e, rank, of) * NUM_RESULTS + RESULT_OWN] && of < a->suspect)
            a->suspect = of;
    }
    free(all);
    return a->suspect < d;
}
