// Owns the optimizer's state: computes the global gradient norm and steps the shards of this rank, with AdamW or, of
// hidden matrices, with Muon.
#include "base/half.h"
#include "layout/topology.h"
#include "parallel/muon.h"
#include <math.h>
#include <stdlib.h>

// ---- what this rank owns ------------------------------------------------------------------------

// The part of a parameter that lies in a bucket's shard, by positions in the shard.
static OpSegment owned_piece(const Bucket *b, const Param *p) {
    if (p->chunk != b->chunk || p->tied_value) return (OpSegment){.count = 0};
    int64_t begin = p->offset - b->shard_begin, end = begin + param_local_count(p);
    if (begin < 0) begin = 0;
    if (end > b->shard_count) end = b->shard_count;
    return (OpSegment){.begin = begin, .count = end > begin ? end - begin : 0, .decays = p->spec.decay};
}

// True when this rank adds its piece of a parameter to the norm: of the owners that hold the same piece, one does.
static bool counts_here(const Optimizer *o, const Bucket *b, const Param *p) {
    bool first_replica = !o->all_own || (b->copy == 0 && (b->sharded || b->replica == 0));
    return !p->spec.tied_to && p->place.first && first_replica;
}

// Lists the pieces of a shard, or only counts them.
static int list_pieces(const Optimizer *o, const Bucket *b, OpSegment *pieces, const Param **params) {
    int count = 0;
    for (int i = 0; i < o->params->count; i++) {
        const Param *p = o->params->items[i];
        OpSegment piece = owned_piece(b, p);
        if (!piece.count) continue;
        piece.row = counts_here(o, b, p) ? i : -1;
        if (pieces) pieces[count] = piece, params[count] = p;
        count++;
    }
    return count;
}

static Status open_pieces(const Optimizer *o, const Bucket *b, ShardState *shard) {
    size_t count = (size_t)list_pieces(o, b, NULL, NULL);
    shard->pieces = calloc(count + 1, sizeof *shard->pieces);
    shard->params = calloc(count + 1, sizeof *shard->params);
    if (!shard->pieces || !shard->params)
        return fail(ERR_OS, "no memory for the optimizer's %zu pieces of parameters", count);
    shard->num_pieces = list_pieces(o, b, shard->pieces, shard->params);
    return OK;
}

static Tensor piece_of(Tensor shard, OpSegment piece) {
    return shard.data ? tensor_part(shard, piece.begin, piece.count) : shard;
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
    Tensor values = bucket_values(o->params, b);
    ShardState *shard = &o->shards[i];
    if (values.dtype == F32)
        shard->main = values;
    else if (values.dtype == BF16)
        shard->main = take_zeros(c, arena, "fp32 parameters beyond bf16", b->shard_count, U16);
    else
        shard->main = take_zeros(c, arena, "fp32 parameters", b->shard_count, F32);
    bool muon = is_stepped_whole(b);
    shard->m = take_zeros(c, arena, muon ? "Muon's momentum" : "AdamW first moment", b->shard_count, F32);
    if (!muon) shard->v = take_zeros(c, arena, "AdamW second moment", b->shard_count, F32);
    if (o->options.ema_decay > 0)
        shard->ema = take_zeros(c, arena, "average of parameters", b->shard_count, F32);
}

Status optimizer_create(Optimizer *o, Context *context, Comm *world, const Params *params,
                        const Buckets *buckets, Arena *arena, OptimizerOptions options) {
    *o = (Optimizer){.context = context, .params = params, .buckets = buckets, .options = options};
    CHECK(comm_size(world) == grid_size(context->groups.topology.grid), "a world of %d ranks",
          comm_size(world));
    o->all_own =
        buckets->sharded || !grid_same(context->groups.topology.grid, ROLE_REPLICAS, ROLE_EXPERT_REPLICAS);
    o->owners = o->all_own ? world : context_group(context, ROLE_MODEL);
    o->shards = calloc((size_t)buckets->count + 1, sizeof *o->shards);
    o->host = calloc((size_t)params->count * 3 + 1, sizeof *o->host);
    if (!o->shards || !o->host)
        return fail(ERR_OS, "no memory for the optimizer's %d buckets", buckets->count);
    for (int i = 0; i < buckets->count; i++) {
        take_shard(o, arena, i);
        TRY(open_pieces(o, &buckets->items[i], &o->shards[i]));
    }
    o->max = tensor_take(arena, "largest gradient", 1, 1, F32);
    o->sums = tensor_take(arena, "sums of squares of gradients", params->count, 3, F64);
    CHECK(params->matrices_apart == (options.muon.iterations > 0), "parameters that were placed for AdamW");
    return params->matrices_apart ? muon_create(o, arena) : OK;
}

void optimizer_destroy(Optimizer *o) {
    if (o->shards) device_sync(o->context->device, o->context->stream); // queued operations read the segments
    for (int i = 0; o->shards && i < o->buckets->count; i++) {
        free(o->shards[i].pieces);
        free(o->shards[i].params);
    }
    muon_destroy(o);
    free(o->shards);
    free(o->host);
    *o = (Optimizer){0};
}

static OwnedPart owned_part(const Optimizer *o, int bucket, int piece) {
    const Bucket *b = &o->buckets->items[bucket];
    const ShardState *shard = &o->shards[bucket];
    const Param *p = shard->params[piece];
    OpSegment at = shard->pieces[piece];
    return (OwnedPart){.param = p,
                       .begin = at.begin + b->shard_begin - p->offset,
                       .count = at.count,
                       .value = piece_of(bucket_values(o->params, b), at),
                       .main = piece_of(shard->main, at),
                       .m = piece_of(shard->m, at),
                       .v = piece_of(shard->v, at),
                       .ema = piece_of(shard->ema, at),
                       .copies = b->copies * (b->sharded ? 1 : b->replicas),
                       .copy = b->sharded ? b->copy : b->copy * b->replicas + b->replica};
}

Status optimizer_visit(const Optimizer *o, VisitPart *visit, void *self) {
    for (int i = 0; i < o->buckets->count; i++)
        for (int k = 0; k < o->shards[i].num_pieces; k++) {
            OwnedPart part = owned_part(o, i, k);
            TRY(visit(self, &part));
        }
    return OK;
}

// A bf16 run keeps the remainders alone: params_fill rounds the values as bf16_split does.
static void write_remainders(const Context *c, Tensor main, const float *from) {
    enum { MAX_BLOCK = 1 << 21 }; // elements: 4 MiB
    int64_t all = tensor_count(main), block = all < MAX_BLOCK ? all : MAX_BLOCK;
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
        OpSegment piece = owned_piece(b, p);
        if (!piece.count) continue;
        const float *from = local + (piece.begin + b->shard_begin - p->offset);
        Tensor main = piece_of(o->shards[i].main, piece);
        if (main.dtype == U16)
            write_remainders(c, main, from);
        else
            device_upload(c->device, c->stream, main, from);
        if (o->shards[i].ema.data)
            device_upload(c->device, c->stream, piece_of(o->shards[i].ema, piece), from);
    }
}

// ---- norm ---------------------------------------------------------------------------------------

// Replicas, tied copies and the zeros between parameters cannot change a maximum: whole shards will do.
double optimizer_largest(Optimizer *o, Reduction reduction) {
    const Context *c = o->context;
    device_zero(c->device, c->stream, o->max);
    for (int i = 0; i < o->buckets->count; i++) {
        const Bucket *b = &o->buckets->items[i];
        if (reduction != NUM_REDUCTIONS && b->reduction != reduction) continue;
        abs_max(c->device, c->stream, (AbsMax){.x = bucket_grads(o->params, b), .max = o->max});
    }
    float largest;
    device_download(c->device, c->stream, &largest, o->max);
    double max = (double)largest;
    comm_all_reduce_host(o->owners, &max, 1, REDUCE_MAX);
    return max;
}

static void add_squares(Optimizer *o, int index, int exponent) {
    const Context *c = o->context;
    const Bucket *b = &o->buckets->items[index];
    const ShardState *shard = &o->shards[index];
    if (!shard->num_pieces) return;
    sum_squares(c->device, c->stream,
                (SumSquares){.x = bucket_grads(o->params, b),
                             .sum = o->sums,
                             .exponent = exponent,
                             .num_segments = shard->num_pieces,
                             .segments = shard->pieces});
}

double optimizer_grad_norm(Optimizer *o, double loss_scale) {
    const Context *c = o->context;
    rank_doing("gradient norm");
    double max = optimizer_largest(o, NUM_REDUCTIONS);
    if (!isfinite(max)) return INFINITY;
    int exponent;
    frexp(max, &exponent);
    device_zero(c->device, c->stream, o->sums);
    for (int i = 0; i < o->buckets->count; i++) add_squares(o, i, exponent);
    device_download(c->device, c->stream, o->host, o->sums);
    comm_all_reduce_host(o->owners, o->host, o->params->count * 3, REDUCE_SUM);
    // Parameter by parameter in the model's order; so far everything was exact.
    double total = 0;
    for (int i = 0; i < o->params->count * 3; i += 3) total += o->host[i] + o->host[i + 1] + o->host[i + 2];
    return ldexp(sqrt(total), exponent) / loss_scale;
}

// ---- step ---------------------------------------------------------------------------------------

// All members of `args` but the tensors and the segments are set.
static void step_bucket(Optimizer *o, int index, AdamW args) {
    const Context *c = o->context;
    const Bucket *b = &o->buckets->items[index];
    const ChunkParams *chunk = &o->params->chunks[b->chunk];
    const ShardState *shard = &o->shards[index];
    if (!shard->num_pieces || is_stepped_whole(b)) return;
    args.gradient = bucket_grads(o->params, b);
    args.parameter = shard->main;
    args.m = shard->m;
    args.v = shard->v;
    args.value = chunk->values.dtype == F32 ? (Tensor){0} : bucket_values(o->params, b);
    args.num_segments = shard->num_pieces;
    args.segments = shard->pieces;
    adamw(c->device, c->stream, args);
}

static void average_bucket(const Optimizer *o, int index) {
    const Context *c = o->context;
    const Bucket *b = &o->buckets->items[index];
    const ShardState *shard = &o->shards[index];
    blend(c->device, c->stream,
          (Blend){.x = shard->main,
                  .x_value = shard->main.dtype == U16 ? bucket_values(o->params, b) : (Tensor){0},
                  .y = shard->ema,
                  .keep = 1,
                  .factor = 1 - o->options.ema_decay,
                  .own = -1});
}

void optimizer_step(Optimizer *o, double grad_norm, double loss_scale, double lr, double weight_decay) {
    const AdamOptions *a = &o->options.adam;
    rank_doing("optimizer step");
    o->steps++;
    double coefficient = a->clip > 0 ? a->clip / (grad_norm + 1e-6) : 1;
    AdamW args = {
        .lr = lr, .beta1 = a->beta1, .beta2 = a->beta2, .epsilon = a->epsilon, .weight_decay = weight_decay};
    args.correction1 = 1 - pow(a->beta1, (double)o->steps);
    args.correction2 = 1 - pow(a->beta2, (double)o->steps);
    args.grad_scale = (coefficient < 1 ? coefficient : 1) / loss_scale;
    for (int i = 0; i < o->buckets->count; i++) step_bucket(o, i, args);
    if (o->muon) muon_step(o, args.grad_scale, lr, weight_decay);
    for (int i = 0; i < o->buckets->count && o->options.ema_decay > 0; i++) average_bucket(o, i);
}
