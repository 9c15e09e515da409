// The products in fp32 of builds without oneDNN, in every instruction set that this machine runs (tests/CMakeLists.txt
// compiles them for all): right for all shapes of their pieces, and with bits that depend on nothing but the factors.
#include "base/rng.h"
#include "device/cpu/cpu.h"
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef void Multiply(const Product *product);
Multiply cpu_product_baseline_F32, cpu_product_v3_F32, cpu_product_v4_F32, cpu_product_sve256_F32,
    cpu_product_sve512_F32;

enum { MAX_ROWS = 41, MAX_COLS = 83, MAX_INNER = 700, ROOM = 4 };

static float *numbers(int64_t count, uint64_t seed) {
    float *x = malloc((size_t)count * sizeof *x);
    CHECK(x, "no memory");
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(rng_word((RngKey){{7, 9}}, seed, (uint64_t)i) % 2001) / 1000 - 1;
    return x;
}

// Rows are longer than they need to be, with NaN behind them: what is not of the factor must not be used.
static Factor factor(int64_t rows, int64_t cols, bool transpose, uint64_t seed) {
    int64_t down = transpose ? cols : rows, across = transpose ? rows : cols, stride = across + ROOM;
    float *x = numbers(down * stride, seed);
    for (int64_t i = 0; i < down * stride; i++)
        if (i % stride >= across) x[i] = NAN;
    return (Factor){x, F32, stride, transpose};
}

static double at(const Factor *f, int64_t row, int64_t col) {
    const float *x = f->data;
    return f->transpose ? (double)x[col * f->stride + row] : (double)x[row * f->stride + col];
}

static void expect_product(Multiply *multiply, Product p) {
    int64_t bad = 0, size = p.rows * (p.cols + ROOM);
    p.a = factor(p.rows, p.inner, p.a.transpose, 1);
    p.b = factor(p.inner, p.cols, p.b.transpose, 2);
    p.stride = p.cols + ROOM;
    float *before = numbers(size, 3), *d = malloc((size_t)size * sizeof *d);
    CHECK(d, "no memory");
    memcpy(d, before, (size_t)size * sizeof *d);
    p.d = d;
    multiply(&p);
    for (int64_t i = 0; i < size; i++) {
        int64_t row = i / p.stride, col = i % p.stride;
        double want = col >= p.cols || p.adds ? (double)before[i] : 0, magnitude = fabs(want);
        for (int64_t k = 0; k < p.inner && col < p.cols; k++) {
            double term = at(&p.a, row, k) * at(&p.b, k, col);
            want += term, magnitude += fabs(term);
        }
        bad += !(fabs((double)d[i] - want) <= 4e-7 * magnitude);
    }
    EXPECT(!bad, "%lld of [%lld, %lld, %lld], transposed %d %d, adds %d, are off", (long long)bad,
           (long long)p.rows, (long long)p.cols, (long long)p.inner, p.a.transpose, p.b.transpose, p.adds);
    free((void *)(uintptr_t)p.a.data);
    free((void *)(uintptr_t)p.b.data);
    free(before);
    free(d);
}

static void shapes_of(Multiply *multiply) {
    static const int64_t SIZES[][3] = {{1, 1, 1},   {12, 32, 256}, {13, 33, 257}, {3, 7, 0},
                                       {6, 16, 37}, {41, 83, 700}, {25, 8, 512},  {4, 65, 255}};
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        for (int kind = 0; kind < 8; kind++)
            expect_product(multiply, (Product){.rows = SIZES[i][0],
                                               .cols = SIZES[i][1],
                                               .inner = SIZES[i][2],
                                               .dtype = F32,
                                               .a.transpose = kind & 1,
                                               .b.transpose = kind & 2,
                                               .adds = kind & 4});
}

// An element of a whole product, and of a product that begins with its row and column.
static void places_of(Multiply *multiply) {
    Product p = {.rows = MAX_ROWS, .cols = MAX_COLS, .inner = MAX_INNER, .dtype = F32, .stride = MAX_COLS};
    float whole[MAX_ROWS * MAX_COLS], part[MAX_ROWS * MAX_COLS];
    p.a = factor(p.rows, p.inner, false, 1);
    p.b = factor(p.inner, p.cols, false, 2);
    p.d = whole;
    multiply(&p);
    const float *a = p.a.data, *b = p.b.data;
    const int few = harness_short() ? 3 : 1; // an emulator takes long
    for (int64_t row = 0; row < MAX_ROWS; row += 5 * few)
        for (int64_t col = 0; col < MAX_COLS; col += 7 * few) {
            Product q = p;
            q.rows -= row, q.cols -= col, q.d = part;
            q.a.data = a + row * p.a.stride;
            q.b.data = b + col;
            multiply(&q);
            EXPECT(part[0] == whole[row * MAX_COLS + col], "[%lld, %lld] depends on its place",
                   (long long)row, (long long)col);
        }
    free((void *)(uintptr_t)a);
    free((void *)(uintptr_t)b);
}

#if defined(TRIREME_X86_LEVELS) || defined(TRIREME_ARM_LEVELS)
static bool runs(const char *kernels) {
    for (int i = 0; i < num_cpu_variants; i++)
        if (!strcmp(cpu_variants[i].name, kernels)) return cpu_variants[i].runs_here();
    return false;
}
#endif

static void all(void (*law)(Multiply *multiply)) {
    law(cpu_product_baseline_F32);
#if defined(TRIREME_X86_LEVELS)
    if (runs("avx2")) law(cpu_product_v3_F32);
    if (runs("avx512")) law(cpu_product_v4_F32);
#elif defined(TRIREME_ARM_LEVELS)
    if (runs("sve256")) law(cpu_product_sve256_F32);
    if (runs("sve512")) law(cpu_product_sve512_F32);
#endif
}

static void shapes(void) { all(shapes_of); }
static void places(void) { all(places_of); }

// On arm64 every width multiplies and adds as the others do: its bits are theirs.
static void bits_of(Multiply *multiply) {
    Product p = {.rows = MAX_ROWS, .cols = MAX_COLS, .inner = MAX_INNER, .dtype = F32, .stride = MAX_COLS};
    float these[MAX_ROWS * MAX_COLS], others[MAX_ROWS * MAX_COLS];
    p.a = factor(p.rows, p.inner, true, 1);
    p.b = factor(p.inner, p.cols, true, 2);
    p.d = these;
    multiply(&p);
    p.d = others;
    cpu_product_baseline_F32(&p);
    EXPECT(!memcmp(these, others, sizeof these), "bits differ from the baseline's");
    free((void *)(uintptr_t)p.a.data);
    free((void *)(uintptr_t)p.b.data);
}

static void bits(void) {
#if defined(__aarch64__)
    all(bits_of);
#else
    bits_of(cpu_product_baseline_F32);
#endif
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"shapes", shapes}, {"places", places}, {"bits", bits}, {0}}, argc,
                       argv);
}
