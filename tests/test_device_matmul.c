// Matrix products of the cpu backend: how they are cut, and what oneDNN makes of a piece.
#include "base/half.h"
#include "device/cpu.h"
#include "harness.h"
#include <math.h>
#include <pthread.h>
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

static double number_at(DType dtype, const void *x, int64_t i) {
    return (double)(dtype == F32 ? ((const float *)x)[i] : bf16_to_f32(((const uint16_t *)x)[i]));
}

static double value(Factor x, int64_t row, int64_t col) {
    return number_at(x.dtype, x.data, x.transpose ? col * x.stride + row : row * x.stride + col);
}

// Elements that are off: of the product, rounded once, or between its rows, where they must stay.
static int64_t errors_of(const Product *p) {
    int64_t bad = 0;
    for (int64_t i = 0; i < p->rows * p->stride; i++) {
        int64_t row = i / p->stride, col = i % p->stride;
        double want = p->adds || col >= p->cols ? (double)number(i) : 0;
        if (p->bias && col < p->cols) want += number_at(BF16, p->bias, col);
        for (int64_t k = 0; col < p->cols && k < p->inner; k++)
            want += value(p->a, row, k) * value(p->b, k, col);
        double rounding = p->dtype == BF16 ? 0x1p-8 * fabs(want) : 0;
        bad += !(fabs(number_at(p->dtype, p->d, i) - want) <= rounding + 1e-6 * (double)p->inner);
    }
    return bad;
}

// p says all but the addresses.
static void piece(Product p, bool with_bias) {
    void *a = numbers(p.a.dtype, p.a.stride * (p.a.transpose ? p.inner : p.rows));
    void *b = numbers(p.b.dtype, p.b.stride * (p.b.transpose ? p.cols : p.inner));
    void *bias = numbers(BF16, p.cols), *d = numbers(p.dtype, p.rows * p.stride);
    size_t bytes = dtype_bytes(p.dtype);
    for (int64_t row = 0; !p.adds && row < p.rows; row++) // NaN: must not be read
        memset((char *)d + (size_t)(row * p.stride) * bytes, 0xFF, (size_t)p.cols * bytes);
    p.a.data = a, p.b.data = b, p.bias = with_bias ? bias : NULL, p.d = d;
    cpu_product(&p);
    int64_t bad = errors_of(&p);
    EXPECT(!bad, "%s %s%s [%lld, %lld, %lld] to %s%s%s: %lld are off", dtype_name(p.a.dtype),
           p.a.transpose ? "T" : "N", p.b.transpose ? "T" : "N", (long long)p.rows, (long long)p.cols,
           (long long)p.inner, dtype_name(p.dtype), p.adds ? " adds" : "", with_bias ? " bias" : "",
           (long long)bad);
    free(a), free(b), free(bias), free(d);
}

// Rows, columns, terms; the strides of a, b and d.
typedef int64_t Sizes[6];

enum { KINDS = 16, KINDS_OF_F32 = 8 };

static void piece_of_kind(DType factors, int kind, const Sizes n) {
    static const struct {
        DType dtype;
        bool adds, bias;
    } ENDS[] = {{F32, true, false}, {F32, false, false}, {BF16, false, false}, {BF16, false, true}};
    Product p = {.rows = n[0], .cols = n[1], .inner = n[2], .stride = n[5]};
    p.a = (Factor){NULL, factors, n[3], kind & 1}, p.b = (Factor){NULL, factors, n[4], kind & 2};
    p.dtype = ENDS[kind / 4].dtype, p.adds = ENDS[kind / 4].adds;
    piece(p, ENDS[kind / 4].bias);
}

// The last sizes differ in one number, kinds in one property: what is kept of one must not serve another.
static void piece_law(void) {
    static const Sizes SIZES[] = {
        {1, 1, 1, 6, 3, 4},       {33, 18, 7, 38, 20, 21},  {64, 80, 129, 134, 131, 83},
        {65, 65, 65, 65, 65, 65}, {40, 40, 40, 48, 48, 48}, {41, 40, 40, 48, 48, 48},
        {40, 41, 40, 48, 48, 48}, {40, 40, 41, 48, 48, 48}, {40, 40, 40, 49, 48, 48},
        {40, 40, 40, 48, 49, 48}, {40, 40, 40, 48, 48, 49}};
    enum { NUM_SIZES = sizeof SIZES / sizeof *SIZES };
    for (int i = 0; i < KINDS * NUM_SIZES; i++) {
        int kind = i / NUM_SIZES;
        if (kind < KINDS_OF_F32) piece_of_kind(F32, kind, SIZES[i % NUM_SIZES]);
        if (cpu_multiplies_bf16()) piece_of_kind(BF16, kind, SIZES[i % NUM_SIZES]);
    }
}

// More kinds than a thread keeps, twice over, in threads that end: a sanitizer sees what they leave behind.
static void *many_kinds(void *unused) {
    cpu_products_alone();
    for (int64_t i = 0; i < 140; i++) {
        Factor factor = {NULL, BF16, 70, false};
        piece((Product){.rows = 2,
                        .cols = 16,
                        .inner = 1 + i % 70,
                        .a = factor,
                        .b = factor,
                        .dtype = BF16,
                        .stride = 16},
              false);
    }
    return unused;
}

static void keeping_law(void) {
    pthread_t threads[2];
    if (!cpu_multiplies_bf16()) return;
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&threads[i], NULL, many_kinds, NULL), "no thread");
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){
            {"cut", cut_law}, {"threads", thread_law}, {"piece", piece_law}, {"keeping", keeping_law}, {0}},
        argc, argv);
}
