// The norms of queries and keys, before they are rotated: of each head, or of all heads of a token over all tp ranks.
// Used in nn/ alone.
#pragma once
#include "nn/layers.h"

typedef struct {
    Param *query,
        *key; // gammas: [1, D], or [1, N/t * D] and [1, G/t * D] of all heads together; NULL: there is no norm
    bool all;
    float epsilon, offset; // see Norm
} QkNorms;

typedef struct {
    Tensor normed; // [T, (N + 2G)/t * D]: qkv with normalised queries and keys; absent: there is no norm
    Tensor rstd;   // F32 [T, (N + G)/t]
} QkNormStash;

QkNorms qk_norm_declare(const Builder *builder, int layer);
int64_t qk_norm_parameters(const ModelShape *shape,
                           bool cut); // those that are cut over tp, or those that are whole
// Computes stash->normed, allocated from `arena`.   Collective over tp where all heads are one norm.
void qk_norm_apply(Context *context, const QkNorms *norms, Tensor qkv, AttentionShape shape,
                   QkNormStash *stash, Arena *arena);
// Computes dqkv, which may be qkv or dnormed, and adds to the gradients of the gammas.   Collective as above.
void qk_norm_gradient(Context *context, const QkNorms *norms, Tensor qkv, AttentionShape shape,
                      const QkNormStash *stash, Tensor dnormed, Tensor dqkv);
