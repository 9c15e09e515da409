// Dropout masks of one instruction set: the words of Philox4x32-10 (base/rng.h), many blocks at a time, and the
// elements that they keep.
#pragma once
#include "device/cpu/vector.h"

// The words that enter each round of Philox, from the key alone.
enum { PHILOX_ROUNDS = 10 };

typedef struct {
    uint64_t word[PHILOX_ROUNDS][2]; // 32 bits each
} RoundKeys;

static inline void round_keys(RoundKeys *keys, RngKey key) {
    for (uint32_t round = 0; round < PHILOX_ROUNDS; round++) {
        keys->word[round][0] = key.word[0] + round * 0x9E3779B9u;
        keys->word[round][1] = key.word[1] + round * 0xBB67AE85u;
    }
}

// The products of the low halves of a's 64-bit lanes with k. Not left to the compiler: gcc would multiply 64
// by 64 bits.
static inline Wides wide_product(Wides a, uint32_t k) {
#if defined(__AVX512F__)
    return (Wides)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(k));
#elif defined(__AVX2__)
    return (Wides)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(k));
#elif defined(__SSE2__)
    return (Wides)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(k));
#else
    return (a & 0xFFFFFFFFu) * (uint64_t)k;
#endif
}

// LANES / 2 blocks. Each word lives in the low half of a 64-bit lane; what the
// rounds leave in the high halves never reaches a low one.
typedef struct {
    Wides c0, c1, c2, c3;
} PhiloxBlocks;

static inline PhiloxBlocks first_blocks(uint64_t sample, uint64_t block) {
    static const uint64_t LANE_NUMBER[] = {0, 1, 2, 3, 4, 5, 6, 7};
    PhiloxBlocks b = {.c2 = sample - (Wides){0}};
    memcpy(&b.c0, LANE_NUMBER, sizeof b.c0);
    b.c0 += block;
    b.c1 = b.c0 >> 32;
    b.c3 = b.c2 >> 32;
    return b;
}

static inline PhiloxBlocks next_round(PhiloxBlocks b, const uint64_t key[2]) {
    Wides p0 = wide_product(b.c0, 0xD2511F53u), p1 = wide_product(b.c2, 0xCD9E8D57u);
    return (PhiloxBlocks){(p1 >> 32) ^ b.c1 ^ key[0], p1, (p0 >> 32) ^ b.c3 ^ key[1], p0};
}

// Their words, in the order of the elements.
static inline void store_words(uint32_t *words, PhiloxBlocks b) {
    Wides first = (b.c0 & 0xFFFFFFFFu) | (b.c1 << 32), second = (b.c2 & 0xFFFFFFFFu) | (b.c3 << 32);
    Wides low = __builtin_shufflevector(first, second, LOW_PAIRS);
    Wides high = __builtin_shufflevector(first, second, HIGH_PAIRS);
    memcpy(words, &low, sizeof low);
    memcpy(words + LANES, &high, sizeof high);
}

// The words of LANES consecutive blocks. A round waits for the one before: two series of them keep the units busy.
static inline void philox_words(const RoundKeys *keys, uint64_t sample, uint64_t block, uint32_t *words) {
    PhiloxBlocks a = first_blocks(sample, block), b = first_blocks(sample, block + LANES / 2);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        a = next_round(a, keys->word[round]);
        b = next_round(b, keys->word[round]);
    }
    store_words(words, a);
    store_words(words + 2 * LANES, b);
}

enum { WORDS_TOGETHER = 4 * LANES }; // of LANES blocks
enum { MASK_SPAN = 512 }; // elements whose words are made at a time: they stay in the first-level cache

// The mask of one sample, a span at a time.
typedef struct {
    RngKey key;
    RoundKeys keys; // of it
    uint64_t sample;
    uint32_t threshold;
    float scale; // of what is kept
    bool drops;
    uint32_t words[MASK_SPAN + LANES + WORDS_TOGETHER];
} Mask;

static const uint32_t KEEP_ALL[MASK_SPAN + LANES]; // words for a probability of 0

static inline void mask_open(Mask *mask, const Dropout *dropout) {
    mask->key = dropout->key;
    round_keys(&mask->keys, mask->key);
    mask->threshold = rng_dropout_threshold(dropout->probability);
    mask->scale = 1.0f / (1.0f - dropout->probability);
    mask->drops = dropout->probability != 0;
}

// Makes the words of elements [index, index + count), count <= MASK_SPAN; returns those of the first.
static inline const uint32_t *mask_span(Mask *mask, uint64_t index, int64_t count) {
    if (!mask->drops) return KEEP_ALL;
    int64_t first = (int64_t)(index % 4), needed = first + (count + LANES - 1) / LANES * LANES;
    for (int64_t i = 0; i < needed; i += WORDS_TOGETHER)
        philox_words(&mask->keys, mask->sample, (index + (uint64_t)i) / 4, mask->words + i);
    return mask->words + first;
}

// x scaled where its word keeps it, else 0.
static inline Floats mask_apply(const Mask *mask, const uint32_t *words, Floats x) {
    Words w;
    memcpy(&w, words, sizeof w);
    return (Floats)((Ints)(w >= mask->threshold) & (Ints)(x * mask->scale));
}
