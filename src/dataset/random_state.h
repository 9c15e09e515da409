// The parts of NumPy's legacy RandomState that Megatron-LM's data order needs: MT19937 and its in-place shuffle.
// Source: Matsumoto and Nishimura, "Mersenne Twister", 1998; NumPy, RandomState.shuffle.
#pragma once
#include <stdint.h>

enum { MT_WORDS = 624 };

typedef struct {
    uint32_t word[MT_WORDS];
    int next; // index of the next word
} RandomState;

void random_state_seed(RandomState *state, uint32_t seed);
uint32_t random_state_draw(RandomState *state);
// A uniform number in [0, max]. From max = 2^32 on it takes two draws at a time; the first is the high half.
uint64_t random_state_interval(RandomState *state, uint64_t max);
// Both widths give the same permutation.
void random_state_shuffle(RandomState *state, int32_t *values, int64_t count);
void random_state_shuffle_wide(RandomState *state, int64_t *values, int64_t count);
