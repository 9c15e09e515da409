// What layers with experts cost beside dense ones whose products are as large, and beside their own products: training
// steps on the cpu with one thread.
//
//   bench_train_experts [fp32|bf16] [--json FILE]
//
// Two layers, hidden size 512, SwiGLU, two microbatches of a sample of 1024 tokens. K of E experts of width F compute a
// token, in the dense model an MLP of width K F: the multiply-adds of both are the same but for the router. "beside" is
// what an experts' layer computes that is no product of its experts: router, sorting, rows gathered and combined, the
// activation. The steps take turns; medians of processor time.
#include "median.h"
#include "table.h"
#include "train/train.h"
#include <stdlib.h>
#include <string.h>

enum { SEQUENCE = 1024, HIDDEN = 512, LAYERS = 2, VOCABULARY = 1023, MICROBATCHES = 2, ROUNDS = 5 };
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

// A model's steps. Without experts it is dense.
typedef struct {
    const Row *row;
    Engine *engine;
    double step[ROUNDS], parts[NUM_PARTS][ROUNDS]; // seconds
    int round;
    Part part; // of the operation under way
    double began_s;
} Model;

static EngineSpec spec_of(const Row *row, bool dense, DType dtype) {
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
    spec.device = "cpu", spec.threads = 1;
    return spec;
}

// ---- a step -----------------------------------------------------------------------------------------------

static double processor_s(void) { return now_s(CLOCK_PROCESS_CPUTIME_ID); }

static void end_part(Model *m, Part next) {
    double now = processor_s();
    m->parts[m->part][m->round] += now - m->began_s;
    m->part = next, m->began_s = now;
}

static void on_operation(void *self, DeviceOp op, const void *args, OpCount one) {
    Model *m = self;
    (void)one;
    end_part(m, part_of(m->row, op, args));
}

static void take_step(Model *m, const Batch *batch, int round) {
    double start = processor_s();
    m->round = round, m->part = OTHERS, m->began_s = start;
    for (int i = 0; i < NUM_PARTS; i++) m->parts[i][round] = 0;
    engine_train(m->engine, *batch, (StepOptions){1e-4, 0.1, 1});
    end_part(m, OTHERS);
    m->step[round] = m->began_s - start;
}

// ---- rows -------------------------------------------------------------------------------------------------

typedef struct {
    const Row *row;
    DType dtype;
    Model experts, dense;
} Pair;

static Status open_model(Model *m, const Pair *pair, bool dense, Comm *world) {
    EngineSpec spec = spec_of(pair->row, dense, pair->dtype);
    m->row = pair->row;
    TRY(engine_open(&m->engine, &spec, world));
    device_on_operation(engine_context(m->engine)->device, on_operation, m);
    return OK;
}

static Status measure(Comm *world, void *arg) {
    static int32_t tokens[TOKENS], labels[TOKENS];
    Pair *pair = arg;
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % VOCABULARY;
        labels[i] = (tokens[i] + 1) % VOCABULARY;
    }
    Batch batch = {.num_microbatches = MICROBATCHES, .tokens = tokens, .labels = labels};
    Model *experts = &pair->experts, *dense = &pair->dense;
    Status status = open_model(experts, pair, false, world);
    if (status == OK) status = open_model(dense, pair, true, world);
    for (int round = -1; round < ROUNDS && status == OK; round++) { // the first one warms up
        take_step(experts, &batch, round < 0 ? 0 : round);
        take_step(dense, &batch, round < 0 ? 0 : round);
    }
    engine_close(dense->engine);
    engine_close(experts->engine);
    return status;
}

static double us(double *seconds) { return 1e6 * median(seconds, ROUNDS) / TOKENS; }

static Status bench_type(Tables *tables, DType dtype) {
    char title[64];
    snprintf(title, sizeof title, "layers with experts, %s, 1 thread", dtype_name(dtype));
    table_begin(tables, title, COLUMNS, sizeof COLUMNS / sizeof *COLUMNS);
    for (int i = 0; i < NUM_ROWS; i++) {
        Pair pair = {.row = &ROWS[i], .dtype = dtype};
        TRY(comm_launch((CommOptions){.transport = "threads", .ranks = 1, .timeout_s = 600}, measure, &pair));
        Model *e = &pair.experts, *d = &pair.dense;
        double step = us(e->step), dense = us(d->step), products = us(e->parts[PRODUCTS]),
               beside = us(e->parts[BESIDE]);
        table_row(tables, ROWS[i].name,
                  (double[]){step, dense, 100 * dense / step, products, beside,
                             100 * products / (products + beside), us(e->parts[OPTIMIZER]),
                             us(d->parts[OPTIMIZER])});
    }
    return OK;
}

int main(int argc, char **argv) {
    const char *json = tables_path(&argc, argv);
    Tables tables = {0};
    const char *only = argc > 1 ? argv[1] : "";
    Status status = strcmp(only, "bf16") ? bench_type(&tables, F32) : OK;
    if (status == OK && strcmp(only, "fp32")) status = bench_type(&tables, BF16);
    if (status == OK) status = tables_finish(&tables, "experts", json);
    if (status != OK) fprintf(stderr, "bench_train_experts: %s\n", fail_message());
    return (int)status;
}
