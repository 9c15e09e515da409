// The products of linear layers with factors in 8 bits: y = x W^T with both in E4M3, dx = dy W and dW = dy^T x with dy
// in E5M2 or E4M3 (Float8). What goes in and out is bf16, gradients of weights F32, and sums are made in fp32. Used in
// nn/ alone.
//
// Current scaling: a tensor has one scale, that of its largest magnitude now. Of a tensor of which each tp rank holds a
// part, that is the largest of all parts: a scale belongs to the global tensor, and t changes rounding alone. Factors
// are made where they are used, in scratch memory: what is stashed, sent and kept for the optimizer does not change, so
// neither do checkpoints, and a layer that is computed again gets the same factors.
// Source: Micikevicius 2022; the choice of formats is Transformer Engine's, as is the scale.
#pragma once
#include "nn/layers.h"

// As linear_forward, linear_input_gradient and linear_weight_gradient, for a linear layer with `float8`.   Collective
// over tp.
void float8_forward(Context *context, const Linear *linear, Tensor x, Tensor bias, Tensor y);
void float8_input_gradient(Context *context, const Linear *linear, Tensor dy, Tensor dx);
void float8_weight_gradient(Context *context, const Linear *linear, Tensor x, Tensor dy);
