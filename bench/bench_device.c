// How fast the cpu backend is, against what this machine can do: multiply-adds from registers, of the
// element type if there is a unit for it, and y += x in memory.
//
//   bench_device [--threads N] [--dtype f32|bf16|f16] [--json FILE]
//
// Shapes are those of GPT-2 124M (H 768, 12 heads of 64, V 50304) with 1024 tokens; elementwise
// operations get more rows, so that they run from memory and not from a cache. A time is the median of
// its repetitions: processor time for one thread, which other programs disturb less, and wall time for
// several. The last column says how many times faster than in f32 a row is, when f32 was measured before
// it.
#include "base/text.h"
#include "device/cpu.h"
#include "device/cpu_vector.h"
#include "median.h"
#include <omp.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_REPETITIONS = 25, MAX_TIMES = 64, HIDDEN = 768, TOKENS = 1024, ROWS = 8192, VOCABULARY = 50304 };
static const size_t ARENA_BYTES = (size_t)900 << 20;
static const double SECONDS_PER_ROW = 0.25;

typedef struct {
    Arena arena;
    Exec exec;
    DType dtype;                    // the element type
    double fma_flops, memory_bytes; // per second, with exec.threads
    double f32_times[MAX_TIMES];    // of the rows so far, with exec.threads; 0: not measured
    int num_rows;
    Text json;
} Bench;

// ---- time -------------------------------------------------------------------------------------------------

static double seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
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
    return median(times, count);
}

// ---- ceilings ---------------------------------------------------------------------------------------------

enum { CHAINS = 12, PRODUCT_CHAINS = 16, FMA_STEPS = 1 << 22, UPDATE_FLOATS = 1 << 26 };

typedef struct {
    int threads;
    float (*chains)(void);
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

static const double FMA_FLOPS = 2.0 * CHAINS * FMA_STEPS * LANES;

// The product of pairs of bf16, which the unit adds to a sum of fp32; more chains, since it takes longer.
#if defined(__AVX512BF16__)
static float product_chains(void) {
    __m512 chains[PRODUCT_CHAINS];
    Floats sum = {0};
    for (int i = 0; i < PRODUCT_CHAINS; i++) chains[i] = (__m512)splat((float)i);
    __m512bh half = (__m512bh)_mm512_set1_epi16(0x3f00);
    for (int step = 0; step < FMA_STEPS; step++)
        for (int i = 0; i < PRODUCT_CHAINS; i++) chains[i] = _mm512_dpbf16_ps(chains[i], half, half);
    for (int i = 0; i < PRODUCT_CHAINS; i++) sum += (Floats)chains[i];
    return sum_lanes(sum);
}
static const double PRODUCT_FLOPS = 4.0 * PRODUCT_CHAINS * FMA_STEPS * LANES;
#else
static float product_chains(void) { return fma_chains(); }
static const double PRODUCT_FLOPS = 2.0 * CHAINS * FMA_STEPS * LANES;
#endif

static void fma_work(void *self) {
    Ceiling *ceiling = self;
    float sink = 0;
#pragma omp parallel num_threads(ceiling->threads) reduction(+ : sink)
    sink += ceiling->chains();
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
    bool products = b->dtype == BF16;
    Ceiling ceiling = {.threads = b->exec.threads, .chains = products ? product_chains : fma_chains};
    ceiling.from = arena_take(&b->arena, "from", UPDATE_FLOATS * sizeof(float));
    ceiling.to = arena_take(&b->arena, "to", UPDATE_FLOATS * sizeof(float));
    memset(ceiling.from, 0, UPDATE_FLOATS * sizeof(float)); // a page that was never written is not memory yet
    memset(ceiling.to, 0, UPDATE_FLOATS * sizeof(float));
    double flops = (products ? PRODUCT_FLOPS : FMA_FLOPS) * b->exec.threads;
    b->fma_flops = flops / median_time(b->exec.threads, fma_work, &ceiling);
    b->memory_bytes =
        3.0 * UPDATE_FLOATS * sizeof(float) / median_time(b->exec.threads, update_work, &ceiling);
    arena_release(&b->arena, mark);
    const char *isa = cpu_best()->isa, *dtype = dtype_name(b->dtype);
    printf("\n%d thread%s, %s, %s: multiply-adds %.0f GFLOP/s, memory %.1f GB/s (y += x)\n", b->exec.threads,
           b->exec.threads == 1 ? "" : "s", isa, dtype, b->fma_flops / 1e9, b->memory_bytes / 1e9);
    text_add(&b->json,
             "%s  {\"threads\": %d, \"isa\": \"%s\", \"dtype\": \"%s\", \"fma_gflops\": %.1f, "
             "\"memory_gbs\": %.2f, \"rows\": [",
             b->json.size ? ",\n" : "", b->exec.threads, isa, dtype, b->fma_flops / 1e9,
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
    CHECK(b->num_rows < MAX_TIMES, "too many rows");
    double *f32_time = &b->f32_times[b->num_rows++];
    printf("  %-34s %9.3f ms %8.1f %-7s %4.0f %%", name, time * 1e3, rate / 1e9, unit, 100 * rate / ceiling);
    if (b->dtype == F32)
        *f32_time = time;
    else if (*f32_time > 0)
        printf("  x %.2f", *f32_time / time);
    printf("\n");
    fflush(stdout);
    bool first = text_string(&b->json)[b->json.size - 1] == '[';
    text_add(&b->json,
             "%s\n    {\"name\": \"%s\", \"ms\": %.4f, \"rate\": %.2f, \"unit\": \"%s\", \"fraction\": %.4f}",
             first ? "" : ",", name, time * 1e3, rate / 1e9, unit, rate / ceiling);
}

static void flops_row(Bench *b, const char *name, DeviceOp op, const void *args, double flops) {
    print_row(b, name, time_op(b, op, args), flops, b->fma_flops, "GFLOP/s");
}

// `bytes`: what it reads and writes.
static void bytes_row(Bench *b, const char *name, DeviceOp op, const void *args, double bytes) {
    print_row(b, name, time_op(b, op, args), bytes, b->memory_bytes, "GB/s");
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

// Linear layer [out, in] of 1024 tokens: y = x W^T, dx = dy W, dW += dy^T x, which is F32. So are the logits.
static void bench_linear(Bench *b, const char *name, int64_t out, int64_t in) {
    ArenaMark mark = arena_mark(&b->arena);
    char text[64];
    bool logits = out == VOCABULARY;
    Tensor x = values(b, TOKENS, in), dy = values(b, TOKENS, out), weight = values(b, out, in);
    Tensor y = logits ? floats(b, TOKENS, out) : values(b, TOKENS, out), dweight = floats(b, out, in);
    double flops = 2.0 * TOKENS * (double)out * (double)in;
    snprintf(text, sizeof text, "%s forward (NT)", name);
    flops_row(b, text, OP_MATMUL, &(Matmul){x, weight, {0}, y, false, true, false}, flops);
    snprintf(text, sizeof text, "%s input gradient (NN)", name);
    flops_row(b, text, OP_MATMUL, &(Matmul){dy, weight, {0}, x, false, false, false}, flops);
    snprintf(text, sizeof text, "%s weight gradient (TN)", name);
    flops_row(b, text, OP_MATMUL, &(Matmul){dy, x, {0}, dweight, true, false, true}, flops);
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
static void bench_attention(Bench *b, const char *label, float probability, int64_t groups, bool keeps) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t width = HIDDEN + 2 * groups * 64;
    AttentionShape shape = {1, TOKENS, 12, groups, 64, 0};
    Dropout dropout = {{{1, 2}}, probability, 0, 1, 0};
    double product = 2.0 * TOKENS * TOKENS * HIDDEN;
    char text[64];
    Tensor probabilities = keeps ? values(b, 12 * TOKENS, TOKENS) : (Tensor){0};
    AttentionForward forward = {values(b, TOKENS, width),
                                values(b, TOKENS, HIDDEN),
                                floats(b, 12, TOKENS),
                                probabilities,
                                shape,
                                dropout};
    snprintf(text, sizeof text, "attention forward, %s", label);
    print_row(b, text, time_op(b, OP_ATTENTION_FORWARD, &forward), 2 * product, b->fma_flops, "eff. GF");
    AttentionBackward backward = {
        values(b, TOKENS, HIDDEN), forward.qkv, forward.out, forward.stats, probabilities,
        values(b, TOKENS, width),  shape,       dropout};
    snprintf(text, sizeof text, "attention backward, %s", label);
    print_row(b, text, time_op(b, OP_ATTENTION_BACKWARD, &backward), 5 * product, b->fma_flops, "eff. GF");
    arena_release(&b->arena, mark);
}

// ---- operations bound by memory ---------------------------------------------------------------------------

static void bench_activations(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t width = 4 * HIDDEN;
    Tensor x = values(b, ROWS, width), y = values(b, ROWS, width), dy = values(b, ROWS, width);
    Tensor bias = values(b, 1, width), sum = floats(b, 1, width);
    Tensor wide = {x.data, ROWS / 2, 2 * width, b->dtype}, narrow = {y.data, ROWS / 2, width, b->dtype};
    double bytes = bytes_of(x);
    bytes_row(b, "bias_gelu_forward", OP_BIAS_GELU_FORWARD, &(BiasGeluForward){x, bias, y}, 2 * bytes);
    bytes_row(b, "bias_gelu_backward", OP_BIAS_GELU_BACKWARD, &(BiasGeluBackward){dy, x, bias, y}, 3 * bytes);
    bytes_row(b, "swiglu_forward", OP_SWIGLU_FORWARD, &(SwigluForward){wide, {0}, narrow}, 1.5 * bytes);
    wide.data = dy.data;
    bytes_row(b, "swiglu_backward", OP_SWIGLU_BACKWARD, &(SwigluBackward){narrow, wide, {0}, wide},
              2.5 * bytes);
    bytes_row(b, "column_sum", OP_COLUMN_SUM, &(ColumnSum){x, sum}, bytes);
    bytes_row(b, "add", OP_ADD, &(Add){x, y}, 3 * bytes);
    arena_release(&b->arena, mark);
}

static void bench_residual(Bench *b, const char *label, float probability) {
    ArenaMark mark = arena_mark(&b->arena);
    char text[64];
    Tensor x = values(b, 2 * ROWS, HIDDEN), y = values(b, 2 * ROWS, HIDDEN);
    Tensor residual = values(b, 2 * ROWS, HIDDEN), bias = values(b, 1, HIDDEN);
    Dropout dropout = {{{1, 2}}, probability, 0, 16, 0};
    snprintf(text, sizeof text, "bias_dropout_add, %s", label);
    bytes_row(b, text, OP_BIAS_DROPOUT_ADD, &(BiasDropoutAdd){x, bias, residual, y, dropout},
              3 * bytes_of(x));
    snprintf(text, sizeof text, "dropout_backward, %s", label);
    bytes_row(b, text, OP_DROPOUT_BACKWARD, &(DropoutBackward){x, y, dropout}, 2 * bytes_of(x));
    arena_release(&b->arena, mark);
}

static void bench_norm(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t rows = 2 * ROWS;
    Tensor x = values(b, rows, HIDDEN), y = values(b, rows, HIDDEN), dy = values(b, rows, HIDDEN), none = {0};
    Tensor gamma = values(b, 1, HIDDEN), beta = values(b, 1, HIDDEN), mean = floats(b, 1, rows);
    Tensor rstd = floats(b, 1, rows), dgamma = floats(b, 1, HIDDEN), dbeta = floats(b, 1, HIDDEN);
    double bytes = bytes_of(x);
    bytes_row(b, "norm_forward", OP_NORM_FORWARD, &(NormForward){x, gamma, beta, y, mean, rstd, 1e-5f},
              2 * bytes);
    bytes_row(b, "norm_forward, RMS", OP_NORM_FORWARD, &(NormForward){x, gamma, none, y, none, rstd, 1e-5f},
              2 * bytes);
    bytes_row(b, "norm_backward_input", OP_NORM_BACKWARD_INPUT,
              &(NormBackwardInput){dy, x, gamma, mean, rstd, none, y}, 3 * bytes);
    bytes_row(b, "norm_backward_weight", OP_NORM_BACKWARD_WEIGHT,
              &(NormBackwardWeight){dy, x, mean, rstd, dgamma, dbeta}, 2 * bytes);
    arena_release(&b->arena, mark);
}

static void bench_rotary(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    AttentionShape shape = {8, TOKENS, 12, 4, 64, 0};
    Tensor qkv = values(b, 8 * TOKENS, 20 * 64), table = floats(b, TOKENS, 64);
    bytes_row(b, "rotary", OP_ROTARY, &(Rotary){table, qkv, shape, false}, 2 * 0.8 * bytes_of(qkv));
    arena_release(&b->arena, mark);
}

static void bench_embedding(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    Tensor ids = tokens(b, 2 * ROWS), table = values(b, VOCABULARY, HIDDEN), y = values(b, 2 * ROWS, HIDDEN);
    Tensor dtable = floats(b, VOCABULARY, HIDDEN), dposition = floats(b, 2 * ROWS / 16, HIDDEN);
    double bytes = bytes_of(y), sums = (double)tensor_count(y) * sizeof(float);
    bytes_row(b, "embedding_forward", OP_EMBEDDING_FORWARD, &(EmbeddingForward){ids, table, y, 0}, 2 * bytes);
    bytes_row(b, "embedding_backward", OP_EMBEDDING_BACKWARD, &(EmbeddingBackward){ids, y, dtable, 0},
              bytes + 2 * sums);
    bytes_row(b, "position_backward", OP_POSITION_BACKWARD, &(PositionBackward){y, dposition, 16, 0}, bytes);
    arena_release(&b->arena, mark);
}

static void bench_loss(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    Tensor logits = floats(b, TOKENS, VOCABULARY), labels = tokens(b, TOKENS), max = floats(b, 1, TOKENS);
    Tensor sum = floats(b, 1, TOKENS), target = floats(b, 1, TOKENS), loss = floats(b, 1, TOKENS);
    Tensor dlogits = b->dtype == F32 ? logits : values(b, TOKENS, VOCABULARY), mask = {0};
    double bytes = bytes_of(logits);
    bytes_row(b, "loss_max", OP_LOSS_MAX, &(LossMax){logits, max, 0, VOCABULARY}, bytes);
    bytes_row(b, "loss_sum", OP_LOSS_SUM, &(LossSum){logits, labels, max, sum, target, 0, VOCABULARY}, bytes);
    bytes_row(b, "loss_finish", OP_LOSS_FINISH,
              &(LossFinish){labels, max, sum, target, mask, logits, dlogits, loss, 0, VOCABULARY, 1.0f},
              bytes + bytes_of(dlogits));
    arena_release(&b->arena, mark);
}

static void bench_optimizer(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t count = 1 << 24;
    Tensor g = floats(b, 1, count), p = floats(b, 1, count), m = floats(b, 1, count), v = floats(b, 1, count);
    Tensor value = b->dtype == F32 ? (Tensor){0} : values(b, 1, count), max = floats(b, 1, 1);
    Tensor sum = {arena_take(&b->arena, "sum", 3 * sizeof(double)), 1, 3, F64};
    memset(sum.data, 0, 3 * sizeof(double));
    for (int64_t i = 0; i < count; i++) ((float *)v.data)[i] += 0.5f;
    AdamW step = {g, p, m, v, value, 1e-4, 0.9, 0.999, 1e-8, 0.1, 0.1, 0.001, 1};
    bytes_row(b, "adamw", OP_ADAMW, &step, 7 * bytes_of(p) + (value.data ? bytes_of(value) : 0));
    bytes_row(b, "abs_max", OP_ABS_MAX, &(AbsMax){g, max}, bytes_of(g));
    bytes_row(b, "sum_squares", OP_SUM_SQUARES, &(SumSquares){g, sum, 0}, bytes_of(g));
    arena_release(&b->arena, mark);
}

// ---- all of it --------------------------------------------------------------------------------------------

static void bench_all(Bench *b, DType dtype) {
    b->dtype = dtype;
    b->num_rows = 0;
    measure_ceilings(b);
    bench_matmul(b);
    bench_attention(b, "no dropout", 0, 12, false);
    bench_attention(b, "dropout 0.1", 0.1f, 12, false);
    bench_attention(b, "4 groups", 0, 4, false);
    bench_attention(b, "P kept", 0, 12, true);
    bench_activations(b);
    bench_residual(b, "no dropout", 0);
    bench_residual(b, "dropout 0.1", 0.1f);
    bench_norm(b);
    bench_rotary(b);
    bench_embedding(b);
    bench_loss(b);
    bench_optimizer(b);
    text_add(&b->json, "\n  ]}");
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
    memset(b->f32_times, 0, sizeof b->f32_times);
    for (int i = 0; i < 2; i++)
        if (dtype < 0) bench_all(b, DTYPES[i]);
    if (dtype >= 0) bench_all(b, DTYPES[dtype]);
}

static Status bench_device(int argc, char **argv) {
    Options options = {omp_get_num_procs(), NULL, -1};
    TRY(parse(argc, argv, &options));
    Bench b = {0};
    TRY(arena_open(&b.arena, "bench", memory_host(), ARENA_BYTES));
    bench_threads(&b, 1, options.dtype);
    if (options.threads > 1) bench_threads(&b, (int)options.threads, options.dtype);
    Text file = {0};
    text_add(&file, "[\n%s\n]\n", text_string(&b.json));
    Status status = options.json ? file_write(options.json, file.data, file.size) : OK;
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
