// How fast the cpu backend is, against what this machine can do: fused multiply-adds from registers, and y +=
// x in memory.
//
//   bench_device [--threads N] [--json FILE]
//
// Shapes are those of GPT-2 124M (H 768, 12 heads of 64, V 50304) with 1024 tokens; elementwise operations
// get more rows, so that they run from memory and not from a cache. A time is the median of its repetitions:
// processor time for one thread, which other programs disturb less, and wall time for several.
#include "base/text.h"
#include "device/cpu.h"
#include "device/cpu_vector.h"
#include <omp.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_REPETITIONS = 25, HIDDEN = 768, TOKENS = 1024, ROWS = 8192, VOCABULARY = 50304 };
static const size_t ARENA_BYTES = (size_t)640 << 20;
static const double SECONDS_PER_ROW = 0.25;

typedef struct {
    Arena arena;
    Exec exec;
    double fma_flops, memory_bytes; // per second, with exec.threads
    Text json;
} Bench;

// ---- time -------------------------------------------------------------------------------------------------

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The median time of work(self), after one call to warm up.
static double median_time(int threads, void (*work)(void *self), void *self) {
    clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    double times[MAX_REPETITIONS], total = 0;
    int count = 0;
    work(self);
    while (count < MAX_REPETITIONS && (count < 3 || total < SECONDS_PER_ROW)) {
        double start = seconds(clock);
        work(self);
        total += times[count++] = seconds(clock) - start;
    }
    qsort(times, (size_t)count, sizeof times[0], by_size);
    return times[count / 2];
}

// ---- ceilings ---------------------------------------------------------------------------------------------

enum { CHAINS = 12, FMA_STEPS = 1 << 22, UPDATE_FLOATS = 1 << 26 };

typedef struct {
    int threads;
    float *from, *to;
    float sink; // keeps the compiler from dropping the arithmetic
} Ceiling;

static float fma_chains(void) {
    Floats chains[CHAINS], sum = {0};
    for (int i = 0; i < CHAINS; i++) chains[i] = splat((float)i);
    for (int step = 0; step < FMA_STEPS; step++)
        for (int i = 0; i < CHAINS; i++) chains[i] = chains[i] * 0.999f + 0.001f;
    for (int i = 0; i < CHAINS; i++) sum += chains[i];
    return sum_lanes(sum);
}

static void fma_work(void *self) {
    Ceiling *ceiling = self;
    float sink = 0;
#pragma omp parallel num_threads(ceiling->threads) reduction(+ : sink)
    sink += fma_chains();
    ceiling->sink = sink;
}

static void update_work(void *self) {
    Ceiling *ceiling = self;
#pragma omp parallel for num_threads(ceiling->threads) schedule(static)
    for (int64_t i = 0; i < UPDATE_FLOATS; i += LANES)
        store(ceiling->to + i, LANES, load(ceiling->to + i, LANES) + load(ceiling->from + i, LANES));
}

static void measure_ceilings(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    Ceiling ceiling = {.threads = b->exec.threads};
    ceiling.from = arena_take(&b->arena, "from", UPDATE_FLOATS * sizeof(float));
    ceiling.to = arena_take(&b->arena, "to", UPDATE_FLOATS * sizeof(float));
    memset(ceiling.from, 0, UPDATE_FLOATS * sizeof(float)); // a page that was never written is not memory yet
    memset(ceiling.to, 0, UPDATE_FLOATS * sizeof(float));
    double flops = 2.0 * CHAINS * FMA_STEPS * LANES * b->exec.threads;
    b->fma_flops = flops / median_time(b->exec.threads, fma_work, &ceiling);
    b->memory_bytes =
        3.0 * UPDATE_FLOATS * sizeof(float) / median_time(b->exec.threads, update_work, &ceiling);
    arena_release(&b->arena, mark);
    printf("\n%d thread%s, %s: fused multiply-adds %.0f GFLOP/s, memory %.1f GB/s (y += x)\n",
           b->exec.threads, b->exec.threads == 1 ? "" : "s", cpu_best()->isa, b->fma_flops / 1e9,
           b->memory_bytes / 1e9);
    text_add(&b->json,
             "%s  {\"threads\": %d, \"isa\": \"%s\", \"fma_gflops\": %.1f, \"memory_gbs\": %.2f, \"rows\": [",
             b->json.size ? ",\n" : "", b->exec.threads, cpu_best()->isa, b->fma_flops / 1e9,
             b->memory_bytes / 1e9);
}

// ---- one operation ----------------------------------------------------------------------------------------

typedef struct {
    Exec exec;
    DeviceOp op;
    const void *args;
} Call;

static void call_work(void *self) {
    Call *call = self;
    switch (call->op) {
#define X(NAME, function, Args, reads, writes)                                                               \
    case OP_##NAME: cpu_backend.function(&call->exec, call->args); break;
        DEVICE_OPS(X)
#undef X
    case NUM_DEVICE_OPS: break;
    }
}

static double time_op(Bench *b, DeviceOp op, const void *args) {
    ArenaMark mark = arena_mark(&b->arena);
    Call call = {b->exec, op, args};
    call.exec.workspace_bytes = cpu_backend.workspace_bytes(b->exec.threads, op, args);
    call.exec.workspace = arena_take(&b->arena, "workspace", call.exec.workspace_bytes);
    double time = median_time(b->exec.threads, call_work, &call);
    arena_release(&b->arena, mark);
    return time;
}

static void print_row(Bench *b, const char *name, double time, double amount, double ceiling,
                      const char *unit) {
    double rate = amount / time;
    printf("  %-34s %9.3f ms %8.1f %-7s %4.0f %%\n", name, time * 1e3, rate / 1e9, unit,
           100 * rate / ceiling);
    fflush(stdout);
    bool first = text_string(&b->json)[b->json.size - 1] == '[';
    text_add(&b->json,
             "%s\n    {\"name\": \"%s\", \"ms\": %.4f, \"rate\": %.2f, \"unit\": \"%s\", \"fraction\": %.4f}",
             first ? "" : ",", name, time * 1e3, rate / 1e9, unit, rate / ceiling);
}

static void flops_row(Bench *b, const char *name, DeviceOp op, const void *args, double flops) {
    print_row(b, name, time_op(b, op, args), flops, b->fma_flops, "GFLOP/s");
}

// `streams`: how many times it reads or writes something of the size of `x`.
static void bytes_row(Bench *b, const char *name, DeviceOp op, const void *args, Tensor x, double streams) {
    print_row(b, name, time_op(b, op, args), streams * (double)tensor_bytes(x), b->memory_bytes, "GB/s");
}

// Values in [-0.5, 0.5), cheaper than normals.
static Tensor values(Bench *b, int64_t rows, int64_t cols) {
    Tensor x = {arena_take(&b->arena, "values", (size_t)(rows * cols) * sizeof(float)), rows, cols, F32};
    uint32_t state = 1;
    for (int64_t i = 0; i < rows * cols; i++) {
        state = state * 1664525u + 1013904223u;
        ((float *)x.data)[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    return x;
}

static Tensor tokens(Bench *b, int64_t count) {
    Tensor x = {arena_take(&b->arena, "tokens", (size_t)count * sizeof(int32_t)), 1, count, I32};
    for (int64_t i = 0; i < count; i++) ((int32_t *)x.data)[i] = (int32_t)(i * 7919 % VOCABULARY);
    return x;
}

// ---- matrix products and attention ------------------------------------------------------------------------

// Linear layer [out, in] of 1024 tokens: y = x W^T, dx = dy W, dW += dy^T x.
static void bench_linear(Bench *b, const char *name, int64_t out, int64_t in) {
    ArenaMark mark = arena_mark(&b->arena);
    char text[64];
    Tensor x = values(b, TOKENS, in), y = values(b, TOKENS, out), weight = values(b, out, in);
    double flops = 2.0 * TOKENS * (double)out * (double)in;
    snprintf(text, sizeof text, "%s forward (NT)", name);
    flops_row(b, text, OP_MATMUL, &(Matmul){x, weight, {0}, y, false, true, false}, flops);
    snprintf(text, sizeof text, "%s input gradient (NN)", name);
    flops_row(b, text, OP_MATMUL, &(Matmul){y, weight, {0}, x, false, false, false}, flops);
    snprintf(text, sizeof text, "%s weight gradient (TN)", name);
    flops_row(b, text, OP_MATMUL, &(Matmul){y, x, {0}, weight, true, false, true}, flops);
    arena_release(&b->arena, mark);
}

static void bench_matmul(Bench *b) {
    bench_linear(b, "qkv 2304x768", 3 * HIDDEN, HIDDEN);
    bench_linear(b, "projection 768x768", HIDDEN, HIDDEN);
    bench_linear(b, "mlp up 3072x768", 4 * HIDDEN, HIDDEN);
    bench_linear(b, "mlp down 768x3072", HIDDEN, 4 * HIDDEN);
    bench_linear(b, "vocabulary 50304x768", VOCABULARY, HIDDEN);
}

// Effective: of the whole square, as models count it. The cut along the diagonal does little more than half
// of that.
static void bench_attention(Bench *b, const char *label, float probability) {
    ArenaMark mark = arena_mark(&b->arena);
    AttentionShape shape = {1, TOKENS, 12, 64, 0};
    Dropout dropout = {{{1, 2}}, probability, 0, 1};
    double product = 2.0 * TOKENS * TOKENS * HIDDEN;
    char text[64];
    AttentionForward forward = {values(b, TOKENS, 3 * HIDDEN), values(b, TOKENS, HIDDEN),
                                values(b, 12, TOKENS), shape, dropout};
    snprintf(text, sizeof text, "attention forward, %s", label);
    double forward_s = time_op(b, OP_ATTENTION_FORWARD, &forward);
    print_row(b, text, forward_s, 2 * product, b->fma_flops, "eff. GF");
    print_row(b, "  computed half alone", forward_s, product * (1 + 64.0 / TOKENS), b->fma_flops, "GFLOP/s");
    AttentionBackward backward = {values(b, TOKENS, HIDDEN),     forward.qkv, forward.out, forward.stats,
                                  values(b, TOKENS, 3 * HIDDEN), shape,       dropout};
    snprintf(text, sizeof text, "attention backward, %s", label);
    double backward_s = time_op(b, OP_ATTENTION_BACKWARD, &backward);
    print_row(b, text, backward_s, 5 * product, b->fma_flops, "eff. GF");
    print_row(b, "  computed half alone", backward_s, 2.5 * product * (1 + 64.0 / TOKENS), b->fma_flops,
              "GFLOP/s");
    arena_release(&b->arena, mark);
}

// ---- operations bound by memory ---------------------------------------------------------------------------

static void bench_activations(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t width = 4 * HIDDEN;
    Tensor x = values(b, ROWS, width), y = values(b, ROWS, width), dy = values(b, ROWS, width);
    Tensor bias = values(b, 1, width), sum = values(b, 1, width);
    bytes_row(b, "bias_gelu_forward", OP_BIAS_GELU_FORWARD, &(BiasGeluForward){x, bias, y}, x, 2);
    bytes_row(b, "bias_gelu_backward", OP_BIAS_GELU_BACKWARD, &(BiasGeluBackward){dy, x, bias, y}, x, 3);
    bytes_row(b, "column_sum", OP_COLUMN_SUM, &(ColumnSum){x, sum}, x, 1);
    bytes_row(b, "add", OP_ADD, &(Add){x, y}, x, 3);
    arena_release(&b->arena, mark);
}

static void bench_residual(Bench *b, const char *label, float probability) {
    ArenaMark mark = arena_mark(&b->arena);
    char text[64];
    Tensor x = values(b, 2 * ROWS, HIDDEN), y = values(b, 2 * ROWS, HIDDEN),
           residual = values(b, 2 * ROWS, HIDDEN);
    Tensor bias = values(b, 1, HIDDEN);
    Dropout dropout = {{{1, 2}}, probability, 0, 16};
    snprintf(text, sizeof text, "bias_dropout_add, %s", label);
    bytes_row(b, text, OP_BIAS_DROPOUT_ADD, &(BiasDropoutAdd){x, bias, residual, y, dropout}, x, 3);
    snprintf(text, sizeof text, "dropout_backward, %s", label);
    bytes_row(b, text, OP_DROPOUT_BACKWARD, &(DropoutBackward){x, y, dropout}, x, 2);
    arena_release(&b->arena, mark);
}

static void bench_norm(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t rows = 2 * ROWS;
    Tensor x = values(b, rows, HIDDEN), y = values(b, rows, HIDDEN), dy = values(b, rows, HIDDEN);
    Tensor gamma = values(b, 1, HIDDEN), beta = values(b, 1, HIDDEN), mean = values(b, 1, rows),
           rstd = values(b, 1, rows);
    bytes_row(b, "norm_forward", OP_NORM_FORWARD, &(NormForward){x, gamma, beta, y, mean, rstd, 1e-5f}, x, 2);
    bytes_row(b, "norm_backward_input", OP_NORM_BACKWARD_INPUT,
              &(NormBackwardInput){dy, x, gamma, mean, rstd, {0}, y}, x, 3);
    bytes_row(b, "norm_backward_weight", OP_NORM_BACKWARD_WEIGHT,
              &(NormBackwardWeight){dy, x, mean, rstd, gamma, beta}, x, 2);
    arena_release(&b->arena, mark);
}

static void bench_embedding(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    Tensor ids = tokens(b, 2 * ROWS), table = values(b, VOCABULARY, HIDDEN), y = values(b, 2 * ROWS, HIDDEN);
    Tensor position = values(b, 2 * ROWS / 16, HIDDEN);
    bytes_row(b, "embedding_forward", OP_EMBEDDING_FORWARD, &(EmbeddingForward){ids, table, y, 0}, y, 2);
    bytes_row(b, "embedding_backward", OP_EMBEDDING_BACKWARD, &(EmbeddingBackward){ids, y, table, 0}, y, 3);
    bytes_row(b, "position_backward", OP_POSITION_BACKWARD, &(PositionBackward){y, position, 16}, y, 1);
    arena_release(&b->arena, mark);
}

static void bench_loss(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    Tensor logits = values(b, TOKENS, VOCABULARY), labels = tokens(b, TOKENS), max = values(b, 1, TOKENS);
    Tensor sum = values(b, 1, TOKENS), target = values(b, 1, TOKENS), loss = values(b, 1, TOKENS);
    bytes_row(b, "loss_max", OP_LOSS_MAX, &(LossMax){logits, max, 0, VOCABULARY}, logits, 1);
    bytes_row(b, "loss_sum", OP_LOSS_SUM, &(LossSum){logits, labels, max, sum, target, 0, VOCABULARY}, logits,
              1);
    bytes_row(b, "loss_finish", OP_LOSS_FINISH,
              &(LossFinish){labels, max, sum, target, {0}, logits, loss, 0, VOCABULARY, 1.0f}, logits, 2);
    arena_release(&b->arena, mark);
}

static void bench_optimizer(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t count = 1 << 24;
    Tensor g = values(b, 1, count), p = values(b, 1, count), m = values(b, 1, count), v = values(b, 1, count);
    Tensor sum = {arena_take(&b->arena, "sum", sizeof(double)), 1, 1, F64};
    for (int64_t i = 0; i < count; i++) ((float *)v.data)[i] += 0.5f;
    AdamW step = {g, p, m, v, 1e-4, 0.9, 0.999, 1e-8, 0.1, 0.1, 0.001, 1};
    bytes_row(b, "adamw", OP_ADAMW, &step, p, 7);
    bytes_row(b, "sum_squares", OP_SUM_SQUARES, &(SumSquares){g, sum}, g, 1);
    arena_release(&b->arena, mark);
}

// ---- all of it --------------------------------------------------------------------------------------------

static void bench_all(Bench *b, int threads) {
    b->exec.threads = threads;
    measure_ceilings(b);
    bench_matmul(b);
    bench_attention(b, "no dropout", 0);
    bench_attention(b, "dropout 0.1", 0.1f);
    bench_activations(b);
    bench_residual(b, "no dropout", 0);
    bench_residual(b, "dropout 0.1", 0.1f);
    bench_norm(b);
    bench_embedding(b);
    bench_loss(b);
    bench_optimizer(b);
    text_add(&b->json, "\n  ]}");
}

static Status parse(int argc, char **argv, int64_t *threads, const char **json) {
    for (int i = 1; i < argc; i += 2) {
        bool has_value = i + 1 < argc, known = !strcmp(argv[i], "--threads") || !strcmp(argv[i], "--json");
        if (!known || !has_value)
            return fail(ERR_USAGE, "%s: usage is bench_device [--threads N] [--json FILE]", argv[i]);
        if (!strcmp(argv[i], "--json"))
            *json = argv[i + 1];
        else if (!parse_int(argv[i + 1], threads) || *threads < 1 || *threads > 1024)
            return fail(ERR_USAGE, "--threads %s: a whole number from 1 to 1024 is allowed", argv[i + 1]);
    }
    return OK;
}

static Status bench_device(int argc, char **argv) {
    int64_t threads = omp_get_num_procs();
    const char *json = NULL;
    TRY(parse(argc, argv, &threads, &json));
    Bench b = {0};
    TRY(arena_open(&b.arena, "bench", memory_host(), ARENA_BYTES));
    bench_all(&b, 1);
    if (threads > 1) bench_all(&b, (int)threads);
    Text file = {0};
    text_add(&file, "[\n%s\n]\n", text_string(&b.json));
    Status status = json ? file_write(json, file.data, file.size) : OK;
    text_free(&file);
    text_free(&b.json);
    arena_close(&b.arena);
    return status;
}

int main(int argc, char **argv) {
    Status status = bench_device(argc, argv);
    if (status) fprintf(stderr, "bench_device: %s\n", fail_message());
    return (int)status;
}
