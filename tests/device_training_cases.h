// The functions of device_cases.h for the optimizer's operations, and the parts of the tensors that they work on.
#pragma once
#include "device_fixture.h"

// Parts of a flat tensor of 900 elements or more: gaps between them, the second one added nowhere and not decaying.
static const OpSegment SEGMENTS[] = {{3, 500, 1, true}, {510, 77, -1, false}, {587, 313, 0, true}};
enum { NUM_SEGMENTS = sizeof SEGMENTS / sizeof *SEGMENTS };

static void run_sum_squares(Fixture *b, const int64_t *n, float p) {
    (void)p;
    SumSquares args = {.exponent = 3, .num_segments = n[2] ? NUM_SEGMENTS : 0, .segments = SEGMENTS};
    args.sum = output(b, "sum", zeros_of(b, F64, n[2] ? 2 : 1, 3));
    for (int times = 0; times < 2; times++) {
        args.x = normals_f32(b, n[0], n[1]);
        sum_squares(b->device, b->stream, args);
    }
}

static void run_adamw(Fixture *b, const int64_t *n, float p) {
    (void)p;
    AdamW args = {.lr = 1e-2,
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .epsilon = 1e-8,
                  .weight_decay = 0.1,
                  .correction1 = 0.19,
                  .correction2 = 0.0975,
                  .grad_scale = 0.5,
                  .num_segments = n[3] ? NUM_SEGMENTS : 0,
                  .segments = SEGMENTS};
    args.parameter = output(b, "parameter", normals_f32(b, n[0], n[1]));
    args.m = output(b, "m", normals_f32(b, n[0], n[1]));
    args.v = output(b, "v", zeros_of(b, F32, n[0], n[1]));
    if (n[2]) args.value = output(b, "value", zeros_of(b, b->element, n[0], n[1]));
    args.gradient = normals_f32(b, n[0], n[1]);
    adamw(b->device, b->stream, args);
    adamw(b->device, b->stream, args);
}

// Puts the two parts of an fp32 tensor in its place.
static void split(Fixture *b, Tensor *x, Tensor *value) {
    Blend parts = {.x = *x, .y = tensor_of(b, U16, x->rows, x->cols), .factor = 1};
    parts.y_value = tensor_of(b, BF16, x->rows, x->cols);
    blend(b->device, b->stream, parts);
    *x = parts.y, *value = parts.y_value;
}

// n[2]: what x is: an fp32 number 0, the parts of one 1. n[3]: what y is: an fp32 number 0, with a value 1, parts 2.
// n[4]: the same use as the optimizer's: a multiple 0, momentum 1, an average 2, a step 3.
static void run_blend(Fixture *b, const int64_t *n, float p) {
    static const double uses[][3] = {{0, 0.7, 0}, {0.9, 0.1, 0}, {1, 0.01, -1}, {1, -0.02, 0.1}};
    const double *use = uses[n[4]];
    (void)p;
    Blend args = {.keep = use[0], .factor = use[1], .own = use[2]};
    args.x = normals_f32(b, n[0], n[1]), args.y = normals_f32(b, n[0], n[1]);
    if (n[2]) split(b, &args.x, &args.x_value);
    if (n[3] == 2) split(b, &args.y, &args.y_value);
    if (n[3] == 1) args.y_value = output(b, "y_value", zeros_of(b, b->element, n[0], n[1]));
    blend(b->device, b->stream, args);
    if (n[3] < 2) {
        output(b, "y", args.y);
        return;
    }
    Blend whole = {.x = args.y, .x_value = args.y_value, .y = tensor_f32(b, n[0], n[1]), .factor = 1};
    output(b, "y", whole.y);
    blend(b->device, b->stream, whole);
}
