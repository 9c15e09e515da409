// Cases of every operation: odd sizes, with and without optional tensors, dropout on and off, parts of heads, rows and
// vocabularies, in place. Tests compare what they leave on several devices, in every element type.
#pragma once
#include "attention_cases.h"
#include "device_expert_cases.h"
#include "device_feature_cases.h"
#include "device_training_cases.h"

typedef struct {
    const char *name;
    void (*run)(Fixture *b, const int64_t *n, float p);
    double tolerance; // in fp32, of the largest value of an output
    int roundings;    // to the element type on the way from inputs to results
    int64_t n[7];
    float p; // dropout probability
} Case;

static const DType ELEMENTS[] = {F32, BF16, F16};
enum { NUM_ELEMENTS = sizeof ELEMENTS / sizeof *ELEMENTS };

enum { TRANSPOSE_A = 1, TRANSPOSE_B = 2, ACCUMULATE = 4, WITH_BIAS = 8, TO_F32 = 16 };

static void run_matmul(Fixture *b, const int64_t *n, float p) {
    (void)p;
    int64_t rows = n[0], cols = n[1], inner = n[2], flags = n[3];
    Matmul args = {.transpose_a = flags & TRANSPOSE_A, .transpose_b = flags & TRANSPOSE_B};
    args.accumulate = flags & ACCUMULATE;
    args.a = args.transpose_a ? normals(b, inner, rows) : normals(b, rows, inner);
    args.b = args.transpose_b ? normals(b, cols, inner) : normals(b, inner, cols);
    args.bias = optional(b, flags & WITH_BIAS, 1, cols);
    args.d = args.accumulate  ? normals_f32(b, rows, cols)
             : flags & TO_F32 ? tensor_f32(b, rows, cols)
                              : tensor(b, rows, cols);
    output(b, "d", args.d);
    matmul(b->device, b->stream, args);
}

// A factor or bias of a product that joins other operations. With p 1 its sums are exact in every order.
static Tensor factor(Fixture *b, int64_t rows, int64_t cols, float p) {
    return p > 0 ? eighths_of(b, b->element, rows, cols) : normals(b, rows, cols);
}

// What it may be added to.
static Tensor start(Fixture *b, int64_t rows, int64_t cols, float p) {
    return p > 0 ? eighths_of(b, F32, rows, cols) : normals_f32(b, rows, cols);
}

// n[3]: the sums are added to what is there.
static void run_matmul_sums(Fixture *b, const int64_t *n, float p) {
    bool adds = n[3];
    Tensor dy = factor(b, n[2], n[0], p), x = factor(b, n[2], n[1], p);
    Tensor d = output(b, "d", start(b, n[0], n[1], p)), sums = output(b, "sums", start(b, 1, n[0], p));
    matmul_sums(
        b->device, b->stream,
        (MatmulSums){.a = dy, .b = x, .d = d, .sums = sums, .accumulate = n[4], .accumulate_sums = adds});
}

// Products of a size that keeps the GELU's input near 1.
static void run_matmul_gelu(Fixture *b, const int64_t *n, float p) {
    Tensor x = factor(b, n[0], n[2], p), w = factor(b, n[1], n[2], p), bias = {0};
    if (n[3]) bias = factor(b, 1, n[1], p);
    Tensor y = output(b, "y", tensor(b, n[0], n[1])), aux = output(b, "aux", tensor(b, n[0], n[1]));
    matmul_gelu(b->device, b->stream, (MatmulGelu){.a = x, .b = w, .bias = bias, .d = y, .aux = aux});
}

static void run_matmul_gelu_backward(Fixture *b, const int64_t *n, float p) {
    Tensor dy = factor(b, n[0], n[2], p), w = factor(b, n[2], n[1], p), aux = normals(b, n[0], n[1]);
    Tensor dx = output(b, "dx", tensor(b, n[0], n[1]));
    matmul_gelu_backward(b->device, b->stream, (MatmulGeluBackward){.a = dy, .b = w, .aux = aux, .d = dx});
}

enum { NEW, OVER_DY, OVER_X };

// p: the form.
static void run_bias_gelu(Fixture *b, const int64_t *n, float p) {
    GeluForm form = (GeluForm)p;
    Tensor x = normals(b, n[0], n[1]), bias = optional(b, n[3], 1, n[1]), y = tensor(b, n[0], n[1]);
    bias_gelu_forward(b->device, b->stream, (BiasGeluForward){x, bias, output(b, "y", y), form});
    Tensor dy = normals(b, n[0], n[1]), dx = n[2] == OVER_DY  ? dy
                                             : n[2] == OVER_X ? x
                                                              : tensor(b, n[0], n[1]);
    bias_gelu_backward(b->device, b->stream, (BiasGeluBackward){dy, x, bias, output(b, "dx", dx), form});
}

// p 1: GeGLU.
static void run_swiglu(Fixture *b, const int64_t *n, float p) {
    GateForm form = (GateForm)p;
    Tensor x = normals(b, n[0], 2 * n[1]), bias = optional(b, n[3], 1, 2 * n[1]), y = tensor(b, n[0], n[1]);
    swiglu_forward(b->device, b->stream, (SwigluForward){x, bias, output(b, "y", y), form, 1, 0.7f});
    Tensor dy = normals(b, n[0], n[1]), dx = n[2] == OVER_X ? x : tensor(b, n[0], 2 * n[1]);
    swiglu_backward(b->device, b->stream, (SwigluBackward){dy, x, bias, output(b, "dx", dx), form, 1, 0.7f});
}

static void run_bias_dropout_add(Fixture *b, const int64_t *n, float p) {
    Dropout dropout = dropout_of(p, n[2]);
    dropout.first_row = n[5];
    Tensor x = normals(b, n[0], n[1]), bias = optional(b, n[4], 1, n[1]), residual = normals(b, n[0], n[1]);
    Tensor y = n[3] == 0 ? tensor(b, n[0], n[1]) : n[3] == 1 ? x : residual;
    bias_dropout_add(b->device, b->stream, (BiasDropoutAdd){x, bias, residual, output(b, "y", y), dropout});
    Tensor dy = normals(b, n[0], n[1]), dx = output(b, "dx", n[3] ? dy : tensor(b, n[0], n[1]));
    dropout_backward(b->device, b->stream, (DropoutBackward){dy, dx, dropout});
}

static void run_column_sum(Fixture *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), sum = output(b, "sum", normals_f32(b, 1, n[1]));
    column_sum(b->device, b->stream, (ColumnSum){x, sum});
}

static void run_norm_forward(Fixture *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), gamma = normals(b, 1, n[1]), beta = optional(b, n[2], 1, n[1]);
    Tensor y = output(b, "y", tensor(b, n[0], n[1])), rstd = output(b, "rstd", tensor_f32(b, 1, n[0]));
    Tensor mean = n[2] ? output(b, "mean", tensor_f32(b, 1, n[0])) : (Tensor){0};
    norm_forward(b->device, b->stream, (NormForward){x, gamma, beta, y, mean, rstd, 1e-5f, (float)n[5]});
}

static void run_norm_backward(Fixture *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), gamma = normals(b, 1, n[1]), y = tensor(b, n[0], n[1]);
    Tensor dy = normals(b, n[0], n[1]), rstd = tensor_f32(b, 1, n[0]), mean = {0}, dbeta = {0};
    if (n[3]) mean = tensor_f32(b, 1, n[0]), dbeta = output(b, "dbeta", normals_f32(b, 1, n[1]));
    norm_forward(b->device, b->stream,
                 (NormForward){x, gamma, n[3] ? gamma : (Tensor){0}, y, mean, rstd, 1e-5f, (float)n[5]});
    Tensor dgamma = output(b, "dgamma", normals_f32(b, 1, n[1]));
    norm_backward_weight(b->device, b->stream, (NormBackwardWeight){dy, x, mean, rstd, dgamma, dbeta});
    Tensor residual = optional(b, n[2], n[0], n[1]), places[] = {{0}, residual, dy, x};
    Tensor dx = output(b, "dx", n[2] == 0 ? tensor(b, n[0], n[1]) : places[n[2]]);
    norm_backward_input(b->device, b->stream,
                        (NormBackwardInput){dy, x, gamma, mean, rstd, residual, dx, (float)n[5]});
}

// n[4]: added to what is there.
static void run_norm_joined(Fixture *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), gamma = normals(b, 1, n[1]), y = tensor(b, n[0], n[1]);
    Tensor dy = normals(b, n[0], n[1]), rstd = tensor_f32(b, 1, n[0]), mean = {0}, dbeta = {0};
    if (n[3]) mean = tensor_f32(b, 1, n[0]), dbeta = output(b, "dbeta", normals_f32(b, 1, n[1]));
    norm_forward(b->device, b->stream,
                 (NormForward){x, gamma, n[3] ? gamma : (Tensor){0}, y, mean, rstd, 1e-5f, (float)n[5]});
    Tensor dgamma = output(b, "dgamma", normals_f32(b, 1, n[1]));
    Tensor residual = optional(b, n[2], n[0], n[1]), places[] = {{0}, residual, dy, x};
    Tensor dx = output(b, "dx", n[2] == 0 ? tensor(b, n[0], n[1]) : places[n[2]]);
    norm_backward(b->device, b->stream,
                  (NormBackward){dy, x, gamma, mean, rstd, residual, dx, dgamma, dbeta, n[4], (float)n[5]});
}

static void run_rotary(Fixture *b, const int64_t *n, float p) {
    (void)p;
    AttentionShape shape = {n[0], n[1], n[2], n[3], n[4], 0, 0, 0, 0, 0};
    Tensor qkv = output(b, "qkv", normals(b, n[0] * n[1], (n[2] + 2 * n[3]) * n[4]));
    rotary(b->device, b->stream, (Rotary){angles(b, n[1], n[5]), qkv, shape, n[6]});
}

static void run_embedding(Fixture *b, const int64_t *n, float p) {
    (void)p;
    int64_t rows = n[0], cols = n[1], local = n[2], first = n[3];
    Tensor tokens = integers(b, rows, (int32_t)n[4]), table = normals(b, local, cols);
    Tensor dy = normals(b, rows, cols), dtable = output(b, "dtable", normals_f32(b, local, cols));
    Tensor y = output(b, "y", tensor(b, rows, cols));
    embedding_forward(b->device, b->stream, (EmbeddingForward){tokens, table, y, first});
    embedding_backward(b->device, b->stream, (EmbeddingBackward){tokens, dy, dtable, first});
}

static void run_position(Fixture *b, const int64_t *n, float p) {
    int64_t rows = n[0] * n[2], cols = n[1], positions = n[0] + n[3];
    Tensor x = normals(b, rows, cols), position = optional(b, n[5], positions, cols);
    Tensor dy = normals(b, rows, cols), dposition = output(b, "dposition", normals_f32(b, positions, cols));
    Tensor y = output(b, "y", n[4] ? x : tensor(b, rows, cols));
    Dropout dropout = dropout_of(p, n[2]);
    dropout.first_row = n[6];
    position_dropout(b->device, b->stream, (PositionDropout){x, position, y, dropout});
    position_backward(b->device, b->stream, (PositionBackward){dy, dposition, n[2], n[6]});
}

static void run_loss(Fixture *b, const int64_t *n, float p) {
    (void)p;
    int64_t rows = n[0], cols = n[1], first = n[2], vocabulary = n[3];
    Tensor logits = normals_f32(b, rows, cols), labels = integers(b, rows, (int32_t)vocabulary);
    Tensor max = tensor_f32(b, 1, rows), sum = output(b, "sum", tensor_f32(b, 1, rows));
    Tensor target = output(b, "target", tensor_f32(b, 1, rows));
    Tensor loss = output(b, "loss", tensor_f32(b, 1, rows)),
           mask = n[4] ? normals_f32(b, 1, rows) : (Tensor){0};
    Tensor dlogits = output(b, "dlogits", n[5] ? tensor(b, rows, cols) : logits);
    loss_max(b->device, b->stream, (LossMax){logits, max, first, vocabulary});
    loss_sum(b->device, b->stream, (LossSum){logits, labels, max, sum, target, first, vocabulary});
    loss_finish(
        b->device, b->stream,
        (LossFinish){labels, max, sum, target, mask, logits, dlogits, loss, first, vocabulary, 0.125f});
}

static void run_loss_whole(Fixture *b, const int64_t *n, float p) {
    int64_t rows = n[0], cols = n[1], vocabulary = n[2];
    (void)p;
    Tensor logits = normals_f32(b, rows, cols), labels = integers(b, rows, (int32_t)vocabulary);
    LossWhole args = {.logits = logits, .labels = labels, .vocabulary = vocabulary, .scale = 0.125f};
    if (n[3]) args.mask = normals_f32(b, 1, rows);
    args.dlogits = output(b, "dlogits", n[4] ? tensor(b, rows, cols) : logits);
    args.loss = output(b, "loss", tensor_f32(b, 1, rows)),
    args.max = output(b, "max", tensor_f32(b, 1, rows));
    args.sum = output(b, "sum", tensor_f32(b, 1, rows));
    args.target = output(b, "target", tensor_f32(b, 1, rows));
    loss_whole(b->device, b->stream, args);
}

static void run_abs_max(Fixture *b, const int64_t *n, float p) {
    (void)p;
    Tensor max = output(b, "max", zeros_of(b, F32, 1, 1));
    abs_max(b->device, b->stream, (AbsMax){normals(b, n[0], n[1]), max});
}

// x in 8 bits, as a training step makes it; [R, C] or, with `transpose`, [C, R].
static Quantize quantized(Fixture *b, Tensor x, DType type, bool transpose) {
    int64_t rows = transpose ? x.cols : x.rows, cols = transpose ? x.rows : x.cols;
    Quantize args = {.x = x, .max = zeros_of(b, F32, 1, 1), .transpose = transpose};
    args.q = tensor_of(b, type, rows, cols), args.scale = tensor_f32(b, 1, 1);
    abs_max(b->device, b->stream, (AbsMax){x, args.max});
    quantize(b->device, b->stream, args);
    return args;
}

static void run_quantize(Fixture *b, const int64_t *n, float p) {
    (void)p;
    Quantize made = quantized(b, normals(b, n[0], n[1]), n[2] ? E5M2 : E4M3, n[3]);
    output(b, "max", made.max);
    output(b, "q", made.q);
    output(b, "scale", made.scale);
}

enum { A_E5M2 = 1, B_E5M2 = 2 };

static void run_matmul_float8(Fixture *b, const int64_t *n, float p) {
    (void)p;
    int64_t rows = n[0], cols = n[1], inner = n[2], flags = n[4];
    Quantize x = quantized(b, normals(b, rows, inner), n[3] & A_E5M2 ? E5M2 : E4M3, false);
    Quantize y = quantized(b, normals(b, inner, cols), n[3] & B_E5M2 ? E5M2 : E4M3, true);
    Matmul args = {.a = x.q, .b = y.q, .scale_a = x.scale, .scale_b = y.scale, .transpose_b = true};
    args.accumulate = flags & ACCUMULATE;
    args.bias = optional(b, flags & WITH_BIAS, 1, cols);
    args.d = output(b, "d", args.accumulate ? normals_f32(b, rows, cols) : tensor(b, rows, cols));
    matmul(b->device, b->stream, args);
}

static void run_scale_product(Fixture *b, const int64_t *n, float p) {
    (void)p;
    ScaleProduct args = {.x = normals_f32(b, n[0], n[1]), .accumulate = n[2] & ACCUMULATE};
    args.scale_a = scale_of(b, 0.3f), args.scale_b = scale_of(b, 0.7f);
    args.bias = optional(b, n[2] & WITH_BIAS, 1, n[1]);
    args.d = output(b, "d", args.accumulate ? normals_f32(b, n[0], n[1]) : tensor(b, n[0], n[1]));
    scale_product(b->device, b->stream, args);
}

static void run_add(Fixture *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), y = output(b, "y", normals(b, n[0], n[1]));
    add(b->device, b->stream, (Add){x, y});
}

static const Case CASES[] = {
    // rows, columns, inner, flags
    {"matmul 1x1x1", run_matmul, 1e-5, 1, {1, 1, 1, 0}, 0},
    {"matmul", run_matmul, 1e-5, 1, {37, 53, 29, 0}, 0},
    {"matmul linear", run_matmul, 1e-5, 1, {33, 65, 70, TRANSPOSE_B | WITH_BIAS}, 0},
    {"matmul of logits", run_matmul, 1e-5, 0, {33, 65, 70, TRANSPOSE_B | WITH_BIAS | TO_F32}, 0},
    {"matmul accumulates", run_matmul, 1e-5, 0, {17, 9, 31, TRANSPOSE_B | WITH_BIAS | ACCUMULATE}, 0},
    {"matmul of a weight's gradient", run_matmul, 1e-5, 0, {24, 40, 129, TRANSPOSE_A | ACCUMULATE}, 0},
    {"matmul both transposed", run_matmul, 1e-5, 1, {19, 21, 23, TRANSPOSE_A | TRANSPOSE_B | WITH_BIAS}, 0},
    // rows, columns, inner, types, flags
    {"matmul in 8 bits 1x1x1", run_matmul_float8, 1e-5, 1, {1, 1, 1, 0, 0}, 0},
    {"matmul in 8 bits", run_matmul_float8, 1e-5, 1, {48, 32, 80, 0, WITH_BIAS}, 0},
    {"matmul in 8 bits of gradients", run_matmul_float8, 1e-5, 1, {16, 64, 160, A_E5M2, 0}, 0},
    {"matmul in 8 bits of odd sizes", run_matmul_float8, 1e-5, 1, {37, 53, 29, B_E5M2, WITH_BIAS}, 0},
    {"matmul in 8 bits accumulates", run_matmul_float8, 1e-5, 0, {32, 48, 64, A_E5M2, ACCUMULATE}, 0},
    {"matmul in 8 bits of many rows", run_matmul_float8, 1e-5, 1, {528, 16, 32, 0, 0}, 0},
    // rows, columns, E5M2, transpose
    {"quantize 1x1", run_quantize, 0, 0, {1, 1, 0, 0}, 0},
    {"quantize", run_quantize, 0, 0, {33, 77, 0, 0}, 0},
    {"quantize to e5m2", run_quantize, 0, 0, {64, 128, 1, 0}, 0},
    {"quantize transposed", run_quantize, 0, 0, {67, 130, 0, 1}, 0},
    {"quantize transposed to e5m2", run_quantize, 0, 0, {128, 64, 1, 1}, 0},
    // rows, columns, codes, scales, rows and columns of a block, samples of random numbers
    {"quantize_blocks by powers of two", run_quantize_blocks, 0, 0, {8, 256, 0, 0, 1, 128, 0}, 0},
    {"quantize_blocks by powers of two, squares",
     run_quantize_blocks,
     0,
     0,
     {256, 128, 0, 0, 128, 128, 0},
     0},
    {"quantize_blocks of mx", run_quantize_blocks, 0, 0, {6, 160, 0, 1, 1, 32, 0}, 0},
    {"quantize_blocks of mx, down", run_quantize_blocks, 0, 0, {64, 37, 1, 1, 32, 1, 0}, 0},
    {"quantize_blocks of nvfp4", run_quantize_blocks, 0, 0, {5, 144, 2, 2, 1, 16, 0}, 0},
    {"quantize_blocks of nvfp4, squares", run_quantize_blocks, 0, 0, {32, 48, 2, 2, 16, 16, 0}, 0},
    {"quantize_blocks of smaller last blocks", run_quantize_blocks, 0, 0, {37, 301, 0, 1, 32, 32, 0}, 0},
    {"quantize_blocks at random", run_quantize_blocks, 0, 0, {12, 64, 2, 2, 1, 16, 2}, 0},
    {"quantize_blocks at random, transposed", run_quantize_blocks, 0, 0, {64, 48, 2, 2, 1, 16, 2}, 1},
    // rows, columns
    {"hadamard", run_hadamard, 0, 0, {48, 37}, 0},
    {"hadamard wide", run_hadamard, 0, 0, {16, 300}, 0},
    // rows, columns, flags
    {"scale_product", run_scale_product, 1e-6, 1, {17, 37, WITH_BIAS}, 0},
    {"scale_product accumulates", run_scale_product, 1e-6, 0, {32, 48, ACCUMULATE}, 0},
    // rows, columns, inner (the length of the sums), sums and d added to
    {"matmul_sums", run_matmul_sums, 1e-5, 0, {24, 40, 128, 0, 0}, 0},
    {"matmul_sums accumulates", run_matmul_sums, 1e-5, 0, {24, 40, 64, 1, 1}, 0},
    {"matmul_sums of odd sizes", run_matmul_sums, 1e-5, 0, {19, 9, 71, 1, 0}, 0},
    {"matmul_sums of eighths", run_matmul_sums, 1e-5, 0, {24, 40, 128, 0, 1}, 1},
    {"matmul_sums of eighths, odd sizes", run_matmul_sums, 1e-5, 0, {19, 9, 71, 1, 1}, 1},
    // rows, columns, inner, bias
    {"matmul_gelu", run_matmul_gelu, 1e-5, 2, {32, 64, 16, 1}, 0},
    {"matmul_gelu without a bias", run_matmul_gelu, 1e-5, 2, {33, 40, 8, 0}, 0},
    {"matmul_gelu of odd sizes", run_matmul_gelu, 1e-5, 2, {7, 37, 5, 1}, 0},
    {"matmul_gelu of eighths, odd sizes", run_matmul_gelu, 1e-5, 2, {33, 37, 19, 1}, 1},
    {"matmul_gelu_backward", run_matmul_gelu_backward, 1e-5, 2, {32, 64, 24}, 0},
    {"matmul_gelu_backward of odd sizes", run_matmul_gelu_backward, 1e-5, 2, {7, 37, 5}, 0},
    {"matmul_gelu_backward of eighths, odd sizes", run_matmul_gelu_backward, 1e-5, 2, {33, 37, 19}, 1},
    // rows, columns, dx, bias
    {"bias_gelu 1x1", run_bias_gelu, 1e-6, 1, {1, 1, NEW, 1}, 0},
    {"bias_gelu", run_bias_gelu, 1e-6, 1, {13, 67, NEW, 1}, 0},
    {"bias_gelu over dy", run_bias_gelu, 1e-6, 1, {64, 128, OVER_DY, 1}, 0},
    {"gelu over x", run_bias_gelu, 1e-6, 1, {31, 70, OVER_X, 0}, 0},
    {"exact gelu 1x1", run_bias_gelu, 1e-6, 1, {1, 1, NEW, 1}, 1},
    {"exact bias_gelu", run_bias_gelu, 1e-6, 1, {13, 67, NEW, 1}, 1},
    {"exact gelu over x", run_bias_gelu, 1e-6, 1, {31, 70, OVER_X, 0}, 1},
    {"squared relu", run_bias_gelu, 1e-6, 1, {13, 67, NEW, 1}, 2},
    {"squared relu over dy", run_bias_gelu, 1e-6, 1, {64, 128, OVER_DY, 0}, 2},
    {"swiglu 1x1", run_swiglu, 1e-6, 1, {1, 1, NEW, 1}, 0},
    {"swiglu", run_swiglu, 1e-6, 1, {13, 67, NEW, 0}, 0},
    {"swiglu with bias over x", run_swiglu, 1e-6, 1, {37, 128, OVER_X, 1}, 0},
    {"geglu", run_swiglu, 1e-6, 1, {13, 67, NEW, 0}, 1},
    {"geglu with bias over x", run_swiglu, 1e-6, 1, {37, 128, OVER_X, 1}, 1},
    {"quick geglu", run_swiglu, 1e-6, 1, {13, 67, NEW, 0}, 2},
    {"quick geglu with bias over x", run_swiglu, 1e-6, 1, {37, 128, OVER_X, 1}, 2},
    // rows, columns, in place
    {"scale", run_scale, 1e-6, 1, {7, 77, 0}, 0.3f},
    {"scale in place", run_scale, 1e-6, 1, {64, 128, 1}, 12},
    {"soft_cap", run_soft_cap, 1e-6, 1, {7, 77, 0}, 0.5f},
    {"soft_cap in place", run_soft_cap, 1e-6, 1, {64, 128, 1}, 30},
    // rows, heads, columns: not rotated, rotated, values; columns of a head
    {"arrange_columns 1x1", run_arrange_columns, 1e-6, 1, {1, 1, 1, 2, 1, 3}, 0},
    {"arrange_columns", run_arrange_columns, 1e-6, 1, {7, 3, 16, 8, 16, 24}, 0},
    {"arrange_columns of odd sizes", run_arrange_columns, 1e-6, 1, {13, 5, 7, 6, 21, 21}, 0},
    // rows, columns, samples, y: new 0, over x 1, over residual 2, bias, first row
    {"bias_dropout_add without", run_bias_dropout_add, 1e-6, 1, {12, 33, 0, 0, 1}, 0},
    {"bias_dropout_add", run_bias_dropout_add, 1e-6, 1, {12, 33, 3, 0, 1}, 0.1f},
    {"bias_dropout_add over x", run_bias_dropout_add, 1e-6, 1, {30, 64, 2, 1, 1, 60}, 0.5f},
    {"dropout_add over residual", run_bias_dropout_add, 1e-6, 1, {7, 35, 7, 2, 0, 21}, 0.9f},
    {"column_sum", run_column_sum, 1e-5, 0, {1, 5}, 0},
    {"column_sum tall", run_column_sum, 1e-5, 0, {517, 37}, 0},
    {"column_sum wide", run_column_sum, 1e-5, 0, {3, 1031}, 0},
    // rows, columns, layer norm
    {"norm_forward", run_norm_forward, 1e-5, 1, {9, 33, 1}, 0},
    {"norm_forward wide", run_norm_forward, 1e-5, 1, {5, 768, 1}, 0},
    {"rms norm_forward", run_norm_forward, 1e-5, 1, {11, 97, 0}, 0},
    {"norm_forward by 1 + gamma", run_norm_forward, 1e-5, 1, {9, 64, 1, 0, 0, 1}, 0},
    // rows, columns, residual: none 0, dx over it 1, dx over dy 2, dx over x 3; layer norm
    {"norm_backward", run_norm_backward, 1e-5, 1, {11, 47, 0, 1}, 0},
    {"norm_backward of many rows", run_norm_backward, 1e-5, 1, {1200, 33, 0, 1}, 0},
    {"norm_backward over residual", run_norm_backward, 1e-5, 1, {300, 64, 1, 1}, 0},
    {"norm_backward over dy", run_norm_backward, 1e-5, 1, {65, 129, 2, 1}, 0},
    {"norm_backward over x", run_norm_backward, 1e-5, 1, {65, 33, 3, 1}, 0},
    {"rms norm_backward", run_norm_backward, 1e-5, 1, {40, 65, 0, 0}, 0},
    {"rms norm_backward over x", run_norm_backward, 1e-5, 1, {9, 768, 3, 0}, 0},
    {"norm_backward by 1 + gamma", run_norm_backward, 1e-5, 1, {11, 47, 0, 1, 0, 1}, 0},
    // and whether dgamma and dbeta are added to
    {"norm_backward at once", run_norm_joined, 1e-5, 1, {11, 47, 0, 1, 0}, 0},
    {"norm_backward at once of many rows", run_norm_joined, 1e-5, 1, {4500, 32, 0, 1, 1}, 0},
    {"norm_backward at once over residual", run_norm_joined, 1e-5, 1, {300, 64, 1, 1, 1}, 0},
    {"norm_backward at once over dy", run_norm_joined, 1e-5, 1, {65, 2048, 2, 1, 0}, 0},
    {"norm_backward at once over x", run_norm_joined, 1e-5, 1, {30, 4096, 3, 1, 1}, 0},
    {"rms norm_backward at once", run_norm_joined, 1e-5, 1, {40, 768, 1, 0, 1}, 0},
    {"rms norm_backward at once of long rows", run_norm_joined, 1e-5, 1, {3, 9000, 0, 0, 0}, 0},
    {"norm_backward at once by 1 + gamma", run_norm_joined, 1e-5, 1, {40, 768, 1, 0, 1, 1}, 0},
    // B, S, N/t, G/t, D, dx, offset
    {"qk_norm", run_qk_norm, 1e-5, 1, {2, 9, 3, 3, 8, 0, 0}, 0},
    {"qk_norm of groups over dy", run_qk_norm, 1e-5, 1, {1, 70, 6, 2, 64, 1, 1}, 0},
    {"qk_norm of odd heads over qkv", run_qk_norm, 1e-5, 1, {3, 11, 4, 1, 37, 2, 0}, 0},
    {"qk_norm of all heads", run_qk_norm, 1e-5, 1, {2, 9, 4, 2, 16, 0, 0}, 1},
    {"qk_norm of all heads of two ranks", run_qk_norm, 1e-5, 1, {1, 33, 6, 3, 10, 1, 1}, 2},
    // B, S, N/t, G/t, D, R, inverse
    {"rotary", run_rotary, 1e-6, 1, {2, 9, 3, 3, 8, 8, 0}, 0},
    {"rotary inverse in part", run_rotary, 1e-6, 1, {3, 17, 4, 2, 10, 6, 1}, 0},
    {"rotary of one group", run_rotary, 1e-6, 1, {1, 70, 6, 1, 64, 64, 0}, 0},
    // B, S, N/t, G/t, D, first head, what is stored and where, rules
    {"attention of one token", run_attention, 1e-5, 3, {1, 1, 1, 1, 4, 0}, 0},
    {"attention", run_attention, 1e-5, 3, {2, 37, 3, 3, 8, 0}, 0},
    {"attention with dropout", run_attention, 1e-5, 3, {2, 33, 2, 2, 16, 0, STORED}, 0.25f},
    {"attention of later heads", run_attention, 1e-5, 3, {1, 70, 2, 2, 5, 6, IN_PLACE}, 0.1f},
    {"attention of many blocks", run_attention, 1e-5, 3, {1, 131, 1, 1, 64, 1}, 0.1f},
    {"attention of groups", run_attention, 1e-5, 3, {2, 67, 6, 2, 8, 12, IN_PLACE}, 0.1f},
    {"attention of one group", run_attention, 1e-5, 3, {1, 130, 4, 1, 16, 0, STORED | IN_PLACE}, 0},
    {"attention of a window", run_attention, 1e-5, 3, {2, 200, 2, 2, 16, 0, WINDOW}, 0.1f},
    {"attention of documents", run_attention, 1e-5, 3, {3, 201, 4, 2, 8, 0, DOCUMENTS}, 0.1f},
    {"attention of documents and a window",
     run_attention,
     1e-5,
     3,
     {2, 300, 2, 1, 20, 3, DOCUMENTS | WINDOW | STORED | IN_PLACE},
     0},
    {"attention of sinks", run_attention, 1e-5, 3, {2, 70, 4, 2, 16, 0, SINKS | IN_PLACE}, 0.1f},
    {"attention off by one", run_attention, 1e-5, 3, {1, 37, 2, 2, 8, 0, OFF_BY_ONE | SCALE}, 0},
    {"attention of capped scores", run_attention, 1e-5, 3, {2, 67, 2, 1, 16, 0, CAP}, 0.1f},
    {"attention of all rules",
     run_attention,
     1e-5,
     3,
     {2, 150, 4, 2, 64, 1, CAP | SCALE | SINKS | WINDOW | DOCUMENTS},
     0.1f},
    {"attention of all rules, stored",
     run_attention,
     1e-5,
     3,
     {2, 150, 4, 2, 16, 1, CAP | SCALE | SINKS | WINDOW | DOCUMENTS | STORED | IN_PLACE},
     0},
    // B, S, N/t, G/t, D, position, rules
    {"cached attention of one token", run_cached, 1e-5, 1, {1, 1, 1, 1, 4, 0}, 0},
    {"cached attention from the start", run_cached, 1e-5, 1, {2, 19, 3, 3, 8, 0}, 0},
    {"cached attention of the next token", run_cached, 1e-5, 1, {3, 1, 4, 4, 64, 130}, 0},
    {"cached attention of groups", run_cached, 1e-5, 1, {2, 5, 6, 2, 10, 33}, 0},
    {"cached attention of one group", run_cached, 1e-5, 1, {1, 9, 4, 1, 33, 7}, 0},
    {"cached attention of a window", run_cached, 1e-5, 1, {2, 5, 4, 2, 16, 33, WINDOW}, 0},
    {"cached attention of sinks", run_cached, 1e-5, 1, {2, 20, 4, 2, 16, 0, SINKS | WINDOW}, 0},
    {"cached attention of all rules",
     run_cached,
     1e-5,
     1,
     {1, 3, 2, 1, 64, 200, SINKS | WINDOW | CAP | SCALE},
     0},
    {"cached attention off by one", run_cached, 1e-5, 1, {1, 3, 2, 2, 8, 9, OFF_BY_ONE}, 0},
    // rows, columns, local rows, first row, vocabulary
    {"embedding", run_embedding, 1e-6, 0, {21, 33, 50, 0, 50}, 0},
    {"embedding of a slice", run_embedding, 1e-6, 0, {64, 16, 10, 20, 50}, 0},
    {"embedding of no token", run_embedding, 1e-6, 0, {5, 7, 10, 100, 50}, 0},
    // S, columns, B, unused positions, in place, table, first row
    {"position without dropout", run_position, 1e-6, 1, {9, 17, 3, 0, 0, 1}, 0},
    {"position", run_position, 1e-6, 1, {16, 32, 2, 5, 0, 1, 10}, 0.1f},
    {"position in place", run_position, 1e-6, 1, {5, 70, 1, 1, 1, 1}, 0.3f},
    {"position without a table", run_position, 1e-6, 1, {5, 70, 3, 3, 1, 0, 9}, 0.3f},
    // rows, local columns, first column, vocabulary, mask, dlogits elsewhere
    {"loss", run_loss, 1e-5, 0, {7, 33, 0, 33, 0, 0}, 0},
    {"loss masked", run_loss, 1e-5, 1, {19, 101, 0, 101, 1, 1}, 0},
    {"loss of a slice", run_loss, 1e-5, 1, {19, 40, 40, 101, 1, 1}, 0},
    {"loss with padding", run_loss, 1e-5, 0, {6, 64, 64, 101, 0, 0}, 0},
    {"loss with padding elsewhere", run_loss, 1e-5, 1, {6, 64, 64, 101, 0, 1}, 0},
    // rows, columns, vocabulary, mask, dlogits elsewhere
    {"loss_whole", run_loss_whole, 1e-5, 0, {7, 33, 33, 0, 0}, 0},
    {"loss_whole masked", run_loss_whole, 1e-5, 1, {19, 101, 101, 1, 1}, 0},
    {"loss_whole with padding", run_loss_whole, 1e-5, 0, {6, 128, 101, 0, 0}, 0},
    {"loss_whole with padding elsewhere", run_loss_whole, 1e-5, 1, {3, 9216, 9001, 1, 1}, 0},
    {"abs_max", run_abs_max, 0, 0, {1, 1}, 0},
    {"abs_max long", run_abs_max, 0, 0, {3, 33333}, 0},
    {"sum_squares", run_sum_squares, 0, 0, {1, 1}, 0},
    {"sum_squares long", run_sum_squares, 0, 0, {3, 33333}, 0},
    {"sum_squares of segments", run_sum_squares, 0, 0, {1, 1000, 1}, 0},
    // rows, columns, value, segments
    {"adamw", run_adamw, 1e-6, 0, {1, 1027, 0}, 0},
    {"adamw with value", run_adamw, 1e-6, 1, {1, 517, 1}, 0},
    {"adamw of segments", run_adamw, 1e-6, 1, {1, 1000, 1, 1}, 0},
    // rows, columns, x, y, use
    {"blend of a multiple", run_blend, 1e-6, 0, {3, 1027, 0, 0, 0}, 0},
    {"blend of momentum", run_blend, 1e-6, 0, {1, 517, 0, 0, 1}, 0},
    {"blend of parts into an average", run_blend, 1e-6, 0, {1, 1027, 1, 0, 2}, 0},
    {"blend with value", run_blend, 1e-6, 1, {1, 517, 0, 1, 3}, 0},
    {"blend into parts", run_blend, 1e-6, 0, {1, 1027, 0, 2, 3}, 0},
    {"blend of parts into parts", run_blend, 1e-6, 0, {2, 500, 1, 2, 2}, 0},
    {"add", run_add, 0, 0, {7, 77}, 0},
    // rows, experts, k, flags, groups, open groups, B; p: the factor of the balancing loss
    {"router", run_router, 1e-5, 1, {21, 8, 2, 0, 0, 0, 3}, 0},
    {"router of one expert of many", run_router, 1e-5, 1, {9, 130, 1, PRE_SOFTMAX | SCALED, 0, 0, 9}, 0.5f},
    {"router before softmax", run_router, 1e-5, 1, {12, 33, 4, PRE_SOFTMAX, 0, 0, 1}, 0.5f},
    {"router of sigmoids", run_router, 1e-5, 1, {14, 64, 6, SIGMOID | SCALED, 0, 0, 2}, 0.5f},
    {"router with biases", run_router, 1e-5, 1, {14, 16, 1, SIGMOID | WITH_EXPERT_BIAS, 0, 0, 7}, 0},
    {"router of groups", run_router, 1e-5, 1, {24, 48, 4, SIGMOID | WITH_EXPERT_BIAS, 6, 2, 1}, 0.5f},
    {"router of groups of softmax", run_router, 1e-5, 1, {24, 12, 3, PRE_SOFTMAX, 4, 3, 4}, 0.5f},
    {"router of large logits", run_router, 1e-5, 1, {8, 40, 3, SATURATED, 0, 0, 2}, 0},
    // rows, experts, k, columns, capacity, B; p 1: by position
    {"rows of experts", run_pairs, 1e-5, 1, {33, 5, 2, 70, 0, 0}, 0},
    {"rows of experts with a capacity", run_pairs, 1e-5, 1, {36, 4, 3, 64, 7, 3}, 0},
    {"rows of experts with the first ones", run_pairs, 1e-5, 1, {300, 2, 1, 8, 50, 2}, 1},
    {"rows of more experts than pairs", run_pairs, 1e-5, 1, {3, 100, 1, 33, 0, 0}, 0},
    // rows, columns, B, first row, in place
    {"jitter", run_jitter, 1e-6, 1, {12, 37, 3, 0, 0}, 0.1f},
    {"jitter in place", run_jitter, 1e-6, 1, {8, 64, 2, 10, 1}, 0.01f},
};
enum { NUM_CASES = sizeof CASES / sizeof *CASES };

// Whether a case makes products that join other operations.
static inline bool case_joins_product(const Case *c) {
    return c->run == run_matmul_sums || c->run == run_matmul_gelu || c->run == run_matmul_gelu_backward;
}

// Whether its products are sums that are exact in every order: see `factor`. All that is left to a GPU's library is then known;
// cases with a GELU have sizes for which the library has no GELU of its own.
static inline bool case_is_exact(const Case *c) { return case_joins_product(c) && c->p > 0; }

// TRIREME_TEST_CASE=NAME: programs that take it run this case alone, so that a fault in one leaves the others. NULL: all.
static inline const char *chosen_case(void) { return getenv("TRIREME_TEST_CASE"); }

static inline bool case_is_chosen(const Case *c) {
    return !chosen_case() || strcmp(c->name, chosen_case()) == 0;
}
