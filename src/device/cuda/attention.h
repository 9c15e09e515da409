// What the kernels of attention share: where the heads of qkv and out lie, and which probabilities are dropped.
//
// A row of qkv is a position of a sample, s * B + b; its columns are, for each group, the group's query heads, its key and
// its value. So each of them is a matrix [S, D] whose rows lie a whole position apart.
#pragma once
#include "device/cuda/cuda.h"
#include "device/cuda/portable.h"

DEVICE int thread_now(void) { return (int)threadIdx.x; }
DEVICE int lane_now(void) { return (int)threadIdx.x % WARP; }
DEVICE int warp_now(void) { return (int)threadIdx.x / WARP; }

static inline unsigned num_blocks(int rows, int rows_of_block) {
    return (unsigned)blocks_of(rows, rows_of_block);
}

// Rows of D elements, `stride` elements apart.
template <class E> struct Rows {
    E *data;
    int64_t stride;
};

// The masks of a call; threshold 0: nothing is dropped. See Dropout in ops.h.
struct AttentionMask {
    RngKey key;
    uint32_t threshold;
    float factor; // of what is kept
    uint64_t first_sample, first_head;
};

// A call as its kernels get it. Heads are counted from 0 to B * N/t: number b * N/t + h.
struct AttentionCall {
    int batch, sequence, heads, groups, size; // B, S, N/t, G/t, D
    float scale;                              // of the scores
    AttentionMask mask;
};

// Head `part` of group `group` (0 to B * G/t): its query heads, then its key (number N/G) and its value.
template <class E> DEVICE Rows<E> part_of(const AttentionCall &call, E *qkv, int group, int part) {
    const int parts = call.heads / call.groups + 2, b = group / call.groups, g = group % call.groups;
    const int64_t width = (int64_t)call.groups * parts * call.size;
    return {qkv + b * width + (int64_t)(g * parts + part) * call.size, call.batch * width};
}

template <class E> DEVICE Rows<E> query_of(const AttentionCall &call, E *qkv, int head) {
    const int per = call.heads / call.groups;
    return part_of(call, qkv, head / per, head % per);
}

// Of a tensor [T, N/t * D].
template <class E> DEVICE Rows<E> out_of(const AttentionCall &call, E *out, int head) {
    return {out + (int64_t)head * call.size, (int64_t)call.batch * call.heads * call.size};
}

// Where the head's S x S elements begin in its sample's mask.
DEVICE uint64_t mask_begins(const AttentionCall &call, int head) {
    return (call.mask.first_head + head % call.heads) * call.sequence * call.sequence;
}

DEVICE uint64_t sample_of(const AttentionCall &call, int head) {
    return call.mask.first_sample + head / call.heads;
}

// What probability `element` of a sample is multiplied by.
DEVICE float mask_factor(const AttentionMask &mask, uint64_t sample, uint64_t element) {
    if (mask.threshold == 0) return 1.0f;
    return philox_word(mask.key, sample, element) >= mask.threshold ? mask.factor : 0.0f;
}

// `dropout` may be NULL.
AttentionCall attention_call(const AttentionShape *shape, const Dropout *dropout);

// ---- attention_mma.cu: the same on tensor cores ------------------------------------------------------------

// What backward needs of each query, [B * N/t, S]: log-sum-exp; dout . out.
struct AttentionRows {
    const float *stats, *deltas;
};

// Whether a call has shapes, types and addresses that these take; they take no stored probabilities.
bool attention_mma_takes(const AttentionShape *shape, const Tensor *tensors, int num_tensors);
void attention_mma_forward(cudaStream_t stream, const AttentionCall *call, const AttentionForward *args);
// dq: NULL, or where the gradient of the queries goes instead of dqkv, a tensor like out.
void attention_mma_backward(cudaStream_t stream, const AttentionCall *call, const AttentionBackward *args,
                            const AttentionRows *rows, void *dq);
