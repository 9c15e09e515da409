// Attention over a cache. The keys of a query are cut into blocks of KEYS by their positions alone; each block's
// part of the softmax is computed by itself, so that one new token keeps a whole GPU busy, and the parts are joined in
// order. So the bits of a query do not depend on how many queries came with it.
#include "device/cuda/attention.h"

enum {
    KEYS = 128, // of a block, and its threads
    LANES = 8,  // that share a key's score
    LARGEST_SIZE = 256,
    ROOM_BYTES = 32 << 20, // of the workspace, unless one query needs more
};

// Returns the part of one query of a head and one block of keys: its largest score, the sum of exp(score - largest),
// and the sum of the values with these weights, [D].
DEVICE float *cached_part(const AttentionCall &call, float *parts, int query, int head, int block,
                          int blocks) {
    const int64_t row = ((int64_t)query * call.batch * call.heads + head) * blocks + block;
    return parts + row * (call.size + 2);
}

// A head of the cache: group `group` (0 to B * G/t).
template <class E> DEVICE Rows<E> cached_rows(const AttentionCall &call, E *cache, int group) {
    return {cache + (int64_t)group * call.size, (int64_t)call.batch * call.groups * call.size};
}

// Blocks: a group, a position. Stores the new keys and values. At most 48 registers.
template <class E>
__global__ void __launch_bounds__(KEYS)
    attention_remember_kernel(AttentionCall call, const E *qkv, E *keys, E *values, int position) {
    const int group = blockIdx.x, per = call.heads / call.groups;
    const Rows<const E> key = part_of(call, qkv, group, per), value = part_of(call, qkv, group, per + 1);
    const Rows<E> to_keys = cached_rows(call, keys, group), to_values = cached_rows(call, values, group);
    for (int s = blockIdx.y; s < call.sequence; s += gridDim.y)
        for (int d = thread_now(); d < call.size; d += KEYS) {
            to_keys.data[(position + s) * to_keys.stride + d] = key.data[s * key.stride + d];
            to_values.data[(position + s) * to_values.stride + d] = value.data[s * value.stride + d];
        }
}

// Returns what lane `part` of LANES adds to the product of a query and a key: every LANES-th pack of elements.
template <bool WHOLE, class E>
DEVICE float partial_dot(const float *query, const E *key, int part, int size) {
    constexpr int WIDTH = Pack<E>::WIDTH;
    float sum = 0.0f;
    for (int d = part * WIDTH; d < size; d += LANES * WIDTH) {
        const Pack<E> x = load_pack<WHOLE>(key + d, size - d);
        UNROLL
        for (int i = 0; i < WIDTH; i++)
            if (d + i < size) sum = fmaf(query[d + i], to_float(x.e[i]), sum);
    }
    return sum;
}

// The scores of keys [first, count) of a block; those that are not there are minus infinity.
template <bool WHOLE, class E>
DEVICE void find_scores(float *scores, const float *query, Rows<const E> keys, int first, int count,
                        const AttentionCall &call) {
    const int part = thread_now() % LANES;
    for (int k = thread_now() / LANES; k < KEYS; k += KEYS / LANES) {
        float sum = 0.0f;
        const bool is_seen = k >= first && k < count;
        if (is_seen) sum = partial_dot<WHOLE>(query, keys.data + k * keys.stride, part, call.size);
        for (int lanes = LANES / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, lanes);
        if (part == 0) scores[k] = is_seen ? capped_score(call, sum).score : -INFINITY;
    }
}

// Sums of `count` values with weights. Where D is small, threads share a column's keys; their sums are added in order.
template <class E>
DEVICE void add_values(float *sums, const float *weights, float *room, Rows<const E> values, int count,
                       int size) {
    const int width = size > KEYS / 2 ? KEYS : size > KEYS / 4 ? KEYS / 2 : KEYS / 4;
    const int slices = KEYS / width, slice = thread_now() / width, keys = KEYS / slices;
    const int end = min(count, (slice + 1) * keys);
    for (int first = 0; first < size; first += width) {
        const int d = first + thread_now() % width;
        float sum = 0.0f;
        for (int k = slice * keys; k < end && d < size; k++)
            sum = fmaf(weights[k], to_float(values.data[k * values.stride + d]), sum);
        room[thread_now()] = sum;
        __syncthreads();
        if (slice == 0 && d < size) {
            for (int other = 1; other < slices; other++) sum += room[other * width + thread_now()];
            sums[d] = sum;
        }
        __syncthreads();
    }
}

// Returns the first key that a query of the call sees.
DEVICE int first_of(const AttentionCall &call, int position) {
    return call.limits.window ? max(position - call.limits.window + 1, 0) : 0;
}

// Blocks: a head, a block of keys, a query from `query` on. At most 32 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(KEYS)
    attention_block_kernel(AttentionCall call, const E *qkv, const E *keys, const E *values, float *parts,
                           int position, int query) {
    SHARED(float, row, LARGEST_SIZE);
    SHARED(float, weights, KEYS);
    SHARED(float, room, KEYS);
    const int head = blockIdx.x, group = head / (call.heads / call.groups), first = blockIdx.y * KEYS;
    const int s = query + blockIdx.z, count = min(position + s + 1 - first, (int)KEYS);
    const int seen = max(first_of(call, position + s) - first, 0); // the first key of the block that is seen
    if (count <= 0 || seen >= count) return;
    const Rows<const E> queries = query_of(call, qkv, head);
    Rows<const E> block_keys = cached_rows(call, keys, group),
                  block_values = cached_rows(call, values, group);
    block_keys.data += first * block_keys.stride, block_values.data += first * block_values.stride;
    float *part = cached_part(call, parts, blockIdx.z, head, blockIdx.y, gridDim.y);

    for (int d = thread_now(); d < call.size; d += KEYS)
        row[d] = to_float(queries.data[s * queries.stride + d]);
    __syncthreads();
    find_scores<WHOLE>(weights, row, block_keys, seen, count, call);
    __syncthreads();
    const float score = weights[thread_now()], largest = block_max(score, room);
    const float weight = exponential(score - largest), sum = block_sum(weight, room);
    weights[thread_now()] = weight;
    __syncthreads();
    add_values(part + 2, weights, room, block_values, count, call.size);
    if (thread_now() == 0) part[0] = largest, part[1] = sum;
}

// Blocks: a head, a query from `query` on. At most 32 registers.
template <class E>
__global__ void __launch_bounds__(KEYS)
    attention_join_kernel(AttentionCall call, float *parts, E *out, int blocks, int position, int query) {
    const int head = blockIdx.x, s = query + blockIdx.y, used = (position + s) / KEYS + 1;
    const Rows<E> rows = out_of(call, out, head);
    for (int d = thread_now(); d < call.size; d += KEYS) {
        float largest = call.limits.has_sink ? sink_of(call, head) : -INFINITY;
        float sum = call.limits.has_sink ? 1.0f : 0.0f, value = 0.0f;
        for (int block = first_of(call, position + s) / KEYS; block < used; block++) {
            const float *part = cached_part(call, parts, blockIdx.y, head, block, blocks);
            const float maximum = fmaxf(largest, part[0]);
            const float before = exponential(largest - maximum), now = exponential(part[0] - maximum);
            largest = maximum;
            sum = fmaf(part[1], now, sum * before);
            value = fmaf(part[2 + d], now, value * before);
        }
        rows.data[s * rows.stride + d] = from_float<E>(value / sum);
    }
}

// ---- launches ---------------------------------------------------------------------------------------------

static int key_blocks(const AttentionCached *args) {
    return (int)((args->position + args->shape.sequence + KEYS - 1) / KEYS);
}

static size_t query_bytes(const AttentionCached *args) {
    const AttentionShape *s = &args->shape;
    return (size_t)(s->batch * s->heads * key_blocks(args) * (s->head_size + 2)) * sizeof(float);
}

// How many queries are computed at once.
static int64_t queries_at_once(const AttentionCached *args) {
    const int64_t fit = (int64_t)(ROOM_BYTES / query_bytes(args));
    return fit < 1 ? 1 : fit < args->shape.sequence ? fit : args->shape.sequence;
}

extern "C" size_t cuda_attention_cached_workspace(const AttentionCached *args) {
    return (size_t)queries_at_once(args) * query_bytes(args);
}

// Returns whether keys are whole packs that are aligned.
static bool has_whole_keys(const AttentionCached *args) {
    const size_t bytes = (size_t)args->shape.head_size * dtype_bytes(args->keys.dtype);
    return bytes % 16 == 0 && has_whole_packs(args->keys);
}

template <class E>
static void cached(cudaStream_t stream, const AttentionCall &call, const AttentionCached *args,
                   float *parts) {
    const E *qkv = (const E *)args->qkv.data;
    E *keys = (E *)args->keys.data, *values = (E *)args->values.data;
    const int position = (int)args->position, blocks = key_blocks(args), sequence = call.sequence;
    LAUNCH(attention_remember_kernel<E>, dim3(call.batch * call.groups, min(sequence, 1024)), KEYS, 0, stream,
           call, qkv, keys, values, position);
    const int at_once = (int)queries_at_once(args), heads = call.batch * call.heads;
    for (int query = 0; query < sequence; query += at_once) {
        const int count = min(at_once, sequence - query);
        const dim3 grid(heads, blocks, count);
        if (has_whole_keys(args))
            LAUNCH((attention_block_kernel<E, true>), grid, KEYS, 0, stream, call, qkv, keys, values, parts,
                   position, query);
        else
            LAUNCH((attention_block_kernel<E, false>), grid, KEYS, 0, stream, call, qkv, keys, values, parts,
                   position, query);
        LAUNCH(attention_join_kernel<E>, dim3(heads, count), KEYS, 0, stream, call, parts,
               (E *)args->out.data, blocks, position, query);
    }
}

extern "C" void cuda_attention_cached(const Exec *exec, const AttentionCached *args) {
    const Tensor all_keys = {};
    AttentionCall call = attention_call(&args->shape, &args->rules, NULL, all_keys, args->sinks);
    call.limits.window = (int)args->rules.window;
    BY_ELEMENT(args->qkv.dtype, cached, stream_of(exec), call, args, (float *)exec->workspace);
}
