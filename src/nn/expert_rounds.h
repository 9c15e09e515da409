// The rows of a layer's pairs through its experts, wherever these are: at once where a rank has all of them, else by
// way of other ranks in rounds (nn/dispatch.h), in the order that layout/rounds.h lists and proves. Used in nn/ alone.
//
// Of the first round everything stays from the forward to the backward that its gradients need. Later rounds are rare:
// there is one only where a rank has much more for another one than the mean. So nothing is kept of them, and the
// backward sends and computes their rows again; the memory for that is taken in any case, so that it depends on sizes
// alone.
#pragma once
#include "nn/expert_rows.h"

// What is kept of a microbatch. n: the pairs of this rank; R: n where this rank has all experts, else the rows of a
// round.
typedef struct {
    DispatchPlan plan; // plan.mine: this rank's pairs of each expert
    Tensor rows;       // [R, H] of round 0; absent where this rank has all experts
    Tensor inner,
        core;   // [R, 2F], [R, F] of round 0; the input half puts the gradient of `inner` in its place
    Tensor out; // [n, H] by expert; the caller puts its gradient in its place
    // F32 [1, E] each, where products need those of all rounds and there may be several; and those of this rank's rows.
    ExpertMaxima maxima;
    Tensor own_maxima;
} ExpertsKept;

// Counts this rank's pairs, of which `counts` I32 [1, E] are each expert's, and plans the rounds.
//   Collective over the ranks of ROLE_EXPERT.
void experts_plan(Context *context, const Dispatch *dispatch, Tensor counts, int64_t pairs,
                  ExpertsKept *kept);
int64_t experts_pairs(const Dispatch *dispatch, const ExpertsKept *kept); // that are not dropped
// Takes what is kept of `pairs` pairs from `arena`, which may be the scratch memory.
void experts_take(const Context *context, const ExpertWeights *weights, const Dispatch *dispatch,
                  ExpertsKept *kept, Arena *arena, int64_t pairs, int64_t hidden);
// Computes kept->out from `sorted` [n, H], the rows of the pairs by expert.   Collective over the ranks of ROLE_EXPERT.
void experts_forward(Context *context, const ExpertWeights *weights, const Dispatch *dispatch,
                     const ExpertsKept *kept, Tensor sorted);
// INPUT_HALF computes drows [n, H], the gradient of `sorted`, from kept->out. WEIGHT_HALF adds to the gradients of the
// weights. Where it may need `sorted` it must have memory, and where experts_need_rows says so, its values.
//   Collective over the ranks of ROLE_EXPERT.
void experts_backward(Context *context, const ExpertWeights *weights, const Dispatch *dispatch,
                      const ExpertsKept *kept, Halves halves, Tensor sorted, Tensor drows);
bool experts_need_rows(const Dispatch *dispatch, const ExpertsKept *kept, Halves halves);
