#include "nn/nn.h"

int padded_vocabulary(int vocabulary, int divisor, int tp) {
    int multiple = divisor * tp;
    return (vocabulary + multiple - 1) / multiple * multiple;
}

static double layer_weights(const ModelShape *s) {
    double h = s->hidden, attention = (double)s->heads * s->head_size;
    return 4 * h * attention + 2 * h * s->ffn;
}

int64_t model_parameters(const ModelShape *s) {
    int64_t h = s->hidden, attention = (int64_t)s->heads * s->head_size;
    int64_t layer = 4 * h * attention + 2 * h * s->ffn // matrices
                    + 3 * attention + h + s->ffn + h   // biases
                    + 4 * h;                           // two norms
    return s->layers * layer + (s->vocabulary + s->positions) * h + 2 * h;
}

double model_flops(const ModelShape *s, double samples) {
    double per_token = 6 * (s->layers * layer_weights(s) + (double)s->padded_vocabulary * s->hidden);
    double attention =
        12.0 * s->layers * s->sequence * s->heads * s->head_size; // QK^T and PV, forward and twice backward
    return samples * s->sequence * (per_token + attention);
}

Dropout microbatch_dropout(const Microbatch *mb, RngKey key, float probability) {
    return (Dropout){key, mb->training ? probability : 0.0f, mb->first_sample, mb->samples};
}
