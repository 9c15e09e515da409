// Every operation of the cpu backend at the shapes of GPT-2 124M (H 768, 12 heads of 64, V 50304) with 1024
// tokens, as a share of what bounds it on this machine (ceilings.h); other operations than products get more
// rows, so that they run from memory and not from a cache.
//
//   bench_device [--threads N] [--dtype f32|bf16|f16] [--json FILE]
//
// Products and attention are told beside multiply-adds from registers and the best product; attention in
// full, as models count it, and by the causal half of it. The others beside memory, and beside themselves
// from the cache of a core: one that is far from the first and near the second is bound by its arithmetic.
// Medians: processor time for one thread, which other programs disturb less, and wall time for several.
#include "base/cores.h"
#include "base/half.h"
#include "base/text.h"
#include "ceilings.h"
#include "device/cpu/cpu.h"
#include "median.h"
#include "products.h"
#include "table.h"
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64, HIDDEN = 768, TOKENS = 1024, ROWS = 8192, VOCABULARY = 50304 };
enum { CACHE_SHARE = 512 }; // of the rows: what operations on fewer fit into
static const size_t ARENA_BYTES = (size_t)900 << 20;

typedef struct {
    Arena arena;
    Exec exec;
    DType dtype; // the element type
    Ceilings ceilings;
    double best_product; // FLOP/s
    int share;           // of the rows that operations get: 1, or CACHE_SHARE for the rates from the cache
    double cached[MAX_ROWS];    // rates of the rows with that share, bytes/s; NAN: not measured
    double f32_times[MAX_ROWS]; // of the rows so far, with exec.threads; NAN: not measured
    int num_rows;
    Tables tables;
} Bench;

// ---- one operation ----------------------------------------------------------------------------------------

typedef struct {
    Exec exec;
    DeviceOp op;
    const void *args;
} Call;

static void call_work(void *self) {
    Call *call = self;
    backend_run(&cpu_backend, &call->exec, call->op, call->args);
}

static double time_op(Bench *b, DeviceOp op, const void *args) {
    ArenaMark mark = arena_mark(&b->arena);
    Call call = {b->exec, op, args};
    call.exec.workspace_bytes =
        cpu_backend.workspace_bytes(&(DeviceOptions){.threads = b->exec.threads}, op, args);
    call.exec.workspace = arena_take(&b->arena, "workspace", call.exec.workspace_bytes);
    double time = median_time(b->exec.threads, call_work, &call);
    arena_release(&b->arena, mark);
    return time;
}

// How many times as fast as in F32, when that was measured before.
static double against_f32(Bench *b, double time) {
    CHECK(b->num_rows < MAX_ROWS, "too many rows");
    double *f32_time = &b->f32_times[b->num_rows++];
    if (b->dtype == F32) *f32_time = time;
    return b->dtype == F32 ? NAN : *f32_time / time;
}

static const Column FLOPS_COLUMNS[] = {{"ms", 3, LOWER_IS_BETTER},     {"GFLOP/s", 1, INFORMS},
                                       {"% multiply-add", 0, INFORMS}, {"% best product", 0, INFORMS},
                                       {"causal half %", 0, INFORMS},  {"x of f32", 2, INFORMS}};

// `causal`: the share of the FLOPs that attention cannot leave out.
static void flops_row(Bench *b, const char *name, double time, double flops, double causal) {
    double rate = flops / time, peak = b->ceilings.flops[b->dtype];
    table_row(&b->tables, name,
              (double[]){1e3 * time, rate / 1e9, 100 * rate / peak, 100 * rate / b->best_product,
                         causal < 1 ? 100 * causal * rate / peak : NAN, against_f32(b, time)});
}

static const Column BYTES_COLUMNS[] = {{"ms", 3, LOWER_IS_BETTER},
                                       {"GB/s", 1, INFORMS},
                                       {"% of memory", 0, INFORMS},
                                       {"% of cached", 0, INFORMS},
                                       {"x of f32", 2, INFORMS}};

// `bytes`: what it reads and writes. One that only reads is held against a loop that only reads.
static void traffic_row(Bench *b, const char *name, DeviceOp op, const void *args, double bytes,
                        double ceiling) {
    double time = time_op(b, op, args), rate = bytes / time;
    if (b->share > 1) {
        CHECK(b->num_rows < MAX_ROWS, "too many rows");
        b->cached[b->num_rows++] = rate;
        return;
    }
    double cached = b->cached[b->num_rows];
    table_row(
        &b->tables, name,
        (double[]){1e3 * time, rate / 1e9, 100 * rate / ceiling, 100 * rate / cached, against_f32(b, time)});
}

static void bytes_row(Bench *b, const char *name, DeviceOp op, const void *args, double bytes) {
    traffic_row(b, name, op, args, bytes, b->ceilings.memory);
}

static void read_row(Bench *b, const char *name, DeviceOp op, const void *args, double bytes) {
    traffic_row(b, name, op, args, bytes, b->ceilings.read);
}

// Values in [-0.5, 0.5), cheaper than normals.
static Tensor values_of(Bench *b, DType dtype, int64_t rows, int64_t cols) {
    Tensor x = {arena_take(&b->arena, "values", (size_t)(rows * cols) * dtype_bytes(dtype)), rows, cols,
                dtype};
    uint32_t state = 1;
    for (int64_t i = 0; i < rows * cols; i++) {
        state = state * 1664525u + 1013904223u;
        float value = (float)(state >> 8) * 0x1p-24f - 0.5f;
        if (dtype == F32)
            ((float *)x.data)[i] = value;
        else
            ((uint16_t *)x.data)[i] = dtype == BF16 ? bf16_of_f32(value) : f16_of_f32(value);
    }
    return x;
}

static Tensor values(Bench *b, int64_t rows, int64_t cols) { return values_of(b, b->dtype, rows, cols); }
static Tensor floats(Bench *b, int64_t rows, int64_t cols) { return values_of(b, F32, rows, cols); }
static double bytes_of(Tensor x) { return (double)tensor_bytes(x); }

static Tensor tokens(Bench *b, int64_t count) {
    Tensor x = {arena_take(&b->arena, "tokens", (size_t)count * sizeof(int32_t)), 1, count, I32};
    for (int64_t i = 0; i < count; i++) ((int32_t *)x.data)[i] = (int32_t)(i * 7919 % VOCABULARY);
    return x;
}

// ---- matrix products and attention ------------------------------------------------------------------------

static void products_table(Bench *b, const Products *p) {
    static const char *const kinds[NUM_PRODUCTS] = {"forward (NT)", "input gradient (NN)",
                                                    "weight gradient (TN)"};
    char name[64];
    for (int i = 0; i < NUM_LINEARS * NUM_PRODUCTS; i++) {
        const LinearShape *l = &p->linears[i / NUM_PRODUCTS];
        double time = p->seconds[i / NUM_PRODUCTS][i % NUM_PRODUCTS];
        snprintf(name, sizeof name, "%s %lldx%lld %s", l->name, (long long)l->out, (long long)l->in,
                 kinds[i % NUM_PRODUCTS]);
        flops_row(b, name, time, 2.0 * TOKENS * (double)(l->out * l->in), 1);
    }
}

static void bench_attention(Bench *b, const char *label, float probability, int64_t groups, bool keeps) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t width = HIDDEN + 2 * groups * 64;
    AttentionShape shape = {1, TOKENS, 12, groups, 64, 0, 0, 0, 0, 0};
    Dropout dropout = {.key = {{1, 2}}, .probability = probability, .samples = 1};
    double product = 2.0 * TOKENS * TOKENS * HIDDEN;
    char text[64];
    Tensor probabilities = keeps ? values(b, 12 * TOKENS, TOKENS) : (Tensor){0};
    AttentionForward forward = {.qkv = values(b, TOKENS, width),
                                .out = values(b, TOKENS, HIDDEN),
                                .stats = floats(b, 12, TOKENS),
                                .probabilities = probabilities,
                                .shape = shape,
                                .dropout = dropout};
    snprintf(text, sizeof text, "attention forward, %s", label);
    flops_row(b, text, time_op(b, OP_ATTENTION_FORWARD, &forward), 2 * product, 0.5);
    AttentionBackward backward = {.dout = values(b, TOKENS, HIDDEN),
                                  .qkv = forward.qkv,
                                  .out = forward.out,
                                  .stats = forward.stats,
                                  .probabilities = probabilities,
                                  .dqkv = values(b, TOKENS, width),
                                  .shape = shape,
                                  .dropout = dropout};
    snprintf(text, sizeof text, "attention backward, %s", label);
    flops_row(b, text, time_op(b, OP_ATTENTION_BACKWARD, &backward), 5 * product, 0.5);
    arena_release(&b->arena, mark);
}

// ---- operations bound by memory ---------------------------------------------------------------------------

static void bench_activations(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t width = 4 * HIDDEN;
    int64_t rows = ROWS / b->share;
    Tensor x = values(b, rows, width), y = values(b, rows, width), dy = values(b, rows, width);
    Tensor bias = values(b, 1, width), sum = floats(b, 1, width);
    Tensor wide = {x.data, rows / 2, 2 * width, b->dtype}, narrow = {y.data, rows / 2, width, b->dtype};
    double bytes = bytes_of(x);
    bytes_row(b, "bias_gelu_forward", OP_BIAS_GELU_FORWARD, &(BiasGeluForward){x, bias, y, false}, 2 * bytes);
    bytes_row(b, "bias_gelu_backward", OP_BIAS_GELU_BACKWARD, &(BiasGeluBackward){dy, x, bias, y, false},
              3 * bytes);
    bytes_row(b, "swiglu_forward", OP_SWIGLU_FORWARD, &(SwigluForward){wide, {0}, narrow, GATE_SILU, 0, 0},
              1.5 * bytes);
    Tensor gradient = {dy.data, rows / 2, 2 * width, b->dtype}; // in place numbers would become subnormal
    bytes_row(b, "swiglu_backward", OP_SWIGLU_BACKWARD,
              &(SwigluBackward){narrow, wide, {0}, gradient, GATE_SILU, 0, 0}, 2.5 * bytes);
    read_row(b, "column_sum", OP_COLUMN_SUM, &(ColumnSum){x, sum}, bytes);
    bytes_row(b, "add", OP_ADD, &(Add){x, y}, 3 * bytes);
    arena_release(&b->arena, mark);
}

static void bench_residual(Bench *b, const char *label, float probability) {
    ArenaMark mark = arena_mark(&b->arena);
    char text[64];
    int64_t rows = 2 * ROWS / b->share;
    Tensor x = values(b, rows, HIDDEN), y = values(b, rows, HIDDEN);
    Tensor residual = values(b, rows, HIDDEN), bias = values(b, 1, HIDDEN);
    Dropout dropout = {.key = {{1, 2}}, .probability = probability, .samples = 16};
    snprintf(text, sizeof text, "bias_dropout_add, %s", label);
    bytes_row(b, text, OP_BIAS_DROPOUT_ADD, &(BiasDropoutAdd){x, bias, residual, y, dropout},
              3 * bytes_of(x));
    snprintf(text, sizeof text, "dropout_backward, %s", label);
    bytes_row(b, text, OP_DROPOUT_BACKWARD, &(DropoutBackward){x, y, dropout}, 2 * bytes_of(x));
    arena_release(&b->arena, mark);
}

static void bench_norm(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t rows = 2 * ROWS / b->share;
    Tensor x = values(b, rows, HIDDEN), y = values(b, rows, HIDDEN), dy = values(b, rows, HIDDEN), none = {0};
    Tensor gamma = values(b, 1, HIDDEN), beta = values(b, 1, HIDDEN), mean = floats(b, 1, rows);
    Tensor rstd = floats(b, 1, rows), dgamma = floats(b, 1, HIDDEN), dbeta = floats(b, 1, HIDDEN);
    double bytes = bytes_of(x);
    bytes_row(b, "norm_forward", OP_NORM_FORWARD, &(NormForward){x, gamma, beta, y, mean, rstd, 1e-5f, 0},
              2 * bytes);
    bytes_row(b, "norm_forward, RMS", OP_NORM_FORWARD,
              &(NormForward){x, gamma, none, y, none, rstd, 1e-5f, 0}, 2 * bytes);
    bytes_row(b, "norm_backward_input", OP_NORM_BACKWARD_INPUT,
              &(NormBackwardInput){dy, x, gamma, mean, rstd, none, y, 0}, 3 * bytes);
    read_row(b, "norm_backward_weight", OP_NORM_BACKWARD_WEIGHT,
             &(NormBackwardWeight){dy, x, mean, rstd, dgamma, dbeta}, 2 * bytes);
    arena_release(&b->arena, mark);
}

static void bench_rotary(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t positions = TOKENS / b->share;
    AttentionShape shape = {8, positions, 12, 4, 64, 0, 0, 0, 0, 0};
    Tensor qkv = values(b, 8 * positions, 20 * 64), table = floats(b, positions, 64);
    bytes_row(b, "rotary", OP_ROTARY, &(Rotary){table, qkv, shape, false}, 2 * 0.8 * bytes_of(qkv));
    arena_release(&b->arena, mark);
}

static void bench_embedding(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t rows = 2 * ROWS / b->share;
    Tensor ids = tokens(b, rows), table = values(b, VOCABULARY, HIDDEN), y = values(b, rows, HIDDEN);
    Tensor dtable = floats(b, VOCABULARY, HIDDEN), dposition = floats(b, rows / 16, HIDDEN);
    double bytes = bytes_of(y), sums = (double)tensor_count(y) * sizeof(float);
    bytes_row(b, "embedding_forward", OP_EMBEDDING_FORWARD, &(EmbeddingForward){ids, table, y, 0}, 2 * bytes);
    bytes_row(b, "embedding_backward", OP_EMBEDDING_BACKWARD, &(EmbeddingBackward){ids, y, dtable, 0},
              bytes + 2 * sums);
    read_row(b, "position_backward", OP_POSITION_BACKWARD, &(PositionBackward){y, dposition, 16, 0}, bytes);
    arena_release(&b->arena, mark);
}

static void bench_loss(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t rows = TOKENS / b->share;
    Tensor logits = floats(b, rows, VOCABULARY), labels = tokens(b, rows), max = floats(b, 1, rows);
    Tensor sum = floats(b, 1, rows), target = floats(b, 1, rows), loss = floats(b, 1, rows);
    Tensor dlogits = b->dtype == F32 ? logits : values(b, rows, VOCABULARY), mask = {0};
    double bytes = bytes_of(logits);
    read_row(b, "loss_max", OP_LOSS_MAX, &(LossMax){logits, max, 0, VOCABULARY}, bytes);
    read_row(b, "loss_sum", OP_LOSS_SUM, &(LossSum){logits, labels, max, sum, target, 0, VOCABULARY}, bytes);
    bytes_row(b, "loss_finish", OP_LOSS_FINISH,
              &(LossFinish){labels, max, sum, target, mask, logits, dlogits, loss, 0, VOCABULARY, 1.0f},
              bytes + bytes_of(dlogits));
    arena_release(&b->arena, mark);
}

static void bench_optimizer(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t count = (1 << 24) / b->share;
    Tensor g = floats(b, 1, count), p = floats(b, 1, count), m = floats(b, 1, count), v = floats(b, 1, count);
    Tensor value = b->dtype == F32 ? (Tensor){0} : values(b, 1, count), max = floats(b, 1, 1);
    Tensor sum = {arena_take(&b->arena, "sum", 3 * sizeof(double)), 1, 3, F64};
    memset(sum.data, 0, 3 * sizeof(double));
    for (int64_t i = 0; i < count; i++) ((float *)v.data)[i] += 0.5f;
    AdamW step = {g, p, m, v, value, 1e-4, 0.9, 0.999, 1e-8, 0.1, 0.1, 0.001, 1, 0, NULL};
    bytes_row(b, "adamw", OP_ADAMW, &step, 7 * bytes_of(p) + (value.data ? bytes_of(value) : 0));
    read_row(b, "abs_max", OP_ABS_MAX, &(AbsMax){g, max}, bytes_of(g));
    read_row(b, "sum_squares", OP_SUM_SQUARES, &(SumSquares){g, sum, max, 0, 0, NULL}, bytes_of(g));
    arena_release(&b->arena, mark);
}

// ---- all of it --------------------------------------------------------------------------------------------

static void bench_memory_bound(Bench *b) {
    bench_activations(b);
    bench_residual(b, "no dropout", 0);
    bench_residual(b, "dropout 0.1", 0.1f);
    bench_norm(b);
    bench_rotary(b);
    bench_embedding(b);
    bench_loss(b);
    bench_optimizer(b);
}

static void bench_attentions(Bench *b) {
    bench_attention(b, "no dropout", 0, 12, false);
    bench_attention(b, "dropout 0.1", 0.1f, 12, false);
    bench_attention(b, "4 groups", 0, 4, false);
    bench_attention(b, "P kept", 0, 12, true);
}

// What operations do from the cache of one core; several threads have none in common.
static void measure_cached(Bench *b) {
    for (int i = 0; i < MAX_ROWS; i++) b->cached[i] = NAN;
    if (b->exec.threads > 1) return;
    int num_rows = b->num_rows;
    b->share = CACHE_SHARE;
    bench_memory_bound(b);
    b->share = 1;
    b->num_rows = num_rows;
}

static void begin(Bench *b, const char *what, const Column *columns, size_t count) {
    char title[80];
    snprintf(title, sizeof title, "%s, %s, %d thread%s", what, dtype_name(b->dtype), b->exec.threads,
             b->exec.threads == 1 ? "" : "s");
    table_begin(&b->tables, title, columns, (int)count);
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void bench_all(Bench *b, DType dtype) {
    b->dtype = dtype;
    b->num_rows = 0;
    ModelShape shape = gpt2_124m(TOKENS);
    Products products = measure_products(&shape, 1, dtype, b->exec.threads);
    b->best_product = products.best;
    begin(b, "products", FLOPS_COLUMNS, COUNT(FLOPS_COLUMNS));
    products_table(b, &products);
    begin(b, "attention", FLOPS_COLUMNS, COUNT(FLOPS_COLUMNS));
    bench_attentions(b);
    measure_cached(b);
    begin(b, "bound by memory", BYTES_COLUMNS, COUNT(BYTES_COLUMNS));
    bench_memory_bound(b);
}

static const Column CEILING_COLUMNS[] = {{"rate", 1, HIGHER_IS_BETTER}};

static void bench_ceilings(Bench *b) {
    const Ceilings *c = &b->ceilings;
    b->ceilings = measure_ceilings(b->exec.threads);
    char title[80];
    snprintf(title, sizeof title, "the machine, %d thread%s", b->exec.threads,
             b->exec.threads == 1 ? "" : "s");
    table_begin(&b->tables, title, CEILING_COLUMNS, 1);
    const struct {
        const char *name;
        double value;
    } rows[] = {{"multiply-adds f32, GFLOP/s", c->flops[F32]},
                {"multiply-adds bf16, GFLOP/s", c->flops[BF16]},
                {"y = x, GB/s", c->copy},
                {"z = x + a y, GB/s", c->triad},
                {"y += x, GB/s", c->update},
                {"sum of x, GB/s", c->read}};
    for (size_t i = 0; i < COUNT(rows); i++)
        table_row(&b->tables, rows[i].name, (double[]){rows[i].value / 1e9});
}

static const DType DTYPES[] = {F32, BF16, F16};

typedef struct {
    int64_t threads;
    const char *json;
    int dtype; // of DTYPES, or -1: f32, then bf16
} Options;

static Status parse_dtype(const char *text, int *dtype) {
    for (*dtype = 0; *dtype < 3; (*dtype)++)
        if (!strcmp(text, dtype_name(DTYPES[*dtype]))) return OK;
    return fail(ERR_USAGE, "--dtype %s: f32, bf16 or f16 are allowed", text);
}

static Status parse(int argc, char **argv, Options *options) {
    for (int i = 1; i < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (value && !strcmp(name, "--json"))
            options->json = value;
        else if (value && !strcmp(name, "--dtype"))
            TRY(parse_dtype(value, &options->dtype));
        else if (!value || strcmp(name, "--threads"))
            return fail(ERR_USAGE,
                        "%s: usage is bench_device [--threads N] [--dtype f32|bf16|f16] [--json FILE]", name);
        else if (!parse_int(value, &options->threads) || options->threads < 1 || options->threads > 1024)
            return fail(ERR_USAGE, "--threads %s: a whole number from 1 to 1024 is allowed", value);
    }
    return OK;
}

static void bench_threads(Bench *b, int threads, int dtype) {
    b->exec.threads = threads;
    for (int i = 0; i < MAX_ROWS; i++) b->f32_times[i] = NAN;
    bench_ceilings(b);
    for (int i = 0; i < 2; i++)
        if (dtype < 0) bench_all(b, DTYPES[i]);
    if (dtype >= 0) bench_all(b, DTYPES[dtype]);
}

static Status bench_device(int argc, char **argv) {
    Options options = {omp_get_num_procs(), NULL, -1};
    TRY(parse(argc, argv, &options));
    Bench b = {.share = 1};
    TRY(arena_open(&b.arena, "bench", memory_host(), ARENA_BYTES));
    bench_threads(&b, 1, options.dtype);
    if (options.threads > 1) bench_threads(&b, (int)options.threads, options.dtype);
    Status status = tables_finish(&b.tables, "ops", options.json);
    arena_close(&b.arena);
    return status;
}

int main(int argc, char **argv) {
    cores_wait_briefly(argv); // as the program does
    Status status = bench_device(argc, argv);
    if (status) fprintf(stderr, "bench_device: %s\n", fail_message());
    return (int)status;
}
