// Sums gradients over their replicas and gathers sharded weights.
#include "parallel/parallel.h"
#include <stdlib.h>

static void begin_bucket(GradReducer *r, int i) {
    r->reduced[i] = false;
    r->unfinished[i] = r->buckets->items[i].num_units;
}

Status grad_reducer_create(GradReducer *r, Context *context, const Params *params, const Buckets *buckets,
                           bool overlap, bool overlap_gather) {
    *r = (GradReducer){.context = context,
                       .params = params,
                       .buckets = buckets,
                       .overlap = overlap,
                       .overlap_gather = overlap_gather};
    size_t n = (size_t)buckets->count + 1;
    r->reducing = calloc(n, sizeof *r->reducing);
    r->gathering = calloc(n, sizeof *r->gathering);
    r->reduced = calloc(n, sizeof *r->reduced);
    r->unfinished = calloc(n, sizeof *r->unfinished);
    if (r->reducing && r->gathering && r->reduced && r->unfinished) {
        for (int i = 0; i < buckets->count; i++) begin_bucket(r, i);
        return OK;
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
    Tensor grads = r->params->chunks[b->chunk].grads, whole = whole_of(grads, b);
    r->reduced[i] = true;
    r->reducing[i] = b->sharded ? comm_reduce_scatter_start(b->group, stream, whole, bucket_shard(grads, b))
                                : comm_all_reduce_start(b->group, stream, whole, REDUCE_SUM);
}

static bool is_due(const GradReducer *r, int i) {
    const Bucket *b = &r->buckets->items[i];
    return b->replicas > 1 && !b->deferred && !r->reduced[i];
}

static void finish_unit(void *self, int unit) {
    GradReducer *r = self;
    for (int i = 0; i < r->buckets->count && r->overlap; i++)
        if (is_due(r, i) && bucket_holds(&r->buckets->items[i], r->params, unit) && !--r->unfinished[i])
            post_bucket(r, i);
}

void grad_reducer_start(GradReducer *r, int chunk) {
    for (int i = 0; i < r->buckets->count; i++)
        if (r->buckets->items[i].chunk == chunk && is_due(r, i)) post_bucket(r, i);
}

// Adds the gradients of tied copies to those of their originals on the same rank. The order, the embedding's gradient
// and then the head's, is that of the sum between two ranks.
static void add_tied_copies(const Context *c, const Params *params) {
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        if (p->tied_value) add(c->device, c->stream, (Add){.x = p->grad, .y = p->tied_value->grad});
    }
}

// Makes the first sum of a reduction: over the ranks of its role, the gradients of its region of every chunk.
static void sum_first(const Context *c, const Params *params, Reduction reduction) {
    const ReductionInfo *info = &placement_reductions[reduction];
    if (info->first == NO_ROLE) return;
    rank_doing("%s", info->doing);
    if (reduction == REDUCTION_TIED) add_tied_copies(c, params);
    Comm *group = context_group(c, (Role)info->first);
    for (int i = 0; i < params->num_chunks && group; i++) {
        const ChunkParams *chunk = &params->chunks[i];
        int64_t begin = chunk->region[reduction], count = chunk->region[reduction + 1] - begin;
        if (count) comm_all_reduce(group, c->stream, tensor_part(chunk->grads, begin, count), REDUCE_SUM);
    }
}

static void sum_over_replicas(GradReducer *r) {
    for (int i = 0; i < r->buckets->count; i++)
        if (r->buckets->items[i].deferred && r->buckets->items[i].replicas > 1) post_bucket(r, i);
    for (int i = 0; i < r->buckets->count; i++) {
        const Bucket *b = &r->buckets->items[i];
        if (b->replicas == 1) continue;
        CHECK(r->reduced[i], "chunk %d is not complete", b->chunk);
        comm_wait(b->group, r->context->stream, &r->reducing[i]);
        begin_bucket(r, i);
    }
}

void grad_reducer_finish(GradReducer *r) {
    for (Reduction reduction = 0; reduction < NUM_REDUCTIONS; reduction++)
        sum_first(r->context, r->params, reduction);
    rank_doing("sum of gradients over dp");
    sum_over_replicas(r);
    // The optimizer must not write values that are still being gathered, also where no forward has needed them.
    grad_reducer_gather_wait(r);
}

// ---- weights ------------------------------------------------------------------------------------

static void post_gather(GradReducer *r, int i) {
    const Bucket *b = &r->buckets->items[i];
    Tensor values = r->params->chunks[b->chunk].values;
    if (!b->sharded) return;
    r->gathering[i] =
        comm_all_gather_start(b->group, r->context->stream, bucket_shard(values, b), whole_of(values, b));
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
    if (!r->buckets->sharded) return;
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

static void acquire_unit(void *self, int unit) {
    GradReducer *r = self;
    for (int i = 0; i < r->buckets->count && r->num_gathering; i++)
        if (r->gathering[i] && bucket_holds(&r->buckets->items[i], r->params, unit)) wait_gather(r, i);
}

UnitWatch grad_reducer_watch(GradReducer *r) {
    return (UnitWatch){.acquire = acquire_unit, .finish = finish_unit, .self = r};
}
