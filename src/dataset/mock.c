// Computes the lengths of Megatron-LM's synthetic sequences, with NumPy's generator.
#include "dataset/mock.h"
#include <stdbool.h>

// ---- NumPy's default generator, seeded with 0 -------------------------------------------------------------
// Sources: O'Neill, "PCG: A family of simple fast space-efficient statistically good algorithms for random
// number generation", 2014; NumPy, SeedSequence; Lemire, "Fast random integer generation in an interval".

enum { POOL_WORDS = 4, STATE_WORDS = 8 };

__extension__ typedef unsigned __int128 Wide;

typedef struct {
    Wide state, increment;
    uint32_t kept; // the high half of the last 64 bits
    bool has_kept; // it has not been used yet
} Pcg64;

// One step of a hash whose constant changes with every use.
static uint32_t hash_word(uint32_t word, uint32_t *constant, uint32_t factor) {
    word ^= *constant;
    *constant *= factor;
    word *= *constant;
    return word ^ word >> 16;
}

static uint32_t mix(uint32_t x, uint32_t y) {
    uint32_t mixed = 0xca01f9ddU * x - 0x4973f715U * y;
    return mixed ^ mixed >> 16;
}

// SeedSequence(0): all words of entropy are 0.
static void seed_words(uint32_t words[STATE_WORDS]) {
    uint32_t pool[POOL_WORDS], constant = 0x43b0d7e5U;
    for (int i = 0; i < POOL_WORDS; i++) pool[i] = hash_word(0, &constant, 0x931e8875U);
    for (int from = 0; from < POOL_WORDS; from++)
        for (int to = 0; to < POOL_WORDS; to++)
            if (from != to) pool[to] = mix(pool[to], hash_word(pool[from], &constant, 0x931e8875U));
    constant = 0x8b51f9ddU;
    for (int i = 0; i < STATE_WORDS; i++) words[i] = hash_word(pool[i % POOL_WORDS], &constant, 0x58f38dedU);
}

static void pcg_step(Pcg64 *pcg) {
    const Wide multiplier = (Wide)0x2360ed051fc65da4U << 64 | 0x4385df649fccf645U;
    pcg->state = pcg->state * multiplier + pcg->increment;
}

static Pcg64 pcg_seeded(void) {
    uint32_t words[STATE_WORDS];
    Wide quarters[STATE_WORDS / 2];
    seed_words(words);
    for (int i = 0; i < STATE_WORDS / 2; i++) quarters[i] = (Wide)words[2 * i + 1] << 32 | words[2 * i];
    Pcg64 pcg = {.increment = (quarters[2] << 64 | quarters[3]) << 1 | 1};
    pcg_step(&pcg);
    pcg.state += quarters[0] << 64 | quarters[1];
    pcg_step(&pcg);
    return pcg;
}

// 64 bits (XSL-RR) are used in halves, the low one first.
static uint32_t pcg_draw(Pcg64 *pcg) {
    pcg->has_kept = !pcg->has_kept;
    if (!pcg->has_kept) return pcg->kept;
    pcg_step(pcg);
    uint64_t folded = (uint64_t)(pcg->state >> 64) ^ (uint64_t)pcg->state;
    unsigned turn = (unsigned)(pcg->state >> 122);
    uint64_t bits = folded >> turn | folded << (-turn & 63);
    pcg->kept = (uint32_t)(bits >> 32);
    return (uint32_t)bits;
}

// A uniform number in [0, width).
static uint32_t pcg_below(Pcg64 *pcg, uint32_t width) {
    uint32_t threshold = -width % width; // 2^32 mod width
    uint64_t product;
    do product = (uint64_t)pcg_draw(pcg) * width;
    while ((uint32_t)product < threshold);
    return (uint32_t)(product >> 32);
}

void mock_lengths(int32_t lengths[MOCK_SEQUENCES]) {
    Pcg64 pcg = pcg_seeded();
    for (int i = 0; i < MOCK_SEQUENCES; i++) lengths[i] = (int32_t)(1 + pcg_below(&pcg, MOCK_LONGEST));
}
