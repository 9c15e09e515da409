// Sums gradients over their replicas and gathers sharded weights.
#include "parallel/parallel.h"
#include <stdlib.h>

static void begin_bucket(GradReducer *r, int i) {
    r->reduced[i] = false;
    r->unfinished[i] = r->buckets->items[i].num_units;
}

static ReduceOp sum_of(const GradReducer *r) { return r->tree ? REDUCE_TREE : REDUCE_SUM; }

static Status check_sums(const GradReducer *r) {
    for (int i = 0; i < r->buckets->count; i++) {
        const Bucket *b = &r->buckets->items[i];
        if (b->replicas > 1)
            TRY(comm_can_reduce(b->group, r->params->chunks[b->chunk].grads.dtype, sum_of(r)));
    }
    return OK;
}

Status grad_reducer_create(GradReducer *r, Context *context, const Params *params, const Buckets *buckets,
                           bool overlap, bool overlap_gather, bool tree) {
    *r = (GradReducer){.context = context,
                       .params = params,
                       .buckets = buckets,
                       .overlap = overlap,
                       .overlap_gather = overlap_gather,
                       .tree = tree};
    size_t n = (size_t)buckets->count + 1;
    r->reducing = calloc(n, sizeof *r->reducing);
    r->gathering = calloc(n, sizeof *r->gathering);
    r->reduced = calloc(n, sizeof *r->reduced);
    r->unfinished = calloc(n, sizeof *r->unfinished);
    if (r->reducing && r->gathering && r->reduced && r->unfinished) {
        for (int i = 0; i < buckets->count; i++) begin_bucket(r, i);
        return check_sums(r);
    }
    return fail(ERR_OS, "no memory for the messages of %d buckets", buckets->count);
}

void grad_reducer_destroy(GradReducer *r) {
    free(r->reducing);
    free(r->gathering);
    free(r->reduced);
    free(r->unfinished);
    *r = (GradReducer){0};
}

static Tensor whole_of(Tensor flat, const Bucket *b) { return tensor_part(flat, b->begin, b->count); }

// ---- gradients ----------------------------------------------------------------------------------

static void post_bucket(GradReducer *r, int i) {
    Stream *stream = r->context->stream;
    const Bucket *b = &r->buckets->items[i];
    Tensor whole = bucket_whole_grads(r->params, b);
    r->reduced[i] = true;
    r->reducing[i] =
        b->sharded ? comm_reduce_scatter_start(b->group, stream, whole, bucket_grads(r->params, b), sum_of(r))
                   : comm_all_reduce_start(b->group, stream, whole, sum_of(r));
}

static bool is_due(const GradReducer *r, int i) {
    const Bucket *b = &r->buckets->items[i];
    return b->replicas > 1 && !b->deferred && !b->grads_cut && !r->reduced[i];
}

static void begin_unit(void *self, int unit) {
    GradReducer *r = self;
    if (r->grad_window) grad_window_begin(r->grad_window, unit);
}

// Of a unit whose gradients are cut the first call after its begin reduces them.
static void finish_window(GradReducer *r, int unit) {
    GradWindow *w = r->grad_window;
    if (!w || !w->begun[unit]) return;
    params_show_grads(r->params, unit);
    grad_window_reduce(w, unit, sum_of(r), r->paused);
    if (!r->overlap) grad_window_settle(w);
}

static void finish_unit(void *self, int unit, bool final) {
    GradReducer *r = self;
    if (final && !r->paused) params_finish_grads(r->params, r->context->device, unit);
    finish_window(r, unit);
    if (!final || r->paused) return;
    for (int i = 0; i < r->buckets->count && r->overlap; i++)
        if (is_due(r, i) && bucket_holds(&r->buckets->items[i], r->params, unit) && !--r->unfinished[i])
            post_bucket(r, i);
}

void grad_reducer_start(GradReducer *r, int chunk) {
    if (r->paused) return;
    for (int i = 0; i < r->buckets->count; i++)
        if (r->buckets->items[i].chunk == chunk && is_due(r, i)) post_bucket(r, i);
}

// Adds the gradients of tied copies to those of their originals on the same rank. The order, the embedding's gradient
// and then the head's, is that of the sum between two ranks. A copy's gradient lies in no bucket: after the sums over
// replicas it is summed here.
static void add_tied_copies(const GradReducer *r) {
    const Context *c = r->context;
    for (int i = 0; i < r->params->count; i++) {
        const Param *p = r->params->items[i];
        if (!p->tied_value) continue;
        Comm *replicas = context_group(c, placement_reductions[p->place.reduction].replicas);
        if (r->tree) comm_all_reduce(replicas, c->stream, p->grad, REDUCE_TREE);
        add(c->device, c->stream, (Add){.x = p->grad, .y = p->tied_value->grad});
    }
}

// Makes the first sum of a reduction over the ranks of its role: of its region of every chunk, or after the sums over
// replicas of what this rank has of its buckets.
static void sum_first(const GradReducer *r, Reduction reduction) {
    const Context *c = r->context;
    const ReductionInfo *info = &placement_reductions[reduction];
    if (info->first == NO_ROLE) return;
    rank_doing("%s", info->doing);
    if (reduction == REDUCTION_TIED) add_tied_copies(r);
    Comm *group = context_group(c, (Role)info->first);
    for (int i = 0; i < r->params->num_chunks && group && !r->tree; i++) {
        const ChunkParams *chunk = &r->params->chunks[i];
        int64_t count = chunk->region[reduction + 1] - chunk->region[reduction];
        if (count)
            comm_all_reduce(group, c->stream, params_region_grads(r->params, i, reduction), REDUCE_SUM);
    }
    for (int i = 0; i < r->buckets->count && group && r->tree; i++) {
        const Bucket *b = &r->buckets->items[i];
        if (b->reduction == reduction)
            comm_all_reduce(group, c->stream, bucket_grads(r->params, b), REDUCE_SUM);
    }
}

static void sum_all_first(const GradReducer *r) {
    for (Reduction reduction = 0; reduction < NUM_REDUCTIONS; reduction++) sum_first(r, reduction);
}

static void sum_over_replicas(GradReducer *r) {
    for (int i = 0; i < r->buckets->count; i++)
        if (r->buckets->items[i].deferred && r->buckets->items[i].replicas > 1) post_bucket(r, i);
    for (int i = 0; i < r->buckets->count; i++) {
        const Bucket *b = &r->buckets->items[i];
        if (b->replicas == 1 || b->grads_cut) continue;
        CHECK(r->reduced[i], "chunk %d is not complete", b->chunk);
        comm_wait(b->group, r->context->stream, &r->reducing[i]);
        begin_bucket(r, i);
    }
    if (r->grad_window) grad_window_finish(r->grad_window);
}

void grad_reducer_finish(GradReducer *r) {
    if (!r->tree) sum_all_first(r);
    rank_doing("sum of gradients over dp");
    sum_over_replicas(r);
    if (r->tree) sum_all_first(r);
    // The optimizer must not write values that are still being gathered, also where no forward has needed them.
    grad_reducer_gather_wait(r);
    if (r->window) window_forget(r->window);
}

// ---- weights ------------------------------------------------------------------------------------

static void post_gather(GradReducer *r, int i) {
    const Bucket *b = &r->buckets->items[i];
    Tensor values = r->params->chunks[b->chunk].values;
    if (!b->sharded) return;
    r->gathering[i] =
        comm_all_gather_start(b->group, r->context->stream, bucket_values(r->params, b), whole_of(values, b));
    if (r->gathering[i]) r->num_gathering++;
}

// Posts the gathers of a chunk in the order in which forwards need them: the deferred buckets, then the others from
// the start of the chunk.
static void post_gathers(GradReducer *r, int chunk) {
    for (int i = 0; i < r->buckets->count; i++)
        if (r->buckets->items[i].chunk == chunk && r->buckets->items[i].deferred) post_gather(r, i);
    for (int i = r->buckets->count - 1; i >= 0; i--)
        if (r->buckets->items[i].chunk == chunk && !r->buckets->items[i].deferred) post_gather(r, i);
}

void grad_reducer_gather(GradReducer *r) {
    if (r->window) window_forget(r->window);
    if (!r->buckets->sharded || r->window) return;
    rank_doing("gather of weights over dp");
    for (int chunk = 0; chunk < r->params->num_chunks; chunk++) post_gathers(r, chunk);
    if (!r->overlap_gather) grad_reducer_gather_wait(r);
}

static void wait_gather(GradReducer *r, int i) {
    if (!r->gathering[i]) return;
    comm_wait(r->buckets->items[i].group, r->context->stream, &r->gathering[i]);
    r->num_gathering--;
}

void grad_reducer_gather_wait(GradReducer *r) {
    for (int i = 0; i < r->buckets->count; i++) wait_gather(r, i);
}

static void acquire_unit(void *self, int unit, int next) {
    GradReducer *r = self;
    if (r->window) window_acquire(r->window, unit, next);
    for (int i = 0; i < r->buckets->count && r->num_gathering; i++)
        if (r->gathering[i] && bucket_holds(&r->buckets->items[i], r->params, unit)) wait_gather(r, i);
}

static void release_unit(void *self, int unit) {
    GradReducer *r = self;
    if (r->window) window_release(r->window, unit);
}

UnitWatch grad_reducer_watch(GradReducer *r) {
    return (UnitWatch){.acquire = acquire_unit,
                       .release = release_unit,
                       .begin = begin_unit,
                       .finish = finish_unit,
                       .self = r};
}
