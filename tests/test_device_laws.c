// What must hold on every device that computes: a rank's part of the work equals that part of the whole,
// results do not depend on where they go, and small results known from elsewhere.
#include "device_fixture.h"
#include <stdio.h>

// ---- the parts and the whole ------------------------------------------------------------------------------

static void column_parallel(Fixture *b) {
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

static void row_parallel(Fixture *b) {
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

static void embedding_parts(Fixture *b) {
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

// ---- cross-entropy over two halves of a padded vocabulary, the reductions done by hand --------------------

enum { LOSS_ROWS = 9, LOSS_COLUMNS = 24, VOCABULARY = 43 };

typedef struct {
    Tensor logits, max, sum, target, loss;
} Loss;

static Loss loss_of(Fixture *b, Tensor logits) {
    return (Loss){logits, tensor(b, 1, logits.rows), tensor(b, 1, logits.rows), tensor(b, 1, logits.rows),
                  tensor(b, 1, logits.rows)};
}

static void finish(Fixture *b, const Loss *l, Tensor labels, int64_t first) {
    loss_finish(
        b->device, b->stream,
        (LossFinish){
            labels, l->max, l->sum, l->target, {0}, l->logits, l->logits, l->loss, first, VOCABULARY, 0.5f});
}

// Stands for the all-reduce of one value per row of two ranks.
static void reduce(Fixture *b, Tensor x, Tensor y, bool take_max) {
    float *xs = values_of(b, x), *ys = values_of(b, y);
    for (int64_t i = 0; i < tensor_count(x); i++) xs[i] = take_max ? fmaxf(xs[i], ys[i]) : xs[i] + ys[i];
    device_upload(b->device, b->stream, x, xs);
    device_upload(b->device, b->stream, y, xs);
    free(xs);
    free(ys);
}

static void loss_halves(Fixture *b) {
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

// ---- dropout ----------------------------------------------------------------------------------------------

// The mask is the one that rng.h defines: element s*H + c of sample first_sample + b.
static void mask_is_rng_word(Fixture *b) {
    enum { SEQUENCE = 40, SAMPLES = 3, WIDTH = 137, COUNT = SEQUENCE * SAMPLES * WIDTH };
    float ones[COUNT];
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    Dropout d = dropout_of(0.4f, SAMPLES);
    Tensor dy = from_floats(b, SEQUENCE * SAMPLES, WIDTH, ones);
    dropout_backward(b->device, b->stream, (DropoutBackward){dy, dy, d});
    double *got = doubles_of(b, dy);
    float kept = 1.0f / (1.0f - 0.4f);
    round_floats(b->element, 1, &kept);
    int wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        int row = i / WIDTH, s = row / SAMPLES, sample = row % SAMPLES;
        uint32_t word =
            rng_word(d.key, (uint64_t)(d.first_sample + sample), (uint64_t)(s * WIDTH + i % WIDTH));
        wrong += got[i] != (word >= rng_dropout_threshold(0.4f) ? (double)kept : 0);
    }
    EXPECT(wrong == 0, "%d of %d elements", wrong, COUNT);
    free(got);
}

// The halves of a batch along the sequence, with `first_row`, and the whole.
static void rows_do_not_depend_on_the_cut(Fixture *b) {
    enum { SEQUENCE = 14, SAMPLES = 3, ROWS = SEQUENCE * SAMPLES, WIDTH = 37, HALF = ROWS / 2 };
    Dropout dropout = dropout_of(0.3f, SAMPLES);
    Tensor x = normals(b, ROWS, WIDTH), bias = normals(b, 1, WIDTH), residual = normals(b, ROWS, WIDTH);
    Tensor position = normals(b, SEQUENCE, WIDTH), whole[3], half[3];
    for (int i = 0; i < 3; i++) whole[i] = tensor(b, ROWS, WIDTH), half[i] = tensor(b, HALF, WIDTH);
    Tensor whole_sum = zeros_of(b, F32, SEQUENCE, WIDTH), sum = zeros_of(b, F32, SEQUENCE, WIDTH);
    bias_dropout_add(b->device, b->stream, (BiasDropoutAdd){x, bias, residual, whole[0], dropout});
    dropout_backward(b->device, b->stream, (DropoutBackward){x, whole[1], dropout});
    position_dropout(b->device, b->stream, (PositionDropout){x, position, whole[2], dropout});
    position_backward(b->device, b->stream, (PositionBackward){x, whole_sum, SAMPLES, 0});
    for (dropout.first_row = 0; dropout.first_row < ROWS; dropout.first_row += HALF) {
        int64_t first = dropout.first_row;
        Tensor part = tensor_rows(x, first, HALF), rest = tensor_rows(residual, first, HALF);
        bias_dropout_add(b->device, b->stream, (BiasDropoutAdd){part, bias, rest, half[0], dropout});
        dropout_backward(b->device, b->stream, (DropoutBackward){part, half[1], dropout});
        position_dropout(b->device, b->stream, (PositionDropout){part, position, half[2], dropout});
        position_backward(b->device, b->stream, (PositionBackward){part, sum, SAMPLES, first});
        expect_near(b, "bias_dropout_add of half", half[0], tensor_rows(whole[0], first, HALF), 0);
        expect_near(b, "dropout_backward of half", half[1], tensor_rows(whole[1], first, HALF), 0);
        expect_near(b, "position_dropout of half", half[2], tensor_rows(whole[2], first, HALF), 0);
    }
    expect_near(b, "dposition of the halves", sum, whole_sum, 0);
}

// Some columns of a batch, with `first_col` and `cols`, and the whole: whole packs of columns, and not.
static void columns_do_not_depend_on_the_cut(Fixture *b) {
    enum { SAMPLES = 3, ROWS = 5 * SAMPLES };
    for (int64_t part = 16; part < 20; part += 3) {
        Dropout dropout = dropout_of(0.3f, SAMPLES), cut = dropout;
        Tensor x = normals(b, ROWS, 3 * part), residual = normals(b, ROWS, 3 * part);
        Tensor sum = tensor(b, ROWS, 3 * part), dx = tensor(b, ROWS, 3 * part);
        bias_dropout_add(b->device, b->stream, (BiasDropoutAdd){x, {0}, residual, sum, dropout});
        dropout_backward(b->device, b->stream, (DropoutBackward){x, dx, dropout});
        cut.cols = 3 * part;
        for (cut.first_col = 0; cut.first_col < cut.cols; cut.first_col += part) {
            Tensor some = columns_of(b, x, cut.first_col, part), y = tensor(b, ROWS, part);
            Tensor rest = columns_of(b, residual, cut.first_col, part);
            bias_dropout_add(b->device, b->stream, (BiasDropoutAdd){some, {0}, rest, y, cut});
            expect_near(b, "bias_dropout_add of columns", y, columns_of(b, sum, cut.first_col, part), 0);
            dropout_backward(b->device, b->stream, (DropoutBackward){some, y, cut});
            expect_near(b, "dropout_backward of columns", y, columns_of(b, dx, cut.first_col, part), 0);
        }
    }
}

// Without a table the positions add nothing; a dropout of nothing needs no samples.
static void position_is_optional(Fixture *b) {
    Tensor x = normals(b, 6, 5), y = tensor(b, 6, 5), z = tensor(b, 6, 5);
    position_dropout(b->device, b->stream, (PositionDropout){x, {0}, y, {.samples = 0}});
    expect_near(b, "x alone", y, x, 0);
    Dropout dropout = dropout_of(0.5f, 2);
    position_dropout(b->device, b->stream, (PositionDropout){x, {0}, y, dropout});
    dropout_backward(b->device, b->stream, (DropoutBackward){x, z, dropout});
    expect_near(b, "dropout alone", y, z, 0);
}

// ---- in place: the bits do not depend on where a result goes ----------------------------------------------

static void results_in_place(Fixture *b) {
    enum { ROWS = 13, WIDTH = 35 };
    Tensor x = normals(b, ROWS, 2 * WIDTH), dy = normals(b, ROWS, WIDTH), dx = tensor(b, ROWS, 2 * WIDTH);
    Tensor bias = normals(b, 1, 2 * WIDTH), over = copy_of(b, x);
    swiglu_backward(b->device, b->stream, (SwigluBackward){dy, x, bias, dx, GATE_SILU, 0, 0});
    swiglu_backward(b->device, b->stream, (SwigluBackward){dy, over, bias, over, GATE_SILU, 0, 0});
    expect_near(b, "swiglu over x", over, dx, 0);

    Tensor g = columns_of(b, x, 0, WIDTH), gamma = normals(b, 1, WIDTH), dg = tensor(b, ROWS, WIDTH);
    Tensor row = normals(b, 1, WIDTH), over_x = copy_of(b, g), over_dy = copy_of(b, dy);
    bias_gelu_backward(b->device, b->stream, (BiasGeluBackward){dy, g, row, dg, false});
    bias_gelu_backward(b->device, b->stream, (BiasGeluBackward){dy, over_x, row, over_x, false});
    bias_gelu_backward(b->device, b->stream, (BiasGeluBackward){over_dy, g, row, over_dy, false});
    expect_near(b, "gelu over x", over_x, dg, 0);
    expect_near(b, "gelu over dy", over_dy, dg, 0);

    Tensor mean = normals_f32(b, 1, ROWS), rstd = normals_f32(b, 1, ROWS), rest = normals(b, ROWS, WIDTH);
    Tensor places[3] = {copy_of(b, dy), copy_of(b, g), copy_of(b, rest)};
    norm_backward_input(b->device, b->stream, (NormBackwardInput){dy, g, gamma, mean, rstd, rest, dg, 0});
    for (int i = 0; i < 3; i++) {
        Tensor in[3] = {dy, g, rest};
        in[i] = places[i];
        norm_backward_input(b->device, b->stream,
                            (NormBackwardInput){in[0], in[1], gamma, mean, rstd, in[2], places[i], 0});
        expect_near(b, "norm in place", places[i], dg, 0);
    }
}

// ---- goldens: small enough for paper and pencil, or PyTorch's numbers in double ---------------------------

// Every sum is a small integer: exact in any order.
static void golden_integers(Fixture *b) {
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

static void golden_sums(Fixture *b) {
    Tensor x = from_floats(b, 4, 1, (const float[]){1, 2, 3, 4}),
           position = from_floats(b, 3, 1, (const float[]){10, 20, 30});
    position_backward(b->device, b->stream, (PositionBackward){x, position, 2, 0}); // S = 2, B = 2
    expect_near(b, "dposition", position, from_floats(b, 3, 1, (const float[]){13, 27, 30}), 0);
    position_backward(b->device, b->stream, (PositionBackward){x, position, 2, 2}); // from position 1 on
    expect_near(b, "dposition", position, from_floats(b, 3, 1, (const float[]){13, 30, 37}), 0);
}
// silu(1) = 0.7310585786, silu(2) = 1.761594156; columns g then u.
static void golden_swiglu(Fixture *b) {
    Tensor x = from_floats(b, 1, 4, (const float[]){1, 1, 3, -2}), y = tensor(b, 1, 2), dx = tensor(b, 1, 4);
    Tensor bias = from_floats(b, 1, 4, (const float[]){0, 1, 0, 1});
    Tensor dy = from_floats(b, 1, 2, (const float[]){1, 2});
    swiglu_forward(b->device, b->stream, (SwigluForward){x, bias, y, GATE_SILU, 0, 0});
    expect_near(b, "swiglu", y, from_floats(b, 1, 2, (const float[]){2.193175736f, -1.761594156f}), 1e-6);
    swiglu_backward(b->device, b->stream, (SwigluBackward){dy, x, bias, dx, GATE_SILU, 0, 0});
    expect_near(
        b, "dx", dx,
        from_floats(b, 1, 4, (const float[]){2.783011434f, -2.181568498f, 0.731058579f, 3.523188312f}), 1e-6);
}

// Rows of root mean square 5 / sqrt(2) and 0, the latter held by epsilon.
static void golden_rms_norm(Fixture *b) {
    Tensor x = from_floats(b, 2, 2, (const float[]){3, 4, 0, 0}), y = tensor(b, 2, 2);
    Tensor gamma = from_floats(b, 1, 2, (const float[]){1, 10}), rstd = tensor_f32(b, 1, 2);
    norm_forward(b->device, b->stream, (NormForward){x, gamma, {0}, y, {0}, rstd, 0.25f, 0});
    expect_near(b, "y", y, from_floats(b, 2, 2, (const float[]){0.8401680504f, 11.20224067f, 0, 0}), 2e-6);
    expect_near(b, "rstd", rstd, from_floats(b, 1, 2, (const float[]){0.2800560168f, 2}), 1e-6);
}

static void golden_gelu(Fixture *b) {
    Tensor x = from_floats(b, 1, 4, (const float[]){0, -3, 1, 9}),
           bias = from_floats(b, 1, 4, (const float[]){1, 1, 0, 1});
    Tensor y = tensor(b, 1, 4);
    bias_gelu_forward(b->device, b->stream, (BiasGeluForward){x, bias, y, false});
    expect_near(b, "gelu", y,
                from_floats(b, 1, 4, (const float[]){0.8411919906f, -0.0454023059f, 0.8411919906f, 10}),
                2e-6);
    bias_gelu_forward(b->device, b->stream, (BiasGeluForward){x, bias, y, true});
    expect_near(b, "exact gelu", y,
                from_floats(b, 1, 4, (const float[]){0.8413447461f, -0.0455002639f, 0.8413447461f, 10}),
                2e-6);
}

static void golden_cross_entropy(Fixture *b) {
    Tensor logits = from_floats(b, 1, 4, (const float[]){1, 2, 3, 0.5f});
    Tensor gradient = from_floats(b, 1, 4,
                                  (const float[]){0.08536889350978889f, 0.23205671194331448f,
                                                  -0.3692044567525332f, 0.05177885129942981f});
    Loss l = loss_of(b, logits);
    Tensor labels = from_ints(b, 1, (const int32_t[]){2});
    loss_max(b->device, b->stream, (LossMax){logits, l.max, 0, 4});
    loss_sum(b->device, b->stream, (LossSum){logits, labels, l.max, l.sum, l.target, 0, 4});
    loss_finish(b->device, b->stream,
                (LossFinish){labels, l.max, l.sum, l.target, {0}, logits, logits, l.loss, 0, 4, 1.0f});
    expect_near(b, "loss", l.loss, from_floats(b, 1, 1, (const float[]){0.4607734891568512f}), 2e-7);
    expect_near(b, "dlogits", logits, gradient, 1e-7);
}

// Gradients 0.5, then -0.25.
static void golden_adamw(Fixture *b) {
    static const float GRADIENT[2] = {0.5f, -0.25f}, P[2] = {0.99899000002f, 0.9987136730870783f};
    static const float M[2] = {0.05f, 0.02f}, V[2] = {0.00025f, 0.00031225f};
    Tensor p = from_floats(b, 1, 1, (const float[]){1}), m = tensor(b, 1, 1), v = tensor(b, 1, 1);
    device_zero(b->device, b->stream, m);
    device_zero(b->device, b->stream, v);
    for (int step = 1; step <= 2; step++) {
        // As if clipped by one half, which the doubled gradient takes back.
        Tensor g = from_floats(b, 1, 1, (const float[]){2 * GRADIENT[step - 1]});
        adamw(b->device, b->stream,
              (AdamW){g,
                      p,
                      m,
                      v,
                      {0},
                      1e-3,
                      0.9,
                      0.999,
                      1e-8,
                      0.01,
                      1 - pow(0.9, step),
                      1 - pow(0.999, step),
                      0.5,
                      0,
                      NULL});
        expect_near(b, "p", p, from_floats(b, 1, 1, &P[step - 1]), 1.5e-7);
        expect_near(b, "m", m, from_floats(b, 1, 1, &M[step - 1]), 1e-8);
        expect_near(b, "v", v, from_floats(b, 1, 1, &V[step - 1]), 1e-10);
    }
}

// ---- the null device --------------------------------------------------------------------------------------

static void null_has_no_numbers(void) {
    Fixture b = fixture_open("null", 1);
    EXPECT(!device_computes(b.device), "it computes");
    float ones[3] = {1, 1, 1};
    Tensor x = from_floats(&b, 1, 3, ones);
    device_download(b.device, b.stream, ones, x);
    EXPECT(ones[0] == 0 && ones[2] == 0, "zeros, not %g", (double)ones[0]);
    Memory memory = device_memory(b.device);
    const char *why;
    char *first = memory.take(memory.self, "first", 100, &why);
    char *second = memory.take(memory.self, "second", 100, &why);
    EXPECT(first && second >= first + 100, "addresses %p and %p", (void *)first, (void *)second);
    fixture_close(&b);
}

static void null_stands_for_another(void) {
    Device *null;
    EXPECT_OK(device_open(&null, (DeviceOptions){.kind = "null", .stands_for = "reference", .threads = 1}));
    float nothing = 0;
    AttentionForward args = {.qkv = {&nothing, 64, 12, F32}, .out = {&nothing, 64, 4, F32}};
    args.stats = (Tensor){&nothing, 1, 64, F32};
    args.shape = (AttentionShape){1, 64, 1, 1, 4, 0, 0, 0, 0, 0};
    attention_forward(null, device_stream(null), args);
    EXPECT(device_workspace_peak(null) == 64 * sizeof(double), "%zu", device_workspace_peak(null));
    device_close(null);
}

static void count_calls(void *self) { ++*(int *)self; }

// Before every operation, also where none is computed; until it is taken back.
static void expect_hook(Fixture *b, const char *kind) {
    Tensor x = normals(b, 2, 3), y = normals(b, 2, 3);
    int calls = 0;
    device_on_launch(b->device, count_calls, &calls);
    add(b->device, b->stream, (Add){x, y});
    abs_max(b->device, b->stream, (AbsMax){x, zeros_of(b, F32, 1, 1)});
    EXPECT(calls == 2, "%s: %d calls", kind, calls);
    device_on_launch(b->device, NULL, NULL);
    add(b->device, b->stream, (Add){x, y});
    EXPECT(calls == 2, "%s: %d calls after it was taken back", kind, calls);
}

static void hook_is_called(void) { on_every_kind(expect_hook); }

typedef struct {
    DeviceOp op;
    Matmul args;
    OpCount sum;
} Heard;

static void hear(void *self, DeviceOp op, const void *args, OpCount one) {
    Heard *heard = self;
    heard->op = op;
    if (op == OP_MATMUL) heard->args = *(const Matmul *)args;
    heard->sum.calls += one.calls, heard->sum.flops += one.flops, heard->sum.bytes += one.bytes;
}

static void expect_heard(Fixture *b, const char *kind) {
    Heard heard = {0};
    Tensor x = normals(b, 2, 3), y = normals(b, 3, 5), d = zeros_of(b, F32, 2, 5);
    device_counts_reset(b->device);
    device_on_operation(b->device, hear, &heard);
    matmul(b->device, b->stream, (Matmul){.a = x, .b = y, .d = d});
    EXPECT(heard.op == OP_MATMUL && heard.args.d.data == d.data, "%s: heard of %s", kind,
           device_op_name(heard.op));
    EXPECT(heard.sum.flops == 60 && heard.sum.bytes == 4 * (6 + 15 + 10), "%s: %g flops, %g bytes", kind,
           heard.sum.flops, heard.sum.bytes);
    add(b->device, b->stream, (Add){x, x});
    double bytes = device_counts(b->device)[OP_MATMUL].bytes + device_counts(b->device)[OP_ADD].bytes;
    EXPECT(heard.op == OP_ADD && heard.sum.calls == 2 && heard.sum.bytes == bytes, "%s: %g bytes of %g", kind,
           heard.sum.bytes, bytes);
    device_on_operation(b->device, NULL, NULL);
    add(b->device, b->stream, (Add){x, x});
    EXPECT(heard.sum.calls == 2, "%s: heard after it was taken back", kind);
}

// What a listener hears of each operation adds up to the counts.
static void listeners_hear_what_is_counted(void) { on_every_kind(expect_heard); }

// ---- views ------------------------------------------------------------------------------------------------

static void parts_of_tensors(void) {
    float values[6] = {0, 1, 2, 3, 4, 5};
    uint16_t narrow[6] = {0, 1, 2, 3, 4, 5};
    Tensor x = tensor_part((Tensor){values, 2, 3, F32}, 2, 3),
           y = tensor_part((Tensor){narrow, 2, 3, F16}, 4, 2);
    EXPECT(x.data == values + 2 && x.rows == 1 && x.cols == 3 && x.dtype == F32, "of f32");
    EXPECT(y.data == narrow + 4 && y.rows == 1 && y.cols == 2 && y.dtype == F16, "of f16");
    EXPECT(tensor_bytes(x) == 12 && tensor_bytes(y) == 4, "%zu and %zu bytes", tensor_bytes(x),
           tensor_bytes(y));
    EXPECT(dtype_is_element(BF16) && dtype_is_element(F16) && dtype_is_element(F32), "elements");
    EXPECT(!dtype_is_element(F64) && !dtype_is_element(I32), "not elements");
    EXPECT(strcmp(dtype_name(BF16), "bf16") == 0 && strcmp(dtype_name(I32), "i32") == 0, "names");
}

static void matmul_columns(void) { on_every_device(column_parallel); }
static void matmul_rows(void) { on_every_device(row_parallel); }
static void embedding_slices(void) { in_every_type(embedding_parts); }
static void loss_parts(void) { on_every_device(loss_halves); }
static void dropout_mask(void) { in_every_type(mask_is_rng_word); }
static void row_parts(void) { in_every_type(rows_do_not_depend_on_the_cut); }
static void column_parts(void) { in_every_type(columns_do_not_depend_on_the_cut); }
static void no_position(void) { in_every_type(position_is_optional); }
static void in_place(void) { in_every_type(results_in_place); }
static void integers_exact(void) { on_every_device(golden_integers); }
static void sums_exact(void) { on_every_device(golden_sums); }
static void gelu_values(void) { on_every_device(golden_gelu); }
static void swiglu_values(void) { on_every_device(golden_swiglu); }
static void rms_norm_values(void) { on_every_device(golden_rms_norm); }
static void cross_entropy(void) { on_every_device(golden_cross_entropy); }
static void adamw_steps(void) { on_every_device(golden_adamw); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"matmul_columns", matmul_columns},
                                      {"matmul_rows", matmul_rows},
                                      {"embedding_slices", embedding_slices},
                                      {"loss_parts", loss_parts},
                                      {"dropout_mask", dropout_mask},
                                      {"row_parts", row_parts},
                                      {"column_parts", column_parts},
                                      {"no_position", no_position},
                                      {"in_place", in_place},
                                      {"golden_integers", integers_exact},
                                      {"golden_sums", sums_exact},
                                      {"golden_gelu", gelu_values},
                                      {"golden_swiglu", swiglu_values},
                                      {"golden_rms_norm", rms_norm_values},
                                      {"golden_cross_entropy", cross_entropy},
                                      {"golden_adamw", adamw_steps},
                                      {"null_has_no_numbers", null_has_no_numbers},
                                      {"null_stands_for_another", null_stands_for_another},
                                      {"hook_is_called", hook_is_called},
                                      {"listeners_hear_what_is_counted", listeners_hear_what_is_counted},
                                      {"parts_of_tensors", parts_of_tensors},
                                      {0}},
                       argc, argv);
}
