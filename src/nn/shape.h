// The sizes of a model and how it is run, and what follows from them alone: parameters, FLOPs, rotary
// frequencies, bytes stashed.
#pragma once
#include "config/defaults.h"
#include "config/lora.h"
#include "device/device.h"

// GELU in its tanh form, SwiGLU, GELU by erf; a gated MLP whose gate is the tanh form of GELU, squared ReLU; one whose
// gate is g sigmoid(1.702 g).
typedef enum {
    ACTIVATION_GELU,
    ACTIVATION_SWIGLU,
    ACTIVATION_GELU_ERF,
    ACTIVATION_GEGLU,
    ACTIVATION_RELU_SQUARED,
    ACTIVATION_QUICK_GEGLU
} Activation;
typedef enum { POSITION_LEARNED, POSITION_ROTARY, POSITION_NONE } Position;
// What joins the denominator of a softmax of attention: nothing, exp(0), or exp of a weight of the head (a sink).
typedef enum { SOFTMAX_PLAIN, SOFTMAX_OFF_BY_ONE, SOFTMAX_SINKS } Softmax;
typedef enum { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN, ROPE_DYNAMIC, ROPE_LONG } RopeScaling;
// A divisor for each pair of columns that rotates; `count` of 0: there are none.
typedef struct {
    int count;
    double at[MAX_ROPE_FACTORS];
} RopeFactors;
// The family of models as which a model is exported, where that holds it; ANY: the first one that does. What a model
// computes does not depend on it.
typedef enum {
    FAMILY_ANY,
    FAMILY_MISTRAL,
    FAMILY_QWEN2,
    FAMILY_QWEN3,
    FAMILY_SMOLLM3,
    FAMILY_PHI3,
    FAMILY_OLMO2,
    FAMILY_GEMMA2,
    FAMILY_GEMMA3,
    FAMILY_GPT_NEOX,
    FAMILY_STABLELM,
    FAMILY_GRANITE,
    FAMILY_NEMOTRON,
    FAMILY_MINICPM3,
    FAMILY_DEEPSEEK_V2,
    FAMILY_DEEPSEEK_V3,
    FAMILY_MIXTRAL,
    FAMILY_QWEN3_MOE,
    FAMILY_OLMOE,
    FAMILY_GRANITE_MOE,
    FAMILY_QWEN2_MOE,
    FAMILY_GPT_OSS
} ModelFamily;
// Where a sublayer has norms: of its input, of its output before it joins the residual stream, or both.
typedef enum { NORM_PRE, NORM_POST, NORM_SANDWICH } NormPlace;
// Norms of queries and keys before they are rotated: none; of each head, with one weight for all heads; of all heads of
// a token together.
typedef enum { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_ALL } QkNorm;

// The C types of the rows of sizes.def.
#define SIZE_INT          int
#define SIZE_INT64        uint64_t
#define SIZE_BOOL         bool
#define SIZE_FLOAT        float
#define SIZE_DOUBLE       double
#define SIZE_ACTIVATION   Activation
#define SIZE_POSITION     Position
#define SIZE_ROPE_SCALING RopeScaling
#define SIZE_FACTORS      RopeFactors
#define SIZE_SOFTMAX      Softmax
#define SIZE_NORM_PLACE   NormPlace
#define SIZE_QK_NORM      QkNorm
#define SIZE_FAMILY       ModelFamily

// How the frequencies of rotary positions are lowered, for texts longer than those that a model was first trained on.
// LINEAR divides all by `factor`. LLAMA3 divides those whose wavelength is above `original / low`, leaves those below
// `original / high`, and divides those between by a share that grows evenly with the frequency. YARN (Peng 2023)
// divides those that turn less than `low` times within `original` positions, leaves those that turn more than `high`
// times, and divides those between by a share that grows evenly with the column; sines and cosines are multiplied by
// `attention`, and with `mscale_all` scores by (0.1 mscale_all ln factor + 1)^2. DYNAMIC raises the base where
// `sequence` is above `original`, as far as it is. LONG (Ding 2024, LongRoPE) divides each frequency by a number of
// its own, of `longer` where `sequence` is above `original`, else of `shorter`; sines and cosines are multiplied by
// `attention`, 0: by sqrt(1 + ln factor / ln original).
typedef struct {
#define ROPE_SIZE(TYPE, member, ...) SIZE_##TYPE member;
#include "nn/sizes.def"
} Rope;

// The sizes and choices that define a model: the rows of sizes.def. Zeros mean GPT-2, except in `layers` to `sequence`
// and in `vocabulary`.
typedef struct {
#define SIZE(TYPE, member, ...)    SIZE_##TYPE member;
#define DERIVED(TYPE, member, ...) SIZE_##TYPE member;
#include "nn/sizes.def"
    Rope rope;
} ModelShape;

// Factors of the products of linear layers: the element type; E4M3; E4M3 but for gradients of activations, in E5M2; or
// E2M1, of 4 bits.
typedef enum { FLOAT8_NONE, FLOAT8_E4M3, FLOAT8_HYBRID, FLOAT4_E2M1, NUM_FLOAT8 } Float8;
// What has a scale of its own there, and of which kind (the table of nn/recipes.c). NVFP4 is for E2M1, the others are
// for 8 bits.
typedef enum {
    RECIPE_TENSORWISE,
    RECIPE_DELAYED,
    RECIPE_BLOCKWISE,
    RECIPE_MXFP8,
    RECIPE_NVFP4,
    NUM_RECIPES
} ScalingRecipe;
// Where scales come from earlier steps: the largest magnitudes of `history` steps, or the last one alone, and 2^margin
// beyond it.
typedef struct {
    int history;
    bool most_recent;
    int margin;
} DelayedScaling;

// How ranks that share sequences (context parallelism) compute attention: every rank gets the keys and values of all;
// or whole sequences of some of the heads; or those of one rank after the other.
typedef enum { CONTEXT_ALL_GATHER, CONTEXT_ALL_TO_ALL, CONTEXT_RING, NUM_CONTEXT_WAYS } ContextWay;

typedef enum { RECOMPUTE_NOTHING, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM, RECOMPUTE_BLOCK } Recompute;

// What training alone does with routers of experts: the coefficients of the loss that is larger the less alike the
// loads of experts are, of each sequence or of each microbatch, and of the mean of logsumexp(logits)^2; 0: none.
typedef struct {
    float balance, z;
    bool by_sequence;
    // Of each sequence an expert keeps `capacity` times the mean of its tokens, those with the largest weights, or
    // `by_position` the first ones; 0: all.
    float capacity;
    bool by_position;
    float jitter; // the router reads x times random factors from 1 - jitter to 1 + jitter
} RouterTraining;

// The way a model is run: it changes memory, speed and rounding, never the function. Zeros in the members after
// `padded_vocabulary` mean fp32 and everything kept.
typedef struct {
    int microbatch;        // B: samples
    int padded_vocabulary; // V: rows of the word table; see padded_vocabulary below
    DType dtype;           // of weights, activations and messages
    Float8 float8;         // of the layers, except for some in bf16: the first and the last ones
    ScalingRecipe recipe;  // of their scales
    DelayedScaling delayed;
    int wide_first, wide_last;
    int context_ranks; // c: ranks that share a sequence; 0: one
    ContextWay context_way;
    bool sequence_parallel;     // norms, dropout and residuals work on T/t rows
    bool keep_probabilities;    // attention stashes its S x S matrix instead of computing it again
    AttentionKernels attention; // see DeviceOptions
    bool any_order;             //
    // The activations that the backward computes again instead of reading them from the stash. SELECTIVE: those of
    // the attention core (Korthikanti 2022). UNIFORM: all except the input of each group of `recompute_layers`
    // layers. BLOCK: all except the input of each of the first `recompute_layers` layers of a chunk; the other
    // layers stash everything.
    Recompute recompute;
    int recompute_layers;
    bool distribute_saved; // each tp rank keeps T/t rows of those inputs
    bool whole_logits;     // the head makes the logits of all tokens at once, as other programs do
    // Of layers with experts on several ranks (nn/dispatch.h): pairs from a rank to a rank in a round, 0: by their
    // mean; and whether the rows of each rank's tokens stay apart, with gradients of their own (Params.sources).
    int64_t dispatch_slot;
    bool experts_apart;
    // The products of experts and of shared experts stay in the element type, although other products take few bits.
    bool wide_experts;
    RouterTraining router; // it changes gradients
} ModelMode;

float model_lora_scale(const ModelShape *shape); // of the adapters' outputs
// The same model without its adapters.
ModelShape model_without_adapters(const ModelShape *shape);
Float8 model_layer_float8(const ModelShape *shape, const ModelMode *mode, int layer);
int model_groups(const ModelShape *shape);     // heads where groups is 0
bool model_is_latent(const ModelShape *shape); // queries, keys and values are made of latents (nn/latent.h)
int model_value_size(const ModelShape *shape); // V: columns of a head of the attention's output
// D: columns of a head of queries, keys and values as the core of attention reads them.
int model_core_columns(const ModelShape *shape);
// The factor of scores, those of YaRN with `mscale_all` included (DeepSeek-V2); 0: 1 / sqrt(head_size).
double model_softmax_scale(const ModelShape *shape);
bool model_has_qkv_bias(const ModelShape *shape);
bool model_has_proj_bias(const ModelShape *shape);
bool model_has_mlp_bias(const ModelShape *shape);
bool model_is_gated(const ModelShape *shape); // the MLP has a gate: fc1 is two matrices
bool model_has_pre_norm(const ModelShape *shape);
bool model_has_post_norm(const ModelShape *shape);
bool model_layer_rotates(const ModelShape *shape, int layer);
// The window of a layer: how many keys a query sees, its own included. 0: all.
int model_window(const ModelShape *shape, int layer);
// The mean over the layers of the share of the causal scores that their windows leave.
double model_visible_share(const ModelShape *shape);
int model_rotary_columns(const ModelShape *shape); // R
// Returns the frequency of column i of a head, 0 <= i < R/2: position s turns columns i and R/2 + i by the angle
// s * frequency. Every table of rotary positions is made with it. `local`: in the layers with a window.
double model_rotary_frequency(const ModelShape *shape, int i, bool local);
double model_rotary_factor(const ModelShape *shape, bool local); // of sines and cosines
// YaRN's factor of sines and cosines.   Source: Peng 2023 and DeepSeek-V2, as transformers has it.
double model_yarn_scale(double factor, double mscale);
// Returns the smallest multiple of divisor * tp that holds `vocabulary` entries. VOCABULARY_DIVISOR is the usual
// divisor.
int padded_vocabulary(int vocabulary, int divisor, int tp);
// Elements of parameters: those that are cut over tp, and those that every tp rank holds.
typedef struct {
    int64_t cut, whole;
} ParamCount;
// Returns whether a layer has experts in place of an MLP, and the first layer that has, or 0: the closed forms of one
// layer are those of this one.
bool model_layer_has_experts(const ModelShape *shape, int layer);
int model_widest_layer(const ModelShape *shape);
ParamCount model_layer_parameters(const ModelShape *shape); // of one transformer layer
// Return the parameters of an end of the model, with word tables of `table_rows` rows. A tied table belongs to the
// embedding.
ParamCount model_embedding_parameters(const ModelShape *shape, int table_rows);
ParamCount model_head_parameters(const ModelShape *shape, int table_rows);
// Returns the parameters of the model without padding and adapters; a tied table counts once.
int64_t model_parameters(const ModelShape *shape);
int64_t
model_active_parameters(const ModelShape *shape); // of those the ones that a token uses: of its experts alone
int64_t model_adapter_parameters(const ModelShape *shape); // of the adapters of all transformer layers
// Returns the model FLOPs of one iteration over `samples` sequences, without recomputation and with attention in full:
// 72 B L S H^2 (1 + S/6H + V/12LH) for F = 4H (Korthikanti 2022, eq. 7), in general 6 per weight and token
// plus attention. V is `table_rows`, the rows of the word table. Windows take off the share of the causal scores that
// they hide; documents of a sample count as one.
// Of a model with adapters its own weights have 4 per token, since they need no gradient, and the adapters' 6.
double model_flops(const ModelShape *shape, int table_rows, double samples);

// One kind of tensor that a layer keeps of a microbatch from its forward to its backward, in bytes of one rank.
typedef struct {
    const char *what;
    // By Korthikanti 2022, section 4: all that a backward reads, with dropout masks of 1 byte.
    double published;
    // By trireme, which draws masks again, and computes the S x S matrix again unless the mode keeps it.
    double kept;
    bool is_statistic; // two numbers for a row; listed after the others
} StashTerm;

enum { MAX_STASH_TERMS = 32 };
// Writes the terms of a layer that is not recomputed as a whole and returns how many they are. Both columns follow the
// mode (selective recomputation, sequence parallelism, element type) and, beyond the published GPT, the shape.
int model_stash_terms(const ModelShape *shape, const ModelMode *mode, int tp, StashTerm *terms);
// The sums of both columns.
typedef struct {
    double published, kept;
} StashSum;
StashSum model_stash_sum(const ModelShape *shape, const ModelMode *mode, int tp);
