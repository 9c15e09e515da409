// The three products of linear layers in 8 and 4 bits, of every recipe, column- and row-parallel, on one tensor rank and on
// two, against an exact emulation: whole tensors are quantised as the recipe is defined, and products are added in fp64.
// The emulation is written from the definitions (OCP's formats, Transformer Engine's recipes) and uses no code of these.
#include "harness.h"
#include "nn/amax.h"
#include "nn/float8.h"
#include "nn/recipes.h"
#include "nn/runtime.h"
#include <math.h>
#include <string.h>

enum { MOST = 256, SAMPLES = 2, FIRST_SAMPLE = 100 };

// A matrix of whole tensors on the host.
typedef struct {
    int rows, cols;
    float values[MOST * MOST];
} Whole;

// Normals of bf16, and one number far from them in the last row and column: a rank that holds another part must know it.
static void draw(Whole *x, int rows, int cols, const char *name) {
    x->rows = rows, x->cols = cols;
    rng_fill_normal(rng_key(5, name, 0), 0, (uint64_t)(rows * cols), 0, 1, x->values);
    x->values[rows * cols - 1] = 37;
    for (int i = 0; i < rows * cols; i++) x->values[i] = bf16_to_f32(bf16_of_f32(x->values[i]));
}

typedef struct {
    int tp;
    const char *device;
    Float8 float8;
    ScalingRecipe recipe;
    bool row_parallel;
    int blocks; // of a column-parallel layer's output
} Setup;

// ---- the emulation ----------------------------------------------------------------------------------------

typedef struct {
    int fraction_bits, least_exponent; // of normal numbers
    float most;
} Format;
static const Format E4M3_FORMAT = {3, -6, 448}, E5M2_FORMAT = {2, -14, 57344}, E2M1_FORMAT = {1, 0, 6};

// The distance of neighbours around a magnitude.
static float step_at(const Format *f, float a) {
    int exponent;
    frexpf(a, &exponent);
    exponent--;
    return ldexpf(1, (exponent > f->least_exponent ? exponent : f->least_exponent) - f->fraction_bits);
}

static float nearest(const Format *f, float x) {
    float a = fabsf(x), step = step_at(f, a), rounded = nearbyintf(a / step) * step;
    return copysignf(fminf(rounded, f->most), x);
}

static float at_random(const Format *f, float x, uint32_t word) {
    float a = fminf(fabsf(x), f->most), step = step_at(f, a), below = floorf(a / step) * step;
    bool up = (double)(a - below) / (double)step > (double)(word >> 8) / 0x1p24;
    return copysignf(up ? below + step : below, x);
}

typedef struct {
    const Format *format;
    int rows, cols; // of a block; 0: the tensor
    enum { DOWN, UP, TWO_LEVELS } scale;
    const RngKey *key; // of rounding at random
    bool cut_columns;
} How;

static float largest_of(const Whole *x, int row, int rows, int col, int cols) {
    float most = 0;
    for (int i = row; i < row + rows; i++)
        for (int j = col; j < col + cols; j++) most = fmaxf(most, fabsf(x->values[i * x->cols + j]));
    return most;
}

// The number of a whole column, of which each rank holds a part of every block.
static int64_t global_column(const Setup *s, const How *how, int cols, int col) {
    if (!how->cut_columns) return col;
    int here = cols / s->tp, part = here / s->blocks, rank = col / here, j = col % here;
    return j / part * (cols / s->blocks) + rank * part + j % part;
}

static void narrow_block(const Setup *s, const How *how, float whole_factor, const Whole *x, int row, int col,
                         Whole *out) {
    float most = largest_of(x, row, how->rows, col, how->cols), top = how->format->most, encode, decode;
    if (how->scale == DOWN)
        encode = (float)exp2(floor(log2((double)top / (double)most))), decode = 1 / encode;
    else if (how->scale == UP)
        decode = (float)exp2(ceil(log2((double)most / (double)top))), encode = 1 / decode;
    else {
        float code = nearest(&E4M3_FORMAT, most * (whole_factor * (1 / top)));
        encode = 1 / (code * (1 / whole_factor)), decode = code / whole_factor;
    }
    for (int i = row; i < row + how->rows; i++)
        for (int j = col; j < col + how->cols; j++) {
            int at = i * x->cols + j;
            float scaled = x->values[at] * encode;
            int64_t index = i / SAMPLES * x->cols + global_column(s, how, x->cols, j);
            if (how->key)
                scaled =
                    at_random(how->format, scaled,
                              rng_word(*how->key, FIRST_SAMPLE + (uint64_t)(i % SAMPLES), (uint64_t)index));
            else
                scaled = nearest(how->format, scaled);
            out->values[at] = scaled * decode;
        }
}

// What few bits keep of a tensor. `delayed` is the largest magnitude of earlier steps, 0: it is that of now.
static void narrow(const Setup *s, const How *how, float delayed, const Whole *x, Whole *out) {
    float most = delayed > 0 ? delayed : largest_of(x, 0, x->rows, 0, x->cols);
    out->rows = x->rows, out->cols = x->cols;
    if (how->rows) {
        float whole_factor = 448 * how->format->most / most;
        for (int i = 0; i < x->rows; i += how->rows)
            for (int j = 0; j < x->cols; j += how->cols) narrow_block(s, how, whole_factor, x, i, j, out);
        return;
    }
    float factor = how->format->most / most;
    for (int i = 0; i < x->rows * x->cols; i++)
        out->values[i] = nearest(how->format, x->values[i] * factor) * (1 / factor);
}

// The random Hadamard transform of 16 rows at a time, by its matrix.
static void transform(const Whole *x, Whole *out) {
    static const int minus[] = {0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1, 1};
    out->rows = x->rows, out->cols = x->cols;
    for (int row = 0; row < x->rows; row++)
        for (int j = 0; j < x->cols; j++) {
            double sum = 0;
            for (int k = 0; k < 16; k++) {
                double sign = (__builtin_popcount((unsigned)(row % 16 & k)) + minus[k]) % 2 ? -1 : 1;
                sum += sign * (double)x->values[(row / 16 * 16 + k) * x->cols + j];
            }
            out->values[row * x->cols + j] = bf16_to_f32(bf16_of_f32((float)(sum / 4)));
        }
}

// Largest magnitudes of earlier steps of x, W and dy: two are below those of now, which are 37, and one is above.
static const float EARLIER[] = {16, 100, 30};

// Quantises a factor of a product whose sum runs along the rows, or down the columns.
static void quantised(const Setup *s, LinearProduct product, LinearFactor which, const RngKey *keys,
                      const Whole *x, Whole *out) {
    static _Thread_local Whole transformed;
    bool down = product == PRODUCT_WEIGHT || (product == PRODUCT_INPUT && which == FACTOR_W);
    int line = s->recipe == RECIPE_BLOCKWISE ? 128 : s->recipe == RECIPE_MXFP8 ? 32 : 16;
    bool square = which == FACTOR_W && s->recipe != RECIPE_MXFP8;
    How how = {.format = which == FACTOR_DY && s->float8 == FLOAT8_HYBRID ? &E5M2_FORMAT : &E4M3_FORMAT,
               .rows = square || down ? line : 1,
               .cols = square || !down ? line : 1,
               .scale = s->recipe == RECIPE_MXFP8 ? UP : DOWN};
    if (s->recipe == RECIPE_TENSORWISE || s->recipe == RECIPE_DELAYED) how.rows = how.cols = 0;
    if (s->recipe == RECIPE_NVFP4) {
        how.format = &E2M1_FORMAT, how.scale = TWO_LEVELS;
        if (which == FACTOR_DY) how.key = &keys[product - PRODUCT_INPUT], how.cut_columns = !s->row_parallel;
        if (product == PRODUCT_WEIGHT) transform(x, &transformed), x = &transformed;
    }
    narrow(s, &how, s->recipe == RECIPE_DELAYED ? EARLIER[which] : 0, x, out);
}

// ---- products of a rank's parts ---------------------------------------------------------------------------

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
    static _Thread_local uint16_t host[MOST * MOST];
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
    static _Thread_local uint16_t narrow_values[MOST * MOST];
    void *to = x.dtype == F32 ? (void *)values : narrow_values;
    device_download(r->device, r->context.stream, to, x);
    for (int i = 0; i < tensor_count(x) && x.dtype == BF16; i++) values[i] = bf16_to_f32(narrow_values[i]);
}

// With the bias [1, N] of whole columns, unless it is NULL.
static void expect_sum(Runtime *r, const Setup *s, const char *name, Tensor got, const Whole *a, Part pa,
                       bool ta, const Whole *b, Part pb, bool tb, const Whole *bias, double tolerance) {
    static _Thread_local float values[MOST * MOST];
    double largest = 0, error = 0;
    download(r, got, values);
    for (int i = 0; i < got.rows; i++)
        for (int j = 0; j < got.cols; j++) {
            double wanted = element(a, pa, ta, b, pb, tb, i, j);
            if (bias) wanted += (double)bias->values[(tb ? pb.row : pb.col) + j];
            largest = fmax(largest, fabs(wanted));
            error = fmax(error, fabs((double)values[i * got.cols + j] - wanted));
        }
    EXPECT(error <= tolerance * largest,
           "%s, %s-parallel, t%d, format %d, %s, %s: off by %.2g of the largest", name,
           s->row_parallel ? "row" : "column", s->tp, (int)s->float8, recipe_rows[s->recipe].name, s->device,
           error / largest);
}

static void expect_product(Runtime *r, const Setup *s, const char *name, Tensor got, const Whole *a, Part pa,
                           bool ta, const Whole *b, Part pb, bool tb, double tolerance) {
    expect_sum(r, s, name, got, a, pa, ta, b, pb, tb, NULL, tolerance);
}

// As layers have it: in bf16, whose rounding is coarser than that of 8-bit sums. The bias is larger than that.
static void check_bias(Runtime *r, const Setup *s, const Linear *linear, Tensor x, const Whole *nx, Part px,
                       const Whole *nw, Part pw) {
    static _Thread_local Whole bias;
    draw(&bias, 1, nw->rows, "bias");
    for (int j = 0; j < nw->rows; j++) bias.values[j] *= 64;
    Tensor y = tensor_take(&r->run, "y", nx->rows, pw.rows, BF16);
    linear_forward(&r->context, linear, x, upload(r, &bias, (Part){0, 1, pw.row, pw.rows}), y);
    expect_sum(r, s, "y with a bias", y, nx, px, false, nw, pw, true, &bias, 0x1p-8);
}

typedef struct {
    Whole x, w, dy, a, b; // the tensors; the factors of a product
    Part px, pw, pdy;
} Tensors;

// dW, then with the same added.
static void check_weight_gradient(Runtime *r, const Setup *s, const Linear *linear, Tensor x, Tensor dy,
                                  Tensors *t) {
    quantised(s, PRODUCT_WEIGHT, FACTOR_DY, linear->few_bits.rounding, &t->dy, &t->a);
    quantised(s, PRODUCT_WEIGHT, FACTOR_X, linear->few_bits.rounding, &t->x, &t->b);
    linear_weight_gradient(&r->context, linear, x, dy);
    expect_product(r, s, "dW", linear->weight->grad, &t->a, t->pdy, true, &t->b, t->px, false, 1e-5);
    linear_weight_gradient(&r->context, linear, x, dy);
    for (int i = 0; i < t->a.rows * t->a.cols; i++) t->a.values[i] *= 2;
    expect_product(r, s, "dW twice", linear->weight->grad, &t->a, t->pdy, true, &t->b, t->px, false, 1e-5);
}

static void check_products(Runtime *r, const Setup *s, const Linear *linear, Tensors *t) {
    Context *c = &r->context;
    Tensor tx = upload(r, &t->x, t->px), tdy = upload(r, &t->dy, t->pdy);
    Tensor y = tensor_take(&r->run, "y", t->x.rows, t->pw.rows, F32),
           dx = tensor_take(&r->run, "dx", t->x.rows, t->pw.cols, F32);
    // Fast sums of a GPU keep some 14 bits.
    double fast = strcmp(s->device, "cuda-sim") ? 1e-5 : 1e-3;
    quantised(s, PRODUCT_FORWARD, FACTOR_X, linear->few_bits.rounding, &t->x, &t->a);
    quantised(s, PRODUCT_FORWARD, FACTOR_W, linear->few_bits.rounding, &t->w, &t->b);
    linear_forward(c, linear, tx, (Tensor){0}, y);
    expect_product(r, s, "y", y, &t->a, t->px, false, &t->b, t->pw, true, fast);
    check_bias(r, s, linear, tx, &t->a, t->px, &t->b, t->pw);
    quantised(s, PRODUCT_INPUT, FACTOR_DY, linear->few_bits.rounding, &t->dy, &t->a);
    quantised(s, PRODUCT_INPUT, FACTOR_W, linear->few_bits.rounding, &t->w, &t->b);
    linear_input_gradient(c, linear, tdy, dx);
    expect_product(r, s, "dx", dx, &t->a, t->pdy, false, &t->b, t->pw, false, 1e-5);
    check_weight_gradient(r, s, linear, tx, tdy, t);
    EXPECT(r->scratch.used == 0, "scratch memory stays taken");
}

// The magnitudes that a rank has seen, of the parts that it holds.
static void check_magnitudes(Runtime *r, const AmaxHistory *amax, const Tensors *t) {
    float now[NUM_FACTORS];
    const Whole *tensors[] = {&t->x, &t->w, &t->dy};
    const Part parts[] = {t->px, t->pw, t->pdy};
    device_download(r->device, r->context.stream, now, amax->now);
    for (int i = 0; i < NUM_FACTORS; i++) {
        float wanted = largest_of(tensors[i], parts[i].row, parts[i].rows, parts[i].col, parts[i].cols);
        EXPECT(now[i] == wanted, "factor %d: largest magnitude %g, wanted %g", i, (double)now[i],
               (double)wanted);
    }
}

static Status check_layer(Runtime *r, const Setup *s) {
    static _Thread_local Tensors t;
    Context *c = &r->context;
    int wide = s->recipe == RECIPE_BLOCKWISE, tokens = wide ? 128 : 32, in = wide ? 256 : 64,
        out = wide ? 256 : 128;
    int rank = context_rank(c, ROLE_TENSOR), cut_in = s->row_parallel ? 1 : -1,
        cut_out = s->row_parallel ? -1 : 1;
    AmaxHistory amax = {0};
    draw(&t.x, tokens, in, "x"), draw(&t.w, out, in, "w"), draw(&t.dy, tokens, out, "dy");
    t.px = part_of(&t.x, cut_in, s->tp, rank), t.pdy = part_of(&t.dy, cut_out, s->tp, rank);
    t.pw = part_of(&t.w, s->row_parallel, s->tp, rank);
    Param weight = {.spec.cut = {.dim = s->row_parallel, .blocks = s->blocks},
                    .value = upload(r, &t.w, t.pw)};
    weight.grad = tensor_take(&r->run, "dW", t.pw.rows, t.pw.cols, F32);
    weight.grad_uninitialized = true;
    Linear linear = {.weight = &weight, .few_bits = {.format = s->float8, .recipe = s->recipe}};
    for (int i = 0; i < 2; i++) linear.few_bits.rounding[i] = rng_key(11, "rounding", (uint64_t)i);
    c->first_sample = FIRST_SAMPLE, c->samples = SAMPLES;
    ModelMode mode = c->mode;
    mode.delayed.history = 4;
    TRY(amax_open(&amax, &mode, &(Params){.num_matrices = 1}, &r->run));
    for (int i = 0; i < amax.rows; i++) amax.largest[i] = EARLIER[i];
    amax_begin(&amax, r->device, c->stream);
    c->amax = &amax;
    check_products(r, s, &linear, &t);
    if (amax.rows) check_magnitudes(r, &amax, &t);
    amax_close(&amax);
    return OK;
}

static Status rank_main(Comm *world, void *arg) {
    const Setup *s = arg;
    RuntimeMemory memory = {.run = 4 << 20, .scratch = 4 << 20, .workspace = 64 << 20};
    const Grid grid = GRID(s->tp, 1, 1);
    RuntimeSpec spec = {.topology = topology_of(grid, comm_rank(world)),
                        .roles = ALL_ROLES,
                        .device = s->device,
                        .threads = 1,
                        .mode = {.dtype = BF16, .float8 = s->float8, .recipe = s->recipe},
                        .memory = &memory};
    Runtime runtime;
    Status status = runtime_open(&runtime, &spec, world);
    if (status == OK) status = check_layer(&runtime, s);
    runtime_close(&runtime);
    return status;
}

static void products_of(const char *device, Float8 float8, ScalingRecipe recipe) {
    for (int i = 0; i < 4; i++) {
        Setup s = {
            .tp = 1 + (i & 1), .device = device, .float8 = float8, .recipe = recipe, .row_parallel = i & 2};
        s.blocks = s.row_parallel ? 1 : 2;
        EXPECT_OK(comm_launch((CommOptions){.transport = "threads", .ranks = s.tp, .timeout_s = 60},
                              rank_main, &s));
    }
}

static void products_on(const char *device) {
    products_of(device, FLOAT8_E4M3, RECIPE_TENSORWISE);
    products_of(device, FLOAT8_HYBRID, RECIPE_TENSORWISE);
    products_of(device, FLOAT8_HYBRID, RECIPE_DELAYED);
    products_of(device, FLOAT8_E4M3, RECIPE_MXFP8);
    products_of(device, FLOAT8_HYBRID, RECIPE_MXFP8);
    products_of(device, FLOAT4_E2M1, RECIPE_NVFP4);
    if (strcmp(device, "reference") != 0) products_of(device, FLOAT8_E4M3, RECIPE_BLOCKWISE);
}

static void products_are_the_emulation(void) {
    products_on("cpu");
    products_on("check");
    products_on("reference");
}

static void products_of_a_gpu(void) { products_on("cuda-sim"); }

// ---- delayed scaling --------------------------------------------------------------------------------------

typedef struct {
    DelayedScaling rule;
    float now[8], scales[8]; // of E4M3 after each step
} Sequence;

static Status run_sequence(Comm *world, void *arg) {
    const Sequence *sequence = arg;
    RuntimeMemory memory = {.run = 1 << 16, .scratch = 1 << 16, .workspace = 1 << 16};
    const Grid grid = GRID(1, comm_size(world), 1);
    RuntimeSpec spec = {.topology = topology_of(grid, comm_rank(world)),
                        .roles = ALL_ROLES,
                        .device = "cpu",
                        .threads = 1,
                        .memory = &memory};
    ModelMode mode = {.float8 = FLOAT8_E4M3, .recipe = RECIPE_DELAYED, .delayed = sequence->rule};
    Runtime r;
    AmaxHistory amax = {0};
    TRY(runtime_open(&r, &spec, world));
    TRY(amax_open(&amax, &mode, &(Params){.num_matrices = 1}, &r.run));
    for (int step = 0; step < 8; step++) {
        amax_begin(&amax, r.device, r.context.stream);
        // Each rank sees another part: the largest is on the last one.
        float now[NUM_FACTORS] = {0}, used[NUM_FACTORS];
        now[FACTOR_W] = sequence->now[step] / (float)(comm_size(world) - comm_rank(world));
        device_upload(r.device, r.context.stream, amax.now, now);
        amax_end(&amax, r.device, r.context.stream, world);
        amax_begin(&amax, r.device, r.context.stream);
        device_download(r.device, r.context.stream, used, amax.used);
        EXPECT(float8_factor(E4M3_MAX, used[FACTOR_W]) == sequence->scales[step],
               "step %d: scale %g, wanted %g", step, (double)float8_factor(E4M3_MAX, used[FACTOR_W]),
               (double)sequence->scales[step]);
        EXPECT(used[FACTOR_X] == 0, "a factor without magnitudes has %g", (double)used[FACTOR_X]);
    }
    amax_close(&amax);
    runtime_close(&r);
    return OK;
}

// The first is the published sequence.
static void delayed_scales_follow_the_history(void) {
    static Sequence sequences[] = {
        {{4, false, 0}, {2, 8, 4, 1, 1, 1, 1, 16}, {224, 56, 56, 56, 56, 112, 448, 28}},
        {{4, true, 0}, {2, 8, 4, 1, 1, 1, 1, 16}, {224, 56, 112, 448, 448, 448, 448, 28}},
        {{1, false, 1}, {2, 8, 0, 0, INFINITY, 1, 0, 16}, {112, 28, 28, 28, 28, 224, 224, 14}},
    };
    for (size_t i = 0; i < sizeof sequences / sizeof *sequences; i++)
        for (int ranks = 1; ranks <= 2; ranks++)
            EXPECT_OK(comm_launch((CommOptions){.transport = "threads", .ranks = ranks, .timeout_s = 60},
                                  run_sequence, &sequences[i]));
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"products_are_the_emulation", products_are_the_emulation},
                       {"products_of_a_gpu", products_of_a_gpu},
                       {"delayed_scales_follow_the_history", delayed_scales_follow_the_history},
                       {0}},
        argc, argv);
}
