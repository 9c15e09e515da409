// Attention to sequences that several ranks share (context parallelism). Used in nn/ alone.
// Letters as in nn/stage.h; T tokens of this rank, cT of the whole microbatch.
#pragma once
#include "nn/stage.h"

// attention_forward and attention_backward of a microbatch, where a rank has the queries, keys and values of its own
// positions: without context parallelism those calls themselves. `call` says what this rank has. stats and
// probabilities are room of that size, [B*N/t, S/c] and [B*N/t * S/c, S], laid out as the way of sharing needs it;
// first_key is the microbatch's.   Collective over cp.
void shared_attention_forward(Context *context, const Microbatch *microbatch, AttentionForward call);
void shared_attention_backward(Context *context, const Microbatch *microbatch, AttentionBackward call);

// A way in which ranks share sequences, for microbatches that are cut.
typedef struct {
    void (*forward)(Context *context, const Microbatch *microbatch, AttentionForward call);
    void (*backward)(Context *context, const Microbatch *microbatch, AttentionBackward call);
} AttentionWay;
extern const AttentionWay by_whole_keys;  // every rank gets the keys and values of all: CONTEXT_ALL_GATHER
extern const AttentionWay by_whole_heads; // every rank gets whole sequences of some heads: CONTEXT_ALL_TO_ALL
extern const AttentionWay by_ring;        // keys and values go round: CONTEXT_RING

// y = the rows of x in the order of `rows`.
void reorder_rows(Context *context, Tensor rows, Tensor x, Tensor y);
// Neighbouring positions of a rank: their rows of its tensors, and the shape of their call of attention to all keys.
// `before`: the rank's positions before them.
typedef struct {
    AttentionShape shape;
    int64_t row, rows, before;
} AttentionPiece;
// Writes piece `i` of this rank's positions, or returns false where there is none. `shape` is that of all of them.
bool attention_piece(const Context *context, const Microbatch *microbatch, AttentionShape shape, int i,
                     AttentionPiece *piece);
// The piece's part of a call for all of the rank's positions; stats and probabilities of the pieces lie one after the
// other.
AttentionForward forward_of_piece(AttentionForward call, const AttentionPiece *piece);
AttentionBackward backward_of_piece(AttentionBackward call, const AttentionPiece *piece);
// kv = the keys and values of qkv, which `shape` describes; dqkv = the gradients of queries beside those of keys and
// values.
void take_keys(Context *context, AttentionShape shape, Tensor qkv, Tensor kv);
void join_gradients(Context *context, AttentionShape shape, Tensor dq, Tensor dkv, Tensor dqkv);
