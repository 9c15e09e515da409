// A device with memory and a supply of reproducible tensors, for tests that run the same work on several devices.
#pragma once
#include "device/device.h"
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BENCH_OUTPUTS = 4, BENCH_BYTES = 1 << 22 };

typedef struct {
    const char *name;
    Tensor tensor;
} Output;

typedef struct {
    Device *device;
    Stream *stream;
    Arena arena;
    uint64_t tensors_drawn; // so that the n-th tensor is the same on every device
    Output outputs[BENCH_OUTPUTS];
    int num_outputs;
} Bench;

static inline Bench bench_open(const char *kind, int threads) {
    Bench b = {0};
    EXPECT_OK(device_open(&b.device, (DeviceOptions){kind, NULL, threads, BENCH_BYTES}));
    b.stream = device_stream(b.device);
    EXPECT_OK(arena_open(&b.arena, "bench", device_memory(b.device), BENCH_BYTES));
    return b;
}

static inline void bench_close(Bench *b) {
    arena_close(&b->arena);
    device_close(b->device);
}

static inline Tensor tensor(Bench *b, int64_t rows, int64_t cols) {
    return tensor_take(&b->arena, "tensor", rows, cols, F32);
}

static inline Tensor from_floats(Bench *b, int64_t rows, int64_t cols, const float *values) {
    Tensor x = tensor(b, rows, cols);
    device_upload(b->device, b->stream, x, values);
    return x;
}

static inline Tensor from_ints(Bench *b, int64_t count, const int32_t *values) {
    Tensor x = tensor_take(&b->arena, "integers", 1, count, I32);
    device_upload(b->device, b->stream, x, values);
    return x;
}

// Standard normals, the next ones.
static inline Tensor normals(Bench *b, int64_t rows, int64_t cols) {
    float *values = malloc((size_t)(rows * cols) * sizeof *values + 1);
    CHECK(values, "no memory");
    rng_fill_normal(rng_key(7, "bench", b->tensors_drawn++), 0, (uint64_t)(rows * cols), 0, 1, values);
    Tensor x = from_floats(b, rows, cols, values);
    free(values);
    return x;
}

// Integers in [0, limit), the next ones.
static inline Tensor integers(Bench *b, int64_t count, int32_t limit) {
    int32_t *values = malloc((size_t)count * sizeof *values + 1);
    CHECK(values, "no memory");
    RngKey key = rng_key(7, "bench", b->tensors_drawn++);
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)(rng_word(key, 0, (uint64_t)i) % (uint32_t)limit);
    Tensor x = from_ints(b, count, values);
    free(values);
    return x;
}

// Registers a tensor for comparison, and returns it.
static inline Tensor output(Bench *b, const char *name, Tensor x) {
    CHECK(b->num_outputs < BENCH_OUTPUTS, "too many outputs");
    b->outputs[b->num_outputs++] = (Output){name, x};
    return x;
}

// The values on the host; the caller frees them.
static inline void *values_of(Bench *b, Tensor x) {
    void *values = malloc(tensor_bytes(x) + 1);
    CHECK(values, "no memory");
    device_download(b->device, b->stream, values, x);
    return values;
}

static inline double value_at(const void *values, DType dtype, int64_t i) {
    return dtype == F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static inline Dropout dropout_of(float probability, int64_t samples) {
    return (Dropout){rng_key(3, "test dropout", 1), probability, ((int64_t)1 << 33) + 5, samples};
}
