#include "comm/reduce.h"
#include <string.h>

enum { BLOCK_BYTES = 4096 }; // the running result stays in the first-level cache

static void add_f32(void *into, const void *from, size_t n) {
    float *restrict a = into;
    const float *restrict x = from;
    for (size_t i = 0; i < n; i++) a[i] += x[i];
}

static void add_f64(void *into, const void *from, size_t n) {
    double *restrict a = into;
    const double *restrict x = from;
    for (size_t i = 0; i < n; i++) a[i] += x[i];
}

static void max_f32(void *into, const void *from, size_t n) {
    float *restrict a = into;
    const float *restrict x = from;
    for (size_t i = 0; i < n; i++) a[i] = x[i] > a[i] || x[i] != x[i] ? x[i] : a[i];
}

static void max_f64(void *into, const void *from, size_t n) {
    double *restrict a = into;
    const double *restrict x = from;
    for (size_t i = 0; i < n; i++) a[i] = x[i] > a[i] || x[i] != x[i] ? x[i] : a[i];
}

static void (*const kernels[2][2])(void *into, const void *from, size_t n) = {
    [REDUCE_SUM] = {add_f32, add_f64},
    [REDUCE_MAX] = {max_f32, max_f64},
};

void reduce_in_order(void *out, const char *const *parts, int num_parts, size_t count, DType dtype,
                     ReduceOp op) {
    _Alignas(64) char block[BLOCK_BYTES];
    size_t element = dtype == F64 ? sizeof(double) : sizeof(float), step = BLOCK_BYTES / element;
    for (size_t done = 0; done < count; done += step) {
        size_t n = count - done < step ? count - done : step;
        memcpy(block, parts[0] + done * element, n * element);
        for (int r = 1; r < num_parts; r++) kernels[op][dtype == F64](block, parts[r] + done * element, n);
        memcpy((char *)out + done * element, block, n * element);
    }
}

size_t slice_begin(size_t count, int parts, int i) {
    return count / (size_t)parts * (size_t)i + count % (size_t)parts * (size_t)i / (size_t)parts;
}
