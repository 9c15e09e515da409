#include "comm/reduce.h"
#include "base/half.h"
#include <string.h>

enum { BLOCK = 1024 }; // elements: the running result and a widened part stay in the first-level cache

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

static void widen_bf16(float *restrict into, const uint16_t *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) into[i] = bf16_to_f32(from[i]);
}

static void narrow_bf16(uint16_t *restrict into, const float *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) into[i] = bf16_of_f32(from[i]);
}

static void widen_f16(float *restrict into, const uint16_t *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) into[i] = f16_to_f32(from[i]);
}

static void narrow_f16(uint16_t *restrict into, const float *restrict from, size_t n) {
    for (size_t i = 0; i < n; i++) into[i] = f16_of_f32(from[i]);
}

typedef struct {
    size_t wide_bytes; // of an element while it is reduced; 0: the type cannot be
    void (*fold[2])(void *into, const void *from, size_t n);
    // Narrow types only: all in between is fp32.
    void (*widen)(float *into, const uint16_t *from, size_t n);
    void (*narrow)(uint16_t *into, const float *from, size_t n);
} Kernels;

static const Kernels kernels[NUM_DTYPES] = {
    [F32] = {sizeof(float), {add_f32, max_f32}, NULL, NULL},
    [F64] = {sizeof(double), {add_f64, max_f64}, NULL, NULL},
    [BF16] = {sizeof(float), {add_f32, max_f32}, widen_bf16, narrow_bf16},
    [F16] = {sizeof(float), {add_f32, max_f32}, widen_f16, narrow_f16},
};

bool can_reduce(DType dtype) { return kernels[dtype].wide_bytes; }

// A part as it is added: itself, or its elements in fp32 at `wide`.
static const void *widened(const Kernels *k, const char *part, size_t n, float *wide) {
    if (!k->widen) return part;
    k->widen(wide, (const uint16_t *)(const void *)part, n);
    return wide;
}

void reduce_in_order(void *out, const char *const *parts, int num_parts, size_t count, DType dtype,
                     ReduceOp op) {
    const Kernels *k = &kernels[dtype];
    size_t element = dtype_bytes(dtype);
    union {
        float f32[BLOCK];
        double f64[BLOCK];
    } result;
    float wide[BLOCK];
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t n = count - done < BLOCK ? count - done : BLOCK;
        char *to = (char *)out + done * element;
        memcpy(&result, widened(k, parts[0] + done * element, n, wide), n * k->wide_bytes);
        for (int r = 1; r < num_parts; r++)
            k->fold[op](&result, widened(k, parts[r] + done * element, n, wide), n);
        if (k->narrow)
            k->narrow((uint16_t *)(void *)to, result.f32, n);
        else
            memcpy(to, &result, n * element);
    }
}

size_t slice_begin(size_t count, int parts, int i) {
    return count / (size_t)parts * (size_t)i + count % (size_t)parts * (size_t)i / (size_t)parts;
}
