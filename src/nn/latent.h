// Multi-head latent attention (DeepSeek-V2, 2024): queries, keys and values are made from latents of low rank.
//
//   c = norm(x Wqd)  [rank of queries],  q = c Wqu  [N heads of P + R columns]; without such a rank q = x Wq
//   (d, r) = x Wkvd  [rank of keys and values, R],  (k, v) = norm(d) Wkvu  [N heads of P and V columns]
//
// The last R columns of a query are rotated, and so is r, which ends the keys of all heads. The core of attention reads
// heads of D columns (AttentionShape): the rotated columns first, zeros behind what is narrower.
//
// The up projections are cut by heads over tp. The down projections and norms are whole on every tp rank, which uses
// them on its rows of x. Used in nn/ alone.
#pragma once
#include "nn/layers.h"

typedef struct {
    Linear q_down, q_up, kv_down, kv_up; // weight of q_down NULL: queries have no latent
    Norm q_norm, kv_norm;
    int64_t plain, rotated, values, columns; // P, R, V, D
} Latent;

typedef struct {
    NormStash q, kv; // x: latents [T', rank]; the input half puts their gradients in their place
    Tensor rotated;  // r [T', R]; likewise
} LatentStash;

// All zeros where the model has no latents.
Latent latent_declare(const Builder *builder, int layer);
int64_t latent_heads(const Latent *latent); // N/t
// Computes qkv [T, 3 N/t D] from x [T', H], before rotations.   Stash: x, which the caller keeps; latents.
//   Collective over tp with sequence parallelism.
void latent_forward(Context *context, const Latent *latent, Tensor x, Tensor qkv, LatentStash *stash,
                    Arena *arena);
// INPUT_HALF computes dx [T', H] from dqkv; WEIGHT_HALF adds to the gradients of the linear layers; dx may be absent.
//   Collective over tp.
void latent_backward(Context *context, const Latent *latent, Halves halves, Tensor x,
                     const LatentStash *stash, Tensor dqkv, Tensor dx);
// Between the heads of the core, D columns each, and those of the projection, V each: makes one of the other, with
// zeros behind.
void latent_widen(Context *context, const Latent *latent, Tensor narrow, Tensor wide);
void latent_narrow(Context *context, const Latent *latent, Tensor wide, Tensor narrow);

ParamCount latent_parameters(const ModelShape *shape); // all but the norm of x and the projection
double latent_weights(const ModelShape *shape);        // weights of its products
// Writes the stash terms and returns how many they are.
int latent_stash_terms(const ModelShape *shape, const ModelMode *mode, int tp, StashTerm *terms);
