// Calling one variant of the cpu backend: tensors that are exact allocations, every call repeated with
// several numbers of threads (the bits must not change) and given exactly the workspace that it asks for.
#pragma once
#include "base/half.h"
#include "device/cpu/cpu.h"
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BLOCKS = 512 };

typedef struct {
    const CpuVariant *variant;
    DType dtype;              // the element type of the operations under test
    void *blocks[MAX_BLOCKS]; // one exact allocation per tensor, so that a sanitizer sees every overrun
    int num_blocks;
    uint64_t drawn;
} Fixture;

static inline void fixture_close(Fixture *b) {
    for (int i = 0; i < b->num_blocks; i++) free(b->blocks[i]);
}

// The laws run on the variants that run here: on all, or on those whose names begin with TRIREME_TEST_VARIANTS.
static inline const char *names_variants(void) { return getenv("TRIREME_TEST_VARIANTS"); }
static inline bool wants_variant(const CpuVariant *variant) {
    const char *start = names_variants();
    return variant->runs_here() && (!start || !strncmp(variant->name, start, strlen(start)));
}

// Whether one that follows shares the variant's kernels of a type.
static inline bool shares_kernels(const CpuVariant *variant, DType type) {
    for (const CpuVariant *v = variant + 1; v < cpu_variants + num_cpu_variants; v++)
        if (wants_variant(v) && v->of[type] == variant->of[type]) return true;
    return false;
}

static inline void expect_variants(int count) {
    EXPECT(count > 0, "no variant runs here that TRIREME_TEST_VARIANTS names");
}

// In F32; what variants share runs once.
static inline void each_variant(void (*law)(Fixture *)) {
    int count = 0;
    for (const CpuVariant *v = cpu_variants; v < cpu_variants + num_cpu_variants; v++) {
        if (!wants_variant(v) || shares_kernels(v, F32)) continue;
        Fixture b = {.variant = v};
        law(&b);
        fixture_close(&b);
        count++;
    }
    expect_variants(count);
}

// ---- tensors ----------------------------------------------------------------------------------------------

static inline void *block(Fixture *b, size_t bytes) {
    CHECK(b->num_blocks < MAX_BLOCKS, "too many tensors");
    void *data = calloc(1, bytes);
    CHECK(data, "no memory");
    return b->blocks[b->num_blocks++] = data;
}

static inline Tensor zeros(Fixture *b, int64_t rows, int64_t cols) {
    return (Tensor){block(b, (size_t)(rows * cols) * sizeof(float)), rows, cols, F32};
}

static inline float *f(Tensor x) { return x.data; }

static inline Tensor constant(Fixture *b, int64_t rows, int64_t cols, float value) {
    Tensor x = zeros(b, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) f(x)[i] = value;
    return x;
}

// What x becomes in an element type, and what element i stands for.
static inline float rounded(DType type, float x) {
    if (type == BF16) return bf16_to_f32(bf16_of_f32(x));
    return type == F16 ? f16_to_f32(f16_of_f32(x)) : x;
}

static inline float value(Tensor x, int64_t i) {
    if (x.dtype == F32) return f(x)[i];
    uint16_t bits = ((const uint16_t *)x.data)[i];
    return x.dtype == BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

static inline Tensor normals(Fixture *b, int64_t rows, int64_t cols) {
    Tensor x = zeros(b, rows, cols);
    rng_fill_normal(rng_key(11, "cpu test", b->drawn++), 0, (uint64_t)(rows * cols), 0, 1, f(x));
    return x;
}

// Integers in [0, limit).
static inline Tensor integers(Fixture *b, int64_t count, uint32_t limit) {
    Tensor x = {block(b, (size_t)count * sizeof(int32_t)), 1, count, I32};
    RngKey key = rng_key(11, "cpu test", b->drawn++);
    for (int64_t i = 0; i < count; i++)
        ((int32_t *)x.data)[i] = (int32_t)(rng_word(key, 0, (uint64_t)i) % limit);
    return x;
}

static inline int32_t integer(Tensor x, int64_t i) { return ((const int32_t *)x.data)[i]; }

static inline Tensor copy(Fixture *b, Tensor x) {
    Tensor y = zeros(b, x.rows, x.cols);
    memcpy(y.data, x.data, tensor_bytes(x));
    return y;
}

static inline Dropout dropout_of(float probability, int64_t samples) {
    return (Dropout){.key = rng_key(3, "cpu test dropout", 1),
                     .probability = probability,
                     .first_sample = ((int64_t)1 << 33) + 5,
                     .samples = samples};
}

static inline double factor(Dropout d, int64_t b, int64_t index) {
    uint32_t word = rng_word(d.key, (uint64_t)(d.first_sample + b), (uint64_t)index);
    return word >= rng_dropout_threshold(d.probability) ? 1 / (1 - (double)d.probability) : 0;
}

// ---- calling ----------------------------------------------------------------------------------------------

static const int FIRST_WRITTEN[] = {
#define X(NAME, function, Args, reads, writes) reads,
    DEVICE_OPS(X)
#undef X
};

static const int NUM_WRITTEN[] = {
#define X(NAME, function, Args, reads, writes) writes,
    DEVICE_OPS(X)
#undef X
};

static inline void with_threads(Fixture *b, int threads, DeviceOp op, const void *args) {
    const Backend *backend = b->variant->of[b->dtype];
    size_t bytes = backend->workspace_bytes(&(DeviceOptions){.threads = threads}, op, args);
    Exec exec = {.threads = threads, .workspace = malloc(bytes + !bytes), .workspace_bytes = bytes};
    CHECK(exec.workspace, "no memory");
    memset(exec.workspace, 0xFF, bytes); // NaN: nothing may be read before it is written
    backend_run(backend, &exec, op, args);
    free(exec.workspace);
}

// Runs the operation with 1, 2, 3 and 5 threads from the same start, in the short form with 1 and 5; leaves
// the result of the last.
static inline void run(Fixture *b, DeviceOp op, const void *args) {
    const Tensor *written = (const Tensor *)args + FIRST_WRITTEN[op];
    unsigned char *before[4], *result[4];
    for (int i = 0; i < NUM_WRITTEN[op]; i++) {
        size_t bytes = tensor_bytes(written[i]);
        before[i] = malloc(bytes + !bytes), result[i] = malloc(bytes + !bytes);
        CHECK(before[i] && result[i], "no memory");
        if (bytes) memcpy(before[i], written[i].data, bytes);
    }
    with_threads(b, 1, op, args);
    for (int i = 0; i < NUM_WRITTEN[op]; i++)
        if (written[i].data) memcpy(result[i], written[i].data, tensor_bytes(written[i]));
    for (int threads = harness_short() ? 5 : 2; threads <= 5; threads += threads == 3 ? 2 : 1) {
        for (int i = 0; i < NUM_WRITTEN[op]; i++)
            if (written[i].data) memcpy(written[i].data, before[i], tensor_bytes(written[i]));
        with_threads(b, threads, op, args);
        for (int i = 0; i < NUM_WRITTEN[op]; i++)
            EXPECT(!written[i].data || !memcmp(result[i], written[i].data, tensor_bytes(written[i])),
                   "%s %s: %s, output %d differs between 1 and %d threads", b->variant->isa,
                   dtype_name(b->dtype), device_op_name(op), i, threads);
    }
    for (int i = 0; i < NUM_WRITTEN[op]; i++) free(before[i]), free(result[i]);
}

static inline void near(Fixture *b, const char *what, int64_t i, float got, double want, double tolerance) {
    EXPECT(fabs((double)got - want) <= tolerance * (1 + fabs(want)), "%s: %s[%lld] = %.9g, not %.9g",
           b->variant->isa, what, (long long)i, (double)got, want);
}
