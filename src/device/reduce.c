// Adds parts in rank order or as a tree, block by block, with the widest vectors that the CPU has.
#include "device/reduce.h"
#include "base/half.h"
#include <string.h>

// Elements of a block: the running result and a widened part, or the sums of a tree that wait for their other halves,
// stay in the cache.
enum { BLOCK = 1024, TREE_BLOCK = 256, TREE_LEVELS = 13 };
_Static_assert(1 << (TREE_LEVELS - 1) == MAX_TREE_PARTS, "a level for each half");

bool can_reduce(DType dtype) { return dtype != I32; }

bool can_add_in_tree(int num_parts) {
    return num_parts > 0 && num_parts <= MAX_TREE_PARTS && !(num_parts & (num_parts - 1));
}

// ---- one block; compiled for each level below -------------------------------------------------------

#define INLINED static inline __attribute__((always_inline))

INLINED void fold_f32(float *restrict into, const float *restrict x, size_t n, ReduceOp op) {
    if (op == REDUCE_MAX)
        for (size_t i = 0; i < n; i++) into[i] = x[i] > into[i] || x[i] != x[i] ? x[i] : into[i];
    else
        for (size_t i = 0; i < n; i++) into[i] += x[i];
}

INLINED void fold_f64(double *restrict into, const double *restrict x, size_t n, ReduceOp op) {
    if (op == REDUCE_MAX)
        for (size_t i = 0; i < n; i++) into[i] = x[i] > into[i] || x[i] != x[i] ? x[i] : into[i];
    else
        for (size_t i = 0; i < n; i++) into[i] += x[i];
}

INLINED void widen(float *restrict into, const uint16_t *restrict from, size_t n, DType dtype) {
    if (dtype == BF16)
        for (size_t i = 0; i < n; i++) into[i] = bf16_to_f32(from[i]);
    else
        for (size_t i = 0; i < n; i++) into[i] = f16_to_f32(from[i]);
}

INLINED void narrow(uint16_t *restrict into, const float *restrict from, size_t n, DType dtype) {
    if (dtype == BF16)
        for (size_t i = 0; i < n; i++) into[i] = bf16_of_f32(from[i]);
    else
        for (size_t i = 0; i < n; i++) into[i] = f16_of_f32(from[i]);
}

// Numbers in the type in which they are added: 16-bit types are added in fp32.
typedef union {
    float f32[BLOCK];
    double f64[BLOCK];
} Wide;

typedef union {
    float f32[TREE_BLOCK];
    double f64[TREE_BLOCK];
} WideOfTree;

INLINED void load_part(void *to, const char *part, size_t n, DType dtype) {
    if (dtype_bytes(dtype) == sizeof(uint16_t))
        widen(to, (const uint16_t *)(const void *)part, n, dtype);
    else
        memcpy(to, part, n * dtype_bytes(dtype));
}

INLINED void store_result(char *to, const void *result, size_t n, DType dtype) {
    if (dtype_bytes(dtype) == sizeof(uint16_t))
        narrow((uint16_t *)(void *)to, result, n, dtype);
    else
        memcpy(to, result, n * dtype_bytes(dtype));
}

INLINED void fold(void *into, const void *x, size_t n, DType dtype, ReduceOp op) {
    if (dtype == F64)
        fold_f64(into, x, n, op);
    else
        fold_f32(into, x, n, op);
}

// Reduces elements [at, at + n) of the parts in rank order, n <= BLOCK.
INLINED void reduce_block(char *out, const char *const *parts, int num_parts, size_t at, size_t n,
                          DType dtype, ReduceOp op) {
    Wide result, wide;
    bool is_narrow = dtype_bytes(dtype) == sizeof(uint16_t);
    size_t first = at * dtype_bytes(dtype);
    load_part(&result, parts[0] + first, n, dtype);
    for (int r = 1; r < num_parts; r++) {
        if (is_narrow) load_part(&wide, parts[r] + first, n, dtype);
        fold(&result, is_narrow ? (const void *)&wide : parts[r] + first, n, dtype, op);
    }
    store_result(out + first, &result, n, dtype);
}

// The same as a tree, n <= TREE_BLOCK. sums[k] is the sum of the last 2^k parts whose other half is still missing.
INLINED void tree_block(char *out, const char *const *parts, int num_parts, size_t at, size_t n,
                        DType dtype) {
    WideOfTree sums[TREE_LEVELS], sum;
    size_t first = at * dtype_bytes(dtype);
    int level = 0;
    for (int r = 0; r < num_parts; r++) {
        load_part(&sum, parts[r] + first, n, dtype);
        for (level = 0; r >> level & 1; level++) {
            fold(&sums[level], &sum, n, dtype, REDUCE_TREE);
            memcpy(&sum, &sums[level], sizeof sum);
        }
        memcpy(&sums[level], &sum, sizeof sum);
    }
    store_result(out + first, &sums[level], n, dtype);
}

INLINED void reduce_all(void *out, const char *const *parts, int num_parts, size_t count, DType dtype,
                        ReduceOp op) {
    const size_t block = op == REDUCE_TREE ? TREE_BLOCK : BLOCK;
    for (size_t at = 0; at < count; at += block) {
        size_t n = count - at < block ? count - at : block;
        if (op == REDUCE_TREE)
            tree_block(out, parts, num_parts, at, n, dtype);
        else
            reduce_block(out, parts, num_parts, at, n, dtype, op);
    }
}

// ---- instruction sets: additions give the same bits in vectors of any width ------------------------------------

typedef void Reduce(void *out, const char *const *parts, int num_parts, size_t count, DType dtype,
                    ReduceOp op);

static void reduce_baseline(void *out, const char *const *parts, int num_parts, size_t count, DType dtype,
                            ReduceOp op) {
    reduce_all(out, parts, num_parts, count, dtype, op);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void reduce_avx2(void *out, const char *const *parts, int num_parts,
                                                        size_t count, DType dtype, ReduceOp op) {
    reduce_all(out, parts, num_parts, count, dtype, op);
}

__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) static void
reduce_avx512(void *out, const char *const *parts, int num_parts, size_t count, DType dtype, ReduceOp op) {
    reduce_all(out, parts, num_parts, count, dtype, op);
}

static Reduce *best_reduce(void) {
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return reduce_avx512;
    return __builtin_cpu_supports("avx2") ? reduce_avx2 : reduce_baseline;
}
#else
static Reduce *best_reduce(void) { return reduce_baseline; }
#endif

void reduce_in_order(void *out, const char *const *parts, int num_parts, size_t count, DType dtype,
                     ReduceOp op) {
    best_reduce()(out, parts, num_parts, count, dtype, op);
}
