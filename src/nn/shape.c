// Computes what depends on a model's sizes alone: padding, defaults, rotary frequencies.
#include "nn/shape.h"
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

int model_groups(const ModelShape *s) { return s->groups ? s->groups : s->heads; }
bool model_has_qkv_bias(const ModelShape *s) { return !s->no_linear_bias || s->qkv_bias; }
bool model_has_proj_bias(const ModelShape *s) { return !s->no_linear_bias || s->proj_bias; }
bool model_has_mlp_bias(const ModelShape *s) { return !s->no_linear_bias || s->mlp_bias; }

int model_window(const ModelShape *s, int layer) {
    return !s->window_period || s->window_layers >> layer % s->window_period & 1 ? s->window : 0;
}

double model_softmax_scale(const ModelShape *s) {
    return s->softmax_scale > 0 ? s->softmax_scale : 1 / sqrt(s->head_size);
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

double model_rotary_frequency(const ModelShape *s, int i) {
    double plain = pow(s->rotary_base, -2.0 * i / model_rotary_columns(s));
    switch (s->rope.kind) {
    case ROPE_LINEAR: return plain / s->rope.factor;
    case ROPE_LLAMA3: return llama3_frequency(&s->rope, plain);
    default: return plain;
    }
}
