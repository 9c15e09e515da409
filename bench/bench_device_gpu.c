// Every operation of a device at the shapes of a model, beside what the GPU does at its best: copies between two parts
// of its memory, and its fastest product.
//
//   bench_device_gpu [--device KIND] [--model NAME] [--dtype bf16|f16|f32] [--json FILE]
//
// KIND is cuda unless given. NAME is gpt2-124m unless given, or gpt2-1558m, llama3-8b, or tiny, which a simulated GPU
// does in a second. Products and attention have the tokens of one microbatch, the others more rows, so that they run
// from memory and no cache. Attention counts its products in full. Times are medians of events on the GPU's clock,
// after a first call.
#include "base/rank.h"
#include "base/text.h"
#include "device_turns.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const Model MODELS[] = {
    {"gpt2-124m", 768, 12, 12, 3072, 50304, 16, 1024, 1 << 27, 8192, false},
    {"gpt2-1558m", 1600, 25, 25, 6400, 50304, 8, 1024, 1 << 27, 8192, false},
    {"llama3-8b", 4096, 32, 8, 14336, 128256, 1, 8192, 1 << 27, 4096, true},
    {"tiny", 64, 4, 2, 128, 500, 2, 32, 1 << 12, 32, false},
};
enum { NUM_MODELS = sizeof MODELS / sizeof *MODELS };

// ---- what the GPU does at its best ------------------------------------------------------------------------

static void measure_copy(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    Tensor from = floats(b, 1, 2 * b->model->elements), to = zeros(b, F32, 1, 2 * b->model->elements);
    for (int i = 0; turn(b, i); i++) device_copy(b->device, b->stream, to, from);
    b->copy = 2 * (double)tensor_bytes(from) / seconds_of(b);
    arena_release(&b->arena, mark);
}

// Square, as a vendor's figure is made; only where the model is large.
static void measure_product(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t n = b->model->hidden < 128 ? 64 : 8192;
    Tensor x = values(b, n, n), w = values(b, n, n), y = values(b, n, n);
    for (int i = 0; turn(b, i); i++)
        matmul(b->device, b->stream, (Matmul){.a = x, .b = w, .d = y, .transpose_b = true});
    b->best_product = 2 * pow((double)n, 3) / seconds_of(b);
    arena_release(&b->arena, mark);
}

// ---- products and attention -------------------------------------------------------------------------------

typedef struct {
    const char *name;
    int64_t out, in;
} Linear;

static void bench_linear(Bench *b, const Linear *l, bool f32) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t rows = b->model->batch * b->model->sequence;
    char name[80];
    Tensor x = values(b, rows, l->in), w = values(b, l->out, l->in), dy = values(b, rows, l->out);
    Tensor y = f32 ? floats(b, rows, l->out) : dy, dw = floats(b, l->out, l->in);
    for (int i = 0; turn(b, i); i++)
        matmul(b->device, b->stream, (Matmul){.a = x, .b = w, .d = y, .transpose_b = true});
    snprintf(name, sizeof name, "%s %lldx%lld forward", l->name, (long long)l->out, (long long)l->in);
    flops_row(b, name);
    for (int i = 0; turn(b, i); i++) matmul(b->device, b->stream, (Matmul){.a = dy, .b = w, .d = x});
    snprintf(name, sizeof name, "%s input gradient", l->name);
    flops_row(b, name);
    for (int i = 0; turn(b, i); i++)
        matmul(b->device, b->stream,
               (Matmul){.a = dy, .b = x, .d = dw, .transpose_a = true, .accumulate = true});
    snprintf(name, sizeof name, "%s weight gradient", l->name);
    flops_row(b, name);
    arena_release(&b->arena, mark);
}

// A product with factors in 8 bits, [M, K] and [N, K]; in F32 it is added.
static void float8_row(Bench *b, const Linear *l, const char *what, DType type, Tensor d, int64_t inner) {
    char name[80];
    Tensor x = values_of(b, type, d.rows, inner), y = values_of(b, E4M3, d.cols, inner);
    Matmul args = {.a = x, .b = y, .d = d, .transpose_b = true, .accumulate = d.dtype == F32};
    args.scale_a = args.scale_b = floats(b, 1, 1), args.fast_sums = type == E4M3;
    for (int i = 0; turn(b, i); i++) matmul(b->device, b->stream, args);
    snprintf(name, sizeof name, "%s in 8 bits, %s", l->name, what);
    flops_row(b, name);
}

static void bench_float8(Bench *b, const Linear *l) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t rows = b->model->batch * b->model->sequence;
    float8_row(b, l, "forward", E4M3, values(b, rows, l->out), l->in);
    float8_row(b, l, "input gradient", E5M2, values(b, rows, l->in), l->out);
    float8_row(b, l, "weight gradient", E5M2, floats(b, l->out, l->in), rows);
    arena_release(&b->arena, mark);
}

// The same products with what they join. A GELU lies between fc1 and fc2; with fc1's sizes in both.
static void bench_joined(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    const Model *m = b->model;
    int64_t rows = m->batch * m->sequence;
    Tensor x = values(b, rows, m->hidden), w = values(b, m->inner, m->hidden),
           v = values(b, m->hidden, m->inner);
    Tensor y = values(b, rows, m->inner), aux = values(b, rows, m->inner), bias = values(b, 1, m->inner);
    Tensor dw = floats(b, m->inner, m->hidden), sums = floats(b, 1, m->inner);
    for (int i = 0; turn(b, i); i++) matmul_gelu(b->device, b->stream, (MatmulGelu){x, w, bias, y, aux});
    flops_row(b, "fc1 forward with GELU");
    for (int i = 0; turn(b, i); i++)
        matmul_gelu_backward(b->device, b->stream, (MatmulGeluBackward){x, v, aux, y});
    flops_row(b, "fc2 input gradient with GELU's");
    for (int i = 0; turn(b, i); i++)
        matmul_sums(
            b->device, b->stream,
            (MatmulSums){.a = y, .b = x, .d = dw, .sums = sums, .accumulate = true, .accumulate_sums = true});
    flops_row(b, "fc1 weight gradient with sums");
    arena_release(&b->arena, mark);
}

static void bench_linears(Bench *b) {
    const Model *m = b->model;
    int64_t size = m->hidden / m->heads;
    const Linear linears[] = {{"qkv", (m->heads + 2 * m->groups) * size, m->hidden},
                              {"proj", m->hidden, m->hidden},
                              {"fc1", (m->llama ? 2 : 1) * m->inner, m->hidden},
                              {"fc2", m->hidden, m->inner}};
    for (int i = 0; i < 4; i++) bench_linear(b, &linears[i], false);
    for (int i = 0; i < 4 && b->dtype == BF16; i++) bench_float8(b, &linears[i]);
    bench_linear(b, &(Linear){"head", m->vocabulary, m->hidden}, true);
    if (!m->llama) bench_joined(b);
}

static void bench_attention(Bench *b, const char *label, float probability) {
    ArenaMark mark = arena_mark(&b->arena);
    const Model *m = b->model;
    int64_t rows = m->batch * m->sequence, size = m->hidden / m->heads,
            width = (m->heads + 2 * m->groups) * size;
    AttentionShape shape = {m->batch, m->sequence, m->heads, m->groups, size, 0, 0, 0, 0, 0};
    Dropout dropout = {.key = rng_key(1, "dropout", 0), .probability = probability, .samples = m->batch};
    char name[80];
    Tensor qkv = values(b, rows, width), out = values(b, rows, m->hidden), dout = values(b, rows, m->hidden);
    Tensor stats = floats(b, m->batch * m->heads, m->sequence), dqkv = values(b, rows, width);
    for (int i = 0; turn(b, i); i++)
        attention_forward(
            b->device, b->stream,
            (AttentionForward){.qkv = qkv, .out = out, .stats = stats, .shape = shape, .dropout = dropout});
    snprintf(name, sizeof name, "attention forward, %s", label);
    flops_row(b, name);
    for (int i = 0; turn(b, i); i++)
        attention_backward(b->device, b->stream,
                           (AttentionBackward){.dout = dout,
                                               .qkv = qkv,
                                               .out = out,
                                               .stats = stats,
                                               .dqkv = dqkv,
                                               .shape = shape,
                                               .dropout = dropout});
    snprintf(name, sizeof name, "attention backward, %s", label);
    flops_row(b, name);
    arena_release(&b->arena, mark);
}

// ---- operations bound by memory ---------------------------------------------------------------------------

static void bench_activations(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t width = b->model->inner, rows = b->model->elements / width;
    Tensor x = values(b, rows, width), y = values(b, rows, width), dy = values(b, rows, width);
    Tensor bias = values(b, 1, width), sum = floats(b, 1, width);
    Tensor wide = {x.data, rows / 2, 2 * width, b->dtype}, narrow = {y.data, rows / 2, width, b->dtype};
    for (int i = 0; turn(b, i); i++)
        bias_gelu_forward(b->device, b->stream, (BiasGeluForward){x, bias, y, false});
    bytes_row(b, "bias_gelu_forward");
    for (int i = 0; turn(b, i); i++)
        bias_gelu_backward(b->device, b->stream, (BiasGeluBackward){dy, x, bias, y, false});
    bytes_row(b, "bias_gelu_backward");
    for (int i = 0; turn(b, i); i++)
        swiglu_forward(b->device, b->stream, (SwigluForward){wide, {0}, narrow, GATE_SILU, 0, 0});
    bytes_row(b, "swiglu_forward");
    Tensor dwide = {dy.data, rows / 2, 2 * width, b->dtype};
    for (int i = 0; turn(b, i); i++)
        swiglu_backward(b->device, b->stream, (SwigluBackward){narrow, wide, {0}, dwide, GATE_SILU, 0, 0});
    bytes_row(b, "swiglu_backward");
    for (int i = 0; turn(b, i); i++) column_sum(b->device, b->stream, (ColumnSum){x, sum});
    bytes_row(b, "column_sum");
    for (int i = 0; turn(b, i); i++) add(b->device, b->stream, (Add){x, y});
    bytes_row(b, "add");
    arena_release(&b->arena, mark);
}

static void bench_residual(Bench *b, const char *label, float probability) {
    ArenaMark mark = arena_mark(&b->arena);
    char name[80];
    int64_t width = b->model->hidden, rows = b->model->elements / width / 16 * 16;
    Tensor x = values(b, rows, width), residual = values(b, rows, width), y = values(b, rows, width);
    Tensor bias = values(b, 1, width);
    Dropout dropout = {.key = rng_key(1, "dropout", 0), .probability = probability, .samples = 16};
    for (int i = 0; turn(b, i); i++)
        bias_dropout_add(b->device, b->stream, (BiasDropoutAdd){x, bias, residual, y, dropout});
    snprintf(name, sizeof name, "bias_dropout_add, %s", label);
    bytes_row(b, name);
    for (int i = 0; turn(b, i); i++) dropout_backward(b->device, b->stream, (DropoutBackward){x, y, dropout});
    snprintf(name, sizeof name, "dropout_backward, %s", label);
    bytes_row(b, name);
    arena_release(&b->arena, mark);
}

// gamma, beta, mean absent: RMS norm.
static void bench_norm(Bench *b, const char *label, bool rms) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t width = b->model->hidden, rows = b->model->elements / width;
    char name[80];
    Tensor x = values(b, rows, width), y = values(b, rows, width), dy = values(b, rows, width), none = {0};
    Tensor gamma = values(b, 1, width), beta = rms ? none : values(b, 1, width);
    Tensor mean = rms ? none : floats(b, 1, rows), rstd = floats(b, 1, rows);
    Tensor dgamma = floats(b, 1, width), dbeta = rms ? none : floats(b, 1, width);
    for (int i = 0; turn(b, i); i++)
        norm_forward(b->device, b->stream, (NormForward){x, gamma, beta, y, mean, rstd, 1e-5f, 0});
    snprintf(name, sizeof name, "norm_forward, %s", label);
    bytes_row(b, name);
    for (int i = 0; turn(b, i); i++)
        norm_backward_input(b->device, b->stream, (NormBackwardInput){dy, x, gamma, mean, rstd, none, y, 0});
    snprintf(name, sizeof name, "norm_backward_input, %s", label);
    bytes_row(b, name);
    for (int i = 0; turn(b, i); i++)
        norm_backward_weight(b->device, b->stream, (NormBackwardWeight){dy, x, mean, rstd, dgamma, dbeta});
    snprintf(name, sizeof name, "norm_backward_weight, %s", label);
    bytes_row(b, name);
    for (int i = 0; turn(b, i); i++)
        norm_backward(
            b->device, b->stream,
            (NormBackward){dy, x, gamma, mean, rstd, none, y, dgamma, dbeta, .accumulate = true, 0});
    snprintf(name, sizeof name, "norm_backward, %s", label);
    bytes_row(b, name);
    arena_release(&b->arena, mark);
}

static void bench_rotary(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    const Model *m = b->model;
    int64_t size = m->hidden / m->heads, width = (m->heads + 2 * m->groups) * size;
    AttentionShape shape = {8, m->elements / m->hidden / 8, m->heads, m->groups, size, 0, 0, 0, 0, 0};
    Tensor qkv = values(b, shape.batch * shape.sequence, width), table = floats(b, shape.sequence, size);
    for (int i = 0; turn(b, i); i++) rotary(b->device, b->stream, (Rotary){table, qkv, shape, false});
    bytes_row(b, "rotary");
    arena_release(&b->arena, mark);
}

static void bench_embedding(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t width = b->model->hidden, samples = 16, rows = b->model->elements / width / samples * samples;
    Tensor ids = tokens(b, rows), table = values(b, b->model->vocabulary, width), y = values(b, rows, width);
    Tensor dtable = floats(b, b->model->vocabulary, width), dposition = floats(b, rows / samples, width);
    for (int i = 0; turn(b, i); i++)
        embedding_forward(b->device, b->stream, (EmbeddingForward){ids, table, y, 0});
    bytes_row(b, "embedding_forward");
    for (int i = 0; turn(b, i); i++)
        embedding_backward(b->device, b->stream, (EmbeddingBackward){ids, y, dtable, 0});
    bytes_row(b, "embedding_backward");
    for (int i = 0; turn(b, i); i++)
        position_backward(b->device, b->stream, (PositionBackward){y, dposition, samples, 0});
    bytes_row(b, "position_backward");
    arena_release(&b->arena, mark);
}

static void bench_loss(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t rows = b->model->loss_rows, cols = b->model->vocabulary;
    Tensor logits = floats(b, rows, cols), labels = tokens(b, rows), max = floats(b, 1, rows);
    Tensor sum = floats(b, 1, rows), target = floats(b, 1, rows), loss = floats(b, 1, rows);
    Tensor dlogits = b->dtype == F32 ? logits : values(b, rows, cols), mask = {0};
    for (int i = 0; turn(b, i); i++) loss_max(b->device, b->stream, (LossMax){logits, max, 0, cols});
    bytes_row(b, "loss_max");
    for (int i = 0; turn(b, i); i++)
        loss_sum(b->device, b->stream, (LossSum){logits, labels, max, sum, target, 0, cols});
    bytes_row(b, "loss_sum");
    for (int i = 0; turn(b, i); i++)
        loss_finish(b->device, b->stream,
                    (LossFinish){labels, max, sum, target, mask, logits, dlogits, loss, 0, cols, 1.0f});
    bytes_row(b, "loss_finish");
    for (int i = 0; turn(b, i); i++)
        loss_whole(b->device, b->stream,
                   (LossWhole){logits, labels, mask, dlogits, loss, max, sum, target, cols, 1.0f});
    bytes_row(b, "loss_whole");
    arena_release(&b->arena, mark);
}

static void bench_optimizer(Bench *b) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t count = b->model->elements / 2;
    Tensor g = floats(b, 1, count), p = floats(b, 1, count), m = floats(b, 1, count),
           v = zeros(b, F32, 1, count);
    Tensor value = b->dtype == F32 ? (Tensor){0} : values(b, 1, count), max = zeros(b, F32, 1, 1);
    Tensor sum = zeros(b, F64, 1, 3);
    AdamW step = {.gradient = g,
                  .parameter = p,
                  .m = m,
                  .v = v,
                  .value = value,
                  .lr = 1e-4,
                  .beta1 = 0.9,
                  .beta2 = 0.999,
                  .epsilon = 1e-8,
                  .weight_decay = 0.1,
                  .correction1 = 0.1,
                  .correction2 = 0.001,
                  .grad_scale = 1};
    for (int i = 0; turn(b, i); i++) adamw(b->device, b->stream, step);
    bytes_row(b, "adamw");
    for (int i = 0; turn(b, i); i++) abs_max(b->device, b->stream, (AbsMax){g, max});
    bytes_row(b, "abs_max");
    for (int i = 0; turn(b, i); i++)
        sum_squares(b->device, b->stream, (SumSquares){.x = g, .sum = sum, .max = max});
    bytes_row(b, "sum_squares");
    arena_release(&b->arena, mark);
}

static void bench_quantize(Bench *b, bool transpose) {
    ArenaMark mark = arena_mark(&b->arena);
    int64_t n = b->model->hidden, rows = b->model->elements / n;
    Tensor q = transpose ? values_of(b, E4M3, n, rows) : values_of(b, E4M3, rows, n);
    Quantize args = {values(b, rows, n), floats(b, 1, 1), q, floats(b, 1, 1), transpose};
    for (int i = 0; turn(b, i); i++) quantize(b->device, b->stream, args);
    bytes_row(b, transpose ? "quantize, transposed" : "quantize");
    arena_release(&b->arena, mark);
}

// ---- all of it --------------------------------------------------------------------------------------------

static void begin_table(Bench *b, const char *what, const Column *columns) {
    char title[80];
    snprintf(title, sizeof title, "%s of %s in %s", what, b->model->name, dtype_name(b->dtype));
    if (device_computes(b->device)) table_begin(&b->tables, title, columns, 3);
}

static void bench_all(Bench *b) {
    measure_copy(b);
    measure_product(b);
    begin_table(b, "products and attention", FLOPS_COLUMNS);
    bench_linears(b);
    bench_attention(b, "no dropout", 0);
    bench_attention(b, "dropout 0.1", 0.1f);
    if (device_computes(b->device))
        table_note(&b->tables, "a square product: %.1f TFLOP/s", b->best_product / 1e12);
    begin_table(b, "operations bound by memory", BYTES_COLUMNS);
    bench_activations(b);
    bench_residual(b, "no dropout", 0);
    bench_residual(b, "dropout 0.1", 0.1f);
    bench_norm(b, "layer norm", false);
    bench_norm(b, "RMS norm", true);
    bench_rotary(b);
    bench_embedding(b);
    bench_loss(b);
    bench_optimizer(b);
    for (int i = 0; i < 2; i++) bench_quantize(b, i);
    if (device_computes(b->device))
        table_note(&b->tables, "a copy within its memory: %.1f GB/s, read and written", b->copy / 1e9);
}

static Status run_on(Bench *b, DeviceOptions options, size_t bytes) {
    TRY(device_open(&b->device, options));
    b->stream = device_stream(b->device);
    Status status = OK;
    if (bytes)
        status = arena_open(&b->arena, "bench", device_memory(b->device), bytes);
    else
        arena_open_measuring(&b->arena, "bench");
    if (status == OK) bench_all(b);
    return status;
}

static void leave(Bench *b) {
    arena_close(&b->arena);
    device_close(b->device);
}

static Status bench_device(Bench *b, const char *kind) {
    TRY(device_check(kind));
    Status status = run_on(b, (DeviceOptions){.kind = "null", .stands_for = kind, .threads = 1}, 0);
    size_t bytes = b->arena.peak, workspace = b->device ? device_workspace_peak(b->device) : 0;
    leave(b);
    if (status != OK) return status;
    status = run_on(b, (DeviceOptions){.kind = kind, .threads = 1, .workspace_bytes = workspace}, bytes);
    leave(b);
    return status;
}

// The word behind a name among the arguments, or `otherwise`.
static const char *word_of(int argc, char **argv, const char *name, const char *otherwise) {
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], name)) return argv[i + 1];
    return otherwise;
}

static Status find_choice(Bench *b, int argc, char **argv) {
    const char *model = word_of(argc, argv, "--model", MODELS[0].name),
               *dtype = word_of(argc, argv, "--dtype", "bf16");
    for (int i = 0; i < NUM_MODELS; i++)
        if (!strcmp(model, MODELS[i].name)) b->model = &MODELS[i];
    b->dtype = NUM_DTYPES;
    for (DType t = 0; t < NUM_DTYPES; t++)
        if (dtype_is_element(t) && !strcmp(dtype, dtype_name(t))) b->dtype = t;
    if (b->model && b->dtype < NUM_DTYPES && argc % 2) return OK;
    return fail(
        ERR_USAGE,
        "usage: bench_device_gpu [--device KIND] [--model gpt2-124m|gpt2-1558m|llama3-8b|tiny] [--dtype "
        "bf16|f16|f32] [--json FILE]");
}

int main(int argc, char **argv) {
    Bench b = {.pattern = malloc(PATTERN * sizeof(double))};
    const char *json = tables_path(&argc, argv);
    CHECK(b.pattern, "no memory");
    Status status = find_choice(&b, argc, argv);
    if (status == OK) status = bench_device(&b, word_of(argc, argv, "--device", "cuda"));
    if (status == OK) status = tables_finish(&b.tables, "gpu", json);
    if (status != OK) fprintf(stderr, "bench_device_gpu: %s\n", fail_message());
    free(b.pattern);
    return (int)status;
}
