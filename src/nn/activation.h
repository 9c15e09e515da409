// The activation of an MLP, between its two linear layers. Used in nn/ alone.
#pragma once
#include "nn/layers.h"

typedef struct {
    bool is_gated;
    GateForm gate; // of one that is gated, with its offset and clamp
    float offset, clamp;
    GeluForm form; // of one that is not
} MlpActivation;

MlpActivation activation_of(const ModelShape *shape);
// The outputs of the first linear layer of an MLP of so many inner columns: gate and up, or one.
int64_t activation_inputs(const ModelShape *shape, int64_t width);
// x [T, F] or with a gate [T, 2F], bias [1, as x] or absent -> y [T, F]; dy [T, F] -> dx, which may be x.
void activation_forward(Context *context, const MlpActivation *activation, Tensor x, Tensor bias, Tensor y);
void activation_backward(Context *context, const MlpActivation *activation, Tensor dy, Tensor x, Tensor bias,
                         Tensor dx);
