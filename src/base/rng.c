// Computes random numbers as functions of a key and an index, by the Philox generator.
#include "base/rng.h"
#include <math.h>
#include <stdbool.h>

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

// ---- many normals -----------------------------------------------------------------------------------------

// Pairs of normals at a time, each in a lane of a vector.
enum { PAIRS = 8 };
typedef double Doubles __attribute__((vector_size(8 * PAIRS)));
typedef uint64_t Words __attribute__((vector_size(8 * PAIRS)));

// Whole numbers below 2^52.
#define DOUBLES_OF(words) ((Doubles)((words) | 0x4330000000000000u) - 0x1p52)

// box_muller of PAIRS pairs, to less than 2^-46: logarithm, sine and cosine by their series.
static void near_box_muller(const Words *u, const Words *v, Doubles *a, Doubles *b) {
    static const double TAU_32 = 2.0 * 3.14159265358979323846 * 0x1p-32;
    // x = 2^k m with m from sqrt(1/2) to sqrt(2), and log m = 2 atanh((m - 1) / (m + 1)).
    Words bits = (Words)((DOUBLES_OF(*u) + 0.5) * 0x1p-32),
          power = (bits + 0x95F619980C433u) >> 52; // k + 1023
    Doubles m = (Doubles)(bits - ((power - 1023) << 52)), s = (m - 1) / (m + 1), z = s * s,
            log_m = z * (1.0 / 21);
    for (int odd = 19; odd > 1; odd -= 2) log_m = z * (log_m + 1.0 / odd);
    Doubles square = -2 * ((DOUBLES_OF(power) - 1023) * 0.693147180559945309417 + 2 * (s + s * log_m)),
            radius;
    for (int i = 0; i < PAIRS; i++) radius[i] = sqrt(square[i]);
    // The angle is a number of right angles and at most half a one, either way.
    Words right = (*v + (1u << 29)) >> 30;
    Doubles x = (DOUBLES_OF(*v) - DOUBLES_OF(right) * 0x1p30) * TAU_32, x2 = x * x,
            sine = x2 * (-1.0 / (14 * 15)), cosine = x2 * (-1.0 / (15 * 16));
    for (int n = 13; n > 1; n -= 2) sine = (sine + 1) * (x2 * (-1.0 / ((n - 1) * n)));
    for (int n = 14; n > 1; n -= 2) cosine = (cosine + 1) * (x2 * (-1.0 / ((n - 1) * n)));
    sine = radius * (x + x * sine), cosine = radius * (1 + cosine);
    Words odd = -(right & 1), minus_a = ((right + 1) & 2) << 62, minus_b = (right & 2) << 62;
    *a = (Doubles)((((Words)sine & odd) | ((Words)cosine & ~odd)) ^ minus_a);
    *b = (Doubles)((((Words)cosine & odd) | ((Words)sine & ~odd)) ^ minus_b);
}

// Returns whether x, which is within 2^-45 of the exact number, may be rounded to another float than that number is.
static bool is_open(double x) { return (float)(x - 0x1p-45) != (float)(x + 0x1p-45); }

// The normals of PAIRS / 2 blocks, those of normal_block: what is near a number between two floats is computed exactly.
static void many_normals(RngKey key, uint64_t block, float out[2 * PAIRS]) {
    Words u, v;
    Doubles a, b;
    for (int i = 0; i < PAIRS; i += 2, block++) {
        uint32_t word[4] = {(uint32_t)block, (uint32_t)(block >> 32), 0, 0};
        philox4x32(word, key, word);
        u[i] = word[0], v[i] = word[1], u[i + 1] = word[2], v[i + 1] = word[3];
    }
    near_box_muller(&u, &v, &a, &b);
    for (int i = 0; i < PAIRS; i++) {
        double pair[2] = {a[i], b[i]};
        if (is_open(pair[0]) || is_open(pair[1]))
            box_muller((uint32_t)u[i], (uint32_t)v[i], &pair[0], &pair[1]);
        out[2 * i] = (float)pair[0], out[2 * i + 1] = (float)pair[1];
    }
}

void rng_fill_normal(RngKey key, uint64_t first, uint64_t count, float mean, float stddev, float *out) {
    float many[2 * PAIRS];
    double four[4];
    for (uint64_t i = 0; i < count;) {
        uint64_t index = first + i;
        if (index % 4 == 0 && count - i >= 2 * PAIRS) {
            many_normals(key, index / 4, many);
            for (int k = 0; k < 2 * PAIRS; k++) out[i++] = mean + stddev * many[k];
            continue;
        }
        if (i == 0 || index % 4 == 0) normal_block(key, index / 4, four);
        out[i++] = mean + stddev * (float)four[index % 4];
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
