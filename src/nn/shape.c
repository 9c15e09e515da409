#include "nn/nn.h"

int padded_vocabulary(int vocabulary, int divisor, int tp) {
    int64_t multiple = (int64_t)divisor * tp, padded = (vocabulary + multiple - 1) / multiple * multiple;
    CHECK(padded <= INT32_MAX, "a vocabulary of %lld entries, padding included", (long long)padded);
    return (int)padded;
}

int model_groups(const ModelShape *s) { return s->groups ? s->groups : s->heads; }

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
    if (!s->no_linear_bias || s->qkv_bias) layer += qkv_width(s);
    if (!s->no_linear_bias) layer += h + inner_width(s) + h;
    int64_t ends = s->vocabulary * h * (s->untied ? 2 : 1) + norm;
    if (s->position == POSITION_LEARNED) ends += s->positions * h;
    return s->layers * layer + ends;
}

double model_flops(const ModelShape *s, double samples) {
    double per_token = 6 * (s->layers * (double)layer_weights(s) + (double)s->padded_vocabulary * s->hidden);
    double attention =
        12.0 * s->layers * s->sequence * s->heads * s->head_size; // QK^T and PV, forward and twice backward
    return samples * s->sequence * (per_token + attention);
}
