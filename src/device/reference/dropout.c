// The dropout factor of one element, which activations and attention probabilities share.
#include "device/reference/reference.h"

double reference_dropout_factor(Dropout dropout, int64_t sample, int64_t index) {
    if (dropout.probability == 0) return 1;
    uint32_t word = rng_word(dropout.key, (uint64_t)sample, (uint64_t)index);
    bool kept = word >= rng_dropout_threshold(dropout.probability);
    return kept ? (double)(1.0f / (1.0f - dropout.probability)) : 0;
}
