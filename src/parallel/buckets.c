// Cuts the regions of a rank's chunks into buckets, and buckets into shards.
#include "parallel/parallel.h"
#include <stdlib.h>

Tensor bucket_grads(const Params *params, const Bucket *b) {
    int64_t begin = b->grads_begin + (b->grads_cut ? 0 : b->shard_begin - b->begin);
    return tensor_part(params->chunks[b->chunk].grads, begin, b->shard_count);
}

Tensor bucket_whole_grads(const Params *params, const Bucket *b) {
    CHECK(!b->grads_cut, "a bucket of chunk %d keeps a shard of its gradients", b->chunk);
    return tensor_part(params->chunks[b->chunk].grads, b->grads_begin, b->count);
}

Tensor bucket_values(const Params *params, const Bucket *b) {
    return tensor_part(params->chunks[b->chunk].values, b->kept_begin, b->shard_count);
}

bool bucket_holds(const Bucket *b, const Params *params, int unit) {
    for (int i = params->units[unit].first; i < params->units[unit].end; i++) {
        const Param *p = params->items[i]->tied_value ? params->items[i]->tied_value : params->items[i];
        if (p->chunk == b->chunk && p->offset < b->begin + b->count &&
            p->offset + param_local_count(p) > b->begin)
            return true;
    }
    return false;
}

static int replicas_of(const Context *c, Reduction r) {
    return context_ranks(c, placement_reductions[r].replicas);
}

static int64_t bucket_size(const Context *c, Reduction r, int64_t elements) {
    int64_t unit = (int64_t)PARAM_ALIGNMENT * replicas_of(c, r);
    return elements < unit ? unit : elements / unit * unit;
}

static int64_t num_buckets(const Context *c, const Params *params, int64_t elements) {
    int64_t n = 0;
    bool apart = params_units_apart(params);
    for (int chunk = 0; chunk < params->num_chunks && apart; chunk++) n += params->chunks[chunk].num_spans;
    for (int chunk = 0; chunk < params->num_chunks && !apart; chunk++)
        for (Reduction r = 0; r < NUM_REDUCTIONS; r++) {
            const int64_t *region = params->chunks[chunk].region, size = bucket_size(c, r, elements);
            n += (region[r + 1] - region[r] + size - 1) / size;
        }
    return n;
}

static void add_bucket(Buckets *buckets, const Context *c, const Params *params, Bucket b) {
    Role role = placement_reductions[b.reduction].replicas;
    b.group = context_group(c, role);
    b.replicas = context_ranks(c, role);
    b.replica = context_rank(c, role);
    b.deferred = placement_reductions[b.reduction].first != NO_ROLE;
    b.sharded = params->sharding >= SHARD_OPTIMIZER && b.replicas > 1;
    b.shard_count = b.sharded ? b.count / b.replicas : b.count;
    b.shard_begin = b.begin + (b.sharded ? b.shard_count * b.replica : 0);
    if (!params_keep_shards(params)) b.kept_begin = b.shard_begin;
    for (int unit = 0; unit < params->num_units; unit++) b.num_units += bucket_holds(&b, params, unit);
    buckets->items[buckets->count + buckets->num_frozen] = b;
    buckets->count += !b.frozen, buckets->num_frozen += b.frozen;
}

static void cut_region(Buckets *buckets, const Context *c, const Params *params, int chunk, Reduction r,
                       int64_t elements) {
    const int64_t *region = params->chunks[chunk].region;
    int64_t size = bucket_size(c, r, elements), begin;
    for (int64_t end = region[r + 1]; end > region[r]; end = begin) {
        begin = end - size > region[r] ? end - size : region[r];
        add_bucket(
            buckets, c, params,
            (Bucket){
                .chunk = chunk, .reduction = r, .begin = begin, .count = end - begin, .grads_begin = begin});
    }
}

static void cut_spans(Buckets *buckets, const Context *c, const Params *params, int chunk, bool frozen) {
    const ChunkParams *of = &params->chunks[chunk];
    for (int i = of->num_spans; i-- > 0;) {
        const ParamSpan *s = &of->spans[i];
        Bucket b = {.chunk = chunk,
                    .reduction = (Reduction)(s->region % NUM_REDUCTIONS),
                    .frozen = s->region >= NUM_REDUCTIONS,
                    .begin = s->begin,
                    .count = s->count,
                    .kept_begin = s->kept,
                    .grads_begin = s->grads,
                    .grads_cut = s->grads_cut};
        if (b.frozen == frozen) add_bucket(buckets, c, params, b);
    }
}

Status buckets_create(Buckets *buckets, const Context *context, const Params *params, int64_t elements) {
    *buckets = (Buckets){0};
    for (Reduction r = 0; r < NUM_REDUCTIONS; r++)
        buckets->sharded |= params->sharding >= SHARD_OPTIMIZER && replicas_of(context, r) > 1;
    int64_t n = num_buckets(context, params, elements);
    CHECK(n <= INT32_MAX, "%lld buckets", (long long)n);
    buckets->items = calloc((size_t)n + 1, sizeof *buckets->items);
    if (!buckets->items) return fail(ERR_OS, "no memory for %lld buckets", (long long)n);
    bool apart = params_units_apart(params);
    for (int chunk = 0; chunk < params->num_chunks; chunk++)
        for (Reduction r = NUM_REDUCTIONS; r-- > 0 && !apart;)
            cut_region(buckets, context, params, chunk, r, elements);
    for (int frozen = 0; frozen < 1 + (params->sharding == SHARD_VALUES) && apart; frozen++)
        for (int chunk = 0; chunk < params->num_chunks; chunk++)
            cut_spans(buckets, context, params, chunk, frozen);
    return OK;
}

void buckets_destroy(Buckets *buckets) {
    free(buckets->items);
    *buckets = (Buckets){0};
}
