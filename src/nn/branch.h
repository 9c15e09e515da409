// The common part of the attention and MLP sublayers, y = residual + dropout(scale * post(out(core(in(norm(x))))) +
// bias), with a norm, a column-parallel linear `in`, a core of their own, a row-parallel linear `out` and another
// norm; models have one of the norms or both. Used in nn/ alone.
#pragma once
#include "nn/sublayer.h"

// The parameters. The first member of the record of a sublayer that is a branch.
typedef struct {
    Norm norm, post; // without gamma: it is none
    Linear in, out;
    float scale; // 0: 1
    float hidden_dropout;
    RngKey hidden_key;
} Branch;

// The stash. The first member of the stash record of such a sublayer.
typedef struct {
    NormStash norm; // y is the input of `in`: without a norm x itself
    NormStash post; // x is the output of `out`; what the weight half needs of its gradient takes its place
    Tensor inner;   // [T, I/t], the output of `in`; its gradient takes its place
    Tensor core;    // [T, O/t], the input of `out`
    AdapterStash in_adapter, out_adapter;
} BranchStash;

// The core of a branch: its work between the two linear layers.
typedef struct {
    const char *inner_name, *core_name, *core_gradient_name; // names of tensors
    bool fused_bias; // the first operation of `forward` adds the bias of `in`
    // A device that is fused makes the gradient of `inner` apart where no weight half follows later: written in place,
    // it would be copied.
    bool gradient_apart;
    // What takes the place of `in` where that has no weight, or NULL. `width` are the columns of `inner`, which
    // `in_forward` computes from norm.y of the stash. `in_backward` takes its gradient to that of norm.y, dx, which is
    // absent in a weight half.
    int64_t (*width)(const SublayerArgs *args);
    void (*in_forward)(const SublayerArgs *args);
    void (*in_backward)(const SublayerArgs *args, Tensor dinner, Tensor dx);
    // What takes the place of both linear layers and all between them where neither has a weight, or NULL: from norm.y
    // of the stash to the output [T', H], and from the gradient of that to the gradient of norm.y, dx, which is absent
    // in a weight half. The other functions are then not called.
    void (*all_forward)(const SublayerArgs *args, Tensor out);
    void (*all_backward)(const SublayerArgs *args, Tensor dout, Tensor dx);
    // Returns whether the core is GELU in its tanh form, which a device that is fused joins with `in` and `out`. NULL:
    // no.
    bool (*is_gelu)(const SublayerArgs *args);
    void (*forward)(const SublayerArgs *args); // computes `core` of the stash from `inner`
    // Computes the gradient of `inner`, which takes its place or goes to a tensor of its own.
    void (*backward)(const SublayerArgs *args, Tensor dcore, Tensor dinner);
} Core;

// Declares the parameters, none for an `in` or `out` without a name. `norm`, `post` and the names of `in` and `out` are
// those of the layer's parts, as in Megatron-LM; `dropout` names the stream of random numbers. Sizes on the side of the
// residual stream, and deviations, are set here.
Branch branch_declare(const Builder *builder, int layer, const char *norm, const char *post, LinearSpec in,
                      LinearSpec out, const char *dropout);
void branch_forward(const SublayerArgs *args, const Core *core);
void branch_backward(const SublayerArgs *args, const Core *core);
int64_t branch_norm_parameters(const ModelShape *shape); // of its norms
// Writes the stash terms of the norms, their inputs and the output of the first, and of the adapters of the linear
// layers `targets`, and returns how many they are.
int branch_stash_terms(const ModelShape *shape, const ModelMode *mode, int tp, int targets, StashTerm *terms);
