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

// The registry in which the layers of one stage declare their parameters, and what they need for it.
typedef struct {
    Params *params;
    const ModelShape *shape;
    const ModelMode *mode;
    int stage;
} Builder;

// The end of the name of the sinks of attention.
#define SOFTMAX_OFFSET "softmax_offset"

// The name of a part of a transformer layer, such as "decoder.layers.3.mlp.linear_fc1".
typedef struct {
    char text[96];
} PartName;
PartName part_name(int layer, const char *part);

// ---- linear -------------------------------------------------------------------------------------

// Linear layers carry tensor parallelism, as a pair of conjugate operators (Shoeybi 2019, section 3). Before a
// column-parallel linear stands an identity in the forward and an all-reduce in the backward; after a row-parallel
// linear the reverse. With sequence parallelism (Korthikanti 2022) x of the first and y of the second hold T' = T/t
// rows: an all-gather in the forward and a reduce-scatter in the backward, and the reverse.
//
// Beside its weight a layer may have adapters (nn/adapter.h): one for all its rows, or for several parts of them.

// The rows of a linear layer that a target of adapters stands for: of every `all` units in turn `own`, after `before`.
// A unit are `unit` rows, or with 0 so many that there is one turn. `all` 0: all rows, where `own` is 1.
typedef struct {
    int target; // its number in LORA_TARGETS (config/lora.h)
    int before, own, all;
    int64_t unit;
} LinearPart;

enum { MAX_PARTS = 4 }; // that a layer could have an adapter for

typedef struct {
    LinearPart of;
    Param *a, *b; // [r, I], [rows of the part, r]
} AdapterPart;

typedef struct {
    AdapterPart parts[MAX_PARTS];
    int num_parts; // 0: the layer has no adapter
    bool is_row_parallel;
    float scale, dropout;
    RngKey key;
} Adapter;

// What an adapter keeps of a microbatch for its backward.
typedef struct {
    Tensor low[MAX_PARTS]; // of each part [T, r]
} AdapterStash;

typedef struct {
    const Microbatch *microbatch;
    const AdapterStash *stash; // the forward writes the tensors
} AdapterUse;

// How products take factors of few bits, and what their scales need (nn/factors.h). FLOAT8_NONE: their factors are in
// the element type.
typedef struct {
    Float8 format;
    ScalingRecipe recipe;
    RngKey rounding[2]; // of the gradient of the output in the products for the input and for the weight
    int history;        // the first row of its history of largest magnitudes: of each matrix x, W, dy
} FewBits;

typedef struct {
    Param *weight, *bias; // bias NULL: the layer has none
    Adapter adapter;
    FewBits few_bits;
} Linear;

typedef struct {
    const char *name;
    int64_t in, out;
    float stddev;
    bool bias;
    int blocks;                     // of the output, see Cut; 0: one
    int64_t matrices[MAX_MATRICES]; // of the weight, see ParamSpec; zeros: one
    LinearPart parts[MAX_PARTS];    // zeros: adapters are not for this layer
} LinearSpec;

// Declare the parameters of a linear layer, y = x W^T + b. Column-parallel: W [O/t, I] is cut along its output.
// Row-parallel: W [O, I/t] is cut along its input.
// Whole: every tp rank has all of W, and uses it on its rows [T', I]; it has no bias and no adapters.
Linear column_linear_declare(const Builder *builder, LinearSpec spec);
Linear row_linear_declare(const Builder *builder, LinearSpec spec);
Linear whole_linear_declare(const Builder *builder, LinearSpec spec);

// Compute the products of the local share, without communication except for scales of 8 bits: y = x W^T (+ bias),
// dx = dy W, dW += dy^T x.
void linear_forward(Context *context, const Linear *linear, Tensor x, Tensor bias, Tensor y);
void linear_input_gradient(Context *context, const Linear *linear, Tensor dy, Tensor dx);
void linear_weight_gradient(Context *context, const Linear *linear, Tensor x, Tensor dy);

// Computes y [T, O/t], in E or F32, from x [T', I]. `with_bias` false: the next operation adds the bias. `use` of this
// and of the functions below: NULL for a layer without adapters.
//   Stash: x, which the caller keeps.   Collective over tp with sequence parallelism.
void column_linear_forward(Context *context, const Linear *linear, const AdapterUse *use, Tensor x, Tensor y,
                           bool with_bias);
// Computes y = gelu(x W^T + b) [T, O/t] in the tanh form, and `aux`, like y, which its gradient needs; for devices that
// are fused, and layers without adapters.   Stash: x, aux.   Collective over tp with sequence parallelism.
void column_linear_gelu_forward(Context *context, const Linear *linear, Tensor x, Tensor aux, Tensor y);
// INPUT_HALF computes dx [T', I] from dy [T, O/t] and adds the column sums of dy to db. WEIGHT_HALF adds dy^T x to
// dW; dx may be absent.   A device that is fused makes the sums in the weight half. Gradients of parameters that are
// frozen are not made; those of adapters are made in the input half, which reads x.   Collective over tp.
void column_linear_backward(Context *context, const Linear *linear, const AdapterUse *use, Halves halves,
                            Tensor x, Tensor dy, Tensor dx);

// Computes y [T', O] from x [T, I/t], without the bias, which the caller adds once after the reduction.
//   Collective over tp.
void row_linear_forward(Context *context, const Linear *linear, const AdapterUse *use, Tensor x, Tensor y);
// INPUT_HALF computes dx [T, I/t] from dy [T', O] and adds the column sums of dy to db. WEIGHT_HALF adds dy^T x to
// dW; dx may be absent. Frozen parameters and adapters as above.   Collective over tp with sequence parallelism.
void row_linear_backward(Context *context, const Linear *linear, const AdapterUse *use, Halves halves,
                         Tensor x, Tensor dy, Tensor dx);
// The same where x is the y of column_linear_gelu_forward, with its aux: dx is the gradient of what went into the GELU.
// It takes no other tensor's place.
void row_linear_gelu_backward(Context *context, const Linear *linear, Halves halves, Tensor x, Tensor dy,
                              Tensor aux, Tensor dx);

// The backward of a whole one, whose forward is linear_forward: INPUT_HALF computes dx [T', I] from dy [T', O],
// WEIGHT_HALF adds dy^T x to dW; dx may be absent.
void whole_linear_backward(Context *context, const Linear *linear, Halves halves, Tensor x, Tensor dy,
                           Tensor dx);

// ---- norm ---------------------------------------------------------------------------------------

typedef struct {
    Param *gamma, *beta;   // beta NULL: this is an RMS norm
    float epsilon, offset; // it scales by offset + gamma
} Norm;

typedef struct {
    Tensor x, y, mean, rstd;
} NormStash;

Norm norm_declare(const Builder *builder, const char *name);
Norm latent_norm_declare(const Builder *builder, const char *name,
                         int64_t columns);        // of a latent (nn/latent.h)
int64_t norm_parameters(const ModelShape *shape); // of one norm
// Computes stash->y, the norm of x. y and the statistics of the rows are allocated from `stash_arena`.
void norm_apply(Context *context, const Norm *norm, Tensor x, NormStash *stash, Arena *stash_arena);
// Computes the norm of x into y, which the caller keeps or not: no gradient needs it.
void norm_apply_to(Context *context, const Norm *norm, Tensor x, Tensor y, NormStash *stash,
                   Arena *stash_arena);
// Computes dx = residual + the gradient of x, and adds to the gradients of gamma and beta. dx may be dy or residual.
void norm_gradient(Context *context, const Norm *norm, const NormStash *stash, Tensor dy, Tensor residual,
                   Tensor dx);

// ---- embedding and loss: the two ends of the model ----------------------------------------------

typedef struct {
    Param *word, *position; // position NULL: positions are not learned
    float multiplier;       // of the word's row; 0: 1
    float hidden_dropout;
    RngKey hidden_key;
} Embedding;

Embedding embedding_declare(const Builder *builder);
// Computes y [T', H] from the tokens. Each tp rank adds the rows of the word table that it holds.
//   Collective over tp.   Stash: nothing.
void embedding_apply(Context *context, const Embedding *embedding, Tensor y, const Microbatch *microbatch);
// Adds to the gradients of both tables; overwrites dy [T', H].   Collective over tp with sequence parallelism.
void embedding_gradient(Context *context, const Embedding *embedding, Tensor dy,
                        const Microbatch *microbatch);

typedef struct {
    Norm norm;
    Linear output; // column-parallel over the vocabulary; its weight is tied to the word table or its own
    int vocabulary;
    float input_scale; // of the norm's output, 1 / ModelShape.logits_scaling; 0: 1
    float cap;         // logits x become cap * tanh(x / cap); 0: they stay
} LossHead;

LossHead loss_head_declare(const Builder *builder);
// Computes the final norm, the logits and the vocabulary-parallel cross-entropy of hidden [T', H], and writes
// microbatch->loss and ->margin. It works on a chunk of tokens at a time, so that the logits never exist whole (except
// with ModelMode.whole_logits), stay on the rank that made them and do not outlive the call: in training this call
// also adds to the gradients of the head's weights and replaces `hidden` by its gradient. `logits`, F32 [T, V/t],
// receives a copy unless it is absent.
//   Collective over tp: for each chunk of C tokens a MAX of C values and a SUM of 2C values, unless t is 1, and the
// operators around a column-parallel linear. C follows from the kind of device, H and the vocabulary.
void loss_head_apply(Context *context, const LossHead *head, Tensor hidden, const Microbatch *microbatch,
                     Tensor logits);
// Computes the final norm and the logits of the last position of each sequence, F32 [B, V/t], from which the next
// token is chosen.   Collective over tp.
void loss_head_predict(Context *context, const LossHead *head, Tensor hidden, const Microbatch *microbatch,
                       Tensor logits);
