// The layers of a GPT, written forward and backward by hand, each backward split into its input and its
// weight half.
//
// A layer *declares* its parameters in the one registry (global name, global shape, how it is cut over tp,
// init, decay, tie); *placing* gives the local share addresses. Global sizes appear in declarations only;
// after that every tensor is local, and tensor parallelism lives in the linear layers alone. Activations and
// values of parameters are of the run's element type E, gradients of parameters F32.
// Letters: B microbatch, S sequence, H hidden, N heads, G groups of heads that share keys and values, D head
// size, F mlp, V padded vocabulary, T = S*B tokens, t tp size; T' = T, or T/t with sequence parallelism.
#pragma once
#include "comm/comm.h"
#include "layout/layout.h"

// ---- the model's sizes --------------------------------------------------------------------------

// GELU by its tanh form, SwiGLU, GELU by erf.
typedef enum { ACTIVATION_GELU, ACTIVATION_SWIGLU, ACTIVATION_GELU_ERF } Activation;
typedef enum { POSITION_LEARNED, POSITION_ROTARY, POSITION_NONE } Position;
typedef enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 } RopeScaling;

// How the frequencies of rotary positions are slowed down for longer texts than a model was trained on first.
// LINEAR: all by `factor`. LLAMA3: those whose wavelength is above `original / low` by `factor`, those below
// `original / high` not at all, those between by a share that grows evenly with the frequency.
typedef struct {
    RopeScaling kind;
    double factor, low, high;
    int original; // positions
} Rope;

// What the model is. Zeros mean GPT-2, but for `layers` to `padded_vocabulary`.
typedef struct {
    int layers, hidden, heads, head_size, ffn, sequence;
    int groups;            // of heads that share keys and values; 0: every head has its own
    int positions;         // rows of the learned position table, >= sequence
    int vocabulary;        // entries that exist
    int padded_vocabulary; // V: rows of the table, a multiple of (divisor * t); the rest never takes part
    int microbatch;        // B
    Activation activation;
    Position position;
    double rotary_base; // of POSITION_ROTARY
    int rotary_columns; // R: of each head, even; 0: all
    bool rms_norm;
    Rope rope;
    bool no_linear_bias;                // of any linear layer but these:
    bool qkv_bias, proj_bias, mlp_bias; // of q, k and v; of the attention's output; of the MLP's two
    bool untied;                        // the head has a weight of its own
    float hidden_dropout, attention_dropout, norm_epsilon, init_std;
    uint64_t seed;
} ModelShape;

typedef enum { RECOMPUTE_NOTHING, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM, RECOMPUTE_BLOCK } Recompute;

// How it is run: what changes memory, speed and rounding, never the function. Zeros: fp32, everything kept.
typedef struct {
    DType dtype;             // of weights, activations and messages
    bool sequence_parallel;  // norms, dropout and residuals work on T/t rows
    bool keep_probabilities; // attention stashes its S x S matrix instead of computing it again
    // What is not stashed but computed again in the backward. SELECTIVE: the attention core (Korthikanti
    // 2022). UNIFORM: all but the input of each group of `recompute_layers` layers. BLOCK: the same for the
    // first `recompute_layers` layers of a chunk, each on its own; the others stash everything.
    Recompute recompute;
    int recompute_layers;
    bool distribute_saved; // those inputs are kept in shares of T/t rows
    bool whole_logits;     // of all tokens of a microbatch at once, as other programs make them
} ModelMode;

int model_groups(const ModelShape *shape); // groups, or heads
bool model_has_qkv_bias(const ModelShape *shape);
bool model_has_proj_bias(const ModelShape *shape);
bool model_has_mlp_bias(const ModelShape *shape);
int model_rotary_columns(const ModelShape *shape); // R
// Position s turns columns i and R/2 + i of a head by the angle s * frequency(i), 0 <= i < R/2. Every table of
// rotary positions is made with it.
double model_rotary_frequency(const ModelShape *shape, int i);
// The smallest multiple of divisor * tp that holds `vocabulary` entries.
int padded_vocabulary(int vocabulary, int divisor, int tp);
int64_t model_parameters(const ModelShape *shape); // of the unpadded model, tied embedding counted once
// Model FLOPs of one iteration over `samples` sequences, attention counted in full, nothing recomputed:
// 72 B L S H^2 (1 + S/6H + V/12LH) for F = 4H (Korthikanti 2022, eq. 7), in general 6 per weight and token
// plus attention.
double model_flops(const ModelShape *shape, double samples);

// What one layer keeps of one microbatch from its forward to its backward, term by term, in
// bytes of one rank.
typedef struct {
    const char *what;
    double published; // Korthikanti 2022, section 4: everything that a backward reads, 1-byte dropout masks
    double kept; // here: masks are drawn again, the S x S matrix is computed again unless the mode keeps it
} StashTerm;

enum { MOST_STASH_TERMS = 13 };
// Of a layer that is not recomputed as a whole. Both columns follow the mode (selective recomputation,
// sequence parallelism, element type) and, beyond the published GPT, the shape. Returns how many.
int model_stash_terms(const ModelShape *shape, const ModelMode *mode, int tp, StashTerm *terms);

// ---- parameters: one registry, many readers -----------------------------------------------------

typedef enum { INIT_ZERO, INIT_ONE, INIT_NORMAL } Init;

typedef struct {
    char name[96];      // global, as in Megatron-LM: "decoder.layers.3.mlp.linear_fc1.weight"
    int64_t rows, cols; // global shape; a vector is one row
    Shard shard;        // how it is cut over tp
    Init init;
    float stddev;      // of INIT_NORMAL
    int64_t real_rows; // rows from here on are padding: zero for ever
    bool decay;        // weight decay applies (matrices, not biases and norms)
    bool partial; // each tp rank adds up its own rows' gradient (sequence parallelism): they are to be summed
    int stage;    // the model stage that holds it
    const char *tied_to; // the name of the parameter this is a copy of, or NULL
} ParamSpec;

typedef struct Param {
    ParamSpec spec;
    int chunk;      // of this rank, or -1: on another pipeline rank; then the tensors are absent
    int64_t offset; // of its first element in the flat buffers of its chunk; -1: it shares another's value
    Tensor value;   // local share, in the run's element type
    Tensor grad;    // F32 accumulator
    bool begins;    // it holds nothing of this step yet: the first contribution is written, not added
    struct Param *shares; // the local parameter whose value this one uses (a tie within one rank), or NULL
} Param;

// All values and all gradients of a chunk, parameter after parameter at the same offsets in both: what data
// parallelism reduces, shards and gathers. Three regions: [0, partial) in the model's order, whose gradients
// are final as soon as the chunk's last backward has passed them; [partial, tied) those that are also summed
// over tp; [tied, count) the embedding or its copy, also summed over the two ends of the model. Every region
// starts and ends on a multiple of PARAM_ALIGNMENT * dp.
typedef struct {
    Tensor values, grads; // [1, count] in the run's element type; F32
    int64_t partial, tied, count;
} ChunkParams;

enum { PARAM_ALIGNMENT = 64 }; // elements; every parameter starts on it

typedef struct {
    Param **items; // in the model's order, the same list on every rank
    int count, capacity;
    ChunkParams *chunks;
    int num_chunks;
    bool values_only; // set before placing: a model that is not trained takes no gradients
} Params;

Param *params_declare(Params *params, ParamSpec spec);
Param *params_find(const Params *params, const char *name); // NULL when there is none
// Gives local parameters their memory, once all are declared: `stage_of_chunk[c]` is the stage that chunk c
// of this rank holds. Within a region they lie in the model's order. The gradient of one that shares a value
// lies outside the flat buffers.
void params_place(Params *params, Arena *arena, Grid grid, DType dtype, const int *stage_of_chunk,
                  int num_chunks);
// Gives every local parameter its values: `fill` writes the local share of one in fp32 (`local` holds zeros);
// `write_main` (may be NULL) is handed it before it is rounded. One that shares another's value is left out,
// zeros lie between parameters.   ERR_OS without host memory for the largest of them; else what `fill` says.
typedef Status FillParam(void *self, const Param *param, float *local);
typedef void WriteMain(void *self, const Param *param, const float *local);
Status params_fill(const Params *params, Device *device, int tp_size, FillParam *fill, void *source,
                   WriteMain *write_main, void *self);
// Fills with the initial values: every element is a function of (seed, name, its global index), the same
// model on any grid and for any number of the device's threads, which draw together. `tp_rank` is the
// coordinate of this rank.
Status params_init(const Params *params, Device *device, uint64_t seed, int tp_size, int tp_rank,
                   WriteMain *write_main, void *self);
// Also what lies between parameters, which is reduced with them: once before the first step.
void params_zero_grads(const Params *params, Device *device);
// Begins a step: every gradient is written by its first contribution and need not be zeroed. What lies between
// parameters stays as it is.
void params_begin_grads(const Params *params);
void params_free(Params *params);
int64_t param_local_count(const Param *param, int tp);
Tensor param_value(const Param *param); // absent for NULL: a bias that a layer does not have
// The gradient as something to add to: zeroed, where a step has just begun. Absent for NULL.
Tensor param_grad(Param *param, Device *device);
// Copies the local share out of a whole tensor held by the host, and back into it. For init, tests and files.
void param_slice(const Param *param, int tp_size, int tp_rank, const float *whole, float *local);
void param_unslice(const Param *param, int tp_size, int tp_rank, const float *local, float *whole);
// Elements [begin, begin + count) of a local share as rectangles of the whole tensor, without padding rows:
// at most 3 * blocks. Row i of one is at share element local + i * stride.
typedef struct {
    int64_t row, col, rows, cols;
    int64_t local, stride;
} ParamRect;
enum { MOST_PARAM_RECTS = 24 };
int param_rects(const Param *param, int tp_size, int tp_rank, int64_t begin, int64_t count,
                ParamRect rects[MOST_PARAM_RECTS]);

// ---- context: all that a layer may use ----------------------------------------------------------

// How data parallelism follows the model through a chunk's parameters, told by offsets in its flat buffers.
typedef struct {
    void (*need)(void *self, int chunk, int64_t end);   // a forward will now use values below `end`
    void (*done)(void *self, int chunk, int64_t begin); // gradients of [begin, partial) are final
    void *self;
} ParamWatch;

typedef struct {
    Device *device;
    Stream *stream;
    Grid grid;
    Place place;
    Comm *tp, *dp, *pp;
    Comm *model; // tp x pp: the ranks that hold one copy of the model
    // The ranks of first and last stage of this pipeline; NULL where they are one, and elsewhere.
    Comm *embedding;
    Arena *scratch; // within one instruction
    ModelMode mode;
    ParamWatch watch; // of data parallelism; zeros: nobody
} Context;

// The rows of this rank's share of a tensor of `rows` rows that sequence parallelism cuts: all without it.
int64_t context_rows(const Context *context, int64_t rows);
int64_t context_first_row(const Context *context, int64_t rows); // where that share starts
// The conjugate operators of tensor parallelism, from [T', C] to [T, C] and back.   Collective over tp.
// All rows of a tensor of which every tp rank holds its share: the tensor itself, or gathered
// into scratch memory.
Tensor context_whole(Context *context, Tensor share);
// Where a rank leaves its summand [T, C] of what becomes `result` [T', C]: there, or in scratch
// memory; then its sum.
Tensor context_summand(Context *context, Tensor result);
void context_sum(Context *context, Tensor summand, Tensor result);

// What one microbatch brings along.
typedef struct {
    Tensor tokens, labels; // I32 [1, T]; absent on stages that need none
    Tensor mask;           // F32 [1, T] or absent: which labels count
    Tensor loss;           // F32 [1, T], written by the last stage
    Tensor margin;         // F32 [1, T] or absent: the same for the label's logit less the largest one
    float loss_scale;      // of each counted token's gradient
    int64_t first_sample;  // of its samples, numbered over the whole run
    int64_t samples;       // B
    int64_t sequence;      // S
    bool training;         // false: no dropout, no gradients
    int64_t position;      // of the first token in its sequence; 0 in training
    bool cached;           // attention keeps keys and values, and sees those of all positions before
} Microbatch;

// The mask of one dropout site on this microbatch; keeps everything when not training. `cut`: of a tensor of
// context_rows rows.
Dropout microbatch_dropout(const Context *context, const Microbatch *microbatch, RngKey key,
                           float probability, bool cut);

// Which half of a backward is run: gradients of inputs, of weights, or both at once.
typedef enum { INPUT_HALF = 1, WEIGHT_HALF = 2, BOTH_HALVES = 3 } Halves;

// ---- declaring ----------------------------------------------------------------------------------

// Where the layers of one stage declare their parameters.
typedef struct {
    Params *params;
    const ModelShape *shape;
    bool sequence_parallel;
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

// ---- the two halves of a transformer layer: y = x + dropout(... norm(x) ... + bias) ----------------

// Both halves of a layer are used alike. The forward x [T', H] -> y [T', H] takes its stash from an arena.
// The input half of the backward, dy -> dx (dx may be dy), uses the stash up: the gradients that the weight
// half needs take the place of activations that it does not, and one, of the output of the last linear, is
// left in `dlast` [T', H], which the caller hands in again for the weight half.   Collective over tp.

typedef struct {
    Norm norm;
    Linear qkv, proj;                   // qkv rows ordered by groups, see AttentionShape: a cut by groups
    int64_t heads_per_group, head_size; // N/G, D
    Tensor rotary_table;                // F32 [>= S, R], or absent: no rotary positions
    Tensor keys, values; // the cache, [positions * B, G/t * D]; absent: cached microbatches cannot come
    float attention_dropout, hidden_dropout;
    RngKey attention_key, hidden_key;
} Attention;

typedef struct {
    NormStash norm;
    Tensor qkv, out;      // [T, (N + 2G)/t * D], [T, H/t]
    Tensor stats;         // F32 [B*N/t, S]; absent where the core is recomputed
    Tensor probabilities; // [B*N/t * S, S]; absent unless the mode keeps them
} AttentionStash;

Attention attention_declare(const Builder *builder, int layer);
// Takes the cache of so many positions of `samples` sequences, its contents undefined. After params_place.
void attention_place_cache(Attention *attention, Arena *arena, int64_t positions, int64_t samples);
void attention_apply(Context *context, const Attention *attention, Tensor x, Tensor y, AttentionStash *stash,
                     Arena *stash_arena, const Microbatch *microbatch);
void attention_gradient(Context *context, const Attention *attention, Halves halves, AttentionStash *stash,
                        Tensor dy, Tensor dlast, Tensor dx, const Microbatch *microbatch);

typedef struct {
    Norm norm;
    Linear fc1, fc2;
    Activation activation;
    float hidden_dropout;
    RngKey hidden_key;
} Mlp;

typedef struct {
    NormStash norm;
    Tensor fc1, activated; // [T, F/t] ([T, 2F/t] for SwiGLU), [T, F/t]: before bias and activation, and after
} MlpStash;

Mlp mlp_declare(const Builder *builder, int layer);
void mlp_apply(Context *context, const Mlp *mlp, Tensor x, Tensor y, MlpStash *stash, Arena *stash_arena,
               const Microbatch *microbatch);
void mlp_gradient(Context *context, const Mlp *mlp, Halves halves, MlpStash *stash, Tensor dy, Tensor dlast,
                  Tensor dx, const Microbatch *microbatch);

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

// ---- stage: all that a pipeline knows of a model ------------------------------------------------

// Where one microbatch of a chunk lives between its forward and its backward. All tensors are [rows, hidden]
// in the run's element type, messages to or from other stages or copies of them.
typedef struct {
    Tensor input;  // filled before the forward, but on the first stage; the stage's until its last half
    Tensor output; // written by the forward; on the last stage it leaves the gradient here
    Tensor output_gradient; // filled before the backward; used up by it
    Tensor input_gradient;  // written by the backward, but on the first stage (absent)
    Arena stash;            // everything else the chunk keeps
    Arena *recomputed; // from an input half to its weight half: room for what was computed again; else NULL
    void *layers;      // the model's own record of what lies in both
} Slot;

typedef struct {
    void *self;
    int num_chunks;
    int64_t rows, hidden; // of a message; with sequence parallelism rows are this rank's share
    DType dtype;
    size_t slot_layers_bytes; // of Slot.layers
    void (*forward)(void *self, int chunk, Slot *slot, const Microbatch *microbatch);
    // INPUT_HALF first, WEIGHT_HALF after it, or BOTH_HALVES. `final`: the chunk's gradients are complete
    // with this call. The weight half needs input and stash alone.
    void (*backward)(void *self, int chunk, Slot *slot, const Microbatch *microbatch, Halves halves,
                     bool final);
} Stage;
