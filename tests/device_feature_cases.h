// The functions of device_cases.h for operations that only some families of models need.
#pragma once
#include "device_fixture.h"

static void run_scale(Fixture *b, const int64_t *n, float p) {
    Tensor x = normals(b, n[0], n[1]), y = n[2] ? x : tensor(b, n[0], n[1]);
    scale(b->device, b->stream, (Scale){x, output(b, "y", y), p});
}

// n[2]: in place.
static void run_soft_cap(Fixture *b, const int64_t *n, float p) {
    Tensor x = normals_f32(b, n[0], n[1]), y = n[2] ? x : tensor_f32(b, n[0], n[1]);
    soft_cap(b->device, b->stream, (SoftCap){x, output(b, "y", y), p});
    Tensor dy = normals(b, n[0], n[1]), dx = n[2] ? dy : tensor(b, n[0], n[1]);
    soft_cap_backward(b->device, b->stream, (SoftCapBackward){dy, y, output(b, "dx", dx), p});
}

// p: the ranks of which this one is; 0: each head by itself. n[5]: dx is new 0, over dy 1, over qkv 2; n[6]: the offset.
static void run_qk_norm(Fixture *b, const int64_t *n, float p) {
    AttentionShape shape = {n[0], n[1], n[2], n[3], n[4], 0, 0, 0, 0, 0};
    int64_t rows = n[0] * n[1], cols = (n[2] + 2 * n[3]) * n[4];
    int ranks = (int)p;
    float offset = (float)n[6];
    bool all = ranks > 0;
    Tensor qkv = normals(b, rows, cols), query = normals(b, 1, all ? n[2] * n[4] : n[4]);
    Tensor key = normals(b, 1, all ? n[3] * n[4] : n[4]), sums = {0}, dsums = {0};
    Tensor y = output(b, "y", tensor(b, rows, cols)),
           rstd = output(b, "rstd", tensor_f32(b, rows, n[2] + n[3]));
    if (all)
        sums = output(b, "sums", tensor_f32(b, rows, 2)), dsums = output(b, "dsums", tensor_f32(b, rows, 2));
    if (all) qk_sums(b->device, b->stream, (QkSums){.qkv = qkv, .sums = sums, .shape = shape});
    qk_norm_forward(b->device, b->stream,
                    (QkNormForward){qkv, query, key, sums, y, rstd, shape, ranks, 1e-5f, offset});
    Tensor dy = normals(b, rows, cols), dquery = output(b, "dquery", normals_f32(b, 1, query.cols));
    Tensor dkey = output(b, "dkey", normals_f32(b, 1, key.cols));
    qk_norm_backward_weight(b->device, b->stream, (QkNormBackwardWeight){dy, qkv, rstd, dquery, dkey, shape});
    if (all) qk_sums(b->device, b->stream, (QkSums){qkv, dy, query, key, rstd, dsums, shape, offset});
    Tensor dx = output(b, "dx", n[5] == 0 ? tensor(b, rows, cols) : n[5] == 1 ? dy : qkv);
    qk_norm_backward_input(b->device, b->stream,
                           (QkNormBackwardInput){dy, qkv, query, key, rstd, dsums, dx, shape, ranks, offset});
}

// Heads of latent attention: n heads of `rotated` + `plain` columns of queries and keys and `values` of values, each in
// `width` columns; and their transpose.
static void run_arrange_columns(Fixture *b, const int64_t *n, float p) {
    (void)p;
    int64_t rows = n[0], heads = n[1], plain = n[2], rotated = n[3], values = n[4], width = n[5];
    int64_t qk = plain + rotated, kv = plain + values, whole = 3 * width;
    Tensor q = normals(b, rows, heads * qk), up = normals(b, rows, heads * kv),
           shared = normals(b, rows, rotated);
    Tensor y = output(b, "qkv", tensor(b, rows, heads * whole));
    arrange_columns(b->device, b->stream,
                    (ArrangeColumns){.a = q,
                                     .b = up,
                                     .c = shared,
                                     .y = y,
                                     .blocks = heads,
                                     .pieces = {{SOURCE_A, 1, rotated, plain, qk, 0},
                                                {SOURCE_A, 1, plain, 0, qk, 0},
                                                {SOURCE_ZEROS, 1, width - qk, 0, 0, 0},
                                                {SOURCE_C, 1, rotated, 0, 0, 0},
                                                {SOURCE_B, 1, plain, 0, kv, 0},
                                                {SOURCE_ZEROS, 1, width - qk, 0, 0, 0},
                                                {SOURCE_B, 1, values, plain, kv, 0},
                                                {SOURCE_ZEROS, 1, width - values, 0, 0, 0}}});
    Tensor dup = output(b, "gradient of keys, values", tensor(b, rows, heads * kv));
    arrange_columns(b->device, b->stream,
                    (ArrangeColumns){.a = y,
                                     .y = dup,
                                     .blocks = heads,
                                     .pieces = {{SOURCE_A, 1, plain, width + rotated, whole, 0},
                                                {SOURCE_A, 1, values, 2 * width, whole, 0}}});
    Tensor dshared = output(b, "gradient of the shared key", tensor(b, rows, rotated));
    Tensor many = normals(b, rows, heads * whole);
    arrange_columns(b->device, b->stream,
                    (ArrangeColumns){.a = many,
                                     .y = dshared,
                                     .blocks = 1,
                                     .pieces = {{SOURCE_A, (int)heads, rotated, width, 0, whole}}});
}

// p: the tensor is a transposed one.
static void run_quantize_blocks(Fixture *b, const int64_t *n, float p) {
    Tensor x = normals(b, n[0], n[1]), max = zeros_of(b, F32, 1, 1);
    QuantizeBlocks args = {.x = x,
                           .q = output(b, "q", tensor_of(b, BF16, n[0], n[1])),
                           .codes = (Codes)n[2],
                           .scales = (BlockScale)n[3],
                           .block_rows = n[4],
                           .block_cols = n[5]};
    if (args.scales == BLOCK_E4M3) {
        abs_max(b->device, b->stream, (AbsMax){x, max});
        args.max = max, args.scale = output(b, "scale", tensor_f32(b, 1, 1));
    }
    int64_t cols = p > 0 ? n[0] : n[1];
    if (n[6])
        args.random = (RandomRounding){.key = rng_key(7, "rounding", 1),
                                       .first_sample = 40,
                                       .samples = n[6],
                                       .cols = 2 * cols,
                                       .first_col = cols / 2,
                                       .part = cols / 2,
                                       .stride = cols,
                                       .transposed = p > 0};
    quantize_blocks(b->device, b->stream, args);
}

static void run_hadamard(Fixture *b, const int64_t *n, float p) {
    (void)p;
    Tensor x = normals(b, n[0], n[1]), y = output(b, "y", tensor(b, n[1], n[0]));
    hadamard(b->device, b->stream, (Hadamard){x, y});
}

static Tensor scale_of(Fixture *b, float value) { return from_floats_of(b, F32, 1, 1, &value); }
