// The layers of a GPT, written forward and backward by hand, each backward split into its input and its
// weight half.
//
// A layer *declares* its parameters in the one registry (global name, global shape, how it is cut over tp,
// init, decay, tie); *placing* gives the local share addresses. Global sizes appear in declarations only;
// after that every tensor is local, and tensor parallelism lives in two operators (Shoeybi 2019, section 3):
// f is identity forward and all-reduce backward, in front of a column-parallel linear; g is all-reduce
// forward and identity backward, behind a row-parallel one. Letters: B microbatch, S sequence, H hidden, N
// heads, D head size, F mlp, V padded vocabulary, T = S*B tokens, t tp size.
#pragma once
#include "comm/comm.h"
#include "layout/layout.h"

// ---- the model's sizes --------------------------------------------------------------------------

typedef struct {
    int layers, hidden, heads, head_size, ffn, sequence,
        positions;         // positions: rows of the position table, >= sequence
    int vocabulary;        // entries that exist
    int padded_vocabulary; // V: rows of the table, a multiple of (divisor * t); the rest never takes part in
                           // anything
    int microbatch;        // B
    float hidden_dropout, attention_dropout, norm_epsilon, init_std;
    uint64_t seed;
} ModelShape;

// The smallest multiple of divisor * tp that holds `vocabulary` entries.
int padded_vocabulary(int vocabulary, int divisor, int tp);
int64_t model_parameters(const ModelShape *shape); // of the unpadded model, tied embedding counted once
// Model FLOPs of one iteration over `samples` sequences, attention counted in full, nothing recomputed:
// 72 B L S H^2 (1 + S/6H + V/12LH) for F = 4H (Korthikanti 2022, eq. 7), in general 6 per weight and token
// plus attention.
double model_flops(const ModelShape *shape, double samples);

// ---- parameters: one registry, many readers -----------------------------------------------------

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL } Init;

typedef struct {
    char name[96];      // global, as in Megatron-LM: "decoder.layers.3.mlp.linear_fc1.weight"
    int64_t rows, cols; // global shape; a vector is one row
    Shard shard;        // how it is cut over tp
    Init init;
    float stddev;        // of INIT_NORMAL
    int64_t real_rows;   // rows from here on are padding: zero for ever
    bool decay;          // weight decay applies (matrices, not biases and norms)
    int stage;           // the model stage that holds it
    const char *tied_to; // the name of the parameter this is a copy of, or NULL
} ParamSpec;

typedef struct Param {
    ParamSpec spec;
    int chunk;            // of this rank, or -1: on another pipeline rank; then the tensors are absent
    Tensor value, grad;   // local share; grad is the fp32 accumulator
    Tensor m, v;          // AdamW moments; absent where the owner of a shared value steps it
    struct Param *shares; // the local parameter whose value this one uses (a tie within one rank), or NULL
} Param;

typedef struct {
    Param **items; // in the model's order, the same list on every rank
    int count, capacity;
    // [chunks]: all gradients of a chunk, one after the other: what data parallelism reduces.
    Tensor *chunk_grads;
    int num_chunks;
} Params;

Param *params_declare(Params *params, ParamSpec spec);
Param *params_find(const Params *params, const char *name); // NULL when there is none
// Gives local parameters their memory: `stage_of_chunk[c]` is the stage that chunk c of this rank holds.
void params_place(Params *params, Arena *arena, int tp, const int *stage_of_chunk, int num_chunks);
// Every element is a function of (seed, name, its global index): the same model on any grid.
// ERR_OS without host memory for the largest of them.
Status params_init(const Params *params, Device *device, uint64_t seed, int tp_size, int tp_rank);
void params_zero_grads(const Params *params, Device *device);
void params_free(Params *params);
int64_t param_local_count(const Param *param, int tp);
// Copies the local share out of a whole tensor held by the host, and back into it. For init, tests and files.
void param_slice(const Param *param, int tp_size, int tp_rank, const float *whole, float *local);
void param_unslice(const Param *param, int tp_size, int tp_rank, const float *local, float *whole);

// ---- context: all that a layer may use ----------------------------------------------------------

typedef struct {
    Device *device;
    Stream *stream;
    Grid grid;
    Place place;
    Comm *tp, *dp, *pp;
    Comm *model;     // tp x pp: the ranks that hold one copy of the model
    Comm *embedding; // first and last stage of this pipeline; NULL on other stages and when pp is 1
    Arena *scratch;  // within one instruction
} Context;

// What one microbatch brings along.
typedef struct {
    Tensor tokens, labels; // I32 [1, T]; absent on stages that need none
    Tensor mask;           // F32 [1, T] or absent: which labels count
    Tensor loss;           // F32 [1, T], written by the last stage
    float loss_scale;      // of each counted token's gradient
    int64_t first_sample;  // of its samples, numbered over the whole run
    int64_t samples;       // B
    bool training;         // false: no dropout, no gradients
} Microbatch;

// The mask of one dropout site on this microbatch; keeps everything when not training.
Dropout microbatch_dropout(const Microbatch *microbatch, RngKey key, float probability);

// ---- linear -------------------------------------------------------------------------------------

typedef struct {
    Param *weight, *bias;
} Linear;

// Column-parallel: y = x W^T, W [O/t, I] cut along its output.  Row-parallel: W [O, I/t] cut along its input.
Linear column_linear_declare(Params *params, const char *name, int stage, int64_t in, int64_t out,
                             float stddev);
Linear row_linear_declare(Params *params, const char *name, int stage, int64_t in, int64_t out, float stddev);

// x [T, I] -> y [T, O/t].   Stash: x (the caller's).   with_bias false leaves the bias to the next, fused
// operation.
void column_linear_forward(Context *context, const Linear *linear, Tensor x, Tensor y, bool with_bias);
// dy [T, O/t] -> dx [T, I].   Collective over tp: one all-reduce of dx (the f operator).
void column_linear_backward_input(Context *context, const Linear *linear, Tensor dy, Tensor dx);

// x [T, I/t] -> y [T, O].   Collective over tp: one all-reduce of y (the g operator).   The bias is the
// caller's to add, once, after the reduction.
void row_linear_forward(Context *context, const Linear *linear, Tensor x, Tensor y);
// dy [T, O] -> dx [T, I/t].   Local.
void row_linear_backward_input(Context *context, const Linear *linear, Tensor dy, Tensor dx);

// dW += dy^T x, db += column sums of dy.   Local, for both kinds.
void linear_backward_weight(Context *context, const Linear *linear, Tensor x, Tensor dy);

// ---- layer norm ---------------------------------------------------------------------------------

typedef struct {
    Param *gamma, *beta;
    float epsilon;
} Norm;

typedef struct {
    Tensor x, y, mean, rstd;
} NormStash;

Norm norm_declare(Params *params, const char *name, int stage, const ModelShape *shape);
// x -> stash.y; statistics and y are taken from `stash_arena`.
void norm_apply(Context *context, const Norm *norm, Tensor x, NormStash *stash, Arena *stash_arena);
// dx = residual + gradient of x; dx may be dy or residual.
void norm_input_gradient(Context *context, const Norm *norm, const NormStash *stash, Tensor dy,
                         Tensor residual, Tensor dx);
void norm_weight_gradient(Context *context, const Norm *norm, const NormStash *stash, Tensor dy);

// ---- the two halves of a transformer layer: x + dropout(... norm(x) ... + bias) -----------------

typedef struct {
    Norm norm;
    Linear qkv, proj;            // qkv rows ordered per head (q, k, v): a cut by heads
    int64_t sequence, head_size; // S, D
    float attention_dropout, hidden_dropout;
    RngKey attention_key, hidden_key;
} Attention;

typedef struct {
    NormStash norm;
    Tensor qkv, out, stats; // [T, 3H/t], [T, H/t], [B*N/t, S]
} AttentionStash;

// What the input half of a backward leaves for the weight half.
typedef struct {
    Tensor dproj, dqkv, dnorm; // gradients of the outputs of proj, qkv and the norm
} AttentionGrads;

Attention attention_declare(Params *params, int layer, int stage, const ModelShape *shape);
// x [T, H] -> y [T, H].   Collective over tp.   Stash: norm output and statistics, qkv, out, stats, and x
// itself.
void attention_apply(Context *context, const Attention *attention, Tensor x, Tensor y, AttentionStash *stash,
                     Arena *stash_arena, const Microbatch *microbatch);
// dy -> dx (not dy itself).   Collective over tp.   What the weight half needs is taken from `keep`.
void attention_backward_input(Context *context, const Attention *attention, const AttentionStash *stash,
                              Tensor dy, Tensor dx, AttentionGrads *grads, Arena *keep,
                              const Microbatch *microbatch);
void attention_backward_weight(Context *context, const Attention *attention, const AttentionStash *stash,
                               const AttentionGrads *grads);

typedef struct {
    Norm norm;
    Linear fc1, fc2;
    float hidden_dropout;
    RngKey hidden_key;
} Mlp;

typedef struct {
    NormStash norm;
    Tensor fc1, gelu; // [T, F/t] each: before bias and activation, and after
} MlpStash;

typedef struct {
    Tensor dfc2, dfc1, dnorm;
} MlpGrads;

Mlp mlp_declare(Params *params, int layer, int stage, const ModelShape *shape);
void mlp_apply(Context *context, const Mlp *mlp, Tensor x, Tensor y, MlpStash *stash, Arena *stash_arena,
               const Microbatch *microbatch);
void mlp_backward_input(Context *context, const Mlp *mlp, const MlpStash *stash, Tensor dy, Tensor dx,
                        MlpGrads *grads, Arena *keep, const Microbatch *microbatch);
void mlp_backward_weight(Context *context, const Mlp *mlp, const MlpStash *stash, const MlpGrads *grads);

// ---- embedding and loss: the two ends of the model ----------------------------------------------

typedef struct {
    Param *word, *position;
    float hidden_dropout;
    RngKey hidden_key;
} Embedding;

Embedding embedding_declare(Params *params, int stage, const ModelShape *shape);
// tokens -> y [T, H].   Collective over tp: one all-reduce of y (each rank adds the rows it holds).   Stash:
// nothing.
void embedding_apply(Context *context, const Embedding *embedding, Tensor y, const Microbatch *microbatch);
// Accumulates both tables' gradients. dy is used up.
void embedding_gradient(Context *context, const Embedding *embedding, Tensor dy,
                        const Microbatch *microbatch);

typedef struct {
    Norm norm;
    Param *word; // tied to the embedding's table; its own gradient, on the last stage
    int vocabulary;
} LossHead;

LossHead loss_head_declare(Params *params, int stage, const ModelShape *shape);
// Final norm, logits and vocabulary-parallel cross-entropy of hidden [T, H]; the logits never leave the rank
// that made them and never outlive the call: in training the gradients of the head's weights are accumulated
// here too, and `hidden` is replaced by its own gradient. microbatch->loss receives the losses. `logits` (may
// be absent) receives a copy [T, V/t]. Collective over tp: MAX of T values, SUM of 2T values, and in training
// one all-reduce of [T, H].
void loss_head_apply(Context *context, const LossHead *head, Tensor hidden, const Microbatch *microbatch,
                     Tensor logits);

// ---- stage: all that a pipeline knows of a model ------------------------------------------------

// Where one microbatch lives on a rank between its forward and its backward. Its tensors double as the
// messages: `input` is what RECV_FORWARD fills; `output` is what SEND_FORWARD sends, and then what
// RECV_BACKWARD fills with its gradient; `input_gradient` is what SEND_BACKWARD sends, absent on the first
// stage, present during the backward alone.
typedef struct {
    Tensor input, output, input_gradient; // [T, H]
    Arena stash;                          // everything else the chunk keeps
    void *layers;                         // the model's own record of what lies in `stash`
} Slot;

typedef struct {
    void *self;
    int num_chunks;
    int64_t tokens, hidden;   // T and H: the shape of a message
    size_t slot_layers_bytes; // of Slot.layers
    void (*forward)(void *self, int chunk, Slot *slot, const Microbatch *microbatch);
    void (*backward)(void *self, int chunk, Slot *slot,
                     const Microbatch *microbatch); // input and weight gradients
} Stage;
