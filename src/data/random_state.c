#include "data/random_state.h"

void random_state_seed(RandomState *state, uint32_t seed) {
    state->word[0] = seed;
    for (uint32_t i = 1; i < MT_WORDS; i++) {
        uint32_t before = state->word[i - 1];
        state->word[i] = 1812433253U * (before ^ before >> 30) + i;
    }
    state->next = MT_WORDS;
}

static void twist(RandomState *state) {
    uint32_t *x = state->word;
    for (int i = 0; i < MT_WORDS; i++) {
        uint32_t y = (x[i] & 0x80000000U) | (x[(i + 1) % MT_WORDS] & 0x7fffffffU);
        x[i] = x[(i + 397) % MT_WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfU : 0);
    }
    state->next = 0;
}

uint32_t random_state_draw(RandomState *state) {
    if (state->next == MT_WORDS) twist(state);
    uint32_t y = state->word[state->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680U;
    y ^= y << 15 & 0xefc60000U;
    return y ^ y >> 18;
}

// Uniform in [0, max]: draws under the smallest mask that covers max, until one is not above it.
static uint32_t interval(RandomState *state, uint32_t max) {
    if (max == 0) return 0;
    uint32_t mask = UINT32_MAX >> __builtin_clz(max), value;
    do value = random_state_draw(state) & mask;
    while (value > max);
    return value;
}

void random_state_shuffle(RandomState *state, int32_t *values, int64_t count) {
    for (int64_t i = count - 1; i > 0; i--) {
        uint32_t j = interval(state, (uint32_t)i);
        int32_t kept = values[i];
        values[i] = values[j];
        values[j] = kept;
    }
}
