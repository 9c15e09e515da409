// Adds parts in rank order, block by block, with the widest vectors that the CPU has.
#include "device/reduce.h"
#include "base/half.h"
#include <string.h>

enum { BLOCK = 1024 }; // elements: the running result and a widened part stay in the first-level cache

bool can_reduce(DType dtype) { return dtype != I32; }

// ---- one block; compiled for each level below -------------------------------------------------------

#define INLINED static inline __attribute__((always_inline))

INLINED void fold_f32(float *restrict into, const float *restrict x, size_t n, ReduceOp op) {
    if (op == REDUCE_SUM)
        for (size_t i = 0; i < n; i++) into[i] += x[i];
    else
        for (size_t i = 0; i < n; i++) into[i] = x[i] > into[i] || x[i] != x[i] ? x[i] : into[i];
}

INLINED void fold_f64(double *restrict into, const double *restrict x, size_t n, ReduceOp op) {
    if (op == REDUCE_SUM)
        for (size_t i = 0; i < n; i++) into[i] += x[i];
    else
        for (size_t i = 0; i < n; i++) into[i] = x[i] > into[i] || x[i] != x[i] ? x[i] : into[i];
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

// Reduces elements [at, at + n) of the parts, n <= BLOCK. 16-bit types are added in fp32.
INLINED void reduce_block(char *out, const char *const *parts, int num_parts, size_t at, size_t n,
                          DType dtype, ReduceOp op) {
    union {
        float f32[BLOCK];
        double f64[BLOCK];
    } result;
    float wide[BLOCK];
    size_t element = dtype_bytes(dtype);
    bool is_narrow = element == sizeof(uint16_t);
    if (is_narrow)
        widen(result.f32, (const uint16_t *)(const void *)parts[0] + at, n, dtype);
    else
        memcpy(&result, parts[0] + at * element, n * element);
    for (int r = 1; r < num_parts; r++) {
        const void *part = parts[r] + at * element;
        if (is_narrow) widen(wide, part, n, dtype);
        if (dtype == F64)
            fold_f64(result.f64, part, n, op);
        else
            fold_f32(result.f32, is_narrow ? wide : part, n, op);
    }
    if (is_narrow)
        narrow((uint16_t *)(void *)out + at, result.f32, n, dtype);
    else
        memcpy(out + at * element, &result, n * element);
}

INLINED void reduce_all(void *out, const char *const *parts, int num_parts, size_t count, DType dtype,
                        ReduceOp op) {
    for (size_t at = 0; at < count; at += BLOCK)
        reduce_block(out, parts, num_parts, at, count - at < BLOCK ? count - at : BLOCK, dtype, op);
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
