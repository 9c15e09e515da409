// NumPy's older random generator, MT19937, and its shuffle.
#include "dataset/random_state.h"

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

static uint64_t draw_wide(RandomState *state) {
    uint64_t high = random_state_draw(state);
    return high << 32 | random_state_draw(state);
}

// Draws numbers under the smallest mask that covers max, until one is not above max.
uint64_t random_state_interval(RandomState *state, uint64_t max) {
    if (max == 0) return 0;
    uint64_t mask = UINT64_MAX >> __builtin_clzll(max), value;
    do value = (max > UINT32_MAX ? draw_wide(state) : random_state_draw(state)) & mask;
    while (value > max);
    return value;
}

void random_state_shuffle(RandomState *state, int32_t *values, int64_t count) {
    for (int64_t i = count - 1; i > 0; i--) {
        uint64_t j = random_state_interval(state, (uint64_t)i);
        int32_t kept = values[i];
        values[i] = values[j];
        values[j] = kept;
    }
}

void random_state_shuffle_wide(RandomState *state, int64_t *values, int64_t count) {
    for (int64_t i = count - 1; i > 0; i--) {
        uint64_t j = random_state_interval(state, (uint64_t)i);
        int64_t kept = values[i];
        values[i] = values[j];
        values[j] = kept;
    }
}
