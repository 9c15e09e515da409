// Owns the optimizer's state: computes the global gradient norm and steps the shards of this rank, with AdamW or, of
// hidden matrices, with Muon.
#include "base/half.h"
#include "layout/topology.h"
#include "parallel/muon.h"
#include "parallel/offload.h"
#include <math.h>
#include <stdlib.h>

// ---- what this rank owns ------------------------------------------------------------------------

// The part of a parameter that lies in a part of a bucket's shard, by positions there.
static OpSegment owned_piece(const Bucket *b, const ShardState *state, const Param *p) {
    if (p->chunk != b->chunk || p->tied_value) return (OpSegment){.count = 0};
    int64_t begin = p->offset - b->shard_begin - state->begin, end = begin + param_local_count(p);
    if (begin < 0) begin = 0;
    if (end > state->count) end = state->count;
    return (OpSegment){.begin = begin, .count = end > begin ? end - begin : 0, .decays = p->spec.decay};
}

// True when this rank adds its piece of a parameter to the norm: of the owners that hold the same piece, one does.
static bool counts_here(const Optimizer *o, const Bucket *b, const Param *p) {
    bool first_replica = !o->all_own || (b->copy == 0 && (b->sharded || b->replica == 0));
    return !p->spec.tied_to && p->place.first && first_replica;
}

// Lists the pieces of a part of a shard, or only counts them.
static int list_pieces(const Optimizer *o, const Bucket *b, const ShardState *state, OpSegment *pieces,
                       const Param **params) {
    int count = 0;
    for (int i = 0; i < o->params->count; i++) {
        const Param *p = o->params->items[i];
        OpSegment piece = owned_piece(b, state, p);
        if (!piece.count) continue;
        piece.row = counts_here(o, b, p) ? i : -1;
        if (pieces) pieces[count] = piece, params[count] = p;
        count++;
    }
    return count;
}

static Status open_pieces(const Optimizer *o, const Bucket *b, ShardState *state) {
    size_t count = (size_t)list_pieces(o, b, state, NULL, NULL);
    state->pieces = calloc(count + 1, sizeof *state->pieces);
    state->params = calloc(count + 1, sizeof *state->params);
    if (!state->pieces || !state->params)
        return fail(ERR_OS, "no memory for the optimizer's %zu pieces of parameters", count);
    state->num_pieces = list_pieces(o, b, state, state->pieces, state->params);
    return OK;
}

static Tensor piece_of(Tensor shard, OpSegment piece) {
    return shard.data ? tensor_part(shard, piece.begin, piece.count) : shard;
}

// ---- life ---------------------------------------------------------------------------------------

// The device of a part of the state, and its memory there.
typedef struct {
    Device *device;
    Stream *stream;
    Arena *arena;
} Home;

static Home home_of(const Optimizer *o, bool on_host, Arena *arena) {
    const OffloadOptions *offload = &o->options.offload;
    if (on_host) return (Home){offload->device, device_stream(offload->device), offload->arena};
    return (Home){o->context->device, o->context->stream, arena};
}

static Tensor take_zeros(Home home, const char *name, int64_t count, DType dtype) {
    Tensor x = tensor_take(home.arena, name, 1, count, dtype);
    device_zero(home.device, home.stream, x);
    return x;
}

static void take_state(const Optimizer *o, Home home, const Bucket *b, bool on_host, ShardState *state) {
    int64_t count = state->count;
    bool muon = is_stepped_whole(b);
    state->value = tensor_part(bucket_values(o->params, b), state->begin, count);
    DType dtype = state->value.dtype;
    if (on_host) state->value = take_zeros(home, "copies of parameters", count, dtype);
    if (dtype == F32)
        state->main = state->value;
    else if (dtype == BF16)
        state->main = take_zeros(home, "fp32 parameters beyond bf16", count, U16);
    else
        state->main = take_zeros(home, "fp32 parameters", count, F32);
    state->m = take_zeros(home, muon ? "Muon's momentum" : "AdamW first moment", count, F32);
    if (!muon) state->v = take_zeros(home, "AdamW second moment", count, F32);
    if (o->options.ema_decay > 0) state->ema = take_zeros(home, "average of parameters", count, F32);
}

// The elements of a shard whose state is on the host.
static int64_t offloaded_elements(const Optimizer *o, const Bucket *b) {
    double fraction = o->options.offload.fraction;
    if (fraction >= 1) return b->shard_count;
    int64_t count = (int64_t)(fraction * (double)b->shard_count);
    return count / PARAM_ALIGNMENT * PARAM_ALIGNMENT;
}

static Status open_states(Optimizer *o, Arena *arena) {
    for (int i = 0; i < o->buckets->count; i++) {
        const Bucket *b = &o->buckets->items[i];
        ShardState *host = &o->offloaded[i], *device = &o->shards[i];
        host->count = device->begin = offloaded_elements(o, b);
        device->count = b->shard_count - device->begin;
        if (host->count) take_state(o, home_of(o, true, arena), b, true, host);
        if (device->count) take_state(o, home_of(o, false, arena), b, false, device);
        TRY(open_pieces(o, b, host));
        TRY(open_pieces(o, b, device));
    }
    return OK;
}

Status optimizer_create(Optimizer *o, Context *context, Comm *world, const Params *params,
                        const Buckets *buckets, Arena *arena, OptimizerOptions options) {
    *o = (Optimizer){.context = context, .params = params, .buckets = buckets, .options = options};
    CHECK(comm_size(world) == grid_size(context->groups.topology.grid), "a world of %d ranks",
          comm_size(world));
    o->all_own =
        buckets->sharded || !grid_same(context->groups.topology.grid, ROLE_REPLICAS, ROLE_EXPERT_REPLICAS);
    o->owners = o->all_own ? world : context_group(context, ROLE_MODEL);
    o->offloaded = calloc((size_t)buckets->count + 1, sizeof *o->offloaded);
    o->shards = calloc((size_t)buckets->count + 1, sizeof *o->shards);
    o->sums_on_host = calloc((size_t)params->count * 3 + 1, sizeof *o->sums_on_host);
    if (!o->offloaded || !o->shards || !o->sums_on_host)
        return fail(ERR_OS, "no memory for the optimizer's %d buckets", buckets->count);
    TRY(open_states(o, arena));
    o->max = tensor_take(arena, "largest gradient", 1, 1, F32);
    o->sums = tensor_take(arena, "sums of squares of gradients", params->count, 3, F64);
    CHECK(params->matrices_apart == (options.muon.iterations > 0), "parameters that were placed for AdamW");
    CHECK(!params->matrices_apart || !(options.offload.fraction > 0), "Muon's state on the host");
    if (options.offload.fraction > 0) TRY(offload_create(o));
    return params->matrices_apart ? muon_create(o, arena) : OK;
}

static void close_states(ShardState *states, int count) {
    for (int i = 0; states && i < count; i++) {
        free(states[i].pieces);
        free(states[i].params);
    }
    free(states);
}

void optimizer_destroy(Optimizer *o) {
    // Queued operations read the segments, and copies the host's memory.
    if (o->shards) device_sync(o->context->device, o->context->stream);
    muon_destroy(o);
    offload_destroy(o);
    if (o->buckets) close_states(o->offloaded, o->buckets->count);
    if (o->buckets) close_states(o->shards, o->buckets->count);
    free(o->sums_on_host);
    *o = (Optimizer){0};
}

static OwnedPart owned_part(const Optimizer *o, int bucket, bool on_host, int piece) {
    const Bucket *b = &o->buckets->items[bucket];
    const ShardState *state = &(on_host ? o->offloaded : o->shards)[bucket];
    const Param *p = state->params[piece];
    OpSegment at = state->pieces[piece];
    Home home = home_of(o, on_host, NULL);
    return (OwnedPart){.param = p,
                       .begin = at.begin + state->begin + b->shard_begin - p->offset,
                       .count = at.count,
                       .device = home.device,
                       .stream = home.stream,
                       .value = piece_of(state->value, at),
                       .main = piece_of(state->main, at),
                       .m = piece_of(state->m, at),
                       .v = piece_of(state->v, at),
                       .ema = piece_of(state->ema, at),
                       .copies = b->copies * (b->sharded ? 1 : b->replicas),
                       .copy = b->sharded ? b->copy : b->copy * b->replicas + b->replica};
}

Status optimizer_visit(const Optimizer *o, VisitPart *visit, void *self) {
    for (int i = 0; i < o->buckets->count; i++) {
        int on_host = o->offloaded[i].num_pieces, on_device = o->shards[i].num_pieces;
        for (int k = 0; k < on_host + on_device; k++) {
            OwnedPart part = owned_part(o, i, k < on_host, k < on_host ? k : k - on_host);
            TRY(visit(self, &part));
        }
    }
    return OK;
}

// Uploads what bf16_split makes of fp32 numbers: the remainders, and on the host the values, too. On the device
// params_fill rounds the values in the same way.
static void write_split(Home home, Tensor main, Tensor value, const float *from) {
    enum { MAX_BLOCK = 1 << 21 }; // elements: 4 MiB each
    int64_t all = tensor_count(main), block = all < MAX_BLOCK ? all : MAX_BLOCK;
    int threads = block < 1 << 14 ? 1 : device_threads(home.device);
    uint16_t *remainders = malloc((size_t)block * 2 * sizeof *remainders), *values = remainders + block;
    CHECK(remainders, "no memory for %lld remainders of parameters", (long long)block);
    for (int64_t first = 0, count; first < all; first += count) {
        count = all - first < block ? all - first : block;
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < count; i++) values[i] = bf16_split(from[first + i], &remainders[i]);
        device_upload(home.device, home.stream, tensor_part(main, first, count), remainders);
        if (value.data) device_upload(home.device, home.stream, tensor_part(value, first, count), values);
    }
    free(remainders);
}

static void write_state(const Optimizer *o, int bucket, bool on_host, const Param *p, const float *local) {
    const Bucket *b = &o->buckets->items[bucket];
    const ShardState *state = &(on_host ? o->offloaded : o->shards)[bucket];
    OpSegment piece = owned_piece(b, state, p);
    if (!piece.count) return;
    Home home = home_of(o, on_host, NULL);
    const float *from = local + (piece.begin + state->begin + b->shard_begin - p->offset);
    Tensor main = piece_of(state->main, piece), none = {0};
    if (main.dtype == U16)
        write_split(home, main, on_host ? piece_of(state->value, piece) : none, from);
    else
        device_upload(home.device, home.stream, main, from);
    if (state->ema.data) device_upload(home.device, home.stream, piece_of(state->ema, piece), from);
}

void optimizer_write_master(void *optimizer, const Param *p, const float *local) {
    const Optimizer *o = optimizer;
    // The host's values may still be on their way to the device.
    if (o->offload) device_sync(o->context->device, o->context->stream);
    for (int i = 0; i < o->buckets->count; i++) {
        write_state(o, i, true, p, local);
        write_state(o, i, false, p, local);
    }
}

// ---- norm ---------------------------------------------------------------------------------------

static double largest_of_all(Optimizer *o) {
    const Context *c = o->context;
    float largest;
    device_download(c->device, c->stream, &largest, o->max);
    double max = (double)largest;
    comm_all_reduce_host(o->owners, &max, 1, REDUCE_MAX);
    return max;
}

// Replicas, tied copies and the zeros between parameters cannot change a maximum: whole shards will do.
double optimizer_largest(Optimizer *o, Reduction reduction) {
    const Context *c = o->context;
    device_zero(c->device, c->stream, o->max);
    for (int i = 0; i < o->buckets->count; i++) {
        const Bucket *b = &o->buckets->items[i];
        if (b->reduction != reduction) continue;
        abs_max(c->device, c->stream, (AbsMax){.x = bucket_grads(o->params, b), .max = o->max});
    }
    return largest_of_all(o);
}

static void add_squares_of(Optimizer *o, int bucket, const ShardState *state) {
    if (!state->num_pieces) return;
    sum_squares(o->context->device, o->context->stream,
                (SumSquares){.x = state_grads(o, bucket, state),
                             .sum = o->sums,
                             .max = o->max,
                             .exponent = o->exponent,
                             .num_segments = state->num_pieces,
                             .segments = state->pieces});
}

// Adds up the squares of the pieces that count here, and finds their largest magnitude.
static void add_squares(Optimizer *o) {
    const Context *c = o->context;
    device_zero(c->device, c->stream, o->max);
    device_zero(c->device, c->stream, o->sums);
    for (int i = 0; i < o->buckets->count; i++) {
        add_squares_of(o, i, &o->offloaded[i]);
        add_squares_of(o, i, &o->shards[i]);
    }
}

double optimizer_grad_norm(Optimizer *o, double loss_scale) {
    const Context *c = o->context;
    rank_doing("gradient norm");
    add_squares(o);
    double max = largest_of_all(o);
    if (!isfinite(max)) return INFINITY;
    int exponent;
    frexp(max, &exponent);
    if (exponent != o->exponent) {
        o->exponent = exponent;
        add_squares(o);
    }
    device_download(c->device, c->stream, o->sums_on_host, o->sums);
    comm_all_reduce_host(o->owners, o->sums_on_host, o->params->count * 3, REDUCE_SUM);
    // Parameter by parameter in the model's order; so far everything was exact.
    double total = 0;
    const double *sums = o->sums_on_host;
    for (int i = 0; i < o->params->count * 3; i += 3) total += sums[i] + sums[i + 1] + sums[i + 2];
    return ldexp(sqrt(total), exponent) / loss_scale;
}

// ---- step ---------------------------------------------------------------------------------------

// All members of `args` but the tensors and the segments are set.
static void step_bucket(Optimizer *o, int index, AdamW args) {
    const Context *c = o->context;
    const ShardState *state = &o->shards[index];
    if (!state->num_pieces || is_stepped_whole(&o->buckets->items[index])) return;
    args.gradient = state_grads(o, index, state);
    args.parameter = state->main;
    args.m = state->m;
    args.v = state->v;
    args.value = state->value.dtype == F32 ? (Tensor){0} : state->value;
    args.num_segments = state->num_pieces;
    args.segments = state->pieces;
    adamw(c->device, c->stream, args);
}

static void average(const Optimizer *o, Home home, const ShardState *state) {
    if (!state->count) return;
    blend(home.device, home.stream,
          (Blend){.x = state->main,
                  .x_value = state->main.dtype == U16 ? state->value : (Tensor){0},
                  .y = state->ema,
                  .keep = 1,
                  .factor = 1 - o->options.ema_decay,
                  .own = -1});
}

static void average_all(const Optimizer *o) {
    for (int i = 0; i < o->buckets->count; i++) {
        average(o, home_of(o, false, NULL), &o->shards[i]);
        if (o->offload) average(o, home_of(o, true, NULL), &o->offloaded[i]);
    }
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
    if (o->offload) offload_step(o, args);
    if (o->muon) muon_step(o, args.grad_scale, lr, weight_decay);
    if (o->options.ema_decay > 0) average_all(o);
}
