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
    AttentionShape shape = {n[0], n[1], n[2], n[3], n[4], 0};
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
