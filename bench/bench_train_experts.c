// What layers with experts cost beside dense ones whose products are as large, and beside their own products: training
// steps on the cpu with two threads, or one.
//
//   bench_train_experts [fp32|bf16] [one-thread] [--json FILE]
//
// Two layers, hidden size 512, SwiGLU, steps of eight microbatches of a sample of 1024 tokens. K of E experts of width
// F compute a token, in the dense model an MLP of width K F: the multiply-adds of both are the same but for the router.
// "beside" is what an experts' layer computes that is no product of its experts: router, sorting, rows gathered and
// combined, the activation. "optimizer" is paid once a step: with fewer microbatches it is more of a token's time.
//
// The second table holds whole steps against their own products: "bare" is the rate of all matrix products of a step,
// those of attention's linear layers, the router, the experts and the head, made again alone, in their order and each
// in memory of its own. A step's FLOPs are those, and of attention the pairs of a query and a key that it sees, once
// in the forward and twice in the backward. The dense model's share says what any model pays. Steps and bare products
// take turns; medians. Times are by the clock, so nothing else should run; of one thread they are processor time.
#include "base/cores.h"
#include "median.h"
#include "replay.h"
#include "table.h"
#include "train/train.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEQUENCE = 1024, HIDDEN = 512, LAYERS = 2, VOCABULARY = 1023, MICROBATCHES = 8, ROUNDS = 5 };
enum { TOKENS = SEQUENCE * MICROBATCHES };

typedef struct {
    const char *name;
    int experts, topk, ffn; // E, K, F; no other product has F or 2F columns
} Row;

static const Row ROWS[] = {{"8 experts of 384, 2 of a token", 8, 2, 384},
                           {"16 experts of 384, 2 of a token", 16, 2, 384},
                           {"32 experts of 192, 4 of a token", 32, 4, 192}};
enum { NUM_ROWS = sizeof ROWS / sizeof *ROWS };

static const Column COLUMNS[] = {{"step us/token", 1, LOWER_IS_BETTER},
                                 {"dense step", 1, INFORMS},
                                 {"% of dense", 1, HIGHER_IS_BETTER},
                                 {"experts' prod", 1, INFORMS},
                                 {"beside", 2, LOWER_IS_BETTER},
                                 {"% products", 1, HIGHER_IS_BETTER},
                                 {"optimizer", 1, INFORMS},
                                 {"dense optim", 1, INFORMS}};

static const Column SHARE_COLUMNS[] = {{"step GFLOP/s", 1, HIGHER_IS_BETTER},
                                       {"bare GFLOP/s", 1, INFORMS},
                                       {"% of bare", 1, HIGHER_IS_BETTER},
                                       {"dense step", 1, INFORMS},
                                       {"dense bare", 1, INFORMS},
                                       {"dense % bare", 1, INFORMS},
                                       {"of dense's %", 1, HIGHER_IS_BETTER}};
enum { NUM_SHARES = sizeof SHARE_COLUMNS / sizeof *SHARE_COLUMNS };

typedef enum { PRODUCTS, BESIDE, OPTIMIZER, OTHERS, NUM_PARTS } Part;

static bool has_columns(Tensor x, int64_t cols) { return x.cols == cols || x.cols == 2 * cols; }

static Part part_of(const Row *row, DeviceOp op, const void *args) {
    const Matmul *p = args;
    switch (op) {
    case OP_MATMUL:
        return has_columns(p->a, row->ffn) || has_columns(p->b, row->ffn) || has_columns(p->d, row->ffn)
                   ? PRODUCTS
                   : OTHERS;
    case OP_ROUTER_FORWARD:
    case OP_ROUTER_BACKWARD:
    case OP_SORT_PAIRS:
    case OP_GATHER_ROWS:
    case OP_COMBINE_ROWS:
    case OP_COMBINE_BACKWARD:
    case OP_SWIGLU_FORWARD:
    case OP_SWIGLU_BACKWARD: return BESIDE;
    case OP_ADAMW:
    case OP_SUM_SQUARES:
    case OP_ABS_MAX: return OPTIMIZER;
    default: return OTHERS;
    }
}

// A model's steps, and in the memory of another engine of the same model its products. Without experts it is dense.
typedef struct {
    const Row *row;
    Engine *engine, *bare;
    int threads;
    Replay products;
    double step[ROUNDS], parts[NUM_PARTS][ROUNDS], products_s[ROUNDS]; // seconds
    double flops, products_flops;                                      // of a step, of its products
    int round;
    Part part; // of the operation under way
    double began_s;
} Model;

static EngineSpec spec_of(const Row *row, bool dense, DType dtype, int threads) {
    EngineSpec spec = {.grid = GRID(1, 1, 1), .schedule = "1f1b", .num_chunks = 1};
    spec.shape = (ModelShape){.layers = LAYERS,
                              .hidden = HIDDEN,
                              .heads = 8,
                              .head_size = HIDDEN / 8,
                              .ffn = row->topk * row->ffn,
                              .sequence = SEQUENCE,
                              .positions = SEQUENCE,
                              .vocabulary = VOCABULARY,
                              .activation = ACTIVATION_SWIGLU,
                              .position = POSITION_ROTARY,
                              .rotary_base = 10000,
                              .rms_norm = true,
                              .no_linear_bias = true,
                              .norm_epsilon = 1e-5f,
                              .init_std = 0.02f,
                              .seed = 1234};
    if (!dense) {
        spec.shape.experts = row->experts, spec.shape.experts_topk = row->topk;
        spec.shape.expert_ffn = row->ffn;
    }
    spec.num_microbatches = MICROBATCHES;
    spec.mode = (ModelMode){.microbatch = 1, .dtype = dtype};
    spec.mode.padded_vocabulary = padded_vocabulary(VOCABULARY, 1, 1);
    spec.split.layers = LAYERS;
    spec.adam = (AdamOptions){0.9, 0.95, 1e-8, 1.0};
    spec.bucket_elements = 40000000;
    spec.device = "cpu", spec.threads = threads;
    return spec;
}

// ---- a step -----------------------------------------------------------------------------------------------

static double time_of(const Model *m) {
    return now_s(m->threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC);
}

static void end_part(Model *m, Part next) {
    double now = time_of(m);
    m->parts[m->part][m->round] += now - m->began_s;
    m->part = next, m->began_s = now;
}

static void on_operation(void *self, DeviceOp op, const void *args, OpCount one) {
    Model *m = self;
    (void)one;
    end_part(m, part_of(m->row, op, args));
}

// Keeps the products of a step, and adds up its FLOPs. An operation of attention counts all pairs, of which a query
// sees half, and its backward counts the scores that it computes again.
static void record(void *self, DeviceOp op, const void *args, OpCount one) {
    Model *m = self;
    if (op == OP_MATMUL) {
        replay_add(&m->products, args, one);
        m->flops += one.flops;
    }
    if (op == OP_ATTENTION_FORWARD) m->flops += 3 * one.flops / 2;
}

static void take_step(Model *m, const Batch *batch, int round) {
    double start = time_of(m);
    m->round = round, m->part = OTHERS, m->began_s = start;
    for (int i = 0; i < NUM_PARTS; i++) m->parts[i][round] = 0;
    engine_train(m->engine, *batch, (StepOptions){1e-4, 0.1, 1});
    end_part(m, OTHERS);
    m->step[round] = m->began_s - start;
}

static void make_products(Model *m, int round) {
    Context *c = engine_context(m->bare);
    double start = time_of(m);
    replay_make(&m->products, c->device, c->stream);
    m->products_s[round] = time_of(m) - start;
}

// ---- rows -------------------------------------------------------------------------------------------------

typedef struct {
    const Row *row;
    DType dtype;
    int threads;
    Model experts, dense;
} Pair;

static Status open_model(Model *m, const Pair *pair, bool dense, const Batch *batch, Comm *world) {
    EngineSpec spec = spec_of(pair->row, dense, pair->dtype, pair->threads);
    *m = (Model){.row = pair->row, .threads = pair->threads};
    TRY(engine_open(&m->engine, &spec, world));
    device_on_operation(engine_context(m->engine)->device, on_operation, m);
    TRY(engine_open(&m->bare, &spec, world));
    device_on_operation(engine_context(m->bare)->device, record, m);
    engine_gradients(m->bare, *batch, 1);
    device_on_operation(engine_context(m->bare)->device, NULL, NULL);
    replay_fill(&m->products);
    m->products_flops = m->products.flops;
    return OK;
}

static void close_model(Model *m) {
    engine_close(m->bare);
    engine_close(m->engine);
    replay_close(&m->products);
}

static Status measure(Comm *world, void *arg) {
    static int32_t tokens[TOKENS], labels[TOKENS];
    Pair *pair = arg;
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % VOCABULARY;
        labels[i] = (tokens[i] + 1) % VOCABULARY;
    }
    Batch batch = {.num_microbatches = MICROBATCHES, .tokens = tokens, .labels = labels};
    Model *models[] = {&pair->experts, &pair->dense};
    Status status = open_model(models[0], pair, false, &batch, world);
    if (status == OK) status = open_model(models[1], pair, true, &batch, world);
    for (int round = -1; round < ROUNDS && status == OK; round++) // the first one warms up
        for (int i = 0; i < 2; i++) {
            take_step(models[i], &batch, round < 0 ? 0 : round);
            make_products(models[i], round < 0 ? 0 : round);
        }
    close_model(models[1]);
    close_model(models[0]);
    return status;
}

static double us(double *seconds) { return 1e6 * median(seconds, ROUNDS) / TOKENS; }

// Sets the rates of a step and of its products alone, and the share of the second that the first is.
static void find_shares(Model *m, double shares[3]) {
    shares[0] = 1e-9 * m->flops / median(m->step, ROUNDS);
    shares[1] = 1e-9 * m->products_flops / median(m->products_s, ROUNDS);
    shares[2] = 100 * shares[0] / shares[1];
}

static Status bench_row(Tables *tables, const Row *row, DType dtype, int threads, double shares[NUM_SHARES]) {
    static Pair pair;
    pair = (Pair){.row = row, .dtype = dtype, .threads = threads};
    TRY(comm_launch((CommOptions){.transport = "threads", .ranks = 1, .timeout_s = 600}, measure, &pair));
    Model *e = &pair.experts, *d = &pair.dense;
    double step = us(e->step), dense = us(d->step), products = us(e->parts[PRODUCTS]),
           beside = us(e->parts[BESIDE]);
    table_row(tables, row->name,
              (double[]){step, dense, 100 * dense / step, products, beside,
                         100 * products / (products + beside), us(e->parts[OPTIMIZER]),
                         us(d->parts[OPTIMIZER])});
    find_shares(e, shares);
    find_shares(d, shares + 3);
    shares[6] = 100 * shares[2] / shares[5];
    return OK;
}

static Status bench_type(Tables *tables, DType dtype, int threads) {
    char title[80], how[40];
    double shares[NUM_ROWS][NUM_SHARES], least = INFINITY;
    snprintf(how, sizeof how, "%s, %d thread%s", dtype_name(dtype), threads, threads > 1 ? "s" : "");
    snprintf(title, sizeof title, "layers with experts, %s", how);
    table_begin(tables, title, COLUMNS, sizeof COLUMNS / sizeof *COLUMNS);
    for (int i = 0; i < NUM_ROWS; i++) TRY(bench_row(tables, &ROWS[i], dtype, threads, shares[i]));
    snprintf(title, sizeof title, "steps against their products, %s", how);
    table_begin(tables, title, SHARE_COLUMNS, NUM_SHARES);
    for (int i = 0; i < NUM_ROWS; i++) {
        table_row(tables, ROWS[i].name, shares[i]);
        least = fmin(least, shares[i][2]);
    }
    table_note(tables, "a step with experts runs at %.0f %% or more of the rate of its products alone",
               least);
    return OK;
}

int main(int argc, char **argv) {
    cores_wait_briefly(argv); // as the program does
    const char *json = tables_path(&argc, argv);
    Tables tables = {0};
    bool one_thread = argc > 1 && !strcmp(argv[argc - 1], "one-thread");
    const char *only = argc - one_thread > 1 ? argv[1] : "";
    int threads = one_thread ? 1 : 2;
    Status status = strcmp(only, "bf16") ? bench_type(&tables, F32, threads) : OK;
    if (status == OK && strcmp(only, "fp32")) status = bench_type(&tables, BF16, threads);
    if (status == OK) status = tables_finish(&tables, "experts", json);
    if (status != OK) fprintf(stderr, "bench_train_experts: %s\n", fail_message());
    return (int)status;
}
