// The kernels of attention share this header. It says where the heads of qkv and out lie, and which probabilities
// dropout drops.
//
// A row of qkv is a position of a sample, s * B + b; its columns are, for each group, the group's query heads, its key
// and its value. So each of these heads is a matrix [S, D] whose rows lie a whole position apart. Keys and values may
// lie in a tensor of their own, of more positions; a query is then a row of qkv, and its position `position` more.
#pragma once
#include "device/cuda/cuda.h"
#include "device/cuda/portable.h"

DEVICE int thread_now(void) { return (int)threadIdx.x; }
DEVICE int lane_now(void) { return (int)threadIdx.x % WARP; }
DEVICE int warp_now(void) { return (int)threadIdx.x / WARP; }

static inline unsigned num_blocks(int rows, int rows_of_block) {
    return (unsigned)blocks_of(rows, rows_of_block);
}

// A matrix [S, D] in device memory whose rows lie `stride` elements apart.
template <class E> struct Rows {
    E *data;
    int64_t stride;
};

// The same in a tensor: the number of its first element there.
struct RowPlace {
    int64_t first, stride;
};

// The dropout masks of a call; see Dropout in ops.h. A kept probability is multiplied by `factor`. Where nothing is
// dropped, the threshold is 0 and the factor is 1.
struct AttentionMask {
    RngKey key;
    uint32_t threshold;
    float factor;
    uint64_t first_sample, first_head;
};

// What restricts a call beside causality (AttentionRules in ops.h). Zeros: nothing.
struct AttentionLimits {
    const int32_t *first_keys; // of row s * B + b, or NULL
    int window;                // 0: none
    float cap;                 // 0: none
    bool has_sink;
    const void *sinks; // of each head, of the call's element type; NULL: zeros
    DType sinks_dtype;
};

// The arguments of a call that its kernels get. Heads are counted from 0 to B * N/t: number b * N/t + h.
struct AttentionCall {
    int batch, sequence, heads, groups, size; // B, S, N/t, G/t, D
    float scale;                              // of the scores
    AttentionMask mask;
    AttentionLimits limits;
    int keys, position;        // the keys that the call has, and the position of query 0 among them
    bool apart;                // keys and values are in a tensor of their own
    int positions, first_kept; // of the sequence; of its first key here
    bool adds; // to the results for other keys: AttentionForward.continues, AttentionBackward.adds
};

// Returns the first key that a query of a sample sees. Queries behind the sequence see what the last one sees.
DEVICE int first_key(const AttentionCall &call, int sample, int query) {
    const int s = min(query, call.sequence - 1);
    int first = 0;
    if (call.limits.first_keys)
        first = max(call.limits.first_keys[(int64_t)s * call.batch + sample] - call.first_kept, 0);
    return call.limits.window ? max(first, s + call.position - call.limits.window + 1) : first;
}

// Returns the end of the queries of a sample that see a key before `end_of_keys`, at least `begin`. First keys never
// fall along a sample.
DEVICE int end_of_queries(const AttentionCall &call, int sample, int begin, int end_of_keys) {
    int low = begin, high = call.sequence; // queries before `low` see one, those from `high` on do not
    if (!call.limits.first_keys && !call.limits.window) return call.sequence;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (first_key(call, sample, middle) < end_of_keys)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Returns the sink of head 0 to B * N/t.
DEVICE float sink_of(const AttentionCall &call, int head) {
    const int h = head % call.heads;
    if (!call.limits.sinks) return 0.0f;
    if (call.limits.sinks_dtype == BF16) return to_float(((const Bf16 *)call.limits.sinks)[h]);
    if (call.limits.sinks_dtype == F16) return to_float(((const Fp16 *)call.limits.sinks)[h]);
    return ((const float *)call.limits.sinks)[h];
}

// tanh(x): by an exponential, and near 0, where that would cancel, by its series.
DEVICE float hyperbolic_tangent(float x) {
    const float size = fabsf(x), e = exponential(-2.0f * size), far = (1.0f - e) / (1.0f + e), x2 = x * x;
    float series = fmaf(x2, 62.0f / 2835, -17.0f / 315);
    series = fmaf(fmaf(series, x2, 2.0f / 15), x2, -1.0f / 3);
    return size < 0.25f ? fmaf(x * x2, series, x) : x < 0.0f ? -far : far;
}

// A score and the derivative of the cap there.
struct CappedScore {
    float score, slope;
};

// The score of a product q.k.
DEVICE CappedScore capped_score(const AttentionCall &call, float product) {
    const float score = product * call.scale, cap = call.limits.cap;
    if (cap == 0.0f) return {score, 1.0f};
    const float share = hyperbolic_tangent(score / cap);
    return {cap * share, 1.0f - share * share};
}

// A maximum of a row that has seen no key: unlike minus infinity it can be subtracted from minus infinity.
#define NO_SCORE (-1e30f)

// Head `part` of group `group` (0 to B * G/t) of qkv. Its parts are its query heads, then its key (number N/G) and its
// value.
DEVICE RowPlace part_place(const AttentionCall &call, int group, int part) {
    const int parts = call.heads / call.groups + 2, b = group / call.groups, g = group % call.groups;
    const int64_t width = (int64_t)call.groups * parts * call.size;
    return {b * width + (int64_t)(g * parts + part) * call.size, call.batch * width};
}

DEVICE RowPlace query_place(const AttentionCall &call, int head) {
    const int per = call.heads / call.groups;
    return part_place(call, head / per, head % per);
}

// A head of a tensor [T, N/t * D], as out is.
DEVICE RowPlace out_place(const AttentionCall &call, int head) {
    return {(int64_t)head * call.size, (int64_t)call.batch * call.heads * call.size};
}

template <class E> DEVICE Rows<E> rows_at(E *data, RowPlace place) {
    return {data + place.first, place.stride};
}
// The key (part 0) or value (1) of a group, in qkv or in the tensor of keys and values.
DEVICE RowPlace key_place(const AttentionCall &call, int group, int part) {
    if (!call.apart) return part_place(call, group, call.heads / call.groups + part);
    return {(int64_t)(group * 2 + part) * call.size, (int64_t)call.batch * call.groups * 2 * call.size};
}

template <class E> DEVICE Rows<E> key_of(const AttentionCall &call, E *kv, int group, int part) {
    return rows_at(kv, key_place(call, group, part));
}
template <class E> DEVICE Rows<E> part_of(const AttentionCall &call, E *qkv, int group, int part) {
    return rows_at(qkv, part_place(call, group, part));
}
template <class E> DEVICE Rows<E> query_of(const AttentionCall &call, E *qkv, int head) {
    return rows_at(qkv, query_place(call, head));
}
template <class E> DEVICE Rows<E> out_of(const AttentionCall &call, E *out, int head) {
    return rows_at(out, out_place(call, head));
}

// The number of the head's element of position 0 and the first key of the call in its sample's mask.
DEVICE uint64_t mask_begins(const AttentionCall &call, int head) {
    const uint64_t row = call.positions, h = call.mask.first_head + head % call.heads;
    return h * row * row + call.first_kept * (row + 1);
}

DEVICE uint64_t sample_of(const AttentionCall &call, int head) {
    return call.mask.first_sample + head / call.heads;
}

// Converts a call's arguments for its kernels. `dropout` may be NULL; first_key and sinks may be absent.
AttentionCall attention_call(const AttentionShape *shape, const AttentionRules *rules, const Dropout *dropout,
                             Tensor first_key, Tensor sinks);
// Where keys and values lie, and where their gradients go.
static inline Tensor keys_of(Tensor qkv, Tensor kv) { return kv.data ? kv : qkv; }
// Returns whether anything beside causality restricts the call.
static inline bool is_limited(const AttentionCall *call) {
    const AttentionLimits *limits = &call->limits;
    return limits->first_keys || limits->window || limits->cap > 0 || limits->has_sink;
}

// ---- attention_mma_*.cu: the same on tensor cores ----------------------------------------------------------

// Statistics of the queries that the backward pass needs, each [B * N/t, S]: log-sum-exps of their scores, and the
// products dout . out.
struct AttentionRows {
    const float *stats, *deltas;
};

// Returns whether these kernels take a call with this shape and these tensors. They take no stored probabilities.
bool attention_mma_takes(const AttentionShape *shape, const Tensor *tensors, int num_tensors);
void attention_mma_forward(cudaStream_t stream, const AttentionCall *call, const AttentionForward *args);
// The gradient of the queries goes to dqkv, or, unless `dq` is NULL, to `dq`, a tensor like out.
void attention_mma_backward(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                            const AttentionRows *rows, void *dq);
