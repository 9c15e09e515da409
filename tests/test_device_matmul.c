// Matrix products of the cpu backend: how they are cut, and what oneDNN makes of a piece.
#include "base/half.h"
#include "device/cpu.h"
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float number(int64_t i) { return (float)((uint64_t)i * 2654435761u >> 7 & 0xFF) / 128 - 1; }

static void *numbers(DType dtype, int64_t count) {
    void *data = malloc((size_t)count * dtype_bytes(dtype));
    CHECK(data, "no memory");
    for (int64_t i = 0; i < count; i++)
        if (dtype == F32)
            ((float *)data)[i] = number(i);
        else
            ((uint16_t *)data)[i] = dtype == BF16 ? bf16_of_f32(number(i)) : f16_of_f32(number(i));
    return data;
}

// ---- the cut ----------------------------------------------------------------------------------------------

// Tiles cover d, none is larger than the workspace holds, and two threads have the same number of them.
static void cut_law(void) {
    static const int64_t SIZES[] = {1, 15, 16, 511, 513, 768, 1024, 1025, 1537, 2304, 3072, 8192, 50304};
    enum { NUM_SIZES = sizeof SIZES / sizeof SIZES[0] };
    for (int i = 0; i < NUM_SIZES * NUM_SIZES; i++) {
        int64_t rows = SIZES[i / NUM_SIZES], cols = SIZES[i % NUM_SIZES], inner = 8;
        Matmul p = {
            .a = {NULL, rows, inner, BF16}, .b = {NULL, inner, cols, BF16}, .d = {NULL, rows, cols, BF16}};
        CpuCut cut = cpu_cut(&p);
        int64_t count = cut.down * cut.across;
        EXPECT(cut.down * cut.rows >= rows && cut.across * cut.cols >= cols, "[%lld, %lld]: not covered",
               (long long)rows, (long long)cols);
        EXPECT(count == 1 || count % 2 == 0, "[%lld, %lld]: %lld tiles", (long long)rows, (long long)cols,
               (long long)count);
        EXPECT(cut.rows <= HIGH_TILE_ROWS && cut.cols <= TILE_COLS, "[%lld, %lld]: tiles of [%lld, %lld]",
               (long long)rows, (long long)cols, (long long)cut.rows, (long long)cut.cols);
    }
}

// d of a product with so many threads; what is around it in memory must stay.
static float *product_of(int threads, DType dtype, bool ta, bool tb, int64_t rows, int64_t cols,
                         int64_t inner) {
    Matmul p = {.transpose_a = ta, .transpose_b = tb, .accumulate = ta};
    p.a = (Tensor){numbers(dtype, rows * inner), ta ? inner : rows, ta ? rows : inner, dtype};
    p.b = (Tensor){numbers(dtype, cols * inner), tb ? cols : inner, tb ? inner : cols, dtype};
    p.d = (Tensor){numbers(F32, rows * cols), rows, cols, F32};
    Exec exec = {.threads = threads, .workspace_bytes = cpu_backend.workspace_bytes(threads, OP_MATMUL, &p)};
    exec.workspace = aligned_alloc(64, (exec.workspace_bytes + 127) / 64 * 64);
    CHECK(exec.workspace, "no memory");
    cpu_backend.matmul(&exec, &p);
    free(exec.workspace), free(p.a.data), free(p.b.data);
    return p.d.data;
}

static void same_with_threads(DType dtype, bool ta, bool tb, int64_t rows, int64_t cols, int64_t inner) {
    float *one = product_of(1, dtype, ta, tb, rows, cols, inner);
    for (int threads = 2; threads <= 5; threads++) {
        float *many = product_of(threads, dtype, ta, tb, rows, cols, inner);
        EXPECT(!memcmp(one, many, (size_t)(rows * cols) * sizeof *one),
               "%s [%lld, %lld, %lld] with %d threads", dtype_name(dtype), (long long)rows, (long long)cols,
               (long long)inner, threads);
        free(many);
    }
    free(one);
}

static void thread_law(void) {
    static const DType TYPES[] = {F32, BF16, F16};
    for (int i = 0; i < 3; i++) {
        same_with_threads(TYPES[i], false, true, 1100, 800, 130);
        same_with_threads(TYPES[i], false, false, 530, 1600, 65);
        same_with_threads(TYPES[i], true, false, 1300, 70, 600);
        same_with_threads(TYPES[i], false, true, 0, 70, 600);
    }
}

// ---- one piece --------------------------------------------------------------------------------------------

static double value(Factor x, int64_t row, int64_t col) {
    int64_t i = x.transpose ? col * x.stride + row : row * x.stride + col;
    return (double)(x.dtype == F32 ? ((const float *)x.data)[i] : bf16_to_f32(((const uint16_t *)x.data)[i]));
}

// c [rows, cols] with three more floats in a row, which must stay.
static void piece(DType dtype, bool ta, bool tb, int64_t rows, int64_t cols, int64_t inner, bool adds) {
    int64_t stride = cols + 3, stride_a = (ta ? rows : inner) + 5, stride_b = (tb ? inner : cols) + 2;
    Factor a = {numbers(dtype, stride_a * (ta ? inner : rows)), dtype, stride_a, ta};
    Factor b = {numbers(dtype, stride_b * (tb ? cols : inner)), dtype, stride_b, tb};
    float *c = numbers(F32, rows * stride);
    for (int64_t i = 0; !adds && i < rows * stride; i++)
        if (i % stride < cols) c[i] = NAN; // must not be read
    cpu_product(rows, cols, inner, a, b, adds, c, stride);
    int64_t bad = 0;
    for (int64_t i = 0; i < rows * stride; i++) {
        double want = adds || i % stride >= cols ? (double)number(i) : 0;
        for (int64_t k = 0; i % stride < cols && k < inner; k++)
            want += value(a, i / stride, k) * value(b, k, i % stride);
        bad += !(fabs((double)c[i] - want) <= 1e-6 * (double)inner);
    }
    EXPECT(!bad, "%s %s%s [%lld, %lld, %lld]: %lld are off", dtype_name(dtype), ta ? "T" : "N",
           tb ? "T" : "N", (long long)rows, (long long)cols, (long long)inner, (long long)bad);
    free((void *)(uintptr_t)a.data), free((void *)(uintptr_t)b.data), free(c);
}

static void piece_law(void) {
    for (int i = 0; i < 16; i++) {
        DType dtype = i & 8 ? cpu_factor_type(BF16) : F32;
        piece(dtype, i & 1, i & 2, 1, 1, 1, i & 4);
        piece(dtype, i & 1, i & 2, 33, 18, 7, i & 4);
        piece(dtype, i & 1, i & 2, 64, 80, 129, i & 4);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"cut", cut_law}, {"threads", thread_law}, {"piece", piece_law}, {0}},
                       argc, argv);
}
