// Owns the optimizer's state: computes the global gradient norm and steps the shards of this rank with AdamW.
#include "base/half.h"
#include "layout/topology.h"
#include "parallel/parallel.h"
#include <math.h>
#include <stdlib.h>

// ---- what this rank owns ------------------------------------------------------------------------

// The part of a parameter that lies in this rank's shard of a bucket, by offsets in the chunk's buffers.
typedef struct {
    int64_t begin, count; // count <= 0: none
} Piece;

static Piece owned_piece(const Bucket *b, const Param *p) {
    if (p->chunk != b->chunk || p->tied_value) return (Piece){0};
    int64_t begin = p->offset, end = begin + param_local_count(p);
    int64_t shard_end = b->shard_begin + b->shard_count;
    if (begin < b->shard_begin) begin = b->shard_begin;
    if (end > shard_end) end = shard_end;
    return (Piece){begin, end - begin};
}

static Tensor flat_part(Tensor flat, Piece piece) { return tensor_part(flat, piece.begin, piece.count); }

static Tensor shard_part(Tensor state, const Bucket *b, Piece piece) {
    return tensor_part(state, piece.begin - b->shard_begin, piece.count);
}

// ---- life ---------------------------------------------------------------------------------------

static Tensor take_zeros(const Context *c, Arena *arena, const char *name, int64_t count, DType dtype) {
    Tensor x = tensor_take(arena, name, 1, count, dtype);
    device_zero(c->device, c->stream, x);
    return x;
}

static void take_shard(Optimizer *o, Arena *arena, int i) {
    const Context *c = o->context;
    const Bucket *b = &o->buckets->items[i];
    Tensor values = o->params->chunks[b->chunk].values;
    ShardState *shard = &o->shards[i];
    if (values.dtype == F32)
        shard->main = tensor_part(values, b->shard_begin, b->shard_count);
    else if (values.dtype == BF16)
        shard->main = take_zeros(c, arena, "fp32 parameters beyond bf16", b->shard_count, U16);
    else
        shard->main = take_zeros(c, arena, "fp32 parameters", b->shard_count, F32);
    shard->m = take_zeros(c, arena, "AdamW first moment", b->shard_count, F32);
    shard->v = take_zeros(c, arena, "AdamW second moment", b->shard_count, F32);
}

Status optimizer_create(Optimizer *o, Context *context, Comm *world, const Params *params,
                        const Buckets *buckets, Arena *arena, AdamOptions options) {
    *o = (Optimizer){.context = context, .params = params, .buckets = buckets, .options = options};
    CHECK(comm_size(world) == grid_size(context->groups.topology.grid), "a world of %d ranks",
          comm_size(world));
    o->owners = buckets->sharded ? world : context_group(context, ROLE_MODEL);
    o->shards = calloc((size_t)buckets->count + 1, sizeof *o->shards);
    o->host = calloc((size_t)params->count * 3 + 1, sizeof *o->host);
    if (!o->shards || !o->host)
        return fail(ERR_OS, "no memory for the optimizer's %d buckets", buckets->count);
    for (int i = 0; i < buckets->count; i++) take_shard(o, arena, i);
    o->max = tensor_take(arena, "largest gradient", 1, 1, F32);
    o->sums = tensor_take(arena, "sums of squares of gradients", 1, (int64_t)params->count * 3, F64);
    return OK;
}

void optimizer_destroy(Optimizer *o) {
    free(o->shards);
    free(o->host);
    *o = (Optimizer){0};
}

Status optimizer_visit(const Optimizer *o, VisitPart *visit, void *self) {
    for (int i = 0; i < o->buckets->count; i++)
        for (int k = 0; k < o->params->count; k++) {
            const Bucket *b = &o->buckets->items[i];
            const Param *p = o->params->items[k];
            Piece piece = owned_piece(b, p);
            if (piece.count <= 0) continue;
            OwnedPart part = {.param = p,
                              .begin = piece.begin - p->offset,
                              .count = piece.count,
                              .value = flat_part(o->params->chunks[b->chunk].values, piece),
                              .main = shard_part(o->shards[i].main, b, piece),
                              .m = shard_part(o->shards[i].m, b, piece),
                              .v = shard_part(o->shards[i].v, b, piece),
                              .copies = b->sharded ? 1 : b->replicas,
                              .copy = b->sharded ? 0 : b->replica};
            TRY(visit(self, &part));
        }
    return OK;
}

// A bf16 run keeps the remainders alone: params_fill rounds the values as bf16_split does.
static void write_remainders(const Context *c, Tensor main, const float *from) {
    enum { MOST = 1 << 21 }; // 4 MiB
    int64_t all = tensor_count(main), block = all < MOST ? all : MOST;
    int threads = block < 1 << 14 ? 1 : device_threads(c->device);
    uint16_t *remainders = malloc((size_t)block * sizeof *remainders);
    CHECK(remainders, "no memory for %lld remainders of parameters", (long long)block);
    for (int64_t first = 0, count; first < all; first += count) {
        count = all - first < block ? all - first : block;
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < count; i++) (void)bf16_split(from[first + i], &remainders[i]);
        device_upload(c->device, c->stream, tensor_part(main, first, count), remainders);
    }
    free(remainders);
}

void optimizer_write_master(void *optimizer, const Param *p, const float *local) {
    const Optimizer *o = optimizer;
    const Context *c = o->context;
    for (int i = 0; i < o->buckets->count; i++) {
        const Bucket *b = &o->buckets->items[i];
        Piece piece = owned_piece(b, p);
        if (piece.count <= 0) continue;
        const float *from = local + (piece.begin - p->offset);
        Tensor main = shard_part(o->shards[i].main, b, piece);
        if (main.dtype == U16)
            write_remainders(c, main, from);
        else
            device_upload(c->device, c->stream, main, from);
    }
}

// ---- norm ---------------------------------------------------------------------------------------

// True when this rank adds its piece of a parameter to the norm: of the owners that hold the same piece, one does.
static bool counts_here(const Optimizer *o, const Bucket *b, const Param *p) {
    bool first_replica = b->sharded || !o->buckets->sharded || b->replica == 0;
    return !p->spec.tied_to && p->place.first && first_replica;
}

// Replicas, tied copies and the zeros between parameters cannot change a maximum: whole shards will do.
static double largest_gradient(Optimizer *o) {
    const Context *c = o->context;
    device_zero(c->device, c->stream, o->max);
    for (int i = 0; i < o->buckets->count; i++) {
        const Bucket *b = &o->buckets->items[i];
        Tensor grads = o->params->chunks[b->chunk].grads;
        abs_max(c->device, c->stream,
                (AbsMax){.x = tensor_part(grads, b->shard_begin, b->shard_count), .max = o->max});
    }
    float largest;
    device_download(c->device, c->stream, &largest, o->max);
    double max = (double)largest;
    comm_all_reduce_host(o->owners, &max, 1, REDUCE_MAX);
    return max;
}

static void add_squares(Optimizer *o, const Bucket *b, int exponent) {
    const Context *c = o->context;
    for (int i = 0; i < o->params->count; i++) {
        const Param *p = o->params->items[i];
        Piece piece = owned_piece(b, p);
        if (piece.count <= 0 || !counts_here(o, b, p)) continue;
        sum_squares(c->device, c->stream,
                    (SumSquares){.x = flat_part(o->params->chunks[b->chunk].grads, piece),
                                 .sum = tensor_part(o->sums, (int64_t)i * 3, 3),
                                 .exponent = exponent});
    }
}

double optimizer_grad_norm(Optimizer *o, double loss_scale) {
    const Context *c = o->context;
    rank_doing("gradient norm");
    double max = largest_gradient(o);
    if (!isfinite(max)) return INFINITY;
    int exponent;
    frexp(max, &exponent);
    device_zero(c->device, c->stream, o->sums);
    for (int i = 0; i < o->buckets->count; i++) add_squares(o, &o->buckets->items[i], exponent);
    device_download(c->device, c->stream, o->host, o->sums);
    comm_all_reduce_host(o->owners, o->host, o->params->count * 3, REDUCE_SUM);
    // Parameter by parameter in the model's order; so far everything was exact.
    double total = 0;
    for (int i = 0; i < o->params->count * 3; i += 3) total += o->host[i] + o->host[i + 1] + o->host[i + 2];
    return ldexp(sqrt(total), exponent) / loss_scale;
}

// ---- step ---------------------------------------------------------------------------------------

// All of `args` but the tensors and the weight decay is set.
static void step_bucket(Optimizer *o, int index, AdamW args, double weight_decay) {
    const Context *c = o->context;
    const Bucket *b = &o->buckets->items[index];
    const ChunkParams *chunk = &o->params->chunks[b->chunk];
    const ShardState *shard = &o->shards[index];
    for (int i = 0; i < o->params->count; i++) {
        const Param *p = o->params->items[i];
        Piece piece = owned_piece(b, p);
        if (piece.count <= 0) continue;
        args.gradient = flat_part(chunk->grads, piece);
        args.parameter = shard_part(shard->main, b, piece);
        args.m = shard_part(shard->m, b, piece);
        args.v = shard_part(shard->v, b, piece);
        args.value = chunk->values.dtype == F32 ? (Tensor){0} : flat_part(chunk->values, piece);
        args.weight_decay = p->spec.decay ? weight_decay : 0;
        adamw(c->device, c->stream, args);
    }
}

void optimizer_step(Optimizer *o, double grad_norm, double loss_scale, double lr, double weight_decay) {
    const AdamOptions *a = &o->options;
    rank_doing("optimizer step");
    o->steps++;
    double coefficient = a->clip > 0 ? a->clip / (grad_norm + 1e-6) : 1;
    AdamW args = {.lr = lr, .beta1 = a->beta1, .beta2 = a->beta2, .epsilon = a->epsilon};
    args.correction1 = 1 - pow(a->beta1, (double)o->steps);
    args.correction2 = 1 - pow(a->beta2, (double)o->steps);
    args.grad_scale = (coefficient < 1 ? coefficient : 1) / loss_scale;
    for (int i = 0; i < o->buckets->count; i++) step_bucket(o, i, args, weight_decay);
}
