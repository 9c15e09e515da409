// The products of experts in 8 and 4 bits, of every recipe, on one tensor rank and on two that share each expert,
// against an exact emulation: each matrix of an expert, and each rank's rows for it, are quantised by themselves as the
// recipe is defined, with the formats of base/, and products are added in fp64. Experts have any number of rows, also
// none, which come from two ranks.
#include "harness.h"
#include "nn/amax.h"
#include "nn/expert_factors.h"
#include "nn/recipes.h"
#include "nn/runtime.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXPERTS = 3, SOURCES = 2, STRIDE = 150, ROWS = SOURCES * STRIDE, IN = 256, OUT = 256, BLOCKS = 2 };
enum { FIRST_SAMPLE = 100, BEFORE = 2 }; // matrices of other layers in the history

// Of expert e, the rows of each source: one block of 128 and more, none, fewer than 16, a multiple of 16.
static const int counts[SOURCES][EXPERTS] = {{133, 0, 5}, {3, 32, 0}};

typedef struct {
    int tp;
    const char *device;
    Float8 float8;
    ScalingRecipe recipe;
    bool row_parallel, grads_apart;
} Setup;

// A matrix on the host; one rank's part of it is some of its rows or columns.
typedef struct {
    int rows, cols;
    float *values;
} Whole;

static Whole whole_of(int rows, int cols) {
    Whole x = {rows, cols, calloc((size_t)(rows * cols) + 1, sizeof(float))};
    CHECK(x.values, "no memory");
    return x;
}

// Normals of bf16. Every tenth row is ten times as large, so that scales differ.
static Whole draw(int rows, int cols, const char *name) {
    Whole x = whole_of(rows, cols);
    rng_fill_normal(rng_key(5, name, 0), 0, (uint64_t)(rows * cols), 0, 1, x.values);
    for (int i = 0; i < rows * cols; i++)
        x.values[i] = bf16_to_f32(bf16_of_f32(x.values[i] * (i / cols % 10 ? 1 : 10)));
    return x;
}

static Whole rows_of(Whole x, int first, int count) {
    return (Whole){count, x.cols, x.values + first * x.cols};
}

// ---- the emulation ----------------------------------------------------------------------------------------

static bool is_of_tensors(const Setup *s) {
    return s->recipe == RECIPE_TENSORWISE || s->recipe == RECIPE_DELAYED;
}

static float largest_of(Whole x, int row, int rows, int col, int cols) {
    float most = 0;
    for (int i = row; i < row + rows; i++)
        for (int j = col; j < col + cols; j++) most = fmaxf(most, fabsf(x.values[i * x.cols + j]));
    return most;
}

// The random Hadamard transform of 16 rows at a time, zeros behind the last.
static Whole transform(Whole x) {
    static const int minus[] = {0, 0, 0, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 0, 1, 1};
    Whole out = whole_of((x.rows + 15) / 16 * 16, x.cols);
    for (int row = 0; row < out.rows; row++)
        for (int j = 0; j < x.cols; j++) {
            double sum = 0;
            for (int k = 0; k < 16 && row / 16 * 16 + k < x.rows; k++) {
                double sign = (__builtin_popcount((unsigned)(row % 16 & k)) + minus[k]) % 2 ? -1 : 1;
                sum += sign * (double)x.values[(row / 16 * 16 + k) * x.cols + j];
            }
            out.values[row * x.cols + j] = bf16_to_f32(bf16_of_f32((float)(sum / 4)));
        }
    return out;
}

// A tensor of an expert that becomes a factor.
typedef struct {
    LinearProduct product;
    LinearFactor which;
    int expert, source;
} Job;

static bool is_down(const Job *job) {
    return job->product == PRODUCT_WEIGHT || (job->product == PRODUCT_INPUT && job->which == FACTOR_W);
}

// Column-parallel layers cut dy: each rank has a part of every block.
static int global_column(const Setup *s, int cols, int col) {
    if (s->row_parallel) return col;
    int here = cols / s->tp, part = here / BLOCKS, rank = col / here, j = col % here;
    return j / part * (cols / BLOCKS) + rank * part + j % part;
}

static uint32_t word_of(const Setup *s, const Job *job, int cols, int row, int col) {
    RngKey key = rng_key(11, "rounding", (uint64_t)(job->product - PRODUCT_INPUT));
    int64_t place = ((int64_t)row * EXPERTS + job->expert) * cols + global_column(s, cols, col);
    return rng_word(key, (uint64_t)(FIRST_SAMPLE + job->source), (uint64_t)place);
}

static void narrow_block(const Setup *s, const Job *job, Codes codes, float whole, Whole x, int row, int rows,
                         int col, int cols, Whole out) {
    bool two_levels = s->recipe == RECIPE_NVFP4;
    BlockScale scale = two_levels                  ? BLOCK_E4M3
                       : s->recipe == RECIPE_MXFP8 ? BLOCK_POWER_UP
                                                   : BLOCK_POWER_DOWN;
    BlockFactor f = block_factor(scale, codes, largest_of(x, row, rows, col, cols), whole);
    for (int i = row; i < row + rows; i++)
        for (int j = col; j < col + cols; j++) {
            float scaled = x.values[i * x.cols + j] * f.encode;
            bool random = two_levels && job->which == FACTOR_DY;
            float code = random ? codes_round_at_random(scaled, word_of(s, job, x.cols, i, j))
                                : codes_round(codes, scaled);
            out.values[i * x.cols + j] = code * f.decode * (two_levels ? 1 / whole : 1);
        }
}

static Codes codes_of(const Setup *s, LinearFactor which) {
    if (s->float8 == FLOAT4_E2M1) return CODES_E2M1;
    return s->float8 == FLOAT8_HYBRID && which == FACTOR_DY ? CODES_E5M2 : CODES_E4M3;
}

static float earlier(int expert, LinearFactor which) { return (float)(4 + 3 * expert + (int)which); }

static Whole narrow_tensor(const Setup *s, const Job *job, Codes codes, Whole x) {
    Whole out = whole_of(x.rows, x.cols);
    float most =
        s->recipe == RECIPE_DELAYED ? earlier(job->expert, job->which) : largest_of(x, 0, x.rows, 0, x.cols);
    float factor = float8_factor(codes_max(codes), most);
    for (int i = 0; i < x.rows * x.cols; i++)
        out.values[i] = codes_round(codes, x.values[i] * factor) * (1 / factor);
    return out;
}

// What few bits keep of a tensor of an expert.
static Whole narrow(const Setup *s, const Job *job, Whole given) {
    Codes codes = codes_of(s, job->which);
    if (is_of_tensors(s)) return narrow_tensor(s, job, codes, given);
    bool turns = s->recipe == RECIPE_NVFP4 && job->product == PRODUCT_WEIGHT;
    Whole x = turns ? transform(given) : given, out = whole_of(x.rows, x.cols);
    int line = s->recipe == RECIPE_BLOCKWISE ? 128 : s->recipe == RECIPE_MXFP8 ? 32 : 16;
    bool square = job->which == FACTOR_W && s->recipe != RECIPE_MXFP8;
    int rows = square || is_down(job) ? line : 1, cols = square || !is_down(job) ? line : 1;
    float whole = block_tensor_factor(codes, largest_of(x, 0, x.rows, 0, x.cols));
    for (int i = 0; i < x.rows; i += rows)
        for (int j = 0; j < x.cols; j += cols)
            narrow_block(s, job, codes, whole, x, i, i + rows < x.rows ? rows : x.rows - i, j, cols, out);
    if (turns) free(x.values);
    return out;
}

// ---- a rank's parts -----------------------------------------------------------------------------------------

typedef struct {
    Runtime *runtime;
    const Setup *setup;
    Whole x, w, dy, bias;       // of all tensor ranks
    int in, in_at, out, out_at; // columns of x and of dy that this rank has
    ExpertWeights weights;
    ExpertLinear linear;
    ExpertRows rows;
} Layer;

static Tensor upload(Runtime *r, Whole x, int row, int rows, int col, int cols) {
    Tensor tensor = tensor_take(&r->run, "part", rows, cols, BF16);
    uint16_t *host = malloc((size_t)(rows * cols) * sizeof *host);
    CHECK(host, "no memory");
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            host[i * cols + j] = bf16_of_f32(x.values[(row + i) * x.cols + col + j]);
    device_upload(r->device, r->context.stream, tensor, host);
    free(host);
    return tensor;
}

static float *download(Runtime *r, Tensor x) {
    int64_t count = tensor_count(x);
    float *values = malloc((size_t)count * sizeof *values);
    uint16_t *halves = malloc((size_t)count * sizeof *halves);
    CHECK(values && halves, "no memory");
    device_download(r->device, r->context.stream, x.dtype == F32 ? (void *)values : halves, x);
    for (int64_t i = 0; i < count && x.dtype == BF16; i++) values[i] = bf16_to_f32(halves[i]);
    free(halves);
    return values;
}

// The weights of the experts this rank has: parts of each, one after the other.
static Tensor upload_weights(Layer *l) {
    Runtime *r = l->runtime;
    Whole mine = whole_of(EXPERTS * l->out, l->in);
    for (int row = 0; row < mine.rows; row++)
        memcpy(mine.values + row * l->in,
               l->w.values + (row / l->out * OUT + l->out_at + row % l->out) * IN + l->in_at,
               (size_t)l->in * sizeof(float));
    Tensor weights = upload(r, mine, 0, mine.rows, 0, mine.cols);
    free(mine.values);
    return weights;
}

static void expect_near(const Layer *l, const char *name, double error, double largest, double tolerance) {
    const Setup *s = l->setup;
    EXPECT(largest > 0 && error <= tolerance * largest,
           "%s, %s-parallel, t%d, format %d, %s, %s: off by %.2g of the largest", name,
           s->row_parallel ? "row" : "column", s->tp, (int)s->float8, recipe_rows[s->recipe].name, s->device,
           error / largest);
}

// ---- products of rows -------------------------------------------------------------------------------------

typedef struct {
    double error, largest;
} Difference;

static void note(Difference *d, double got, double wanted) {
    d->largest = fmax(d->largest, fabs(wanted));
    d->error = fmax(d->error, fabs(got - wanted));
}

// y of a stretch: of forwards x W^T (+ bias), of gradients dy W.
static void compare_stretch(const Layer *l, LinearProduct product, int i, bool has_bias, const float *got,
                            Difference *difference) {
    const Setup *s = l->setup;
    bool forward = product == PRODUCT_FORWARD;
    const DispatchStretch *at = &l->rows.stretches[i];
    Job job = {product, forward ? FACTOR_X : FACTOR_DY, at->expert, i / EXPERTS}, of_weight = job;
    of_weight.which = FACTOR_W;
    Whole a = narrow(s, &job, rows_of(forward ? l->x : l->dy, (int)at->begin, (int)at->count)),
          b = narrow(s, &of_weight, rows_of(l->w, at->expert * OUT, OUT));
    int cols = forward ? l->out : l->in, from = forward ? l->in_at : l->out_at,
        sums = forward ? l->in : l->out;
    for (int row = 0; row < at->count; row++)
        for (int j = 0; j < cols; j++) {
            double sum = has_bias ? (double)l->bias.values[at->expert * OUT + l->out_at + j] : 0;
            for (int k = from; k < from + sums; k++)
                sum +=
                    (double)a.values[row * a.cols + k] *
                    (double)(forward ? b.values[(l->out_at + j) * IN + k] : b.values[k * IN + l->in_at + j]);
            note(difference, (double)got[(at->begin + row) * cols + j], sum);
        }
    free(a.values), free(b.values);
}

static void check_rows(Layer *l, LinearProduct product, const Param *bias) {
    Runtime *r = l->runtime;
    bool forward = product == PRODUCT_FORWARD;
    Tensor x =
        forward ? upload(r, l->x, 0, ROWS, l->in_at, l->in) : upload(r, l->dy, 0, ROWS, l->out_at, l->out);
    Tensor y = tensor_take(&r->run, "y", ROWS, forward ? l->out : l->in, bias ? BF16 : F32);
    device_zero(r->device, r->context.stream, y);
    expert_factors_rows(&r->context, &(ExpertProducts){&l->weights, &l->linear, &l->rows, product}, x,
                        (Tensor){0}, bias, y);
    float *got = download(r, y);
    Difference difference = {0};
    for (int i = 0; i < l->rows.count; i++)
        if (l->rows.stretches[i].count) compare_stretch(l, product, i, bias, got, &difference);
    for (int64_t row = 0; row < ROWS; row++) {
        bool owned = false;
        for (int i = 0; i < l->rows.count; i++)
            owned |= row >= l->rows.stretches[i].begin &&
                     row < l->rows.stretches[i].begin + l->rows.stretches[i].count;
        for (int64_t j = 0; j < y.cols && !owned; j++)
            EXPECT(got[row * y.cols + j] == 0, "row %lld of no expert is written", (long long)row);
    }
    free(got);
    double fast = strcmp(l->setup->device, "cuda-sim") != 0 ? 1e-5 : 1e-3;
    expect_near(l, forward ? "y" : "dx", difference.error, difference.largest,
                bias      ? 0x1p-8
                : forward ? fast
                          : 1e-5);
}

// ---- gradients of weights -----------------------------------------------------------------------------------

// Adds dy^T x of a stretch to the sum of an expert [OUT, IN].
static void add_stretch(const Layer *l, int i, double *sum) {
    const DispatchStretch *at = &l->rows.stretches[i];
    Job job = {PRODUCT_WEIGHT, FACTOR_DY, at->expert, i / EXPERTS}, of_x = job;
    of_x.which = FACTOR_X;
    Whole a = narrow(l->setup, &job, rows_of(l->dy, (int)at->begin, (int)at->count)),
          b = narrow(l->setup, &of_x, rows_of(l->x, (int)at->begin, (int)at->count));
    for (int k = 0; k < a.rows; k++)
        for (int j = 0; j < OUT; j++)
            for (int m = 0; m < IN; m++)
                sum[j * IN + m] += (double)a.values[k * OUT + j] * (double)b.values[k * IN + m];
    free(a.values), free(b.values);
}

// Of a source, or of all.
static void compare_gradient(Layer *l, const Param *param, int source) {
    float *got = download(l->runtime, param->grad);
    double *sum = malloc(sizeof *sum * OUT * IN);
    Difference difference = {0};
    CHECK(sum, "no memory");
    for (int e = 0; e < EXPERTS; e++) {
        memset(sum, 0, sizeof *sum * OUT * IN);
        for (int i = e; i < l->rows.count; i += EXPERTS)
            if ((source < 0 || i / EXPERTS == source) && l->rows.stretches[i].count) add_stretch(l, i, sum);
        for (int j = 0; j < l->out; j++)
            for (int m = 0; m < l->in; m++)
                note(&difference, (double)got[(e * l->out + j) * l->in + m],
                     2 * sum[(l->out_at + j) * IN + l->in_at + m]);
    }
    free(got), free(sum);
    expect_near(l, "dW twice", difference.error, difference.largest, 1e-5);
}

// The same products twice: the first are written where no number was, the second added.
static void check_weights(Layer *l) {
    Runtime *r = l->runtime;
    Param *weight = l->linear.weight;
    ExpertProducts products = {&l->weights, &l->linear, &l->rows, PRODUCT_WEIGHT};
    Tensor x = upload(r, l->x, 0, ROWS, l->in_at, l->in), dy = upload(r, l->dy, 0, ROWS, l->out_at, l->out);
    for (int times = 0; times < 2; times++)
        expert_factors_weights(&r->context, &products, dy, (Tensor){0}, x, (Tensor){0});
    if (!l->setup->grads_apart) compare_gradient(l, weight, -1);
    for (int source = 0; source < SOURCES && l->setup->grads_apart; source++)
        compare_gradient(l, param_of_source(weight, source), source);
}

// ---- a layer ------------------------------------------------------------------------------------------------

// The magnitudes that a rank has seen, of the parts that it holds.
static void check_magnitudes(const Layer *l, const AmaxHistory *amax) {
    float now[NUM_FACTORS * (BEFORE + EXPERTS)];
    device_download(l->runtime->device, l->runtime->context.stream, now, amax->now);
    for (int row = 0; row < NUM_FACTORS * (BEFORE + EXPERTS); row++) {
        int expert = row / NUM_FACTORS - BEFORE, which = row % NUM_FACTORS;
        float wanted = 0;
        for (int i = expert; expert >= 0 && i < l->rows.count; i += EXPERTS) {
            const DispatchStretch *at = &l->rows.stretches[i];
            Whole x = which == FACTOR_X ? l->x : l->dy;
            int col = which == FACTOR_X ? l->in_at : l->out_at, cols = which == FACTOR_X ? l->in : l->out;
            if (which != FACTOR_W)
                wanted = fmaxf(wanted, largest_of(x, (int)at->begin, (int)at->count, col, cols));
        }
        if (expert >= 0 && which == FACTOR_W)
            wanted = largest_of(l->w, expert * OUT + l->out_at, l->out, l->in_at, l->in);
        EXPECT(now[row] == wanted, "row %d: largest magnitude %g, wanted %g", row, (double)now[row],
               (double)wanted);
    }
}

static void set_rows(Layer *l) {
    l->rows = (ExpertRows){
        .count = SOURCES * EXPERTS, .sources = l->setup->grads_apart ? SOURCES : 1, .most = STRIDE};
    for (int i = 0; i < SOURCES * EXPERTS; i++) {
        int source = i / EXPERTS, e = i % EXPERTS;
        DispatchStretch *at = &l->rows.stretches[i];
        *at =
            (DispatchStretch){.expert = e, .first_sample = FIRST_SAMPLE + source, .count = counts[source][e]};
        at->begin = e ? at[-1].begin + at[-1].count : source * STRIDE;
        if (l->setup->grads_apart) at->source = source;
    }
}

static void take_gradient(Layer *l, Param *param) {
    param->grad = tensor_take(&l->runtime->run, "dW", EXPERTS * l->out, l->in, F32);
    param->grad_uninitialized = true;
}

static Status check_layer(Runtime *r, const Setup *s) {
    Layer l = {.runtime = r, .setup = s, .in = IN, .out = OUT};
    int rank = context_rank(&r->context, ROLE_TENSOR);
    l.x = draw(ROWS, IN, "x"), l.w = draw(EXPERTS * OUT, IN, "w"), l.dy = draw(ROWS, OUT, "dy");
    l.bias = draw(EXPERTS, OUT, "bias");
    if (s->row_parallel)
        l.in /= s->tp, l.in_at = rank * l.in;
    else
        l.out /= s->tp, l.out_at = rank * l.out;
    set_rows(&l);
    Param others[SOURCES - 1] = {{.grad_uninitialized = true}};
    Param weight = {.spec.cut = {.dim = s->row_parallel, .blocks = s->row_parallel ? 1 : BLOCKS},
                    .value = upload_weights(&l),
                    .sources = others};
    Param bias = {.value = upload(r, l.bias, 0, EXPERTS, l.out_at, l.out)};
    take_gradient(&l, &weight), take_gradient(&l, others);
    l.linear = (ExpertLinear){.weight = &weight};
    l.linear.few_bits = (FewBits){.format = s->float8, .recipe = s->recipe, .history = BEFORE * NUM_FACTORS};
    for (int i = 0; i < 2; i++) l.linear.few_bits.rounding[i] = rng_key(11, "rounding", (uint64_t)i);
    l.weights = (ExpertWeights){.fc1 = l.linear, .fc2 = l.linear, .experts = EXPERTS};
    ModelMode mode = r->context.mode;
    mode.delayed.history = 4;
    AmaxHistory amax = {0};
    TRY(amax_open(&amax, &mode, &(Params){.num_matrices = BEFORE + EXPERTS}, &r->run));
    for (int i = 0; i < amax.rows; i++)
        amax.largest[i] = earlier(i / NUM_FACTORS - BEFORE, (LinearFactor)(i % NUM_FACTORS));
    amax_begin(&amax, r->device, r->context.stream);
    r->context.amax = &amax;
    check_rows(&l, PRODUCT_FORWARD, NULL);
    check_rows(&l, PRODUCT_FORWARD, &bias);
    check_rows(&l, PRODUCT_INPUT, NULL);
    check_weights(&l);
    if (amax.rows) check_magnitudes(&l, &amax);
    EXPECT(r->scratch.used == 0, "scratch memory stays taken");
    amax_close(&amax);
    free(l.x.values), free(l.w.values), free(l.dy.values), free(l.bias.values);
    return OK;
}

static Status rank_main(Comm *world, void *arg) {
    const Setup *s = arg;
    RuntimeMemory memory = {.run = 8 << 20, .scratch = 4 << 20, .workspace = 64 << 20};
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
        if (harness_short() && i % 2 != (int)recipe % 2) continue;
        Setup s = {.tp = 1 + (i & 1),
                   .device = device,
                   .float8 = float8,
                   .recipe = recipe,
                   .row_parallel = i & 2,
                   .grads_apart = i == 1 || i == 2};
        EXPECT_OK(comm_launch((CommOptions){.transport = "threads", .ranks = s.tp, .timeout_s = 60},
                              rank_main, &s));
    }
}

static void products_on(const char *device) {
    products_of(device, FLOAT8_E4M3, RECIPE_TENSORWISE);
    products_of(device, FLOAT8_HYBRID, RECIPE_TENSORWISE);
    products_of(device, FLOAT8_HYBRID, RECIPE_DELAYED);
    products_of(device, FLOAT8_E4M3, RECIPE_MXFP8);
    products_of(device, FLOAT8_HYBRID, RECIPE_BLOCKWISE);
    products_of(device, FLOAT4_E2M1, RECIPE_NVFP4);
}

static void products_are_the_emulation(void) {
    products_on("cpu");
    products_of("check", FLOAT8_HYBRID, RECIPE_TENSORWISE);
    products_of("check", FLOAT4_E2M1, RECIPE_NVFP4);
}

static void products_of_a_gpu(void) { products_on("cuda-sim"); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"products_are_the_emulation", products_are_the_emulation},
                                      {"products_of_a_gpu", products_of_a_gpu},
                                      {0}},
                       argc, argv);
}
