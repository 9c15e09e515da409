// NumPy's legacy RandomState, as far as Megatron's data order needs it: MT19937 and its in-place shuffle.
// Source: Matsumoto and Nishimura, "Mersenne Twister", 1998; NumPy, RandomState.shuffle.
#pragma once
#include <stdint.h>

enum { MT_WORDS = 624 };

typedef struct {
    uint32_t word[MT_WORDS];
    int next; // word to temper next
} RandomState;

void random_state_seed(RandomState *state, uint32_t seed);
uint32_t random_state_draw(RandomState *state);
// Uniform in [0, max]. Takes two draws at a time from max = 2^32 on, the first one being the high half.
uint64_t random_state_interval(RandomState *state, uint64_t max);
// The same permutation for both widths.
void random_state_shuffle(RandomState *state, int32_t *values, int64_t count);
void random_state_shuffle_wide(RandomState *state, int64_t *values, int64_t count);
