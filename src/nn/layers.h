// The parts that the layers of a GPT are made of: linear layers and norms, and the two ends, embedding and loss head.
// Forward and backward are written by hand, each backward split into its input and its weight half. The sublayers
// of a transformer layer are in nn/sublayer.h.
//
// Parameters are declared in global sizes (nn/params.h); after that every tensor is local, and tensor
// parallelism lives in the linear layers alone. Activations and values of parameters are of the run's element
// type E, gradients of parameters F32.
// Letters: B microbatch, S sequence, H hidden, N heads, G groups of heads that share keys and values, D head
// size, F mlp, V padded vocabulary, T = S*B tokens, t tp size; T' = T, or T/t with sequence parallelism.
#pragma once
#include "nn/params.h"
#include "nn/shape.h"
#include "nn/stage.h"

// ---- declaring ----------------------------------------------------------------------------------

// Where the layers of one stage declare their parameters.
typedef struct {
    Params *params;
    const ModelShape *shape;
    const ModelMode *mode;
    int stage;
} Builder;

// The name of a part of a transformer layer, "decoder.layers.3.mlp.linear_fc1".
typedef struct {
    char text[96];
} PartName;
PartName part_name(int layer, const char *part);

// ---- linear -------------------------------------------------------------------------------------

// Tensor parallelism lives here, in a pair of conjugate operators (Shoeybi 2019, section 3): in front of a
// column-parallel linear, identity forward and all-reduce backward; behind a row-parallel one the reverse.
// With sequence parallelism (Korthikanti 2022) x of the first and y of the second hold T/t rows, written T'
// below: all-gather forward and reduce-scatter backward in front, the reverse behind.
typedef struct {
    Param *weight, *bias; // bias NULL: none
} Linear;

typedef struct {
    const char *name;
    int64_t in, out;
    float stddev;
    bool bias;
    int blocks; // of the output, see Shard
} LinearSpec;

// Column-parallel: y = x W^T, W [O/t, I] cut along its output.  Row-parallel: W [O, I/t] cut along its input.
Linear column_linear_declare(const Builder *builder, LinearSpec spec);
Linear row_linear_declare(const Builder *builder, LinearSpec spec);

// The products of the local share alone, without messages: y = x W^T (+ bias), dx = dy W, dW += dy^T x.
void linear_forward(Context *context, const Linear *linear, Tensor x, Tensor bias, Tensor y);
void linear_input_gradient(Context *context, const Linear *linear, Tensor dy, Tensor dx);
void linear_weight_gradient(Context *context, const Linear *linear, Tensor x, Tensor dy);

// x [T', I] -> y [T, O/t], in E or F32.   Stash: x (the caller's).   with_bias false leaves the bias to the
// next, fused operation.   Collective over tp with sequence parallelism.
void column_linear_forward(Context *context, const Linear *linear, Tensor x, Tensor y, bool with_bias);
// INPUT_HALF: dy [T, O/t] -> dx [T', I], db += column sums of dy.   WEIGHT_HALF: dW += dy^T x (dx may be
// absent). Collective over tp.
void column_linear_backward(Context *context, const Linear *linear, Halves halves, Tensor x, Tensor dy,
                            Tensor dx);

// x [T, I/t] -> y [T', O].   Collective over tp.   The bias is the caller's to add, once,
// after the reduction.
void row_linear_forward(Context *context, const Linear *linear, Tensor x, Tensor y);
// INPUT_HALF: dy [T', O] -> dx [T, I/t], db += column sums of dy.   WEIGHT_HALF: dW += dy^T x (dx may be
// absent). Collective over tp with sequence parallelism.
void row_linear_backward(Context *context, const Linear *linear, Halves halves, Tensor x, Tensor dy,
                         Tensor dx);

// ---- norm ---------------------------------------------------------------------------------------

typedef struct {
    Param *gamma, *beta; // beta NULL: RMS norm
    float epsilon;
} Norm;

typedef struct {
    Tensor x, y, mean, rstd;
} NormStash;

Norm norm_declare(const Builder *builder, const char *name);
// x -> stash.y; statistics and y are taken from `stash_arena`.
void norm_apply(Context *context, const Norm *norm, Tensor x, NormStash *stash, Arena *stash_arena);
// dx = residual + gradient of x; dx may be dy or residual. Accumulates the gradients of gamma and beta.
void norm_gradient(Context *context, const Norm *norm, const NormStash *stash, Tensor dy, Tensor residual,
                   Tensor dx);

// ---- embedding and loss: the two ends of the model ----------------------------------------------

typedef struct {
    Param *word, *position; // position NULL: none is learned
    float hidden_dropout;
    RngKey hidden_key;
} Embedding;

Embedding embedding_declare(const Builder *builder);
// tokens -> y [T', H].   Collective over tp: each rank adds the rows it holds.   Stash: nothing.
void embedding_apply(Context *context, const Embedding *embedding, Tensor y, const Microbatch *microbatch);
// Accumulates both tables' gradients. dy [T', H] is used up.   Collective over tp with sequence parallelism.
void embedding_gradient(Context *context, const Embedding *embedding, Tensor dy,
                        const Microbatch *microbatch);

typedef struct {
    Norm norm;
    Linear output; // column-parallel over the vocabulary; tied to the embedding's table or of its own
    int vocabulary;
} LossHead;

LossHead loss_head_declare(const Builder *builder);
// Final norm, logits and vocabulary-parallel cross-entropy of hidden [T', H], a chunk of tokens at a time:
// the logits never exist whole (but see ModelMode), never leave the rank that made them and never outlive the
// call: in training the gradients of the head's weights are accumulated here too, and `hidden` is replaced by
// its own gradient. microbatch->loss and ->margin receive theirs. `logits` (may be absent) receives a copy,
// F32 [T, V/t]. Collective over tp: for each chunk of C tokens MAX of C values and SUM of 2C values, and the
// operators around a column-parallel linear.
void loss_head_apply(Context *context, const LossHead *head, Tensor hidden, const Microbatch *microbatch,
                     Tensor logits);
// What comes next: final norm and logits of the last position of each sequence alone, F32 [B, V/t].
void loss_head_predict(Context *context, const LossHead *head, Tensor hidden, const Microbatch *microbatch,
                       Tensor logits);
