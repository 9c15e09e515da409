// Adapters of linear layers (LoRA, Hu 2021): y += f (drop(x) A^T) B^T, with A [r, I] and B [O, r] beside a weight that
// stays as it is; f is alpha / r or alpha / sqrt(r) (Kalajdzievski 2023). Used in nn/ alone.
//
// Of a weight that holds several matrices (queries, keys and values; gate and up) the adapter is one for all its rows,
// or one for each matrix. Over tp: a column-parallel layer has all of A on every rank and B cut by rows, so that a rank
// has a part of the gradient of A and of x. A row-parallel layer has A cut by columns and all of B, so that a rank has
// a part of drop(x) A^T, of y and of the gradient of B. What the layer sums over tp anyway is summed with it; the
// gradient of the factor that every rank holds is summed at the end of the step. There is no other message.
#pragma once
#include "nn/layers.h"

Adapter adapter_declare(const Builder *builder, const LinearSpec *linear, Cut cut);
// Takes f drop(x) A^T [T, r] of each part, which the backward reads, from the arena.
void adapter_take_stash(const Adapter *adapter, Arena *arena, int64_t tokens, DType dtype,
                        AdapterStash *stash);
// Adds to y [T, O/t] of x [T, I], or with a row-parallel layer to y [T, O] of x [T, I/t]. `use` NULL, or a context
// whose adapters are off: nothing.
void adapter_forward(Context *context, const Adapter *adapter, const AdapterUse *use, Tensor x, Tensor y);
// Adds to the gradients of A and B, and to dx.
void adapter_backward(Context *context, const Adapter *adapter, const AdapterUse *use, Tensor x, Tensor dy,
                      Tensor dx);
// The sum of r over those of the targets that have an adapter.
int64_t adapter_width(const ModelShape *shape, int targets);
