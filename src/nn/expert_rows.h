// What the experts of a rank make of rows: the products of each expert with its stretches of rows, forward and
// backward. Used in nn/ alone.
#pragma once
#include "nn/expert_stretches.h"

// Letters: R the rows of a tensor, as many as there may be; F the inner columns of all tensor ranks' shares here.
// Compute inner [R, 2F] = x W1^T + b1 and core [R, F], the activation of it; y [R, H] = core W2^T + b2, which is a
// partial sum where tensor ranks share each expert: the first of these adds b2.
void expert_inner_forward(Context *context, const ExpertWeights *weights, const ExpertRows *rows, Tensor x,
                          Tensor inner, Tensor core);
void expert_outer_forward(Context *context, const ExpertWeights *weights, const ExpertRows *rows, Tensor core,
                          Tensor y);
// The gradient of `inner`, which takes its place, from that of y; and dx [R, H] from that, a partial sum as above.
void expert_outer_gradient(Context *context, const ExpertWeights *weights, const ExpertRows *rows, Tensor dy,
                           Tensor inner);
void expert_inner_gradient(Context *context, const ExpertWeights *weights, const ExpertRows *rows,
                           Tensor dinner, Tensor dx);
// Adds dy^T core to the gradient of W2, dinner^T x to that of W1, and the sums of the rows of dy and of dinner to those
// of the biases. All tensor ranks that share an expert have the same dy, so that of b2 is whole on each.
void expert_weight_gradient(Context *context, const ExpertWeights *weights, const ExpertRows *rows, Tensor x,
                            Tensor dinner, Tensor core, Tensor dy);
