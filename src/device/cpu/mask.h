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

#if __ARM_FEATURE_SVE_BITS

// LANES blocks: there are instructions for the low and the high halves of products of 32-bit lanes.
typedef struct {
    Words c0, c1, c2, c3;
} PhiloxBlocks;

static inline PhiloxBlocks first_blocks(uint64_t sample, uint64_t block) {
    const uint32_t first = (uint32_t)block;
    PhiloxBlocks b = {.c0 = svindex_u32(first, 1), .c2 = (uint32_t)sample - (Words){0}};
    b.c1 = (uint32_t)(block >> 32) - (Words)(b.c0 < first); // the carry: -1
    b.c3 = (uint32_t)(sample >> 32) - (Words){0};
    return b;
}

static inline PhiloxBlocks next_round(PhiloxBlocks b, const uint64_t key[2]) {
    const uint32_t by0 = 0xD2511F53u, by1 = 0xCD9E8D57u;
    Words high0 = svmulh_n_u32_x(svptrue_b32(), b.c0, by0), high1 = svmulh_n_u32_x(svptrue_b32(), b.c2, by1);
    return (PhiloxBlocks){high1 ^ b.c1 ^ (uint32_t)key[0], b.c2 * by1, high0 ^ b.c3 ^ (uint32_t)key[1],
                          b.c0 * by0};
}

// The words of LANES consecutive blocks, in the order of the elements.
static inline void philox_words(const RoundKeys *keys, uint64_t sample, uint64_t block, uint32_t *words) {
    PhiloxBlocks b = first_blocks(sample, block);
    for (int round = 0; round < PHILOX_ROUNDS; round++) b = next_round(b, keys->word[round]);
    svst4_u32(svptrue_b32(), words, svcreate4_u32(b.c0, b.c1, b.c2, b.c3));
}

#else

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

#endif

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
