// Self-attention without the S x S matrix (Dao 2022, 2023): kernels for every element type, head size and
// option, in fp32. Each warp owns a few queries, or in the gradients of keys and values a few keys, and meets the
// others a tile at a time; the sums over tiles have the order of the sequence, whatever the GPU.
#include "device/cuda/attention.h"
#include "device/visible.h"

// Registers: at most 168, in the gradients of keys and values 255. With fewer nvcc spills.
enum {
    WARPS = 4,
    OWN = 4,            // rows of a warp
    ROWS = WARPS * OWN, // of a block
    TILE = 32,          // rows that it meets at a time: one for each lane
    COLUMNS = 8,        // of a lane, in sums over D
    MAX_SIZE = WARP * COLUMNS,
};

// Device memory with elements of any type. The large kernels take it, so that each is compiled once; they read and
// write few elements for each product.
struct Elements {
    void *data;
    DType dtype;
};

DEVICE float load_element(Elements from, int64_t i) {
    if (from.dtype == BF16) return to_float(((const Bf16 *)from.data)[i]);
    if (from.dtype == F16) return to_float(((const Fp16 *)from.data)[i]);
    return ((const float *)from.data)[i];
}

DEVICE void store_element(Elements to, int64_t i, float x) {
    if (to.dtype == BF16)
        round_to((Bf16 *)to.data + i, x);
    else if (to.dtype == F16)
        round_to((Fp16 *)to.data + i, x);
    else
        ((float *)to.data)[i] = x;
}

// Loads `count` rows from row `first` on. Rows from `end` on become zeros.
template <class E>
DEVICE void load_rows_of(float *to, int pitch, Rows<const E> from, int first, int count, int end,
                         const AttentionCall &call) {
    for (int row = warp_now(); row < count; row += WARPS)
        for (int d = lane_now(); d < call.size; d += WARP)
            to[row * pitch + d] =
                first + row < end ? to_float(from.data[(first + row) * from.stride + d]) : 0.0f;
}

DEVICE void load_rows(float *to, int pitch, Elements from, RowPlace place, int first, int count, int end,
                      const AttentionCall &call) {
    if (from.dtype == BF16)
        load_rows_of(to, pitch, rows_at((const Bf16 *)from.data, place), first, count, end, call);
    else if (from.dtype == F16)
        load_rows_of(to, pitch, rows_at((const Fp16 *)from.data, place), first, count, end, call);
    else
        load_rows_of(to, pitch, rows_at((const float *)from.data, place), first, count, end, call);
}

// Loads a tile over the last one, once all threads have read that.
DEVICE void next_tile(float *tile, Elements from, RowPlace place, int first, int end,
                      const AttentionCall &call) {
    __syncthreads();
    load_rows(tile, call.size | 1, from, place, first, TILE, end, call);
    __syncthreads();
}

// The products of the warp's own rows with the lane's row of the tile.
DEVICE void dot_rows(float (&dots)[OWN], const float *own, const float *tile, int size) {
    const float *row = tile + lane_now() * (size | 1);
    for (int r = 0; r < OWN; r++) dots[r] = 0.0f;
    for (int d = 0; d < size; d++) {
        const float x = row[d];
        UNROLL
        for (int r = 0; r < OWN; r++) dots[r] = fmaf(own[r * size + d], x, dots[r]);
    }
}

// sums += weights [OWN, TILE] tile, the lane's columns.
DEVICE void add_rows(float (&sums)[OWN][COLUMNS], const float *weights, const float *tile, int size) {
    for (int k = 0; k < TILE; k++) {
        UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            const int d = lane_now() + WARP * c;
            const float x = d < size ? tile[k * (size | 1) + d] : 0.0f;
            UNROLL
            for (int r = 0; r < OWN; r++) sums[r][c] = fmaf(weights[r * TILE + k], x, sums[r][c]);
        }
    }
}

DEVICE void clear(float (&sums)[OWN][COLUMNS]) {
    UNROLL
    for (int r = 0; r < OWN; r++) {
        UNROLL
        for (int c = 0; c < COLUMNS; c++) sums[r][c] = 0.0f;
    }
}

// Stores sums * factors as OWN rows from row `first` on, of `end`, or adds them to what is there.
DEVICE void store_rows(Elements to, RowPlace place, int first, int end, bool adds,
                       float (&sums)[OWN][COLUMNS], const float (&factors)[OWN], const AttentionCall &call) {
    UNROLL
    for (int r = 0; r < OWN; r++) {
        UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            const int d = lane_now() + WARP * c;
            if (first + r < end && d < call.size) {
                const int64_t at = place.first + (first + r) * place.stride + d;
                store_element(to, at, sums[r][c] * factors[r] + (adds ? load_element(to, at) : 0.0f));
            }
        }
    }
}

// The warp's rows of results for other keys.
DEVICE void load_sums(float (&sums)[OWN][COLUMNS], Elements from, RowPlace place, int first,
                      const AttentionCall &call) {
    UNROLL
    for (int r = 0; r < OWN; r++) {
        UNROLL
        for (int c = 0; c < COLUMNS; c++) {
            const int d = lane_now() + WARP * c;
            if (first + r < call.sequence && d < call.size)
                sums[r][c] = load_element(from, place.first + (first + r) * place.stride + d);
        }
    }
}

// Bit r is whether the mask keeps element `first` + r `step` of a sample, for r < OWN.
DEVICE uint32_t kept_elements(const AttentionMask &mask, uint64_t sample, uint64_t first, uint64_t step) {
    uint32_t kept = 0;
    if (mask.threshold == 0) return ~0u;
    UNROLL_BY(1)
    for (int r = 0; r < OWN; r++)
        kept |= (uint32_t)(philox_word(mask.key, sample, first + r * step) >= mask.threshold) << r;
    return kept;
}

// ---- forward ----------------------------------------------------------------------------------------------

// Blocks: a head, ROWS queries of it; those with most keys begin first. At most 168 registers.
__global__ void __launch_bounds__(WARPS *WARP, 3)
    attention_forward_kernel(AttentionCall call, Elements qkv, Elements kv, Elements out, float *stats) {
    DYNAMIC_SHARED(float, own);
    const int size = call.size, lane = lane_now(), warp = warp_now(), head = blockIdx.x;
    const int group = head / (call.heads / call.groups), position = call.position;
    const int block = (gridDim.y - 1 - blockIdx.y) * ROWS, first_own = block + warp * OWN;
    float *tile = own + ROWS * size, *weights = tile + TILE * (size | 1) + warp * OWN * TILE;
    const float *queries = own + warp * OWN * size;
    const uint64_t sample = sample_of(call, head), begins = mask_begins(call, head);
    load_rows(own, size, qkv, query_place(call, head), block, ROWS, call.sequence, call);

    float sums[OWN][COLUMNS], maxima[OWN], exponentials[OWN]; // the last: the lane's keys alone
    int firsts[OWN];
    clear(sums);
    for (int r = 0; r < OWN; r++) {
        firsts[r] = first_key(call, head / call.heads, first_own + r);
        maxima[r] = call.limits.has_sink ? sink_of(call, head) : NO_SCORE;
        exponentials[r] = (call.limits.has_sink || call.adds) && lane == 0 ? 1.0f : 0.0f;
        if (call.adds)
            maxima[r] =
                first_own + r < call.sequence ? stats[(int64_t)head * call.sequence + first_own + r] : 0.0f;
    }
    if (call.adds) load_sums(sums, out, out_place(call, head), first_own, call);
    const int begin = first_key(call, head / call.heads, block) / TILE * TILE;
    for (int first = begin; first < position + block + ROWS && first < call.keys; first += TILE) {
        const int key = first + lane;
        float scores[OWN];
        next_tile(tile, kv, key_place(call, group, 0), first, call.keys, call);
        dot_rows(scores, queries, tile, size);
        next_tile(tile, kv, key_place(call, group, 1), first, call.keys, call);
        const uint32_t kept =
            kept_elements(call.mask, sample, begins + (uint64_t)(position + first_own) * call.positions + key,
                          call.positions);
        UNROLL
        for (int r = 0; r < OWN; r++) {
            const int query = first_own + r;
            const float score = key <= position + query && key < call.keys && key >= firsts[r]
                                    ? capped_score(call, scores[r]).score
                                    : -INFINITY;
            const float maximum = fmaxf(maxima[r], warp_max(score));
            const float shrink = exponential(maxima[r] - maximum), p = exponential(score - maximum);
            maxima[r] = maximum;
            exponentials[r] = fmaf(exponentials[r], shrink, p);
            for (int c = 0; c < COLUMNS; c++) sums[r][c] *= shrink;
            weights[r * TILE + lane] = p * (kept >> r & 1 ? call.mask.factor : 0.0f);
        }
        __syncwarp();
        add_rows(sums, weights, tile, size);
    }
    float factors[OWN];
    UNROLL
    for (int r = 0; r < OWN; r++) {
        const float sum = warp_sum(exponentials[r]);
        factors[r] = 1.0f / sum;
        if (lane == 0 && first_own + r < call.sequence)
            stats[(int64_t)head * call.sequence + first_own + r] = maxima[r] + logarithm(sum);
    }
    store_rows(out, out_place(call, head), first_own, call.sequence, false, sums, factors, call);
}

// Blocks: a head, a query. From its score each key's probability, as backward computes it again. At most 40 registers.
template <class E>
__global__ void __launch_bounds__(128) probabilities_kernel(AttentionCall call, const E *qkv, const E *kv,
                                                            const float *stats, E *probabilities) {
    const int head = blockIdx.x, query = blockIdx.y, per = call.heads / call.groups;
    const Rows<const E> queries = query_of(call, qkv, head), keys = key_of(call, kv, head / per, 0);
    const int64_t row = (int64_t)head * call.sequence + query;
    const int first = first_key(call, head / call.heads, query), last = call.position + query;
    for (int key = thread_now(); key < call.keys; key += (int)blockDim.x) {
        float dot = 0.0f;
        for (int d = 0; d < call.size && key <= last && key >= first; d++)
            dot = fmaf(to_float(queries.data[query * queries.stride + d]),
                       to_float(keys.data[key * keys.stride + d]), dot);
        const float p =
            key <= last && key >= first ? exponential(capped_score(call, dot).score - stats[row]) : 0.0f;
        probabilities[row * call.keys + key] = from_float<E>(p);
    }
}

// ---- backward ---------------------------------------------------------------------------------------------

// A query and a key in the backward pass: the weight of the key's value, which is its probability after dropout, and
// the gradient of the score before scaling with D^-1/2.
struct Weights {
    float value, score;
};

// Computes them from the score before scaling (`dot`) and the gradient of the value's weight (`change`). The query sees
// keys from `first` on. The probability is read from `probabilities` unless there are none.
template <bool LIMITED>
DEVICE Weights weights_of(const AttentionCall &call, const AttentionRows &rows, Elements probabilities,
                          float dot, float change, float factor, int head, int query, int key, int first) {
    if (key > call.position + query || key >= call.keys || key < first || query >= call.sequence)
        return {0.0f, 0.0f};
    const int64_t row = (int64_t)head * call.sequence + query;
    const CappedScore capped = LIMITED ? capped_score(call, dot) : CappedScore{dot * call.scale, 1.0f};
    const float p = probabilities.data ? load_element(probabilities, row * call.keys + key)
                                       : exponential(capped.score - rows.stats[row]);
    return {p * factor, p * (change * factor - rows.deltas[row]) * (LIMITED ? capped.slope : 1.0f)};
}

// Blocks: rows of a head, four at a time. Sum over k of P dP, which is dout . out. At most 64 registers.
template <class E>
__global__ void __launch_bounds__(WARPS *WARP)
    attention_delta_kernel(AttentionCall call, const E *dout, const E *out, float *deltas) {
    const int head = blockIdx.x, s = blockIdx.y * WARPS + warp_now();
    if (s >= call.sequence) return;
    const Rows<const E> x = out_of(call, dout, head), y = out_of(call, out, head);
    float sum = 0.0f;
    for (int d = lane_now(); d < call.size; d += WARP)
        sum = fmaf(to_float(x.data[s * x.stride + d]), to_float(y.data[s * y.stride + d]), sum);
    sum = warp_sum(sum);
    if (lane_now() == 0) deltas[(int64_t)head * call.sequence + s] = sum;
}

// Blocks: a head, ROWS queries of it. dq is dqkv's, or a tensor like out in the workspace (`apart`).
// At most 216 registers.
template <bool LIMITED>
__global__ void __launch_bounds__(WARPS *WARP, LIMITED ? 2 : 3)
    attention_dq_kernel(AttentionCall call, Elements qkv, Elements kv, Elements dout, AttentionRows rows,
                        Elements probabilities, Elements dq, bool apart) {
    DYNAMIC_SHARED(float, own);
    const int size = call.size, lane = lane_now(), warp = warp_now(), head = blockIdx.x;
    const int group = head / (call.heads / call.groups), position = call.position;
    const int block = (gridDim.y - 1 - blockIdx.y) * ROWS, first_own = block + warp * OWN;
    float *tile = own + 2 * ROWS * size, *weights = tile + TILE * (size | 1) + warp * OWN * TILE;
    const float *queries = own + warp * OWN * size, *gradients = queries + ROWS * size;
    const uint64_t sample = sample_of(call, head), begins = mask_begins(call, head);
    load_rows(own, size, qkv, query_place(call, head), block, ROWS, call.sequence, call);
    load_rows(own + ROWS * size, size, dout, out_place(call, head), block, ROWS, call.sequence, call);

    float sums[OWN][COLUMNS];
    clear(sums);
    const int b = head / call.heads;
    for (int first = LIMITED ? first_key(call, b, block) / TILE * TILE : 0;
         first < position + block + ROWS && first < call.keys; first += TILE) {
        const int key = first + lane;
        float scores[OWN], changes[OWN];
        next_tile(tile, kv, key_place(call, group, 0), first, call.keys, call);
        dot_rows(scores, queries, tile, size);
        next_tile(tile, kv, key_place(call, group, 1), first, call.keys, call);
        dot_rows(changes, gradients, tile, size);
        const uint32_t kept =
            kept_elements(call.mask, sample, begins + (uint64_t)(position + first_own) * call.positions + key,
                          call.positions);
        UNROLL
        for (int r = 0; r < OWN; r++) {
            const float factor = kept >> r & 1 ? call.mask.factor : 0.0f;
            weights[r * TILE + lane] =
                weights_of<LIMITED>(call, rows, probabilities, scores[r], changes[r], factor, head,
                                    first_own + r, key, LIMITED ? first_key(call, b, first_own + r) : 0)
                    .score;
        }
        next_tile(tile, kv, key_place(call, group, 0), first, call.keys, call);
        add_rows(sums, weights, tile, size);
    }
    const float factors[OWN] = {call.scale, call.scale, call.scale, call.scale};
    store_rows(dq, apart ? out_place(call, head) : query_place(call, head), first_own, call.sequence,
               call.adds, sums, factors, call);
}

// Blocks: a group, ROWS keys of it; sums over the group's heads and their queries, in order. dkv may be kv, in qkv: the
// rows of keys and values that a block writes are its own, read before. At most 200 registers.
__global__ void __launch_bounds__(WARPS *WARP, 2)
    attention_dkv_kernel(AttentionCall call, Elements qkv, Elements kv, Elements dout, AttentionRows rows,
                         Elements probabilities, Elements dkv) {
    DYNAMIC_SHARED(float, own);
    const int size = call.size, lane = lane_now(), warp = warp_now(), group = blockIdx.x;
    const int per = call.heads / call.groups, block = blockIdx.y * ROWS, first_own = block + warp * OWN;
    float *tile = own + 2 * ROWS * size, *weights = tile + TILE * (size | 1) + 2 * warp * OWN * TILE;
    const float *keys = own + warp * OWN * size, *values = keys + ROWS * size;
    load_rows(own, size, kv, key_place(call, group, 0), block, ROWS, call.keys, call);
    load_rows(own + ROWS * size, size, kv, key_place(call, group, 1), block, ROWS, call.keys, call);

    float dk[OWN][COLUMNS], dv[OWN][COLUMNS];
    clear(dk), clear(dv);
    const int b = group / call.groups, begin = max(block - call.position, 0);
    const int end = end_of_queries(call, b, begin, block + ROWS);
    for (int head = group * per; head < (group + 1) * per; head++) {
        const uint64_t sample = sample_of(call, head), begins = mask_begins(call, head);
        for (int first = begin / TILE * TILE; first < end; first += TILE) {
            const int query = first + lane, first_seen = first_key(call, b, query);
            float scores[OWN], changes[OWN];
            next_tile(tile, qkv, query_place(call, head), first, call.sequence, call);
            dot_rows(scores, keys, tile, size);
            next_tile(tile, dout, out_place(call, head), first, call.sequence, call);
            dot_rows(changes, values, tile, size);
            const uint32_t kept =
                kept_elements(call.mask, sample,
                              begins + (uint64_t)(call.position + query) * call.positions + first_own, 1);
            UNROLL
            for (int r = 0; r < OWN; r++) {
                const float factor = kept >> r & 1 ? call.mask.factor : 0.0f;
                const Weights w = weights_of<true>(call, rows, probabilities, scores[r], changes[r], factor,
                                                   head, query, first_own + r, first_seen);
                weights[r * TILE + lane] = w.value;
                weights[(OWN + r) * TILE + lane] = w.score;
            }
            __syncwarp();
            add_rows(dv, weights, tile, size);
            next_tile(tile, qkv, query_place(call, head), first, call.sequence, call);
            add_rows(dk, weights + OWN * TILE, tile, size);
        }
    }
    const float factors[OWN] = {call.scale, call.scale, call.scale, call.scale}, ones[OWN] = {1, 1, 1, 1};
    store_rows(dkv, key_place(call, group, 0), first_own, call.keys, call.apart, dk, factors, call);
    store_rows(dkv, key_place(call, group, 1), first_own, call.keys, call.apart, dv, ones, call);
}

// Blocks: a head of a sample. Adds to the gradient of its sink. At most 32 registers.
__global__ void __launch_bounds__(128)
    attention_dsinks_kernel(AttentionCall call, AttentionRows rows, float *dsinks) {
    SHARED(float, room, 128);
    float sum = 0.0f;
    for (int head = blockIdx.x; head < call.batch * call.heads; head += call.heads)
        for (int s = thread_now(); s < call.sequence; s += 128) {
            const int64_t row = (int64_t)head * call.sequence + s;
            sum = fmaf(exponential(sink_of(call, head) - rows.stats[row]), rows.deltas[row], sum);
        }
    sum = block_sum(sum, room);
    if (thread_now() == 0) dsinks[blockIdx.x] -= sum;
}

// Blocks: a head, a row. From the workspace to dqkv. At most 32 registers.
template <class E>
__global__ void __launch_bounds__(128) attention_copy_dq_kernel(AttentionCall call, const E *dq, E *dqkv) {
    const int head = blockIdx.x;
    const Rows<const E> from = out_of(call, dq, head);
    const Rows<E> to = query_of(call, dqkv, head);
    for (int s = blockIdx.y; s < call.sequence; s += gridDim.y)
        for (int d = thread_now(); d < call.size; d += (int)blockDim.x)
            to.data[s * to.stride + d] = from.data[s * from.stride + d];
}

// ---- launches ---------------------------------------------------------------------------------------------

AttentionCall attention_call(const AttentionShape *shape, const AttentionRules *rules, const Dropout *dropout,
                             Tensor first_key, Tensor sinks) {
    CHECK(shape->head_size <= MAX_SIZE, "attention: heads of %lld, at most %d", (long long)shape->head_size,
          MAX_SIZE);
    AttentionCall call = {(int)shape->batch,
                          (int)shape->sequence,
                          (int)shape->heads,
                          (int)shape->groups,
                          (int)shape->head_size,
                          attention_scale(shape, rules),
                          {{}, 0, 1.0f, 0, 0},
                          {},
                          (int)attention_keys(shape),
                          (int)attention_first_position(shape),
                          shape->keys > 0,
                          (int)attention_positions(shape),
                          (int)shape->first_kept,
                          false};
    const bool is_window = rules->window && rules->window < attention_positions(shape);
    call.limits = {(const int32_t *)first_key.data,
                   is_window ? (int)rules->window : 0,
                   rules->cap,
                   sinks.data || rules->off_by_one,
                   sinks.data,
                   sinks.dtype};
    if (dropout && dropout->probability > 0)
        call.mask = {dropout->key, rng_dropout_threshold(dropout->probability),
                     1.0f / (1.0f - dropout->probability), (uint64_t)dropout->first_sample,
                     (uint64_t)shape->first_head};
    return call;
}

// Shared memory: rows that the block owns, a tile, weights of the own rows.
static size_t shared_bytes(const AttentionCall &call, int num_owned, int num_weights) {
    const size_t size = (size_t)call.size, tile = TILE * (size | 1);
    return sizeof(float) * ((size_t)num_owned * ROWS * size + tile + (size_t)num_weights * ROWS * TILE);
}

static Elements elements_of(Tensor x) { return {x.data, x.dtype}; }

static void forward(cudaStream_t stream, const AttentionCall &call, const AttentionForward *args) {
    const dim3 grid(call.batch * call.heads, num_blocks(call.sequence, ROWS));
    LAUNCH(attention_forward_kernel, grid, WARPS * WARP, shared_bytes(call, 1, 1), stream, call,
           elements_of(args->qkv), elements_of(keys_of(args->qkv, args->kv)), elements_of(args->out),
           (float *)args->stats.data);
}

template <class E>
static void store_probabilities(cudaStream_t stream, const AttentionCall &call,
                                const AttentionForward *args) {
    const dim3 grid(call.batch * call.heads, call.sequence);
    LAUNCH(probabilities_kernel<E>, grid, 128, 0, stream, call, (const E *)args->qkv.data,
           (const E *)keys_of(args->qkv, args->kv).data, (const float *)args->stats.data,
           (E *)args->probabilities.data);
}

extern "C" void cuda_own_attention_forward(const Exec *exec, const AttentionForward *args) {
    AttentionCall call =
        attention_call(&args->shape, &args->rules, &args->dropout, args->first_key, args->sinks);
    call.adds = args->continues;
    if (call.adds) call.limits.has_sink = false; // the other keys' result has it
    const Tensor tensors[] = {args->qkv, args->out, args->kv};
    if (attention_mma_takes(&args->shape, tensors, 3))
        attention_mma_forward(stream_of(exec), &call, args);
    else
        forward(stream_of(exec), call, args);
    if (args->probabilities.data)
        BY_ELEMENT(args->qkv.dtype, store_probabilities, stream_of(exec), call, args);
}

template <class E>
static void find_deltas(cudaStream_t stream, const AttentionCall &call, const AttentionBackward *args,
                        float *deltas) {
    const dim3 grid(call.batch * call.heads, num_blocks(call.sequence, WARPS));
    LAUNCH(attention_delta_kernel<E>, grid, WARPS * WARP, 0, stream, call, (const E *)args->dout.data,
           (const E *)args->out.data, deltas);
}

static void backward(cudaStream_t stream, const AttentionCall &call, const AttentionBackward *args,
                     const AttentionRows &rows, void *dq) {
    const Elements qkv = elements_of(args->qkv), kv = elements_of(keys_of(args->qkv, args->kv)),
                   dout = elements_of(args->dout), dqkv = elements_of(args->dqkv);
    const Elements probabilities = elements_of(args->probabilities), apart = {dq, dqkv.dtype};
    const dim3 grid(call.batch * call.heads, num_blocks(call.sequence, ROWS));
    const bool as_out = dq || call.apart;
    if (is_limited(&call))
        LAUNCH(attention_dq_kernel<true>, grid, WARPS * WARP, shared_bytes(call, 2, 1), stream, call, qkv, kv,
               dout, rows, probabilities, dq ? apart : dqkv, as_out);
    else
        LAUNCH(attention_dq_kernel<false>, grid, WARPS * WARP, shared_bytes(call, 2, 1), stream, call, qkv,
               kv, dout, rows, probabilities, dq ? apart : dqkv, as_out);
    LAUNCH(attention_dkv_kernel, dim3(call.batch * call.groups, num_blocks(call.keys, ROWS)), WARPS * WARP,
           shared_bytes(call, 2, 2), stream, call, qkv, kv, dout, rows, probabilities,
           elements_of(keys_of(args->dqkv, args->dkv)));
}

template <class E>
static void copy_dq(cudaStream_t stream, const AttentionCall &call, const AttentionBackward *args,
                    const void *dq) {
    const dim3 grid(call.batch * call.heads, call.sequence < 1024 ? call.sequence : 1024);
    LAUNCH(attention_copy_dq_kernel<E>, grid, 128, 0, stream, call, (const E *)dq, (E *)args->dqkv.data);
}

// The workspace: deltas, then in place dq.
static size_t delta_bytes(const AttentionBackward *args) {
    const size_t bytes = (size_t)tensor_count(args->stats) * sizeof(float);
    return (bytes + 255) / 256 * 256;
}

static bool is_in_place(const AttentionBackward *args) { return args->dqkv.data == args->qkv.data; }

extern "C" size_t cuda_own_attention_backward_workspace(const AttentionBackward *args) {
    return delta_bytes(args) + (is_in_place(args) ? tensor_bytes(args->out) : 0);
}

// In place dq waits in the workspace until the gradients of keys and values are there, which need the queries.
extern "C" void cuda_own_attention_backward(const Exec *exec, const AttentionBackward *args) {
    AttentionCall call =
        attention_call(&args->shape, &args->rules, &args->dropout, args->first_key, args->sinks);
    call.adds = args->adds;
    cudaStream_t stream = stream_of(exec);
    float *deltas = (float *)exec->workspace;
    void *dq = is_in_place(args) ? (char *)exec->workspace + delta_bytes(args) : NULL;
    const AttentionRows rows = {(const float *)args->stats.data, deltas};
    const Tensor tensors[] = {args->qkv, args->dout, args->dqkv, args->kv, args->dkv};
    BY_ELEMENT(args->qkv.dtype, find_deltas, stream, call, args, deltas);
    if (!args->probabilities.data && attention_mma_takes(&args->shape, tensors, 5))
        attention_mma_backward(stream, &call, args, &rows, dq);
    else
        backward(stream, call, args, rows, dq);
    if (args->dsinks.data)
        LAUNCH(attention_dsinks_kernel, call.heads, 128, 0, stream, call, rows, (float *)args->dsinks.data);
    if (dq) BY_ELEMENT(args->qkv.dtype, copy_dq, stream, call, args, dq);
}
