// Computes what depends on a model's sizes alone: padding, defaults, rotary frequencies.
#include "nn/shape.h"
#include "device/ops.h"
#include <math.h>

int padded_vocabulary(int vocabulary, int divisor, int tp) {
    int64_t multiple = (int64_t)divisor * tp, padded = (vocabulary + multiple - 1) / multiple * multiple;
    CHECK(padded <= INT32_MAX, "a vocabulary of %lld entries, padding included", (long long)padded);
    return (int)padded;
}

Float8 model_layer_float8(const ModelShape *s, const ModelMode *mode, int layer) {
    bool wide = layer < mode->wide_first || layer >= s->layers - mode->wide_last;
    return wide ? FLOAT8_NONE : mode->float8;
}

float model_lora_scale(const ModelShape *s) {
    return s->lora_alpha / (s->lora_sqrt ? sqrtf((float)s->lora_rank) : (float)s->lora_rank);
}

ModelShape model_without_adapters(const ModelShape *s) {
    ModelShape bare = *s;
    bare.lora_rank = bare.lora_targets = 0;
    bare.lora_alpha = bare.lora_dropout = 0;
    bare.lora_sqrt = false;
    return bare;
}

int model_groups(const ModelShape *s) { return s->groups ? s->groups : s->heads; }
bool model_is_latent(const ModelShape *s) { return s->kv_rank > 0; }
int model_value_size(const ModelShape *s) { return s->value_size ? s->value_size : s->head_size; }

int model_core_columns(const ModelShape *s) {
    return model_value_size(s) > s->head_size ? model_value_size(s) : s->head_size;
}

bool model_has_qkv_bias(const ModelShape *s) { return !s->no_linear_bias || s->qkv_bias; }
bool model_has_proj_bias(const ModelShape *s) { return !s->no_linear_bias || s->proj_bias; }
bool model_has_mlp_bias(const ModelShape *s) { return !s->no_linear_bias || s->mlp_bias; }

bool model_is_gated(const ModelShape *s) {
    return s->activation == ACTIVATION_SWIGLU || s->activation == ACTIVATION_GEGLU ||
           s->activation == ACTIVATION_QUICK_GEGLU;
}
bool model_has_pre_norm(const ModelShape *s) { return s->norm_place != NORM_POST; }
bool model_has_post_norm(const ModelShape *s) { return s->norm_place != NORM_PRE; }

int model_window(const ModelShape *s, int layer) {
    return !s->window_period || s->window_layers >> layer % s->window_period & 1 ? s->window : 0;
}

double model_visible_share(const ModelShape *s) {
    double sum = 0;
    if (!s->window || !s->layers) return 1;
    for (int layer = 0; layer < s->layers; layer++)
        sum += attention_visible_share(model_window(s, layer), 0, s->sequence);
    return sum / s->layers;
}

// ---- rotary positions -----------------------------------------------------------------------------------

int model_rotary_columns(const ModelShape *s) { return s->rotary_columns ? s->rotary_columns : s->head_size; }

// Source: Llama 3.1, as transformers' modeling_rope_utils and Megatron-LM's rotary_pos_embedding compute it.
static double llama3_frequency(const Rope *rope, double plain) {
    double wavelength = 2 * M_PI / plain, original = rope->original;
    if (wavelength < original / rope->high) return plain;
    if (wavelength > original / rope->low) return plain / rope->factor;
    double share = (original / wavelength - rope->low) / (rope->high - rope->low);
    return (1 - share) * plain / rope->factor + share * plain;
}

// The column whose waves turn so many times within the original positions.
static double yarn_column(const ModelShape *s, double turns) {
    return model_rotary_columns(s) * log(s->rope.original / (turns * 2 * M_PI)) / (2 * log(s->rotary_base));
}

// Source: Peng 2023, as transformers' modeling_rope_utils computes it.
static double yarn_frequency(const ModelShape *s, double plain, int i) {
    double first = yarn_column(s, s->rope.high), last = yarn_column(s, s->rope.low);
    if (!s->rope.unrounded) first = floor(first), last = ceil(last);
    first = fmax(first, 0), last = fmin(last, model_rotary_columns(s) - 1);
    if (first == last) last += 0.001;
    double share = fmin(fmax((i - first) / (last - first), 0), 1);
    return plain / s->rope.factor * share + plain * (1 - share);
}

double model_yarn_scale(double factor, double mscale) {
    return factor > 1 ? 0.1 * mscale * log(factor) + 1 : 1;
}

// The core of latent attention may have more columns than queries: it has to be told.
double model_softmax_scale(const ModelShape *s) {
    double scale = s->softmax_scale, all = model_yarn_scale(s->rope.factor, s->rope.mscale_all);
    if (!(scale > 0) && model_is_latent(s)) scale = 1 / sqrt(s->head_size);
    return s->rope.mscale_all > 0 ? scale * all * all : scale;
}

static double dynamic_base(const ModelShape *s) {
    double columns = model_rotary_columns(s), factor = s->rope.factor;
    if (s->sequence <= s->rope.original) return s->rotary_base;
    return s->rotary_base *
           pow(factor * s->sequence / s->rope.original - (factor - 1), columns / (columns - 2));
}

bool model_layer_rotates(const ModelShape *s, int layer) {
    return s->position == POSITION_ROTARY && !(s->no_rope_freq && (layer + 1) % s->no_rope_freq == 0);
}

double model_rotary_frequency(const ModelShape *s, int i, bool local) {
    double exponent = -2.0 * i / model_rotary_columns(s), plain = pow(s->rotary_base, exponent);
    if (local && s->rotary_base_local > 0) return pow(s->rotary_base_local, exponent);
    switch (s->rope.kind) {
    case ROPE_LINEAR: return plain / s->rope.factor;
    case ROPE_LLAMA3: return llama3_frequency(&s->rope, plain);
    case ROPE_YARN: return yarn_frequency(s, plain, i);
    case ROPE_DYNAMIC: return pow(dynamic_base(s), exponent);
    case ROPE_LONG: return plain / (s->sequence > s->rope.original ? s->rope.longer : s->rope.shorter).at[i];
    default: return plain;
    }
}

double model_rotary_factor(const ModelShape *s, bool local) {
    const Rope *rope = &s->rope;
    bool is_long = rope->kind == ROPE_LONG;
    if ((rope->kind != ROPE_YARN && !is_long) || (local && s->rotary_base_local > 0)) return 1;
    if (rope->attention > 0) return rope->attention;
    return is_long ? sqrt(1 + log(rope->factor) / log(rope->original)) : model_yarn_scale(rope->factor, 1);
}
