// The weights of a rank's experts, and which of the rows that it has are whose. Used in nn/ alone.
#pragma once
#include "nn/activation.h"
#include "nn/dispatch.h"

// A linear layer of each of this rank's experts: matrix e of the weight is the e-th expert's, and row e of the bias.
typedef struct {
    Param *weight, *bias; // bias NULL: there is none
    FewBits few_bits;     // of the matrices of all ranks
} ExpertLinear;

// The weights of this rank's experts.
typedef struct {
    ExpertLinear fc1, fc2; // [E * 2f, H] with a gate, else [E * f, H]; [E * H, f]
    int experts;           // E, those of this rank
    MlpActivation activation;
} ExpertWeights;

// F32 [1, stretches] the largest magnitudes of all rounds' rows of each stretch, of the tensors that products take:
// what the experts read, the activation, and the gradients of the output and of `inner`. Absent: those of the rows at
// hand (nn/expert_factors.h).
typedef struct {
    Tensor x, core, dy, dinner;
} ExpertMaxima;

// The stretches of a number of rows that belong to experts, in the order of memory; there may be rows of none between
// them. Stretch i is one of expert i % E. `sources`: whose tokens they are of, whose gradients are kept apart
// (Params.sources).
typedef struct {
    int count, sources;
    int64_t most; // rows that a stretch may have
    ExpertMaxima maxima;
    DispatchStretch stretches[MAX_EXPERTS];
} ExpertRows;

// The rows of one rank's tokens for all experts of the layer: plan->mine[e] rows of expert e, one expert's after the
// other's.
void expert_rows_of(ExpertRows *rows, const Dispatch *dispatch, const DispatchPlan *plan);
// Those of a round.
void expert_rows_of_round(ExpertRows *rows, const Dispatch *dispatch, const DispatchPlan *plan, int round);

// The matrix of an expert, of all in the weight or its gradient, and the rows of a stretch.
Tensor expert_matrix(const ExpertWeights *weights, Tensor all, int expert);
Tensor expert_stretch(Tensor x, const DispatchStretch *stretch);
