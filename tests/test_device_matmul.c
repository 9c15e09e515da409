// Matrix products of the cpu backend: how they are cut, and what is made of a piece: by oneDNN, by AMX, by pairs.
#include "base/half.h"
#include "device/cpu/cpu.h"
#include "harness.h"
#include "product_rows.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

// Numbers repeat after a prime number of elements, so that rows differ.
enum { PERIOD = 4093 };

static float number(int64_t i) { return (float)((uint64_t)(i % PERIOD) * 2654435761u >> 7 & 0xFF) / 128 - 1; }

static void *numbers(DType dtype, int64_t count) {
    const size_t bytes = dtype_bytes(dtype);
    char *data = malloc((size_t)count * bytes);
    CHECK(data, "no memory");
    for (int64_t i = 0; i < count && i < PERIOD; i++)
        if (dtype == F32)
            ((float *)(void *)data)[i] = number(i);
        else
            ((uint16_t *)(void *)data)[i] = dtype == BF16 ? bf16_of_f32(number(i)) : f16_of_f32(number(i));
    for (int64_t i = PERIOD; i < count; i += PERIOD)
        memcpy(data + (size_t)i * bytes, data, (size_t)(count - i < PERIOD ? count - i : PERIOD) * bytes);
    return data;
}

// ---- the cut ----------------------------------------------------------------------------------------------

// Tiles cover d, none is larger than the workspace holds, two threads have the same number of them, and of much work
// both have some.
static void cut_law(void) {
    static const int64_t SIZES[] = {1, 15, 16, 511, 513, 768, 1024, 1025, 1537, 2304, 3072, 8192, 50304};
    enum { NUM_SIZES = sizeof SIZES / sizeof SIZES[0] };
    static const int64_t INNERS[] = {8, 50304};
    for (int i = 0; i < 2 * 2 * NUM_SIZES * NUM_SIZES; i++) {
        DType dtype = i % 2 ? BF16 : F32;
        int64_t rows = SIZES[i / 4 / NUM_SIZES], cols = SIZES[i / 4 % NUM_SIZES], inner = INNERS[i / 2 % 2];
        Matmul p = {
            .a = {NULL, rows, inner, dtype}, .b = {NULL, inner, cols, dtype}, .d = {NULL, rows, cols, dtype}};
        CpuCut cut = cpu_cut(&p);
        int64_t count = cut.down * cut.across;
        EXPECT(cut.down * cut.rows >= rows && cut.across * cut.cols >= cols, "[%lld, %lld]: not covered",
               (long long)rows, (long long)cols);
        EXPECT(count == 1 || count % 2 == 0, "[%lld, %lld]: %lld tiles", (long long)rows, (long long)cols,
               (long long)count);
        EXPECT(count > 1 || cpu_team(&(Exec){.threads = 2}, cpu_product_elements(&p)) == 1,
               "[%lld, %lld]: one tile of %lld terms", (long long)rows, (long long)cols, (long long)inner);
        EXPECT(cut.rows <= HIGH_TILE_ROWS && cut.cols <= TILE_COLS, "[%lld, %lld]: tiles of [%lld, %lld]",
               (long long)rows, (long long)cols, (long long)cut.rows, (long long)cut.cols);
    }
}

// Generation asks for the workspace of its longest input, and computes shorter ones in it: of a product of one tile fewer
// rows need no more.
static void workspace_law(void) {
    static const DType TYPES[] = {F32, BF16, F16};
    static const int64_t COLS[] = {64, 192, 384, 768}, INNERS[] = {64, 768, 3072};
    for (int i = 0; i < 3 * 4 * 3; i++) {
        int64_t cols = COLS[i / 3 % 4], inner = INNERS[i / 12], before = 0;
        DType dtype = TYPES[i % 3];
        for (int64_t rows = 1; rows <= TILE_ROWS; rows++) {
            Matmul p = {.a = {NULL, rows, inner, dtype},
                        .b = {NULL, cols, inner, dtype},
                        .d = {NULL, rows, cols, dtype},
                        .transpose_b = true};
            int64_t floats = cpu_tile_sizes(&p).all;
            EXPECT(floats >= before, "[%lld, %lld] of %lld terms needs %lld floats, a row less %lld",
                   (long long)rows, (long long)cols, (long long)inner, (long long)floats, (long long)before);
            before = floats;
        }
    }
}

// What is multiplied: with `adds` d is F32 and grows, else it may be of the factors' type, with a bias.
typedef struct {
    DType dtype, sum;
    bool ta, tb, adds, bias;
    int64_t rows, cols, inner;
} Shape;

// A product with its factors; `end_product` frees all but d.
static Matmul begin_product(const Shape *s) {
    Matmul p = {.transpose_a = s->ta, .transpose_b = s->tb, .accumulate = s->adds};
    int64_t rows = s->rows, cols = s->cols, inner = s->inner;
    p.a = (Tensor){numbers(s->dtype, rows * inner), s->ta ? inner : rows, s->ta ? rows : inner, s->dtype};
    p.b = (Tensor){numbers(s->dtype, cols * inner), s->tb ? cols : inner, s->tb ? inner : cols, s->dtype};
    p.d = (Tensor){numbers(s->sum, rows * cols), rows, cols, s->sum};
    if (s->bias) p.bias = (Tensor){numbers(s->dtype, cols), 1, cols, s->dtype};
    return p;
}

static void *end_product(const Matmul *p) {
    free(p->a.data), free(p->b.data), free(p->bias.data);
    return p->d.data;
}

// Makes products at once, with no more workspace than the most that one of them takes.
static void make_products(int threads, const Matmul *calls, int count) {
    const DeviceOptions options = {.threads = threads};
    Exec exec = {.threads = threads};
    for (int i = 0; i < count; i++) {
        size_t bytes = cpu_backend.workspace_bytes(&options, OP_MATMUL, &calls[i]);
        if (bytes > exec.workspace_bytes) exec.workspace_bytes = bytes;
    }
    exec.workspace = aligned_alloc(64, (exec.workspace_bytes + 127) / 64 * 64);
    CHECK(exec.workspace, "no memory");
    if (count == 1)
        backend_run(&cpu_backend, &exec, OP_MATMUL, calls);
    else
        cpu_backend.matmuls(&exec, calls, count);
    free(exec.workspace);
}

// d of a product with so many threads.
static void *product_of(int threads, const Shape *s) {
    Matmul p = begin_product(s);
    make_products(threads, &p, 1);
    return end_product(&p);
}

static void same_with_threads(Shape s) {
    void *one = product_of(1, &s);
    for (int threads = 2; threads <= 5; threads += harness_short() ? 3 : 1) {
        void *many = product_of(threads, &s);
        EXPECT(!memcmp(one, many, (size_t)(s.rows * s.cols) * dtype_bytes(s.sum)),
               "%s [%lld, %lld, %lld] to %s with %d threads", dtype_name(s.dtype), (long long)s.rows,
               (long long)s.cols, (long long)s.inner, dtype_name(s.sum), threads);
        free(many);
    }
    free(one);
}

static void thread_law(void) {
    static const DType TYPES[] = {F32, BF16, F16};
    omp_set_num_threads(3); // which products of single threads must not wake
    for (int i = 0; i < 3; i++) {
        DType type = TYPES[i];
        same_with_threads((Shape){type, F32, .tb = true, .rows = 1100, .cols = 800, .inner = 130});
        same_with_threads((Shape){type, F32, .rows = 530, .cols = 1600, .inner = 65});
        same_with_threads(
            (Shape){type, F32, .ta = true, .adds = true, .rows = 1300, .cols = 70, .inner = 600});
        same_with_threads((Shape){type, F32, .tb = true, .rows = 0, .cols = 70, .inner = 600});
        same_with_threads(
            (Shape){type, type, .tb = true, .bias = true, .rows = 520, .cols = 780, .inner = 700});
        same_with_threads((Shape){type, type, .rows = 1040, .cols = 1550, .inner = 270});
        same_with_threads(
            (Shape){type, type, .rows = 200, .cols = 700, .inner = 600}); // one tile, cut either way
        same_with_threads((Shape){type, type, .rows = 300, .cols = 200, .inner = 1401});
    }
    omp_set_num_threads(1);
}

// Products of experts with one tile or several have the same bits at once as alone.
static void same_at_once(Shape s, int threads) {
    Matmul calls[MATMULS_AT_ONCE];
    Shape shapes[MATMULS_AT_ONCE];
    for (int i = 0; i < MATMULS_AT_ONCE; i++) {
        shapes[i] = s;
        *(s.ta ? &shapes[i].inner : &shapes[i].rows) = 1 + 37 * (i * 5 % MATMULS_AT_ONCE);
        calls[i] = begin_product(&shapes[i]);
    }
    make_products(threads, calls, MATMULS_AT_ONCE);
    for (int i = 0; i < MATMULS_AT_ONCE; i++) {
        void *alone = product_of(1, &shapes[i]), *at_once = end_product(&calls[i]);
        EXPECT(!memcmp(alone, at_once, tensor_bytes(calls[i].d)), "%s [%lld, %lld, %lld] with %d threads",
               dtype_name(s.dtype), (long long)shapes[i].rows, (long long)shapes[i].cols,
               (long long)shapes[i].inner, threads);
        free(alone), free(at_once);
    }
}

static void at_once_law(void) {
    static const DType TYPES[] = {F32, BF16, F16};
    for (int i = 0; i < 3; i++)
        for (int threads = 1; threads <= 5; threads += 2) {
            same_at_once((Shape){TYPES[i], TYPES[i], .tb = true, .bias = true, .cols = 96, .inner = 70},
                         threads);
            same_at_once((Shape){TYPES[i], F32, .ta = true, .adds = true, .rows = 530, .cols = 40}, threads);
        }
}

// ---- rows -------------------------------------------------------------------------------------------------

// Makes factors of many magnitudes, so that every order of adding their products rounds in its own way.
static void spread(Tensor x) {
    for (int64_t i = 0; i < tensor_count(x); i++) {
        float by = ldexpf(1, (int)(i * 5 % 17) - 8);
        if (x.dtype == F32)
            ((float *)x.data)[i] *= by;
        else
            ((uint16_t *)x.data)[i] = bf16_of_f32(by * bf16_to_f32(((uint16_t *)x.data)[i]));
    }
}

// Some rows of a product alone have the bits that they have among all.
static void same_rows(const Shape *s, const Matmul *all, int64_t first, int64_t count) {
    const size_t bytes = (size_t)(count * s->cols) * dtype_bytes(s->sum);
    Matmul some = *all;
    some.a = tensor_rows(all->a, first, count);
    some.d = (Tensor){malloc(bytes), count, s->cols, s->sum};
    CHECK(some.d.data, "no memory");
    make_products(1, &some, 1);
    EXPECT(!memcmp(some.d.data, tensor_rows(all->d, first, count).data, bytes),
           "%s [%lld, %lld, %lld] to %s: %lld rows from %lld on", dtype_name(s->dtype), (long long)s->rows,
           (long long)s->cols, (long long)s->inner, dtype_name(s->sum), (long long)count, (long long)first);
    free(some.d.data);
}

static void rows_law(void) {
    static const DType TYPES[] = {F32, BF16};
    static const int64_t INNERS[] = {7, 64, 600, 1100};
    for (int i = 0; i < 2 * 2 * 4; i++) {
        DType type = TYPES[i % 2];
        if (!cpu_keeps_rows(type)) continue;
        Shape s = {type,        type,       .tb = i / 2 % 2,       .bias = i / 2 % 2,
                   .rows = 150, .cols = 96, .inner = INNERS[i / 4]};
        Matmul all = begin_product(&s);
        spread(all.a);
        make_products(1, &all, 1);
        for (int64_t count = 1; count < s.rows; count += count < 40 && !harness_short() ? 1 : 13)
            same_rows(&s, &all, count * 7 % (s.rows - count), count);
        free(end_product(&all));
    }
}

// ---- one piece --------------------------------------------------------------------------------------------

static double number_at(DType dtype, const void *x, int64_t i) {
    return (double)(dtype == F32 ? ((const float *)x)[i] : bf16_to_f32(((const uint16_t *)x)[i]));
}

static double value(Factor x, int64_t row, int64_t col) {
    return number_at(x.dtype, x.data, x.transpose ? col * x.stride + row : row * x.stride + col);
}

// How many elements are off, of every `step`th: of the product, rounded once, or between its rows, where they
// must stay.
static int64_t errors_of(const Product *p, int64_t step) {
    int64_t bad = 0;
    for (int64_t i = 0; i < p->rows * p->stride; i += step) {
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

static void with_workspace(const Product *p, CpuTileSizes sizes, void (*multiply)(const Product *, float *)) {
    size_t bytes = (size_t)sizes.all * sizeof(float);
    float *workspace = aligned_alloc(64, bytes);
    CHECK(workspace, "no memory");
    memset(workspace, 0xFF, bytes); // NaN: must not be read
    multiply(p, workspace);
    free(workspace);
}

static void multiply_by_amx(const Product *p) { with_workspace(p, cpu_amx_sizes(p), cpu_amx_product); }
static void multiply_by_pairs(const Product *p) { with_workspace(p, cpu_pairs_sizes(p), cpu_pairs_product); }

// p says all but the addresses.
static void piece(Product p, bool with_bias, void (*multiply)(const Product *)) {
    void *a = numbers(p.a.dtype, p.a.stride * (p.a.transpose ? p.inner : p.rows));
    void *b = numbers(p.b.dtype, p.b.stride * (p.b.transpose ? p.cols : p.inner));
    void *bias = numbers(BF16, p.cols), *d = numbers(p.dtype, p.rows * p.stride);
    size_t bytes = dtype_bytes(p.dtype);
    for (int64_t row = 0; !p.adds && row < p.rows; row++) // NaN: must not be read
        memset((char *)d + (size_t)(row * p.stride) * bytes, 0xFF, (size_t)p.cols * bytes);
    p.a.data = a, p.b.data = b, p.bias = with_bias ? bias : NULL, p.d = d;
    multiply(&p);
    int64_t bad = errors_of(&p, !harness_short() ? 1 : p.inner > 1000 ? 211 : 31);
    EXPECT(!bad, "%s %s%s [%lld, %lld, %lld] to %s%s%s: %lld are off", dtype_name(p.a.dtype),
           p.a.transpose ? "T" : "N", p.b.transpose ? "T" : "N", (long long)p.rows, (long long)p.cols,
           (long long)p.inner, dtype_name(p.dtype), p.adds ? " adds" : "", with_bias ? " bias" : "",
           (long long)bad);
    free(a), free(b), free(bias), free(d);
}

// Rows, columns, terms; the strides of a, b and d.
typedef int64_t Sizes[6];

enum { SKIPPED = 77 }; // an exit status that CTest knows
enum { KINDS = 16, KINDS_OF_F32 = 8 };

static void piece_of_kind(DType factors, int kind, const Sizes n, void (*multiply)(const Product *)) {
    static const struct {
        DType dtype;
        bool adds, bias;
    } ENDS[] = {{F32, true, false}, {F32, false, false}, {BF16, false, false}, {BF16, false, true}};
    Product p = {.rows = n[0], .cols = n[1], .inner = n[2], .stride = n[5]};
    p.a = (Factor){NULL, factors, n[3], kind & 1}, p.b = (Factor){NULL, factors, n[4], kind & 2};
    p.dtype = ENDS[kind / 4].dtype, p.adds = ENDS[kind / 4].adds;
    piece(p, ENDS[kind / 4].bias, multiply);
}

// No terms, less than a tile, whole tiles, edges either way, one panel and more, rows a page apart, few rows.
static const Sizes SIZES_OF_PIECES[] = {{3, 5, 0, 9, 9, 8},           {1, 1, 1, 6, 3, 4},
                                        {33, 18, 7, 38, 20, 21},      {64, 96, 32, 64, 96, 96},
                                        {64, 80, 129, 134, 131, 83},  {65, 65, 65, 65, 65, 65},
                                        {47, 63, 256, 256, 256, 64},  {64, 64, 257, 264, 264, 70},
                                        {50, 70, 700, 2048, 703, 71}, {72, 200, 96, 101, 203, 207},
                                        {9, 150, 300, 301, 303, 151}, {4, 41, 70, 71, 72, 50},
                                        {2, 16, 64, 64, 64, 16},      {40, 20, 4200, 4202, 4201, 21}};
enum { NUM_PIECES = sizeof SIZES_OF_PIECES / sizeof *SIZES_OF_PIECES };

static void piece_law(void) {
    for (int i = 0; i < KINDS * NUM_PIECES; i++) {
        int kind = i / NUM_PIECES;
        const int64_t *sizes = SIZES_OF_PIECES[i % NUM_PIECES];
        if (kind < KINDS_OF_F32 && sizes[2]) // of no terms oneDNN leaves d as it is
            piece_of_kind(F32, kind, sizes, cpu_product_f32);
        if (cpu_multiplies_bf16()) piece_of_kind(BF16, kind, sizes, multiply_by_pairs);
        if (cpu_has_amx()) piece_of_kind(BF16, kind, sizes, multiply_by_amx);
    }
}

// What goes to AMX, and that high tiles leave work for eight threads.
static void amx_cut_law(void) {
    static const int64_t SIZES[] = {256, 384, 768, 1024, 1152, 1536, 2304, 3072, 4096, 50304};
    enum { NUM_SIZES = sizeof SIZES / sizeof SIZES[0] };
    for (int i = 0; cpu_has_amx() && i < NUM_SIZES * NUM_SIZES; i++) {
        int64_t rows = SIZES[i / NUM_SIZES], cols = SIZES[i % NUM_SIZES];
        Matmul p = {.a = {NULL, rows, 768, BF16}, .b = {NULL, 768, cols, BF16}, .d = {NULL, rows, cols, F32}};
        CpuCut cut = cpu_cut(&p);
        EXPECT(cpu_by_amx(&p), "[%lld, %lld] is not by AMX", (long long)rows, (long long)cols);
        EXPECT(cut.rows <= TILE_ROWS || cut.down * cut.across >= 8, "[%lld, %lld]: %lld high tiles",
               (long long)rows, (long long)cols, (long long)(cut.down * cut.across));
        p.a.dtype = p.b.dtype = F16;
        EXPECT(!cpu_by_amx(&p), "F16 is by AMX");
    }
}

// How many elements of a whole product on two threads are off, of every `step`th.
static int64_t errors_of_shape(const Shape *s, int64_t step) {
    void *d = product_of(2, s), *a = numbers(s->dtype, s->rows * s->inner),
         *b = numbers(s->dtype, s->cols * s->inner), *bias = s->bias ? numbers(s->dtype, s->cols) : NULL;
    const Product p = {.rows = s->rows,
                       .cols = s->cols,
                       .inner = s->inner,
                       .a = {a, s->dtype, s->ta ? s->rows : s->inner, s->ta},
                       .b = {b, s->dtype, s->tb ? s->inner : s->cols, s->tb},
                       .bias = bias,
                       .d = d,
                       .dtype = s->sum,
                       .stride = s->cols,
                       .adds = s->adds};
    int64_t bad = errors_of(&p, step);
    free(a), free(b), free(bias), free(d);
    return bad;
}

// Weight gradients of a layer whose width makes rows compete for the cache: of fp32 a is copied, a panel at a time, as
// a of bf16 is whatever the width.
static void copies_law(void) {
    static const DType TYPES[] = {F32, BF16};
    for (int i = 0; i < 2; i++) {
        const Shape s = {TYPES[i], F32, .ta = true, .adds = true, .rows = 2048, .cols = 33, .inner = 600};
        const Matmul m = {
            .a = {NULL, s.inner, s.rows, s.dtype}, .d = {NULL, s.rows, s.cols, F32}, .transpose_a = true};
        EXPECT(s.dtype != F32 || cpu_tile_sizes(&m).panel_a > 0, "%s: rows of [%lld, %lld] do not compete",
               dtype_name(s.dtype), (long long)s.inner, (long long)s.rows);
        same_with_threads(s);
        int64_t bad = errors_of_shape(&s, 97);
        EXPECT(!bad, "%s: %lld are off", dtype_name(s.dtype), (long long)bad);
    }
}

// Of bf16 with a bias, several tiles of several panels.
static void rounding_law(void) {
    const Shape s = {BF16, BF16, .tb = true, .bias = true, .rows = 520, .cols = 780, .inner = 4100};
    int64_t bad = errors_of_shape(&s, harness_short() ? 499 : 7);
    EXPECT(!bad, "%lld are off", (long long)bad);
}

// ---- products at once, through the front -------------------------------------------------------------------

enum { FRONT_ROWS = 37, FRONT_INNER = 29, FRONT_COLS = 41 };

typedef struct {
    float a[FRONT_ROWS * FRONT_INNER], b[FRONT_INNER * FRONT_COLS], alone[FRONT_ROWS * FRONT_COLS],
        together[FRONT_ROWS * FRONT_COLS];
} Factors;

static Matmul front_product(Factors *f, float *d) {
    return (Matmul){.a = {f->a, FRONT_ROWS, FRONT_INNER, F32},
                    .b = {f->b, FRONT_INNER, FRONT_COLS, F32},
                    .d = {d, FRONT_ROWS, FRONT_COLS, F32}};
}

// Products at once have the bits that each has alone, and each is counted, on a device of two threads, too.
static void expect_together(Device *device, int count) {
    static Factors factors[MATMULS_AT_ONCE];
    Stream *stream = device_stream(device);
    Matmul calls[MATMULS_AT_ONCE];
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < FRONT_ROWS * FRONT_INNER; k++)
            factors[i].a[k] = (float)((k * 7 + i) % 23) / 3 - 4;
        for (int k = 0; k < FRONT_INNER * FRONT_COLS; k++)
            factors[i].b[k] = (float)((k * 5 + i) % 19) / 7 - 1;
        matmul(device, stream, front_product(&factors[i], factors[i].alone));
        calls[i] = front_product(&factors[i], factors[i].together);
    }
    device_counts_reset(device);
    matmul_each(device, stream, calls, count);
    device_sync(device, stream);
    EXPECT(device_counts(device)[OP_MATMUL].calls == count, "%g of %d products are counted",
           (double)device_counts(device)[OP_MATMUL].calls, count);
    for (int i = 0; i < count; i++)
        EXPECT(!memcmp(factors[i].alone, factors[i].together, sizeof factors[i].alone), "product %d of %d", i,
               count);
    memset(factors, 0, sizeof factors);
}

static void front_law(void) {
    for (int threads = 1; threads <= 2; threads++) {
        Device *device;
        EXPECT_OK(device_open(&device, (DeviceOptions){.kind = "cpu", .threads = threads}));
        for (int count = 1; count <= MATMULS_AT_ONCE; count *= 4) expect_together(device, count);
        device_close(device);
    }
}

// Whether TRIREME_MAX_CPU_ISA leaves the kernels that are taken without it: then this run would show nothing new.
static bool limit_changes_nothing(void) {
    return getenv("TRIREME_MAX_CPU_ISA") && cpu_best() == cpu_best_up_to(NULL);
}

int main(int argc, char **argv) {
    if (limit_changes_nothing()) return SKIPPED;
    return harness_run((const Test[]){{"cut", cut_law},
                                      {"workspace", workspace_law},
                                      {"threads", thread_law},
                                      {"at once", at_once_law},
                                      {"rows", rows_law},
                                      {"piece", piece_law},
                                      {"amx cut", amx_cut_law},
                                      {"rounding", rounding_law},
                                      {"copies", copies_law},
                                      {"front", front_law},
                                      {0}},
                       argc, argv);
}
