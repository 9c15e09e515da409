// A small model that is made up, weight by weight, and runs of it on any grid: for the tests of infer/.
#pragma once
#include "harness.h"
#include "infer/internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// With padding every tp rank but the last of four has some of the vocabulary.
enum { FIXTURE_VOCABULARY = 300, FIXTURE_POSITIONS = 40 };

static inline ModelShape fixture_gpt(void) {
    return (ModelShape){.layers = 3,
                        .hidden = 32,
                        .heads = 12,
                        .head_size = 4,
                        .ffn = 96,
                        .sequence = 16,
                        .positions = FIXTURE_POSITIONS,
                        .vocabulary = FIXTURE_VOCABULARY,
                        .hidden_dropout = 0.1f,
                        .attention_dropout = 0.1f,
                        .norm_epsilon = 1e-5f,
                        .init_std = 0.3f,
                        .seed = 1234};
}

// Rotary positions, RMS norm, SwiGLU, two heads a group, no biases, untied.
static inline ModelShape fixture_llama(void) {
    ModelShape s = fixture_gpt();
    s.activation = ACTIVATION_SWIGLU, s.position = POSITION_ROTARY, s.rotary_base = 10000;
    s.rms_norm = s.no_linear_bias = s.untied = true;
    s.heads = 24, s.groups = 12;
    return s;
}

// Windows of 5 tokens in two of three layers, sinks, and a scale and a cap of scores.
static inline ModelShape fixture_limited(ModelShape s) {
    s.window = 5, s.window_period = 3, s.window_layers = 3;
    s.softmax = SOFTMAX_SINKS, s.softmax_scale = 0.7, s.softmax_cap = 2;
    return s;
}

// Norms around sublayers, of heads, by 1 + weight; caps, a window in some layers, two bases, a layer without rotations.
static inline ModelShape fixture_sandwich(void) {
    ModelShape s = fixture_llama();
    s.norm_place = NORM_SANDWICH, s.norm_offset = true, s.qk_norm = QK_NORM_HEAD;
    s.activation = ACTIVATION_GEGLU, s.embedding_multiplier = 3, s.logit_cap = 5, s.softmax_cap = 4;
    s.window = 5, s.window_period = 2, s.window_layers = 1, s.rotary_base_local = 500, s.no_rope_freq = 3;
    return s;
}

// Norms after sublayers, of all heads together.
static inline ModelShape fixture_post(void) {
    ModelShape s = fixture_llama();
    s.norm_place = NORM_POST, s.qk_norm = QK_NORM_ALL;
    return s;
}

// Queries, keys and values of latents; values wider than keys.
static inline ModelShape fixture_latent(void) {
    ModelShape s = fixture_llama();
    s.groups = 0, s.head_size = 6, s.rotary_columns = 2, s.kv_rank = 10, s.value_size = 8;
    s.rope = (Rope){.kind = ROPE_YARN,
                    .factor = 4,
                    .low = 1,
                    .high = 32,
                    .original = 8,
                    .attention = 0.9,
                    .mscale_all = 0.7};
    return s;
}

// The initial values of a run of this shape, as the trainer makes them, if `plain`; else every weight, bias
// and norm is drawn.
typedef struct {
    const ModelShape *shape;
    bool plain;
} FixtureWeights;

static inline bool fixture_ends(const char *name, const char *end) {
    size_t a = strlen(name), b = strlen(end);
    return a >= b && !strcmp(name + a - b, end);
}

static inline int64_t fixture_columns(const ModelShape *s, const char *name) {
    if (fixture_ends(name, "shared_experts.linear_fc2.weight")) return s->shared_ffn;
    if (fixture_ends(name, "experts.linear_fc2.weight")) return s->expert_ffn;
    if (fixture_ends(name, "fc2.weight")) return s->ffn;
    if (fixture_ends(name, "q_up_proj.weight")) return s->q_rank;
    if (fixture_ends(name, "kv_up_proj.weight")) return s->kv_rank;
    return fixture_ends(name, "linear_proj.weight") ? (int64_t)s->heads * model_value_size(s) : s->hidden;
}

static inline Status fixture_read(void *self, const char *name, Rect rect, float *out, int64_t stride) {
    const FixtureWeights *weights = self;
    const ModelShape *s = weights->shape;
    bool norm = fixture_ends(name, "norm.weight"), bias = fixture_ends(name, ".bias");
    bool output = fixture_ends(name, "fc2.weight") || fixture_ends(name, "linear_proj.weight");
    float std = s->init_std / (output ? sqrtf(2.0f * (float)s->layers) : 1);
    if (norm || bias) std = weights->plain ? 0 : 0.1f;
    RngKey key = rng_key(s->seed, name, 0);
    for (int64_t row = 0; row < rect.rows; row++) {
        uint64_t first = (uint64_t)((rect.row + row) * fixture_columns(s, name) + rect.col);
        float mean = norm && !s->norm_offset ? 1 : 0;
        rng_fill_normal(key, first, (uint64_t)rect.cols, mean, std, out + row * stride);
    }
    return OK;
}

static inline InferSpec fixture_spec(int tp, int pp, DType dtype, bool cache) {
    return (InferSpec){.grid = GRID(tp, 1, pp),
                       .device = harness_device("cpu"),
                       .threads = 1,
                       .dtype = dtype,
                       .batch = 2,
                       .capacity = 24,
                       .longest = 9,
                       .cache = cache};
}

static inline Status fixture_open(Infer **infer, const ModelShape *shape, const InferSpec *spec,
                                  Comm *world) {
    FixtureWeights weights = {shape, false};
    return infer_open_with(infer, shape, (WeightReader){fixture_read, &weights}, spec, world);
}

// What one run does, on each of its ranks.
typedef struct {
    ModelShape shape;
    InferSpec spec;
    void *result; // of rank 0
} FixtureRun;

// A test may run on the cpu, too, where its device is another: there no transport of GPUs is.
static inline Status fixture_launch(const FixtureRun *run, RankMain *rank_main) {
    bool on_gpus = !strncmp(run->spec.device, "cuda", strlen("cuda"));
    CommOptions options = {.transport = "threads",
                           .ranks = grid_size(run->spec.grid),
                           .timeout_s = 60,
                           .check = true,
                           .device_transport = on_gpus ? harness_device_transport() : NULL,
                           .deterministic = true};
    return comm_launch(options, rank_main, (void *)(uintptr_t)run);
}

// Token `position` of sequence b of a text without sense.
static inline int32_t fixture_token(int position, int b) {
    return (int32_t)(rng_word(rng_key(5, "text", 0), (uint64_t)b, (uint64_t)position) % FIXTURE_VOCABULARY);
}

// Positions [first, first + n) of all sequences, [n, B].
static inline const int32_t *fixture_text(int32_t *room, int first, int n, int batch) {
    for (int i = 0; i < n * batch; i++) room[i] = fixture_token(first + i / batch, i % batch);
    return room;
}

static inline int fixture_largest(const float *logits) {
    int best = 0;
    for (int i = 1; i < FIXTURE_VOCABULARY; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}
