#include "parallel/parallel.h"
#include <stdlib.h>

// A chunk's three regions, [border[i], border[i + 1]) each.
enum { NUM_BORDERS = 4 };

static void find_borders(const ChunkParams *chunk, int64_t border[NUM_BORDERS]) {
    border[0] = 0;
    border[1] = chunk->partial;
    border[2] = chunk->tied;
    border[3] = chunk->count;
}

static int64_t bucket_size(const Context *c, int64_t elements) {
    int64_t unit = (int64_t)PARAM_ALIGNMENT * context_ranks(c, ROLE_REPLICAS);
    return elements < unit ? unit : elements / unit * unit;
}

static int64_t num_buckets(const Params *params, int64_t size) {
    int64_t border[NUM_BORDERS], n = 0;
    for (int chunk = 0; chunk < params->num_chunks; chunk++) {
        find_borders(&params->chunks[chunk], border);
        for (int i = 0; i + 1 < NUM_BORDERS; i++) n += (border[i + 1] - border[i] + size - 1) / size;
    }
    return n;
}

static Bucket make_bucket(const Buckets *buckets, const Context *c, int chunk, int64_t begin, int64_t end) {
    Bucket b = {.chunk = chunk, .begin = begin, .count = end - begin};
    b.shard_count = buckets->sharded ? b.count / context_ranks(c, ROLE_REPLICAS) : b.count;
    b.shard_begin = begin + (buckets->sharded ? b.shard_count * context_rank(c, ROLE_REPLICAS) : 0);
    return b;
}

static void cut_chunk(Buckets *buckets, const Context *c, const Params *params, int chunk, int64_t size) {
    int64_t border[NUM_BORDERS];
    find_borders(&params->chunks[chunk], border);
    for (int i = NUM_BORDERS - 2; i >= 0; i--) {
        for (int64_t end = border[i + 1], begin; end > border[i]; end = begin) {
            begin = end - size > border[i] ? end - size : border[i];
            Bucket *b = &buckets->items[buckets->count++];
            *b = make_bucket(buckets, c, chunk, begin, end);
            b->late = i > 0;
        }
    }
}

Status buckets_create(Buckets *buckets, const Context *context, const Params *params, int64_t elements,
                      bool sharded) {
    *buckets = (Buckets){.sharded = sharded && context_ranks(context, ROLE_REPLICAS) > 1};
    int64_t size = bucket_size(context, elements), n = num_buckets(params, size);
    CHECK(n <= INT32_MAX, "%lld buckets", (long long)n);
    buckets->items = calloc((size_t)n + 1, sizeof *buckets->items);
    if (!buckets->items) return fail(ERR_OS, "no memory for %lld buckets", (long long)n);
    for (int chunk = 0; chunk < params->num_chunks; chunk++) cut_chunk(buckets, context, params, chunk, size);
    return OK;
}

void buckets_destroy(Buckets *buckets) {
    free(buckets->items);
    *buckets = (Buckets){0};
}
