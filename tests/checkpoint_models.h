// Small models for the tests of checkpoints' formats: shapes, random weights, folders.
#pragma once
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "harness.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    char text[4096];
} Path;

static inline Path path_of(const char *name) {
    Path path;
    snprintf(path.text, sizeof path.text, "%s/%s", harness_folder(), name);
    return path;
}

static inline Path inside(const char *folder, const char *name) {
    Path path;
    int size = snprintf(path.text, sizeof path.text, "%s/%s", folder, name);
    CHECK(size < (int)sizeof path.text, "a path of %d characters", size);
    return path;
}

// ---- models ---------------------------------------------------------------------------------------------

static inline ModelShape gpt2(void) {
    return (ModelShape){.layers = 2,
                        .hidden = 32,
                        .heads = 4,
                        .head_size = 8,
                        .ffn = 96,
                        .sequence = 16,
                        .positions = 20,
                        .vocabulary = 67,
                        .hidden_dropout = 0.1f,
                        .norm_epsilon = 1e-5f,
                        .init_std = 0.02f,
                        .seed = 3};
}

static inline ModelShape untied_gpt2(void) {
    ModelShape s = gpt2();
    s.untied = true;
    return s;
}

static inline ModelShape llama(void) {
    return (ModelShape){.layers = 2,
                        .hidden = 32,
                        .heads = 4,
                        .head_size = 8,
                        .groups = 2,
                        .ffn = 64,
                        .sequence = 16,
                        .vocabulary = 67,
                        .activation = ACTIVATION_SWIGLU,
                        .position = POSITION_ROTARY,
                        .rotary_base = 50000,
                        .rms_norm = true,
                        .no_linear_bias = true,
                        .untied = true,
                        .norm_epsilon = 1e-6f,
                        .init_std = 0.02f,
                        .seed = 3};
}

static inline ModelShape tied_llama(void) {
    ModelShape s = llama();
    s.untied = false;
    s.groups = 0;
    return s;
}

static inline ModelShape biased_queries(void) {
    ModelShape s = llama();
    s.qkv_bias = true;
    return s;
}

static inline ModelShape biases_everywhere(void) {
    ModelShape s = llama();
    s.no_linear_bias = false;
    s.groups = 1;
    return s;
}

static inline ModelShape attention_biases(void) {
    ModelShape s = biased_queries();
    s.proj_bias = true;
    return s;
}

static inline ModelShape mlp_biases(void) {
    ModelShape s = llama();
    s.mlp_bias = true;
    return s;
}

static inline ModelShape exact_gelu(void) {
    ModelShape s = gpt2();
    s.activation = ACTIVATION_GELU_ERF;
    return s;
}

static inline ModelShape llama3_rope(void) {
    ModelShape s = llama();
    s.rope = (Rope){.kind = ROPE_LLAMA3, .factor = 32, .low = 1, .high = 4, .original = 2048};
    return s;
}

static inline ModelShape linear_rope(void) {
    ModelShape s = llama();
    s.rope = (Rope){.kind = ROPE_LINEAR, .factor = 2.5};
    return s;
}

static inline ModelShape wide_heads(void) {
    ModelShape s = llama();
    s.head_size = 12;
    return s;
}

// One of each family with what it has that Llama has not.
static inline ModelShape qwen3(void) {
    ModelShape s = attention_biases();
    s.qk_norm = QK_NORM_HEAD, s.head_size = 12;
    return s;
}

static inline ModelShape smollm3(void) {
    ModelShape s = tied_llama();
    s.no_rope_freq = 2;
    s.rope = (Rope){.kind = ROPE_YARN, .factor = 4, .low = 2, .high = 24, .original = 8, .unrounded = true};
    return s;
}

static inline ModelShape phi3(void) {
    ModelShape s = llama();
    s.family = FAMILY_PHI3;
    s.rotary_columns = 6;
    s.window = 5;
    return s;
}

static inline ModelShape long_phi3(void) {
    ModelShape s = phi3();
    s.window = 0, s.positions = s.sequence;
    s.rope = (Rope){.kind = ROPE_LONG,
                    .factor = 2,
                    .original = s.positions / 2,
                    .shorter = {.count = 3, .at = {1, 1.25, 1.5, 2}},
                    .longer = {.count = 3, .at = {1.0625, 4, 32, 40}}};
    return s;
}

static inline ModelShape olmo2(void) {
    ModelShape s = llama();
    s.norm_place = NORM_POST, s.qk_norm = QK_NORM_ALL;
    s.rope = (Rope){.kind = ROPE_DYNAMIC, .factor = 2, .original = 16};
    return s;
}

static inline ModelShape gemma2(void) {
    ModelShape s = tied_llama();
    s.activation = ACTIVATION_GEGLU, s.norm_place = NORM_SANDWICH, s.norm_offset = true;
    s.embedding_multiplier = sqrtf(32), s.softmax_scale = 0.25, s.softmax_cap = 50, s.logit_cap = 30;
    s.window = 3, s.window_period = 2, s.window_layers = 1;
    return s;
}

static inline ModelShape gemma3(void) {
    ModelShape s = gemma2();
    s.qk_norm = QK_NORM_HEAD, s.rotary_base_local = 10000;
    s.softmax_scale = s.softmax_cap = 0, s.logit_cap = 0;
    return s;
}

static inline ModelShape neox(void) {
    ModelShape s = gpt2();
    s.position = POSITION_ROTARY, s.rotary_base = 10000, s.rotary_columns = 2;
    s.activation = ACTIVATION_GELU_ERF, s.parallel_block = s.untied = true;
    return s;
}

static inline ModelShape stablelm(void) {
    ModelShape s = biased_queries();
    s.rms_norm = false, s.rotary_columns = 2;
    return s;
}

static inline ModelShape granite(void) {
    ModelShape s = tied_llama();
    s.embedding_multiplier = 12, s.residual_multiplier = 0.22f, s.logits_scaling = 8,
    s.softmax_scale = 0.015625;
    return s;
}

static inline ModelShape nemotron(void) {
    ModelShape s = llama();
    s.rms_norm = false, s.norm_offset = true, s.activation = ACTIVATION_RELU_SQUARED, s.rotary_columns = 4;
    return s;
}

// Heads of latents: values narrower than keys, in halves (MiniCPM3) and in pairs of columns (DeepSeek).
static inline ModelShape minicpm3(void) {
    ModelShape s = tied_llama();
    s.groups = 0, s.head_size = 12, s.rotary_columns = 4, s.kv_rank = 10, s.q_rank = 14, s.value_size = 6;
    s.latent_epsilon = s.norm_epsilon == 1e-6f ? 0 : 1e-6f;
    s.embedding_multiplier = 12, s.residual_multiplier = 0.9f, s.logits_scaling = 2,
    s.family = FAMILY_MINICPM3;
    return s;
}

static inline ModelShape deepseek2(void) {
    ModelShape s = minicpm3();
    s.embedding_multiplier = s.residual_multiplier = s.logits_scaling = 0, s.family = FAMILY_DEEPSEEK_V2;
    s.untied = true, s.q_rank = 0;
    return s;
}

static inline ModelShape deepseek3(void) {
    ModelShape s = minicpm3();
    s.embedding_multiplier = s.residual_multiplier = s.logits_scaling = 0, s.family = FAMILY_DEEPSEEK_V3;
    s.untied = true, s.value_size = 16, s.rotary_columns = 6;
    s.rope = (Rope){.kind = ROPE_YARN,
                    .factor = 4,
                    .low = 1,
                    .high = 32,
                    .original = 8,
                    .attention = 0.9,
                    .mscale_all = 0.7};
    return s;
}

// Layers with experts: in all layers, beside a dense one, with weights over all experts.
static inline ModelShape mixtral(void) {
    ModelShape s = llama();
    s.experts = 3, s.experts_topk = 2, s.expert_ffn = s.ffn = 20;
    return s;
}

static inline ModelShape qwen3_moe(void) {
    ModelShape s = qwen3();
    s.experts = 3, s.experts_topk = 2, s.expert_ffn = 20;
    s.experts_period = 2, s.experts_layers = 2;
    return s;
}

static inline ModelShape qwen2_moe(void) {
    ModelShape s = mixtral();
    s.qkv_bias = s.router_pre_softmax = s.shared_gate = true;
    s.expert_ffn = 12, s.shared_ffn = 24;
    return s;
}

static inline ModelShape olmoe(void) {
    ModelShape s = mixtral();
    s.qk_norm = QK_NORM_ALL, s.router_pre_softmax = true;
    return s;
}

// All experts of a layer in one tensor, with gate and up together.
static inline ModelShape granite_moe(void) {
    ModelShape s = granite();
    s.experts = 3, s.experts_topk = 2, s.expert_ffn = s.ffn = 20;
    return s;
}

static inline ModelShape deepseek2_lite(void) {
    ModelShape s = deepseek2();
    s.experts = 4, s.experts_topk = 3, s.expert_ffn = 12, s.shared_ffn = 24, s.router_pre_softmax = true;
    s.router_scale = 1.5f, s.router_groups = s.router_open_groups = 2, s.experts_period = 2,
    s.experts_layers = 2;
    return s;
}

// Experts are chosen by sigmoids with biases.
static inline ModelShape deepseek3_moe(void) {
    ModelShape s = deepseek3();
    s.experts = 4, s.experts_topk = 2, s.expert_ffn = s.shared_ffn = 12,
    s.router_sigmoid = s.router_bias = true;
    s.router_scale = 2.5f, s.router_groups = 2, s.router_open_groups = 1;
    return s;
}

// Biases of all linear layers, experts' and routers' too; gates that are cut off, sinks, alternating windows.
static inline ModelShape gpt_oss(void) {
    ModelShape s = mixtral();
    s.activation = ACTIVATION_QUICK_GEGLU, s.glu_offset = 1, s.glu_clamp = 7;
    s.no_linear_bias = false, s.softmax = SOFTMAX_SINKS;
    s.window = 5, s.window_period = 2, s.window_layers = 1;
    s.rope = (Rope){.kind = ROPE_YARN, .factor = 4, .low = 1, .high = 32, .original = 8, .unrounded = true};
    return s;
}

typedef ModelShape MakeShape(void);
static MakeShape *const shapes[] = {
    gpt2,          untied_gpt2,      llama,      tied_llama, biased_queries, biases_everywhere,
    wide_heads,    attention_biases, mlp_biases, exact_gelu, llama3_rope,    linear_rope,
    qwen3,         smollm3,          phi3,       olmo2,      gemma2,         gemma3,
    neox,          stablelm,         granite,    nemotron,   minicpm3,       deepseek2,
    deepseek3,     mixtral,          qwen3_moe,  olmoe,      granite_moe,    deepseek2_lite,
    deepseek3_moe, long_phi3,        qwen2_moe,  gpt_oss};
enum { NUM_SHAPES = sizeof shapes / sizeof *shapes, MAX_ELEMENTS = 8192 };

static inline void fill(const WeightSpec *weight, uint64_t seed, float *values) {
    rng_fill_normal(rng_key(seed, weight->name, 0), 0, (uint64_t)(weight->rows * weight->cols), 0, 1, values);
}

// A checkpoint of step `step` in `save` with random weights of `shape`; its manifest says that it is of
// `said`.
static inline void make_mistaken(const char *save, const ModelShape *shape, const ModelShape *said,
                                 int64_t step, uint64_t seed) {
    WeightSpec *weights;
    int count;
    CheckpointNames names;
    Text record = {0};
    EXPECT_OK(model_weights(shape, &weights, &count));
    Slice *slices = calloc((size_t)count, sizeof *slices);
    float *values = malloc((size_t)count * MAX_ELEMENTS * sizeof *values);
    CHECK(slices && values, "no memory");
    for (int i = 0; i < count; i++) {
        const WeightSpec *w = &weights[i];
        CHECK(w->rows * w->cols <= MAX_ELEMENTS, "%s is too large", w->name);
        fill(w, seed, values + i * MAX_ELEMENTS);
        slices[i] = (Slice){.rows = w->rows,
                            .cols = w->cols,
                            .rect = {0, 0, w->rows, w->cols},
                            .data = values + i * MAX_ELEMENTS,
                            .stride = w->cols};
        snprintf(slices[i].tensor, sizeof slices[i].tensor, "%s", w->name);
    }
    CheckpointInfo info = {.shape = *said,
                           .state = {.iteration = step, .consumed = step},
                           .grid = GRID(1, 1, 1),
                           .num_chunks = 1,
                           .dtype = "f32",
                           .program = "test"};
    EXPECT_OK(checkpoint_names(save, step, &names));
    EXPECT_OK(checkpoint_begin(&names, 1 << 20));
    EXPECT_OK(checkpoint_write_shard(&names, 0, slices, count, &record));
    EXPECT_OK(checkpoint_commit(&names, -1, &info, NULL, &record, 1));
    text_free(&record);
    free(values);
    free(slices);
    free(weights);
}

static inline void make_checkpoint(const char *save, const ModelShape *shape, int64_t step, uint64_t seed) {
    make_mistaken(save, shape, shape, step, seed);
}

static inline void export_to(const char *from, const char *folder, FileType type) {
    ModelSource *source;
    EXPECT_OK(model_source_open(&source, from, -1));
    if (source) EXPECT_OK(model_source_merge(source));
    if (source) EXPECT_OK(export_hugging_face(source, folder, type));
    model_source_close(source);
}

static inline void import_to(const char *from, const char *save) {
    ModelSource *source;
    EXPECT_OK(model_source_open(&source, from, -1));
    if (source) EXPECT_OK(model_source_merge(source));
    if (source) EXPECT_OK(import_model(source, NULL, save, 0));
    model_source_close(source);
}

// ---- what is read back ----

// Whole, and a rectangle out of the middle.
static inline void expect_weight(ModelSource *source, const WeightSpec *w, uint64_t seed) {
    static float wanted[MAX_ELEMENTS], found[MAX_ELEMENTS];
    fill(w, seed, wanted);
    EXPECT_OK(model_source_read(source, w->name, (Rect){0, 0, w->rows, w->cols}, found, w->cols));
    EXPECT(!memcmp(wanted, found, (size_t)(w->rows * w->cols) * sizeof *found), "%s differs in %s", w->name,
           model_source_path(source));
    Rect part = {w->rows / 3, w->cols / 4, w->rows - w->rows / 3, w->cols / 2};
    int64_t stride = part.cols + 3;
    if (part.rows * stride > MAX_ELEMENTS) part.rows = MAX_ELEMENTS / stride;
    EXPECT_OK(model_source_read(source, w->name, part, found, stride));
    for (int64_t i = 0; i < part.rows; i++)
        EXPECT(!memcmp(found + i * stride, wanted + (part.row + i) * w->cols + part.col,
                       (size_t)part.cols * sizeof *found),
               "row %" PRId64 " of a part of %s", i, w->name);
}

static inline void expect_weights(const char *path, const ModelShape *shape, uint64_t seed) {
    ModelSource *source;
    WeightSpec *weights;
    int count;
    EXPECT_OK(model_weights(shape, &weights, &count));
    EXPECT_OK(model_source_open(&source, path, -1));
    for (int i = 0; source && i < count; i++) expect_weight(source, &weights[i], seed);
    model_source_close(source);
    free(weights);
}

// A model that is not opened, and what is said of it.
static inline void expect_source_refused(const char *path, Status wanted, const char *told) {
    ModelSource *source;
    Status status = model_source_open(&source, path, -1);
    EXPECT(status == wanted && !source, "exit %d instead of %d: %s", status, wanted, fail_message());
    EXPECT(strstr(fail_message(), told), "no '%s' in: %s", told, fail_message());
    model_source_close(source);
}
