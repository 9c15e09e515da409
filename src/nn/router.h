// The router of a layer with experts: which experts a token goes to, with which weights, and the losses that keep
// experts balanced. Used in nn/ alone.
// Letters: T' rows of this rank, B samples, E experts, k the experts of a token, H hidden.
#pragma once
#include "device/ops.h"
#include "nn/expert_loads.h"
#include "nn/layers.h"

typedef struct {
    Param *weight, *bias; // [E, H]; [1, E] of the logits, or NULL
    Param *choice;        // F32 [1, E] or NULL: added to scores where experts are chosen
    RouterRules rules;
    int layer, experts;
    RngKey jitter;
    bool is_gate; // of one expert, which every token goes to: without losses, capacity and jitter
} Router;

// What is kept of a microbatch.
typedef struct {
    Tensor logits;           // F32 [T', E]
    Tensor weights, experts; // F32 and I32 [T', k]
    Tensor kept;             // I32 [T', k]: the experts, or -1 for a pair that is dropped
    Tensor counts; // F32 [1 or B, E]: of all ranks' rows, in the order of router_sums; absent without losses
} Routing;

Router router_declare(const Builder *builder, int layer);
// The gate of the shared experts: their output is multiplied by the sigmoid of a logit of the token.
Router router_declare_gate(const Builder *builder, int layer);
// Takes what is kept of x [T', H] from `arena`, which may be the scratch memory.
void routing_take(const Context *context, const Router *router, const Microbatch *microbatch,
                  Routing *routing, Arena *arena, int64_t rows);
// Chooses the experts of the rows of x.   Collective over tp and cp where there are losses
// or capacities.
void router_choose(Context *context, const Router *router, const Microbatch *microbatch, Tensor x,
                   const Routing *routing);
bool router_drops(const Context *context, const Microbatch *microbatch); // experts have a capacity
// Makes the gradients of the router's weight and bias from that of the experts' weights, dweights [T', k], and of the
// losses, and adds that of x to dx.
void router_gradient(Context *context, const Router *router, const Microbatch *microbatch,
                     const Routing *routing, Tensor x, Tensor dweights, Tensor dx);
