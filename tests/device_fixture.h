// A device with memory and a supply of reproducible tensors, for tests that run the same work on several
// devices and in several element types.
#pragma once
#include "device/element.h"
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FIXTURE_OUTPUTS = 8, FIXTURE_BYTES = 1 << 22, FIXTURE_WORKSPACE = 33 << 20 };

typedef struct {
    const char *name;
    Tensor tensor;
} Output;

typedef struct {
    Device *device;
    Stream *stream;
    Arena arena;
    DType element;          // of tensors whose type is not said
    DType drawn;            // drawn numbers have a value of this type, whatever they are stored as
    uint64_t tensors_drawn; // so that the n-th tensor is the same on every device
    Output outputs[FIXTURE_OUTPUTS];
    int num_outputs;
} Fixture;

static inline Fixture fixture_open_as(const char *kind, int threads, DType element, DType drawn) {
    Fixture b = {.element = element, .drawn = drawn};
    EXPECT_OK(device_open(
        &b.device, (DeviceOptions){.kind = kind, .threads = threads, .workspace_bytes = FIXTURE_WORKSPACE}));
    b.stream = device_stream(b.device);
    EXPECT_OK(arena_open(&b.arena, "fixture", device_memory(b.device), FIXTURE_BYTES));
    return b;
}

static inline Fixture fixture_open(const char *kind, int threads) {
    return fixture_open_as(kind, threads, F32, F32);
}

static inline void fixture_close(Fixture *b) {
    arena_close(&b->arena);
    device_close(b->device);
}

// Whether this build and this machine have such a device: a GPU need not be there.
static inline bool kind_is_here(const char *kind) { return device_check(kind) != ERR_UNAVAILABLE; }

// Whether the laws run on this kind of device: on the one that TRIREME_TEST_DEVICE names, which must be here, or on all that
// are here.
static inline bool is_wanted(const char *kind) {
    if (strcmp(kind, harness_device(kind)) != 0) return false;
    bool here = kind_is_here(kind), named = *harness_device("");
    EXPECT(here || !named, "%s", fail_message());
    return here;
}

// Whether this kind of device ends the job at a number that is not finite: check, cuda-check, cuda-sim-check.
static inline bool ends_at_nans(const char *kind) {
    const size_t length = strlen(kind), end = strlen("check");
    return length >= end && strcmp(kind + length - end, "check") == 0;
}

// Runs a law on each kind of device, also where nothing is computed.
static inline void on_every_kind(void (*law)(Fixture *b, const char *kind)) {
    int count;
    const char *const *kinds = device_kinds(&count);
    for (int i = 0; i < count; i++) {
        if (!is_wanted(kinds[i])) continue;
        Fixture b = fixture_open(kinds[i], 1);
        law(&b, kinds[i]);
        fixture_close(&b);
    }
}

// Runs a law on each kind of device that computes.
static inline void on_every_device_as(void (*law)(Fixture *b), DType element) {
    int count;
    const char *const *kinds = device_kinds(&count);
    for (int i = 0; i < count; i++) {
        if (!is_wanted(kinds[i])) continue;
        Fixture b = fixture_open_as(kinds[i], 1, element, element);
        if (device_computes(b.device)) law(&b);
        fixture_close(&b);
    }
}

static inline void on_every_device(void (*law)(Fixture *b)) { on_every_device_as(law, F32); }

// And in each element type.
static inline void in_every_type(void (*law)(Fixture *b)) {
    on_every_device_as(law, F32);
    on_every_device_as(law, BF16);
    on_every_device_as(law, F16);
}

// Between neighbouring numbers of an element type, relative to them.
static inline double precision_of(DType dtype) {
    return dtype == BF16 ? 0x1p-7 : dtype == F16 ? 0x1p-10 : 0x1p-23;
}

// ---- tensors ----------------------------------------------------------------------------------------------

static inline Tensor tensor_of(Fixture *b, DType dtype, int64_t rows, int64_t cols) {
    return tensor_take(&b->arena, "tensor", rows, cols, dtype);
}

static inline Tensor tensor(Fixture *b, int64_t rows, int64_t cols) {
    return tensor_of(b, b->element, rows, cols);
}

static inline Tensor tensor_f32(Fixture *b, int64_t rows, int64_t cols) {
    return tensor_of(b, F32, rows, cols);
}

static inline Tensor from_floats_of(Fixture *b, DType dtype, int64_t rows, int64_t cols,
                                    const float *values) {
    Tensor x = tensor_of(b, dtype, rows, cols), host = x;
    host.data = malloc(tensor_bytes(x) + 1);
    CHECK(host.data, "no memory");
    for (int64_t i = 0; i < rows * cols; i++) store(host, i, (double)values[i]);
    device_upload(b->device, b->stream, x, host.data);
    free(host.data);
    return x;
}

static inline Tensor from_floats(Fixture *b, int64_t rows, int64_t cols, const float *values) {
    return from_floats_of(b, b->element, rows, cols, values);
}

static inline Tensor from_ints(Fixture *b, int64_t count, const int32_t *values) {
    Tensor x = tensor_of(b, I32, 1, count);
    device_upload(b->device, b->stream, x, values);
    return x;
}

static inline Tensor zeros_of(Fixture *b, DType dtype, int64_t rows, int64_t cols) {
    Tensor x = tensor_of(b, dtype, rows, cols);
    device_zero(b->device, b->stream, x);
    return x;
}

static inline Tensor copy_of(Fixture *b, Tensor x) {
    Tensor y = tensor_of(b, x.dtype, x.rows, x.cols);
    device_copy(b->device, b->stream, y, x);
    return y;
}

// A copy of columns [first, first + count) of x.
static inline Tensor columns_of(Fixture *b, Tensor x, int64_t first, int64_t count) {
    Tensor part = tensor_of(b, x.dtype, x.rows, count);
    for (int64_t row = 0; row < x.rows; row++)
        device_copy(b->device, b->stream, tensor_rows(part, row, 1),
                    tensor_part(x, row * x.cols + first, count));
    return part;
}

// ---- numbers drawn ----------------------------------------------------------------------------------------

// `x` rounded to a type, in place.
static inline void round_floats(DType dtype, int64_t count, float *x) {
    for (int64_t i = 0; i < count; i++) {
        uint64_t word = 0;
        Tensor one = {&word, 1, 1, dtype};
        store(one, 0, (double)x[i]);
        x[i] = (float)load(one, 0);
    }
}

static inline Tensor draw_normals(Fixture *b, DType dtype, DType drawn, int64_t rows, int64_t cols) {
    float *values = malloc((size_t)(rows * cols) * sizeof *values + 1);
    CHECK(values, "no memory");
    rng_fill_normal(rng_key(7, "bench", b->tensors_drawn++), 0, (uint64_t)(rows * cols), 0, 1, values);
    round_floats(drawn, rows * cols, values);
    Tensor x = from_floats_of(b, dtype, rows, cols, values);
    free(values);
    return x;
}

// Standard normals, the next ones.
static inline Tensor normals(Fixture *b, int64_t rows, int64_t cols) {
    return draw_normals(b, b->element, b->drawn, rows, cols);
}

static inline Tensor normals_f32(Fixture *b, int64_t rows, int64_t cols) {
    return draw_normals(b, F32, F32, rows, cols);
}

// Multiples of 1/8 from -1 to 1, the next ones: every type holds them, and fp32 holds every sum of some thousands of their
// products, so no order of adding these rounds.
static inline Tensor eighths_of(Fixture *b, DType dtype, int64_t rows, int64_t cols) {
    float *values = malloc((size_t)(rows * cols) * sizeof *values + 1);
    CHECK(values, "no memory");
    RngKey key = rng_key(7, "bench", b->tensors_drawn++);
    for (int64_t i = 0; i < rows * cols; i++) values[i] = (float)(rng_word(key, 0, (uint64_t)i) % 17) / 8 - 1;
    Tensor x = from_floats_of(b, dtype, rows, cols, values);
    free(values);
    return x;
}

// Integers in [0, limit), the next ones.
static inline Tensor integers(Fixture *b, int64_t count, int32_t limit) {
    int32_t *values = malloc((size_t)count * sizeof *values + 1);
    CHECK(values, "no memory");
    RngKey key = rng_key(7, "bench", b->tensors_drawn++);
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)(rng_word(key, 0, (uint64_t)i) % (uint32_t)limit);
    Tensor x = from_ints(b, count, values);
    free(values);
    return x;
}

static inline Dropout dropout_of(float probability, int64_t samples) {
    return (Dropout){.key = rng_key(3, "test dropout", 1),
                     .probability = probability,
                     .first_sample = ((int64_t)1 << 33) + 5,
                     .samples = samples};
}

// A table of rotary angles that turn, unlike a model's, far within a few positions.
static inline Tensor angles(Fixture *b, int64_t sequence, int64_t cols) {
    float *values = malloc((size_t)(sequence * cols) * sizeof *values + 1);
    CHECK(values, "no memory");
    for (int64_t s = 0; s < sequence; s++)
        for (int64_t i = 0; i < cols / 2; i++) {
            double angle = (double)s * pow(10, -(double)(2 * i) / (double)cols);
            values[s * cols + i] = (float)cos(angle);
            values[s * cols + cols / 2 + i] = (float)sin(angle);
        }
    Tensor table = from_floats_of(b, F32, sequence, cols, values);
    free(values);
    return table;
}

// ---- results ----------------------------------------------------------------------------------------------

// Registers a tensor for comparison, and returns it.
static inline Tensor output(Fixture *b, const char *name, Tensor x) {
    CHECK(b->num_outputs < FIXTURE_OUTPUTS, "too many outputs");
    b->outputs[b->num_outputs++] = (Output){name, x};
    return x;
}

// The values on the host; the caller frees them.
static inline void *values_of(Fixture *b, Tensor x) {
    void *values = malloc(tensor_bytes(x) + 1);
    CHECK(values, "no memory");
    device_download(b->device, b->stream, values, x);
    return values;
}

// The same, of any floating point type, as doubles.
static inline double *doubles_of(Fixture *b, Tensor x) {
    double *doubles = malloc((size_t)tensor_count(x) * sizeof *doubles + 1);
    CHECK(doubles, "no memory");
    Tensor host = x;
    host.data = values_of(b, x);
    for (int64_t i = 0; i < tensor_count(x); i++) doubles[i] = load(host, i);
    free(host.data);
    return doubles;
}

// That every element of `got` is within `tolerance` of `wanted`; 0: that they have the same bits.
static inline void expect_near(Fixture *b, const char *what, Tensor got, Tensor wanted, double tolerance) {
    EXPECT(tensor_same_shape(got, wanted), "%s: shape", what);
    void *got_bits = values_of(b, got), *wanted_bits = values_of(b, wanted);
    bool same = memcmp(got_bits, wanted_bits, tensor_bytes(got)) == 0;
    double *g = doubles_of(b, got), *w = doubles_of(b, wanted), error = 0;
    for (int64_t i = 0; i < tensor_count(got); i++)
        error = fmax(error, isnan(g[i] - w[i]) ? INFINITY : fabs(g[i] - w[i]));
    EXPECT(same || (tolerance > 0 && error <= tolerance), "%s: %s differs by %.3g", dtype_name(got.dtype),
           what, error);
    free(got_bits);
    free(wanted_bits);
    free(g);
    free(w);
}
