// Context parallelism in attention: a rank's queries, and the keys and values of whole sequences. Used in nn/ alone.
// Letters as in nn/stage.h; T tokens of this rank, cT of the whole microbatch.
#pragma once
#include "nn/stage.h"

// Neighbouring positions of this rank: their rows of its tensors, and the shape of their call of attention. `before`:
// the rank's positions before them.
typedef struct {
    AttentionShape shape;
    int64_t row, rows, before;
} AttentionPiece;

// Returns piece `i` of the rank's positions in `piece`, and false where there is none: without context parallelism
// there is one with all. `shape` is that of all the rank's positions.
bool attention_piece(const Context *context, const Microbatch *microbatch, AttentionShape shape, int i,
                     AttentionPiece *piece);
// Rows of a tensor [1, T] of values of tokens, or of one [T, C]; absent where that is absent.
Tensor piece_of_tokens(Tensor x, const AttentionPiece *piece);
Tensor piece_of_rows(Tensor x, const AttentionPiece *piece);
// A piece's part of stats or probabilities (attention_forward): those of all pieces lie one after the other.
Tensor piece_of_stats(Tensor stats, const AttentionPiece *piece);
Tensor piece_of_probabilities(Tensor probabilities, const AttentionPiece *piece);

// Returns the keys and values of all positions, kv [cT, 2G/t * D] of attention_forward, in scratch memory; absent
// without context parallelism.   Collective over cp: one all-gather.
Tensor gather_keys(Context *context, const Microbatch *microbatch, AttentionShape shape, Tensor qkv);
// Sums dkv [cT, 2G/t * D] over the ranks, in their order, and joins this rank's share with dq [T, N/t * D] in `dqkv`.
//   Collective over cp: one reduce-scatter.
void scatter_key_gradients(Context *context, const Microbatch *microbatch, AttentionShape shape, Tensor dq,
                           Tensor dkv, Tensor dqkv);
