// Computes random numbers as functions of a key and an index, by the Philox generator.
#include "base/rng.h"
#include <math.h>

void philox4x32(const uint32_t counter[4], RngKey key, uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// The finalizer of MurmurHash3: every input bit reaches every output bit.
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDull;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53ull;
    return x ^ (x >> 33);
}

RngKey rng_key(uint64_t seed, const char *purpose, uint64_t number) {
    uint64_t h = 0xCBF29CE484222325ull;
    for (const char *c = purpose; *c; c++) h = (h ^ (uint8_t)*c) * 0x100000001B3ull;
    h = mix(h ^ mix(seed + 0x9E3779B97F4A7C15ull) ^ mix(number + 0xD1B54A32D192ED03ull) * 3);
    return (RngKey){{(uint32_t)h, (uint32_t)(h >> 32)}};
}

// Two normals from two words: radius from the first (never 0), angle from the second.
static void box_muller(uint32_t u, uint32_t v, double *a, double *b) {
    double radius = sqrt(-2.0 * log(((double)u + 0.5) * 0x1p-32)),
           angle = 2.0 * 3.14159265358979323846 * (double)v * 0x1p-32;
    *a = radius * cos(angle);
    *b = radius * sin(angle);
}

static void normal_block(RngKey key, uint64_t block, double out[4]) {
    uint32_t word[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
    philox4x32(word, key, word);
    box_muller(word[0], word[1], &out[0], &out[1]);
    box_muller(word[2], word[3], &out[2], &out[3]);
}

float rng_normal(RngKey key, uint64_t index) {
    double four[4];
    normal_block(key, index / 4, four);
    return (float)four[index % 4];
}

void rng_fill_normal(RngKey key, uint64_t first, uint64_t count, float mean, float stddev, float *out) {
    double four[4];
    for (uint64_t i = 0; i < count; i++) {
        uint64_t index = first + i;
        if (i == 0 || index % 4 == 0) normal_block(key, index / 4, four);
        out[i] = mean + stddev * (float)four[index % 4];
    }
}

uint32_t rng_dropout_threshold(float probability) {
    double t = floor((double)probability * 4294967296.0 + 0.5);
    return t >= 4294967295.0 ? 4294967295u : (uint32_t)t;
}

uint32_t rng_word(RngKey key, uint64_t sample, uint64_t index) {
    uint64_t block = index / 4;
    uint32_t word[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)sample, (uint32_t)(sample >> 32)};
    philox4x32(word, key, word);
    return word[index % 4];
}
