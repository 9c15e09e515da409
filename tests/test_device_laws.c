// What must hold on every device that computes: a tensor-parallel part of the work equals that part of the whole, a mask
// does not depend on which batch a sample travels in, and small results known from elsewhere.
#include "device_bench.h"
#include <stdio.h>

static const char *const KINDS[] = {"reference", "cpu", "check"};
enum { NUM_KINDS = sizeof KINDS / sizeof *KINDS };

// Runs a law on each device.
static void on_every_device(void (*law)(Bench *b)) {
    for (int i = 0; i < NUM_KINDS; i++) {
        Bench b = bench_open(KINDS[i], 1);
        law(&b);
        bench_close(&b);
    }
}

// A copy of columns [first, first + count) of x.
static Tensor columns_of(Bench *b, Tensor x, int64_t first, int64_t count) {
    Tensor part = tensor(b, x.rows, count);
    for (int64_t row = 0; row < x.rows; row++) {
        Tensor from = {(float *)x.data + row * x.cols + first, 1, count, F32};
        device_copy(b->device, b->stream, tensor_rows(part, row, 1), from);
    }
    return part;
}

static void expect_near(Bench *b, const char *what, Tensor got, Tensor wanted, double tolerance) {
    EXPECT(tensor_same_shape(got, wanted), "%s: shape", what);
    float *g = values_of(b, got), *w = values_of(b, wanted);
    double error = 0;
    for (int64_t i = 0; i < tensor_count(got); i++) error = fmax(error, fabs((double)g[i] - (double)w[i]));
    EXPECT(error <= tolerance, "%s differs by %.3g", what, error);
    free(g);
    free(w);
}

// ---- the parts and the whole --------------------------------------------------------------------------------------

static void column_parallel(Bench *b) {
    Tensor x = normals(b, 13, 32), weight = normals(b, 48, 32), bias = normals(b, 1, 48),
           y = tensor(b, 13, 48);
    matmul(b->device, b->stream, (Matmul){.a = x, .b = weight, .bias = bias, .d = y, .transpose_b = true});
    for (int64_t part = 0; part < 2; part++) {
        Tensor part_y = tensor(b, 13, 24);
        matmul(b->device, b->stream,
               (Matmul){.a = x,
                        .b = tensor_rows(weight, 24 * part, 24),
                        .bias = columns_of(b, bias, 24 * part, 24),
                        .d = part_y,
                        .transpose_b = true});
        expect_near(b, "half of y", part_y, columns_of(b, y, 24 * part, 24), 4e-6);
    }
}

static void row_parallel(Bench *b) {
    Tensor x = normals(b, 13, 32), weight = normals(b, 24, 32), y = tensor(b, 13, 24),
           sum = tensor(b, 13, 24);
    matmul(b->device, b->stream, (Matmul){.a = x, .b = weight, .d = y, .transpose_b = true});
    device_zero(b->device, b->stream, sum);
    for (int64_t part = 0; part < 2; part++)
        matmul(b->device, b->stream,
               (Matmul){.a = columns_of(b, x, 16 * part, 16),
                        .b = columns_of(b, weight, 16 * part, 16),
                        .d = sum,
                        .transpose_b = true,
                        .accumulate = true});
    expect_near(b, "the sum of two halves", sum, y, 1e-5);
}

static void attend(Bench *b, Tensor qkv, Tensor dout, Tensor out, Tensor dqkv, AttentionShape shape,
                   Dropout dropout) {
    Tensor stats = tensor(b, shape.batch * shape.heads, shape.sequence);
    attention_forward(b->device, b->stream, (AttentionForward){qkv, out, stats, shape, dropout});
    attention_backward(b->device, b->stream,
                       (AttentionBackward){dout, qkv, out, stats, dqkv, shape, dropout});
}

static void attention_heads(Bench *b) {
    enum { BATCH = 2, SEQUENCE = 21, HEADS = 4, SIZE = 8, ROWS = BATCH * SEQUENCE, WIDTH = HEADS * SIZE };
    Tensor qkv = normals(b, ROWS, 3 * WIDTH), dout = normals(b, ROWS, WIDTH);
    Tensor out = tensor(b, ROWS, WIDTH), dqkv = tensor(b, ROWS, 3 * WIDTH);
    Dropout dropout = dropout_of(0.2f, BATCH);
    attend(b, qkv, dout, out, dqkv, (AttentionShape){BATCH, SEQUENCE, HEADS, SIZE, 0}, dropout);
    for (int64_t part = 0; part < 2; part++) {
        int64_t first = part * WIDTH / 2;
        Tensor part_out = tensor(b, ROWS, WIDTH / 2), part_dqkv = tensor(b, ROWS, 3 * WIDTH / 2);
        attend(b, columns_of(b, qkv, 3 * first, 3 * WIDTH / 2), columns_of(b, dout, first, WIDTH / 2),
               part_out, part_dqkv, (AttentionShape){BATCH, SEQUENCE, HEADS / 2, SIZE, part * HEADS / 2},
               dropout);
        expect_near(b, "out of half the heads", part_out, columns_of(b, out, first, WIDTH / 2), 0);
        expect_near(b, "dqkv of half the heads", part_dqkv, columns_of(b, dqkv, 3 * first, 3 * WIDTH / 2), 0);
    }
}

static void embedding_parts(Bench *b) {
    Tensor tokens = integers(b, 30, 20), table = normals(b, 20, 6), whole = tensor(b, 30, 6),
           sum = tensor(b, 30, 6);
    embedding_forward(b->device, b->stream, (EmbeddingForward){tokens, table, whole, 0});
    device_zero(b->device, b->stream, sum);
    for (int64_t part = 0; part < 2; part++) {
        Tensor y = tensor(b, 30, 6);
        embedding_forward(b->device, b->stream,
                          (EmbeddingForward){tokens, tensor_rows(table, 10 * part, 10), y, 10 * part});
        add(b->device, b->stream, (Add){y, sum});
    }
    expect_near(b, "the sum of two slices", sum, whole, 0);
}

// ---- cross-entropy over two halves of a padded vocabulary, the reductions done by hand ------------------------------

enum { LOSS_ROWS = 9, LOSS_COLUMNS = 24, VOCABULARY = 43 };

typedef struct {
    Tensor logits, max, sum, target, loss;
} Loss;

static Loss loss_of(Bench *b, Tensor logits) {
    return (Loss){logits, tensor(b, 1, logits.rows), tensor(b, 1, logits.rows), tensor(b, 1, logits.rows),
                  tensor(b, 1, logits.rows)};
}

static void finish(Bench *b, const Loss *l, Tensor labels, int64_t first) {
    loss_finish(
        b->device, b->stream,
        (LossFinish){labels, l->max, l->sum, l->target, {0}, l->logits, l->loss, first, VOCABULARY, 0.5f});
}

// Stands for the all-reduce of one value per row of two ranks.
static void reduce(Bench *b, Tensor x, Tensor y, bool take_max) {
    float *xs = values_of(b, x), *ys = values_of(b, y);
    for (int64_t i = 0; i < tensor_count(x); i++) xs[i] = take_max ? fmaxf(xs[i], ys[i]) : xs[i] + ys[i];
    device_upload(b->device, b->stream, x, xs);
    device_upload(b->device, b->stream, y, xs);
    free(xs);
    free(ys);
}

static void loss_halves(Bench *b) {
    Tensor logits = normals(b, LOSS_ROWS, 2 * LOSS_COLUMNS), labels = integers(b, LOSS_ROWS, VOCABULARY);
    Loss half[2] = {loss_of(b, columns_of(b, logits, 0, LOSS_COLUMNS)),
                    loss_of(b, columns_of(b, logits, LOSS_COLUMNS, LOSS_COLUMNS))};
    Loss whole = loss_of(b, logits);
    for (int i = 0; i < 2; i++)
        loss_max(b->device, b->stream, (LossMax){half[i].logits, half[i].max, i * LOSS_COLUMNS, VOCABULARY});
    reduce(b, half[0].max, half[1].max, true);
    for (int i = 0; i < 2; i++)
        loss_sum(b->device, b->stream,
                 (LossSum){half[i].logits, labels, half[i].max, half[i].sum, half[i].target, i * LOSS_COLUMNS,
                           VOCABULARY});
    reduce(b, half[0].sum, half[1].sum, false);
    reduce(b, half[0].target, half[1].target, false);
    loss_max(b->device, b->stream, (LossMax){logits, whole.max, 0, VOCABULARY});
    loss_sum(b->device, b->stream,
             (LossSum){logits, labels, whole.max, whole.sum, whole.target, 0, VOCABULARY});
    finish(b, &whole, labels, 0);
    for (int i = 0; i < 2; i++) {
        finish(b, &half[i], labels, i * LOSS_COLUMNS);
        expect_near(b, "loss", half[i].loss, whole.loss, 2e-6);
        expect_near(b, "dlogits", half[i].logits, columns_of(b, logits, i * LOSS_COLUMNS, LOSS_COLUMNS),
                    1e-6);
    }
}

// ---- dropout ------------------------------------------------------------------------------------------------------

// The mask is the one that rng.h defines: element s*H + c of sample first_sample + b.
static void mask_is_rng_word(Bench *b) {
    enum { SEQUENCE = 40, SAMPLES = 3, WIDTH = 137, COUNT = SEQUENCE * SAMPLES * WIDTH };
    float ones[COUNT];
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    Dropout d = dropout_of(0.4f, SAMPLES);
    Tensor dy = from_floats(b, SEQUENCE * SAMPLES, WIDTH, ones);
    dropout_backward(b->device, b->stream, (DropoutBackward){dy, dy, d});
    float *got = values_of(b, dy);
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        int row = i / WIDTH, s = row / SAMPLES, sample = row % SAMPLES;
        uint32_t word =
            rng_word(d.key, (uint64_t)(d.first_sample + sample), (uint64_t)(s * WIDTH + i % WIDTH));
        wrong += got[i] != (word >= rng_dropout_threshold(0.4f) ? 1.0f / (1.0f - 0.4f) : 0);
    }
    EXPECT(wrong == 0, "%d of %d elements", wrong, COUNT);
    free(got);
}

// Sample 1 of a batch of two, and the same sample alone: rows 2s + 1 of the first are rows s of the second.
static void mask_does_not_depend_on_the_batch(Bench *b) {
    enum { SEQUENCE = 11, HEADS = 2, SIZE = 4, WIDTH = HEADS * SIZE };
    Dropout both = dropout_of(0.3f, 2), one = both;
    one.first_sample++, one.samples = 1;
    Tensor pair = normals(b, 2 * SEQUENCE, 3 * WIDTH), single = tensor(b, SEQUENCE, 3 * WIDTH);
    for (int64_t s = 0; s < SEQUENCE; s++)
        device_copy(b->device, b->stream, tensor_rows(single, s, 1), tensor_rows(pair, 2 * s + 1, 1));
    Tensor out = tensor(b, 2 * SEQUENCE, WIDTH), stats = tensor(b, 2 * HEADS, SEQUENCE);
    Tensor single_out = tensor(b, SEQUENCE, WIDTH), single_stats = tensor(b, HEADS, SEQUENCE);
    attention_forward(b->device, b->stream,
                      (AttentionForward){pair, out, stats, {2, SEQUENCE, HEADS, SIZE, 0}, both});
    attention_forward(
        b->device, b->stream,
        (AttentionForward){single, single_out, single_stats, {1, SEQUENCE, HEADS, SIZE, 0}, one});
    dropout_backward(b->device, b->stream, (DropoutBackward){out, out, both});
    dropout_backward(b->device, b->stream, (DropoutBackward){single_out, single_out, one});
    for (int64_t s = 0; s < SEQUENCE; s++)
        expect_near(b, "a row of the sample", tensor_rows(single_out, s, 1), tensor_rows(out, 2 * s + 1, 1),
                    0);
}

// ---- goldens: small enough for paper and pencil, or PyTorch's numbers in double ---------------------------------------------------------------------------

// Every sum is a small integer: exact in any order.
static void golden_integers(Bench *b) {
    Tensor x = from_floats(b, 2, 3, (const float[]){1, 2, 3, 4, 5, 6}),
           bias = from_floats(b, 1, 2, (const float[]){10, 20});
    Tensor weight = from_floats(b, 2, 3, (const float[]){1, 0, -1, 2, 1, 0}), y = tensor(b, 2, 2);
    Matmul args = {.a = x, .b = weight, .bias = bias, .d = y, .transpose_b = true};
    matmul(b->device, b->stream, args);
    expect_near(b, "x W^T + bias", y, from_floats(b, 2, 2, (const float[]){8, 24, 8, 33}), 0);
    args.accumulate = true;
    matmul(b->device, b->stream, args);
    expect_near(b, "accumulated", y, from_floats(b, 2, 2, (const float[]){16, 48, 16, 66}), 0);
    Tensor sum = from_floats(b, 1, 3, (const float[]){100, 200, 300});
    column_sum(b->device, b->stream, (ColumnSum){x, sum});
    expect_near(b, "column sums", sum, from_floats(b, 1, 3, (const float[]){105, 207, 309}), 0);
    Tensor tokens = from_ints(b, 4, (const int32_t[]){5, 7, 6, 8}), rows = tensor(b, 4, 3);
    embedding_forward(b->device, b->stream, (EmbeddingForward){tokens, x, rows, 6}); // holds tokens 6 and 7
    expect_near(b, "embedding", rows,
                from_floats(b, 4, 3, (const float[]){0, 0, 0, 4, 5, 6, 1, 2, 3, 0, 0, 0}), 0);
}

static void golden_sums(Bench *b) {
    Tensor x = from_floats(b, 4, 1, (const float[]){1, 2, 3, 4}),
           position = from_floats(b, 3, 1, (const float[]){10, 20, 30});
    position_backward(b->device, b->stream, (PositionBackward){x, position, 2}); // S = 2, B = 2
    expect_near(b, "dposition", position, from_floats(b, 3, 1, (const float[]){13, 27, 30}), 0);
    Tensor sum = tensor_take(&b->arena, "sum", 1, 1, F64);
    float fine = 1 + 0x1p-20f; // its square needs 41 bits
    sum_squares(b->device, b->stream, (SumSquares){from_floats(b, 1, 1, &fine), sum});
    double *squares = values_of(b, sum);
    EXPECT(*squares == 1 + 0x1p-19 + 0x1p-40, "%.17g", *squares);
    free(squares);
}

// Two tokens, D = 1: scores 6, then 10 and 10, so the second query halves between v = 1 and v = 5.
static void golden_attention(Bench *b) {
    Tensor qkv = from_floats(b, 2, 3, (const float[]){3, 2, 1, 5, 2, 5});
    Tensor out = tensor(b, 2, 1), stats = tensor(b, 1, 2);
    AttentionForward args = {.qkv = qkv, .out = out, .stats = stats, .shape = {1, 2, 1, 1, 0}};
    attention_forward(b->device, b->stream, args);
    expect_near(b, "out", out, from_floats(b, 2, 1, (const float[]){1, 3}), 1e-6);
    expect_near(b, "stats", stats, from_floats(b, 1, 2, (const float[]){6, 10.693147181f}), 2e-6);
}

static void golden_gelu(Bench *b) {
    Tensor x = from_floats(b, 1, 4, (const float[]){0, -3, 1, 9}),
           bias = from_floats(b, 1, 4, (const float[]){1, 1, 0, 1});
    Tensor y = tensor(b, 1, 4);
    bias_gelu_forward(b->device, b->stream, (BiasGeluForward){x, bias, y});
    expect_near(b, "gelu", y,
                from_floats(b, 1, 4, (const float[]){0.8411919906f, -0.0454023059f, 0.8411919906f, 10}),
                2e-6);
}

static void golden_cross_entropy(Bench *b) {
    Tensor logits = from_floats(b, 1, 4, (const float[]){1, 2, 3, 0.5f});
    Tensor gradient = from_floats(b, 1, 4,
                                  (const float[]){0.08536889350978889f, 0.23205671194331448f,
                                                  -0.3692044567525332f, 0.05177885129942981f});
    Loss l = loss_of(b, logits);
    Tensor labels = from_ints(b, 1, (const int32_t[]){2});
    loss_max(b->device, b->stream, (LossMax){logits, l.max, 0, 4});
    loss_sum(b->device, b->stream, (LossSum){logits, labels, l.max, l.sum, l.target, 0, 4});
    loss_finish(b->device, b->stream,
                (LossFinish){labels, l.max, l.sum, l.target, {0}, logits, l.loss, 0, 4, 1.0f});
    expect_near(b, "loss", l.loss, from_floats(b, 1, 1, (const float[]){0.4607734891568512f}), 2e-7);
    expect_near(b, "dlogits", logits, gradient, 1e-7);
}

// Gradients 0.5, then -0.25.
static void golden_adamw(Bench *b) {
    static const float GRADIENT[2] = {0.5f, -0.25f}, P[2] = {0.99899000002f, 0.9987136730870783f};
    static const float M[2] = {0.05f, 0.02f}, V[2] = {0.00025f, 0.00031225f};
    Tensor p = from_floats(b, 1, 1, (const float[]){1}), m = tensor(b, 1, 1), v = tensor(b, 1, 1);
    device_zero(b->device, b->stream, m);
    device_zero(b->device, b->stream, v);
    for (int step = 1; step <= 2; step++) {
        // As if clipped by one half, which the doubled gradient takes back.
        Tensor g = from_floats(b, 1, 1, (const float[]){2 * GRADIENT[step - 1]});
        adamw(
            b->device, b->stream,
            (AdamW){g, p, m, v, 1e-3, 0.9, 0.999, 1e-8, 0.01, 1 - pow(0.9, step), 1 - pow(0.999, step), 0.5});
        expect_near(b, "p", p, from_floats(b, 1, 1, &P[step - 1]), 1.5e-7);
        expect_near(b, "m", m, from_floats(b, 1, 1, &M[step - 1]), 1e-8);
        expect_near(b, "v", v, from_floats(b, 1, 1, &V[step - 1]), 1e-10);
    }
}

// ---- the null device ------------------------------------------------------------------------------------------------

static void null_has_no_numbers(void) {
    Bench b = bench_open("null", 1);
    EXPECT(!device_computes(b.device), "it computes");
    float ones[3] = {1, 1, 1};
    Tensor x = from_floats(&b, 1, 3, ones);
    device_download(b.device, b.stream, ones, x);
    EXPECT(ones[0] == 0 && ones[2] == 0, "zeros, not %g", (double)ones[0]);
    Memory memory = device_memory(b.device);
    char *first = memory.take(memory.self, 100), *second = memory.take(memory.self, 100);
    EXPECT(first && second >= first + 100, "addresses %p and %p", (void *)first, (void *)second);
    bench_close(&b);
}

static void null_stands_for_another(void) {
    Device *null;
    EXPECT_OK(device_open(&null, (DeviceOptions){"null", "reference", 1, 0}));
    float nothing = 0;
    AttentionForward args = {.qkv = {&nothing, 64, 12, F32}, .out = {&nothing, 64, 4, F32}};
    args.stats = (Tensor){&nothing, 1, 64, F32};
    args.shape = (AttentionShape){1, 64, 1, 4, 0};
    attention_forward(null, device_stream(null), args);
    EXPECT(device_workspace_peak(null) == 64 * 64 * sizeof(double), "%zu", device_workspace_peak(null));
    device_close(null);
}

static void matmul_columns(void) { on_every_device(column_parallel); }
static void matmul_rows(void) { on_every_device(row_parallel); }
static void attention_parts(void) { on_every_device(attention_heads); }
static void embedding_slices(void) { on_every_device(embedding_parts); }
static void loss_parts(void) { on_every_device(loss_halves); }
static void dropout_mask(void) { on_every_device(mask_is_rng_word); }
static void dropout_batch(void) { on_every_device(mask_does_not_depend_on_the_batch); }
static void integers_exact(void) { on_every_device(golden_integers); }
static void sums_exact(void) { on_every_device(golden_sums); }
static void two_tokens(void) { on_every_device(golden_attention); }
static void gelu_values(void) { on_every_device(golden_gelu); }
static void cross_entropy(void) { on_every_device(golden_cross_entropy); }
static void adamw_steps(void) { on_every_device(golden_adamw); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"matmul_columns", matmul_columns},
                                      {"matmul_rows", matmul_rows},
                                      {"attention_parts", attention_parts},
                                      {"embedding_slices", embedding_slices},
                                      {"loss_parts", loss_parts},
                                      {"dropout_mask", dropout_mask},
                                      {"dropout_batch", dropout_batch},
                                      {"golden_integers", integers_exact},
                                      {"golden_sums", sums_exact},
                                      {"golden_attention", two_tokens},
                                      {"golden_gelu", gelu_values},
                                      {"golden_cross_entropy", cross_entropy},
                                      {"golden_adamw", adamw_steps},
                                      {"null_has_no_numbers", null_has_no_numbers},
                                      {"null_stands_for_another", null_stands_for_another},
                                      {0}},
                       argc, argv);
}
