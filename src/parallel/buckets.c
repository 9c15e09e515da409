// Cuts the regions of a rank's chunks into buckets, and buckets into shards.
#include "parallel/parallel.h"
#include <stdlib.h>

Tensor bucket_shard(Tensor flat, const Bucket *b) {
    return tensor_part(flat, b->shard_begin, b->shard_count);
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
    for (int chunk = 0; chunk < params->num_chunks; chunk++)
        for (Reduction r = 0; r < NUM_REDUCTIONS; r++) {
            const int64_t *region = params->chunks[chunk].region, size = bucket_size(c, r, elements);
            n += (region[r + 1] - region[r] + size - 1) / size;
        }
    return n;
}

static Bucket make_bucket(const Context *c, int chunk, Reduction r, int64_t begin, int64_t end,
                          bool sharded) {
    Role role = placement_reductions[r].replicas;
    Bucket b = {.chunk = chunk,
                .reduction = r,
                .group = context_group(c, role),
                .replicas = context_ranks(c, role),
                .replica = context_rank(c, role),
                .begin = begin,
                .count = end - begin,
                .deferred = placement_reductions[r].first != NO_ROLE};
    b.sharded = sharded && b.replicas > 1;
    b.shard_count = b.sharded ? b.count / b.replicas : b.count;
    b.shard_begin = begin + (b.sharded ? b.shard_count * b.replica : 0);
    return b;
}

static void cut_region(Buckets *buckets, const Context *c, const Params *params, int chunk, Reduction r,
                       int64_t elements, bool sharded) {
    const int64_t *region = params->chunks[chunk].region;
    int64_t size = bucket_size(c, r, elements), begin;
    for (int64_t end = region[r + 1]; end > region[r]; end = begin) {
        begin = end - size > region[r] ? end - size : region[r];
        Bucket *b = &buckets->items[buckets->count++];
        *b = make_bucket(c, chunk, r, begin, end, sharded);
        for (int unit = 0; unit < params->num_units; unit++) b->num_units += bucket_holds(b, params, unit);
    }
}

Status buckets_create(Buckets *buckets, const Context *context, const Params *params, int64_t elements,
                      bool sharded) {
    *buckets = (Buckets){0};
    for (Reduction r = 0; r < NUM_REDUCTIONS; r++) buckets->sharded |= sharded && replicas_of(context, r) > 1;
    int64_t n = num_buckets(context, params, elements);
    CHECK(n <= INT32_MAX, "%lld buckets", (long long)n);
    buckets->items = calloc((size_t)n + 1, sizeof *buckets->items);
    if (!buckets->items) return fail(ERR_OS, "no memory for %lld buckets", (long long)n);
    for (int chunk = 0; chunk < params->num_chunks; chunk++)
        for (Reduction r = NUM_REDUCTIONS; r-- > 0;)
            cut_region(buckets, context, params, chunk, r, elements, sharded);
    return OK;
}

void buckets_destroy(Buckets *buckets) {
    free(buckets->items);
    *buckets = (Buckets){0};
}
