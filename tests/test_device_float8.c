// Products with factors in 8 bits, on every device: where sums are exact there is one answer, what is not finite stays so,
// and a zero or tiny tensor has a scale. test_device_ops.c compares other numbers, and every rounding, with the reference.
#include "device_mistakes.h"
#include <math.h>

static Tensor scalar(Fixture *b, float value) { return from_floats_of(b, F32, 1, 1, &value); }

// Whole numbers up to 6, which both formats hold, with zeros between them.
static Tensor small_numbers(Fixture *b, DType type, int64_t rows, int64_t cols, int step) {
    float values[4096];
    CHECK(rows * cols <= 4096, "room");
    for (int64_t i = 0; i < rows * cols; i++) {
        int at = (int)(i * step % 11) - 5;
        values[i] = (float)(at == 5 ? 6 : at == -5 ? -6 : at);
    }
    return from_floats_of(b, type, rows, cols, values);
}

typedef struct {
    DType a, b, d;
    bool bias, accumulate;
} Kind;

enum { M = 32, N = 48, K = 64 };

static void expect_exact(Fixture *b, Kind kind) {
    Tensor x = small_numbers(b, kind.a, M, K, 7), y = small_numbers(b, kind.b, N, K, 3);
    Tensor d = kind.accumulate ? small_numbers(b, F32, M, N, 5) : tensor_of(b, kind.d, M, N);
    Tensor bias = kind.bias ? small_numbers(b, kind.d, 1, N, 1) : (Tensor){0};
    double *a = doubles_of(b, x), *c = doubles_of(b, y), *before = kind.accumulate ? doubles_of(b, d) : NULL;
    double *added = kind.bias ? doubles_of(b, bias) : NULL;
    matmul(b->device, b->stream,
           (Matmul){.a = x,
                    .b = y,
                    .bias = bias,
                    .scale_a = scalar(b, 0.25f),
                    .scale_b = scalar(b, 8),
                    .d = d,
                    .transpose_b = true,
                    .accumulate = kind.accumulate});
    double *got = doubles_of(b, d);
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            double sum = 0;
            for (int64_t k = 0; k < K; k++) sum += a[i * K + k] * c[j * K + k];
            sum = 2 * sum + (added ? added[j] : 0) + (before ? before[i * N + j] : 0);
            float wanted = kind.d == BF16 ? bf16_to_f32(bf16_of_f32((float)sum)) : (float)sum;
            EXPECT(got[i * N + j] == (double)wanted, "%s x %s: [%d, %d] is %g, wanted %g", dtype_name(kind.a),
                   dtype_name(kind.b), (int)i, (int)j, got[i * N + j], (double)wanted);
        }
    free(a), free(c), free(before), free(added), free(got);
    arena_release(&b->arena, (ArenaMark){0, 0});
}

static void sums_of_whole_numbers(Fixture *b) {
    static const Kind kinds[] = {{E4M3, E4M3, BF16, true, false},  {E4M3, E4M3, F32, true, false},
                                 {E5M2, E4M3, BF16, false, false}, {E4M3, E5M2, F16, true, false},
                                 {E5M2, E4M3, F32, false, true},   {E4M3, E4M3, F32, true, true}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) expect_exact(b, kinds[i]);
}

static void whole_numbers_are_exact(void) { on_every_device(sums_of_whole_numbers); }

// ---- scales -----------------------------------------------------------------------------------------------

// Makes `count` numbers 8 bits wide and expects this scale; returns the numbers that they stand for.
static double *expect_scale(Fixture *b, DType type, int64_t count, const float *values, float scale) {
    Quantize args = {.x = from_floats_of(b, F32, 1, count, values), .max = zeros_of(b, F32, 1, 1)};
    args.q = tensor_of(b, type, 1, count), args.scale = tensor_f32(b, 1, 1);
    abs_max(b->device, b->stream, (AbsMax){args.x, args.max});
    quantize(b->device, b->stream, args);
    double *got = doubles_of(b, args.scale), *q = doubles_of(b, args.q);
    EXPECT(got[0] == (double)scale, "scale %a, wanted %a", got[0], (double)scale);
    for (int64_t i = 0; i < count; i++) q[i] *= got[0];
    free(got);
    return q;
}

static void scales(Fixture *b) {
    double *q = expect_scale(b, E4M3, 3, (float[]){1, -3.5f, 0.5f}, 0x1p-7f);
    EXPECT(q[0] == 1 && q[1] == -3.5 && q[2] == 0.5, "%g %g %g", q[0], q[1], q[2]);
    free(q);
    q = expect_scale(b, E5M2, 2, (float[]){0, -0.0f}, 1);
    EXPECT(q[0] == 0 && q[1] == 0, "of zeros: %g %g", q[0], q[1]);
    free(q);
    q = expect_scale(b, E4M3, 2, (float[]){0x1p-140f, 0x1p-149f}, 0x1p-126f);
    EXPECT(q[0] == 0 && q[1] == 0, "too small: %g %g", q[0], q[1]);
    free(q);
}

static void tensors_have_scales(void) { on_every_device(scales); }

static void what_is_not_finite(Fixture *b) {
    static const float odd[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        double *q = expect_scale(b, i == 1 ? E5M2 : E4M3, 3, (float[]){2, odd[i], 1000}, 1);
        EXPECT(q[0] == 2 && isnan(q[1]) && isfinite(q[2]), "%g: %g %g %g", (double)odd[i], q[0], q[1], q[2]);
        free(q);
    }
}

// The check device ends there.
static void infinity_is_no_number(void) {
    static const char *const kinds[] = {"reference", "cpu", "cuda-sim", "cuda"};
    for (int i = 0; i < 4; i++) {
        if (!is_wanted(kinds[i])) continue;
        Fixture b = fixture_open(kinds[i], 1);
        what_is_not_finite(&b);
        fixture_close(&b);
    }
}

// ---- mistakes ---------------------------------------------------------------------------------------------

static void multiply(Fixture *b, DType type_a, DType type_b, bool transpose_b, bool scales_present) {
    Tensor one = scales_present ? scalar(b, 1) : (Tensor){0};
    matmul(b->device, b->stream,
           (Matmul){.a = small_numbers(b, type_a, 16, 16, 1),
                    .b = small_numbers(b, type_b, 16, 16, 1),
                    .scale_a = one,
                    .scale_b = one,
                    .d = tensor_f32(b, 16, 16),
                    .transpose_b = transpose_b});
}

static void both_e5m2(Fixture *b) { multiply(b, E5M2, E5M2, true, true); }
static void one_in_bf16(Fixture *b) { multiply(b, E4M3, BF16, true, true); }
static void not_transposed(Fixture *b) { multiply(b, E4M3, E4M3, false, true); }
static void no_scales(Fixture *b) { multiply(b, E4M3, E4M3, true, false); }
static void scales_of_bf16(Fixture *b) { multiply(b, BF16, BF16, true, true); }
static void to_bf16(Fixture *b) {
    Tensor x = small_numbers(b, F32, 2, 2, 1), one = scalar(b, 1);
    quantize(b->device, b->stream, (Quantize){x, one, tensor_of(b, BF16, 2, 2), scalar(b, 1), false});
}

static void mistakes_are_named(void) {
    expect_death_on("cpu", both_e5m2, ERR_BUG, "matmul: a of e5m2 and b of e5m2");
    expect_death_on("cpu", one_in_bf16, ERR_BUG, "matmul: a of e4m3 and b of bf16");
    expect_death_on("cpu", not_transposed, ERR_BUG, "factors in 8 bits are a [M, K] and b [N, K]");
    expect_death_on("cpu", no_scales, ERR_BUG, "scale_a is [0, 0] f32, wanted [1, 1] f32");
    expect_death_on("cpu", scales_of_bf16, ERR_BUG, "scales of factors in bf16");
    expect_death_on("cpu", to_bf16, ERR_BUG, "quantize: to bf16");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"whole_numbers_are_exact", whole_numbers_are_exact},
                                      {"tensors_have_scales", tensors_have_scales},
                                      {"infinity_is_no_number", infinity_is_no_number},
                                      {"mistakes_are_named", mistakes_are_named},
                                      {0}},
                       argc, argv);
}
