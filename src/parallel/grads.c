#include "parallel/parallel.h"
#include <stdlib.h>

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
    if (r->reducing && r->gathering && r->reduced) return OK;
    return fail(ERR_OS, "no memory for the messages of %d buckets", buckets->count);
}

void grad_reducer_destroy(GradReducer *r) {
    free(r->reducing);
    free(r->gathering);
    free(r->reduced);
    *r = (GradReducer){0};
}

static Tensor whole_of(Tensor flat, const Bucket *b) { return tensor_part(flat, b->begin, b->count); }

static Tensor shard_of(Tensor flat, const Bucket *b) {
    return tensor_part(flat, b->shard_begin, b->shard_count);
}

// ---- gradients ----------------------------------------------------------------------------------

static void post_bucket(GradReducer *r, int i) {
    const Context *c = r->context;
    const Bucket *b = &r->buckets->items[i];
    Tensor grads = r->params->chunks[b->chunk].grads, whole = whole_of(grads, b);
    r->reduced[i] = true;
    r->reducing[i] =
        r->buckets->sharded
            ? comm_reduce_scatter_start(context_group(c, ROLE_REPLICAS), c->stream, whole, shard_of(grads, b))
            : comm_all_reduce_start(context_group(c, ROLE_REPLICAS), c->stream, whole, REDUCE_SUM);
}

// Those of a chunk's first region that begin at `begin` or beyond it.
static void post_from(GradReducer *r, int chunk, int64_t begin) {
    if (context_ranks(r->context, ROLE_REPLICAS) == 1) return;
    for (int i = 0; i < r->buckets->count; i++) {
        const Bucket *b = &r->buckets->items[i];
        if (b->chunk == chunk && !b->late && b->begin >= begin && !r->reduced[i]) post_bucket(r, i);
    }
}

static void backward_passed(void *self, int chunk, int64_t begin) {
    GradReducer *r = self;
    if (r->overlap) post_from(r, chunk, begin);
}

void grad_reducer_start(GradReducer *r, int chunk) { post_from(r, chunk, 0); }

static void sum_partial(const Context *c, const Params *params) {
    for (int i = 0; i < params->num_chunks; i++) {
        const ChunkParams *chunk = &params->chunks[i];
        if (chunk->partial == chunk->tied) continue;
        comm_all_reduce(context_group(c, ROLE_TENSOR), c->stream,
                        tensor_part(chunk->grads, chunk->partial, chunk->tied - chunk->partial), REDUCE_SUM);
    }
}

// First the embedding's own gradient, then the head's: the same order within one rank and between two.
static void sum_tied(const Context *c, const Params *params) {
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        if (p->shares) add(c->device, c->stream, (Add){.x = p->grad, .y = p->shares->grad});
    }
    for (int i = 0; i < params->num_chunks && context_group(c, ROLE_ENDS); i++) {
        const ChunkParams *chunk = &params->chunks[i];
        if (chunk->tied == chunk->count) continue;
        comm_all_reduce(context_group(c, ROLE_ENDS), c->stream,
                        tensor_part(chunk->grads, chunk->tied, chunk->count - chunk->tied), REDUCE_SUM);
    }
}

static void sum_over_dp(GradReducer *r) {
    const Context *c = r->context;
    if (context_ranks(c, ROLE_REPLICAS) == 1) return;
    for (int i = 0; i < r->buckets->count; i++)
        if (r->buckets->items[i].late) post_bucket(r, i);
    for (int i = 0; i < r->buckets->count; i++) {
        CHECK(r->reduced[i], "chunk %d is not complete", r->buckets->items[i].chunk);
        comm_wait(context_group(c, ROLE_REPLICAS), c->stream, &r->reducing[i]);
        r->reduced[i] = false;
    }
}

void grad_reducer_finish(GradReducer *r) {
    rank_doing("sum of partial gradients over tp");
    sum_partial(r->context, r->params);
    rank_doing("sum of tied gradients");
    sum_tied(r->context, r->params);
    rank_doing("sum of gradients over dp");
    sum_over_dp(r);
    // No step may write what is still being gathered, whether or not a forward asked for it.
    grad_reducer_gather_wait(r);
}

// ---- weights ------------------------------------------------------------------------------------

static void post_gather(GradReducer *r, int i) {
    const Context *c = r->context;
    const Bucket *b = &r->buckets->items[i];
    Tensor values = r->params->chunks[b->chunk].values;
    r->gathering[i] = comm_all_gather_start(context_group(c, ROLE_REPLICAS), c->stream, shard_of(values, b),
                                            whole_of(values, b));
}

// In the order in which forwards will ask for them: a chunk's late ones, then its first region from the
// start.
static void post_gathers(GradReducer *r, int chunk) {
    for (int i = 0; i < r->buckets->count; i++)
        if (r->buckets->items[i].chunk == chunk && r->buckets->items[i].late) post_gather(r, i);
    for (int i = r->buckets->count - 1; i >= 0; i--)
        if (r->buckets->items[i].chunk == chunk && !r->buckets->items[i].late) post_gather(r, i);
}

void grad_reducer_gather(GradReducer *r) {
    if (!r->buckets->sharded) return;
    rank_doing("gather of weights over dp");
    for (int chunk = 0; chunk < r->params->num_chunks; chunk++) post_gathers(r, chunk);
    if (!r->overlap_gather) grad_reducer_gather_wait(r);
}

void grad_reducer_gather_wait(GradReducer *r) {
    for (int i = 0; i < r->buckets->count; i++)
        comm_wait(context_group(r->context, ROLE_REPLICAS), r->context->stream, &r->gathering[i]);
}

// A chunk that shares the value of another's parameter needs nothing more: its forwards come after that
// one's.
static void forward_needs(void *self, int chunk, int64_t end) {
    GradReducer *r = self;
    for (int i = 0; i < r->buckets->count; i++) {
        const Bucket *b = &r->buckets->items[i];
        if (b->chunk == chunk && (b->late || b->begin < end))
            comm_wait(context_group(r->context, ROLE_REPLICAS), r->context->stream, &r->gathering[i]);
    }
}

ParamWatch grad_reducer_watch(GradReducer *r) {
    return (ParamWatch){.need = forward_needs, .done = backward_passed, .self = r};
}
