// What the experts of a rank make of rows: the products of each expert with its stretches of rows, forward and
// backward. Used in nn/ alone.
#pragma once
#include "nn/activation.h"
#include "nn/dispatch.h"

// The weights of this rank's experts: matrix e of each is the e-th expert's.
typedef struct {
    Param *fc1, *fc2;           // [E * 2f, H] with a gate, else [E * f, H]; [E * H, f]
    Param *fc1_bias, *fc2_bias; // [E, 2f] or [E, f]; [E, H]; NULL: there are none
    int experts;                // E, those of this rank
    MlpActivation activation;
} ExpertWeights;

// The stretches of a number of rows that belong to experts, in the order of memory; there may be rows of none between
// them. `sources`: whose tokens they are of, whose gradients are kept apart (Params.sources).
typedef struct {
    int count, sources;
    DispatchStretch stretches[MAX_EXPERTS];
} ExpertRows;

// The rows of one rank that has all experts: counts[e] rows of expert e, one expert's after the other's.
void expert_rows_of(ExpertRows *rows, const int32_t *counts, int experts);
// Those of a round.
void expert_rows_of_round(ExpertRows *rows, const Dispatch *dispatch, const DispatchPlan *plan, int round);

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
