// The products of linear layers with factors in 8 or 4 bits: y = x W^T, dx = dy W and dW = dy^T x, each factor
// quantised as the recipe's row says (nn/recipes.h). What goes in and out is bf16, gradients of weights F32, and sums
// are made in fp32. Used in nn/ alone.
//
// Current scaling: a tensor has one scale, that of its largest magnitude now. Of a tensor of which each tp rank holds a
// part, that is the largest of all parts: a scale belongs to the global tensor, and t changes rounding alone. Delayed
// scaling: the scale is that of earlier steps (nn/amax.h). Blocks lie within a rank's part, and their scales need no
// other rank; only NVFP4's one scale of the tensor does.
// Factors are made where they are used, in scratch memory (nn/factors.h): what is stashed, sent and kept for the
// optimizer does not change, and a layer that is computed again gets the same factors. Checkpoints have the history of
// delayed scaling beside what they always have. Rounding at random follows the tensor, the sample and the element, on
// every grid.
// Source: Micikevicius 2022; the choice of formats is Transformer Engine's, as are the scales.
#pragma once
#include "nn/layers.h"

// As linear_forward, linear_input_gradient and linear_weight_gradient, for a linear layer with few bits.   Collective
// over tp.
void float8_forward(Context *context, const Linear *linear, Tensor x, Tensor bias, Tensor y);
void float8_input_gradient(Context *context, const Linear *linear, Tensor dy, Tensor dx);
void float8_weight_gradient(Context *context, const Linear *linear, Tensor x, Tensor dy);
