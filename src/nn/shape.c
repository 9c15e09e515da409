// The model's sizes: what follows from them alone, parameters, floating-point operations, frequencies.
#include "nn/shape.h"
#include <math.h>

int padded_vocabulary(int vocabulary, int divisor, int tp) {
    int64_t multiple = (int64_t)divisor * tp, padded = (vocabulary + multiple - 1) / multiple * multiple;
    CHECK(padded <= INT32_MAX, "a vocabulary of %lld entries, padding included", (long long)padded);
    return (int)padded;
}

int model_groups(const ModelShape *s) { return s->groups ? s->groups : s->heads; }
bool model_has_qkv_bias(const ModelShape *s) { return !s->no_linear_bias || s->qkv_bias; }
bool model_has_proj_bias(const ModelShape *s) { return !s->no_linear_bias || s->proj_bias; }
bool model_has_mlp_bias(const ModelShape *s) { return !s->no_linear_bias || s->mlp_bias; }

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

// ---- counts ---------------------------------------------------------------------------------------------

// Outputs of fc1: gate and up, or one.
static int64_t inner_width(const ModelShape *s) {
    return (s->activation == ACTIVATION_SWIGLU ? 2 : 1) * (int64_t)s->ffn;
}

static int64_t qkv_width(const ModelShape *s) {
    return ((int64_t)s->heads + 2 * model_groups(s)) * s->head_size;
}

static int64_t layer_weights(const ModelShape *s) {
    int64_t h = s->hidden;
    return h * (qkv_width(s) + (int64_t)s->heads * s->head_size + inner_width(s) + s->ffn);
}

int64_t model_parameters(const ModelShape *s) {
    int64_t h = s->hidden, norm = s->rms_norm ? h : 2 * h, layer = layer_weights(s) + 2 * norm;
    if (model_has_qkv_bias(s)) layer += qkv_width(s);
    if (model_has_proj_bias(s)) layer += h;
    if (model_has_mlp_bias(s)) layer += inner_width(s) + h;
    int64_t ends = s->vocabulary * h * (s->untied ? 2 : 1) + norm;
    if (s->position == POSITION_LEARNED) ends += s->positions * h;
    return s->layers * layer + ends;
}

double model_flops(const ModelShape *s, int table_rows, double samples) {
    double per_token = 6 * (s->layers * (double)layer_weights(s) + (double)table_rows * s->hidden);
    double attention =
        12.0 * s->layers * s->sequence * s->heads * s->head_size; // QK^T and PV, forward and twice backward
    return samples * s->sequence * (per_token + attention);
}
