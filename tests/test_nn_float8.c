// The three products of linear layers in 8 bits, column- and row-parallel, on one tensor rank and on two, against an exact
// emulation: whole tensors become 8 bits wide with one scale each, and products are added in fp64.
#include "base/float8.h"
#include "harness.h"
#include "nn/float8.h"
#include "nn/runtime.h"
#include <math.h>
#include <string.h>

enum { T = 32, I = 64, O = 96 };

// A matrix of whole tensors on the host.
typedef struct {
    int rows, cols;
    float values[O * I];
} Whole;

// Normals of bf16, and one number far from them in the last row and column: a rank that holds another part must know it.
static void draw(Whole *x, int rows, int cols, const char *name) {
    x->rows = rows, x->cols = cols;
    rng_fill_normal(rng_key(5, name, 0), 0, (uint64_t)(rows * cols), 0, 1, x->values);
    x->values[rows * cols - 1] = 37;
    for (int i = 0; i < rows * cols; i++) x->values[i] = bf16_to_f32(bf16_of_f32(x->values[i]));
}

// What 8 bits keep of a tensor.
static void narrow(const Whole *x, DType type, Whole *out) {
    float most = 0;
    for (int i = 0; i < x->rows * x->cols; i++) most = fmaxf(most, fabsf(x->values[i]));
    float factor = (type == E4M3 ? 448.0f : 57344.0f) / most;
    out->rows = x->rows, out->cols = x->cols;
    for (int i = 0; i < x->rows * x->cols; i++) {
        float scaled = x->values[i] * factor;
        out->values[i] = type == E4M3 ? e4m3_to_f32(e4m3_of_f32(scaled)) : e5m2_to_f32(e5m2_of_f32(scaled));
        out->values[i] *= 1 / factor;
    }
}

typedef struct {
    int tp;
    const char *device;
    Float8 float8;
    bool row_parallel;
} Setup;

// Rows and columns of a whole tensor that a rank holds.
typedef struct {
    int row, rows, col, cols;
} Part;

static Part part_of(const Whole *x, int cut, int tp, int rank) {
    Part part = {0, x->rows, 0, x->cols};
    if (cut == 0) part.rows /= tp, part.row = rank * part.rows;
    if (cut == 1) part.cols /= tp, part.col = rank * part.cols;
    return part;
}

static Tensor upload(Runtime *r, const Whole *x, Part part) {
    Tensor tensor = tensor_take(&r->run, "part", part.rows, part.cols, BF16);
    uint16_t host[O * I];
    for (int i = 0; i < part.rows; i++)
        for (int j = 0; j < part.cols; j++)
            host[i * part.cols + j] = bf16_of_f32(x->values[(part.row + i) * x->cols + part.col + j]);
    device_upload(r->device, r->context.stream, tensor, host);
    return tensor;
}

// op(a) op(b) of parts of the narrow tensors.
static double element(const Whole *a, Part pa, bool ta, const Whole *b, Part pb, bool tb, int i, int j) {
    double sum = 0;
    int inner = ta ? pa.rows : pa.cols;
    for (int k = 0; k < inner; k++) {
        int ar = pa.row + (ta ? k : i), ac = pa.col + (ta ? i : k);
        int br = pb.row + (tb ? j : k), bc = pb.col + (tb ? k : j);
        sum += (double)a->values[ar * a->cols + ac] * (double)b->values[br * b->cols + bc];
    }
    return sum;
}

static void download(Runtime *r, Tensor x, float *values) {
    static _Thread_local uint16_t narrow_values[O * I];
    void *to = x.dtype == F32 ? (void *)values : narrow_values;
    device_download(r->device, r->context.stream, to, x);
    for (int i = 0; i < tensor_count(x) && x.dtype == BF16; i++) values[i] = bf16_to_f32(narrow_values[i]);
}

// With the bias [1, N] of whole columns, unless it is NULL.
static void expect_sum(Runtime *r, const Setup *s, const char *name, Tensor got, const Whole *a, Part pa,
                       bool ta, const Whole *b, Part pb, bool tb, const Whole *bias, double tolerance) {
    static _Thread_local float values[O * I];
    double largest = 0, error = 0;
    download(r, got, values);
    for (int i = 0; i < got.rows; i++)
        for (int j = 0; j < got.cols; j++) {
            double wanted = element(a, pa, ta, b, pb, tb, i, j);
            if (bias) wanted += (double)bias->values[(tb ? pb.row : pb.col) + j];
            largest = fmax(largest, fabs(wanted));
            error = fmax(error, fabs((double)values[i * got.cols + j] - wanted));
        }
    EXPECT(error <= tolerance * largest, "%s, %s-parallel, t%d, format %d, %s: off by %.2g of the largest",
           name, s->row_parallel ? "row" : "column", s->tp, (int)s->float8, s->device, error / largest);
}

static void expect_product(Runtime *r, const Setup *s, const char *name, Tensor got, const Whole *a, Part pa,
                           bool ta, const Whole *b, Part pb, bool tb, double tolerance) {
    expect_sum(r, s, name, got, a, pa, ta, b, pb, tb, NULL, tolerance);
}

// As layers have it: in bf16, whose rounding is coarser than that of 8-bit sums. The bias is larger than that.
static void check_bias(Runtime *r, const Setup *s, const Linear *linear, Tensor x, const Whole *nx, Part px,
                       const Whole *nw, Part pw) {
    static _Thread_local Whole bias;
    draw(&bias, 1, O, "bias");
    for (int j = 0; j < O; j++) bias.values[j] *= 64;
    Tensor y = tensor_take(&r->run, "y", T, pw.rows, BF16);
    linear_forward(&r->context, linear, x, upload(r, &bias, (Part){0, 1, pw.row, pw.rows}), y);
    expect_sum(r, s, "y with a bias", y, nx, px, false, nw, pw, true, &bias, 0x1p-8);
}

static void check_products(Runtime *r, const Setup *s) {
    static _Thread_local Whole x, w, dy, nx, nw, ndy;
    Context *c = &r->context;
    int rank = context_rank(c, ROLE_TENSOR), in = s->row_parallel ? 1 : -1, out = s->row_parallel ? -1 : 1;
    draw(&x, T, I, "x"), draw(&w, O, I, "w"), draw(&dy, T, O, "dy");
    narrow(&x, E4M3, &nx), narrow(&w, E4M3, &nw);
    narrow(&dy, s->float8 == FLOAT8_HYBRID ? E5M2 : E4M3, &ndy);
    Part px = part_of(&x, in, s->tp, rank), pdy = part_of(&dy, out, s->tp, rank),
         pw = part_of(&w, s->row_parallel, s->tp, rank);
    Param weight = {.spec.cut.dim = s->row_parallel, .value = upload(r, &w, pw)};
    weight.grad = tensor_take(&r->run, "dW", pw.rows, pw.cols, F32);
    weight.grad_uninitialized = true;
    Linear linear = {.weight = &weight, .float8 = s->float8};
    Tensor tx = upload(r, &x, px), tdy = upload(r, &dy, pdy);
    Tensor y = tensor_take(&r->run, "y", T, pw.rows, F32), dx = tensor_take(&r->run, "dx", T, pw.cols, F32);
    // Fast sums of a GPU keep some 14 bits.
    double fast = strcmp(s->device, "cuda-sim") ? 1e-5 : 1e-3;
    linear_forward(c, &linear, tx, (Tensor){0}, y);
    expect_product(r, s, "y", y, &nx, px, false, &nw, pw, true, fast);
    check_bias(r, s, &linear, tx, &nx, px, &nw, pw);
    linear_input_gradient(c, &linear, tdy, dx);
    expect_product(r, s, "dx", dx, &ndy, pdy, false, &nw, pw, false, 1e-5);
    linear_weight_gradient(c, &linear, tx, tdy);
    expect_product(r, s, "dW", weight.grad, &ndy, pdy, true, &nx, px, false, 1e-5);
    linear_weight_gradient(c, &linear, tx, tdy);
    for (int i = 0; i < T * O; i++) ndy.values[i] *= 2;
    expect_product(r, s, "dW twice", weight.grad, &ndy, pdy, true, &nx, px, false, 1e-5);
    EXPECT(r->scratch.used == 0, "scratch memory stays taken");
}

static Status rank_main(Comm *world, void *arg) {
    const Setup *s = arg;
    RuntimeMemory memory = {.run = 1 << 20, .scratch = 1 << 20, .workspace = 64 << 20};
    const Grid grid = GRID(s->tp, 1, 1);
    RuntimeSpec spec = {.topology = topology_of(grid, comm_rank(world)),
                        .roles = ALL_ROLES,
                        .device = s->device,
                        .threads = 1,
                        .mode = {.dtype = BF16, .float8 = s->float8},
                        .memory = &memory};
    Runtime runtime;
    Status status = runtime_open(&runtime, &spec, world);
    if (status == OK) check_products(&runtime, s);
    runtime_close(&runtime);
    return status;
}

static void products_on(const char *device) {
    for (int i = 0; i < 8; i++) {
        Setup s = {.tp = 1 + (i & 1),
                   .device = device,
                   .float8 = i & 2 ? FLOAT8_HYBRID : FLOAT8_E4M3,
                   .row_parallel = i & 4};
        EXPECT_OK(comm_launch((CommOptions){.transport = "threads", .ranks = s.tp, .timeout_s = 60},
                              rank_main, &s));
    }
}

static void products_are_the_emulation(void) {
    products_on("cpu");
    products_on("check");
    products_on("reference");
}

static void products_of_a_gpu(void) { products_on("cuda-sim"); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"products_are_the_emulation", products_are_the_emulation},
                                      {"products_of_a_gpu", products_of_a_gpu},
                                      {0}},
                       argc, argv);
}
