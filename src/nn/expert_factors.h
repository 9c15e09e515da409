// The products of a rank's experts with factors in 8 or 4 bits (nn/factors.h). Each matrix of an expert is a tensor
// with scales of its own. So are the rows that one rank has for it of a microbatch, in whatever rounds they come: where
// there is more than one, the largest magnitudes of all are found before the products. Blocks of rows begin with these,
// and a further round begins with a whole block. So neither the ranks that share the experts nor their rounds change a
// code: each is what the rank with the tokens would make itself. Used in nn/ alone.
//
// Tensor ranks that share each expert make one number of their parts' largest magnitudes, of all experts at once.
#pragma once
#include "nn/expert_stretches.h"
#include "nn/recipes.h"

typedef struct {
    const ExpertWeights *weights;
    const ExpertLinear *linear;
    const ExpertRows *rows;
    LinearProduct product;
} ExpertProducts;

// What a recipe wants of rounds.
DispatchRules expert_factors_rules(const FewBits *few_bits, DispatchRules rules);
// Returns whether products need the largest magnitudes of all rounds (ExpertMaxima), where there may be several.
bool expert_factors_look(const FewBits *few_bits, const Dispatch *dispatch);
// Makes `max` F32 [1, stretches] those of x, too.
void expert_factors_note(Context *context, const ExpertRows *rows, Tensor x, Tensor max);
// Takes the largest over the tensor ranks that share the experts, where each has another part of the factor's tensors.
//   Collective over the ranks of ROLE_EXPERT_TENSOR.
void expert_factors_join(Context *context, const ExpertLinear *linear, LinearFactor which, Tensor max);

// PRODUCT_FORWARD: y = x W^T + b, or without `bias` less; PRODUCT_INPUT: y = x W, x being the gradient of the output.
// `max` are the largest magnitudes of x; absent: they are those of the rows at hand.
//   Collective over the ranks of ROLE_EXPERT_TENSOR.
void expert_factors_rows(Context *context, const ExpertProducts *products, Tensor x, Tensor max,
                         const Param *bias, Tensor y);
// dW += dy^T x, of each source.   Collective over the ranks of ROLE_EXPERT_TENSOR.
void expert_factors_weights(Context *context, const ExpertProducts *products, Tensor dy, Tensor max_dy,
                            Tensor x, Tensor max_x);
