// The arithmetic of one instruction set: vectors of floats, the element types in memory, exp, and the
// words of dropout masks.
//
// Floats is as wide as the CPU's registers. A loop over n floats goes in steps of LANES; its last,
// partial vector passes the same instructions as all others, so that an element's bits do not depend on
// its place. NaN and infinity follow IEEE rules. Written with the vector extensions of gcc and clang,
// which leave the choice of instructions to the compiler.
#pragma once
#include "base/half.h"
#include "device/cpu.h"
#include <math.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16 };
#define LOW_PAIRS  0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_PAIRS 4, 12, 5, 13, 6, 14, 7, 15
#elif defined(__AVX2__)
#include <immintrin.h>
enum { LANES = 8 };
#define LOW_PAIRS  0, 4, 1, 5
#define HIGH_PAIRS 2, 6, 3, 7
#else
enum { LANES = 4 };
#define LOW_PAIRS  0, 2
#define HIGH_PAIRS 1, 3
#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints
    __attribute__((vector_size(4 * LANES))); // also the result of a comparison: 0 or -1 per lane
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES))); // the bits of bf16 or fp16
typedef uint64_t Wides __attribute__((vector_size(4 * LANES)));  // half as many lanes
typedef double Doubles __attribute__((vector_size(4 * LANES)));  // half as many lanes
enum { DOUBLE_LANES = LANES / 2 };
typedef float FloatsOfDoubles __attribute__((vector_size(4 * DOUBLE_LANES)));

static inline Floats splat(float x) { return x - (Floats){0}; }

// The next LANES floats, of which only `left` may exist: the others read as `fill`.
static inline Floats load_padded(const float *from, int64_t left, float fill) {
    Floats x = splat(fill);
    if (left >= LANES)
        memcpy(&x, from, sizeof x);
    else
        memcpy(&x, from, (size_t)left * sizeof(float));
    return x;
}

static inline Floats load(const float *from, int64_t left) { return load_padded(from, left, 0); }

static inline void store(float *to, int64_t left, Floats x) {
    if (left >= LANES)
        memcpy(to, &x, sizeof x);
    else
        memcpy(to, &x, (size_t)left * sizeof(float));
}

// ---- element types: rounded as base/half.h does -----------------------------------------------------------

// Not left to the compiler where there are 16 lanes: gcc would convert them in halves.
static inline Floats widen_bf16(Halves h) {
#if defined(__AVX512F__)
    return (Floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#else
    return (Floats)(__builtin_convertvector(h, Words) << 16);
#endif
}

static inline Halves narrow_bf16(Floats x) {
    Words bits = (Words)x, rounded = bits + (bits >> 16 & 1) + 0x7fff, quiet = bits | 0x400000;
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    __m512i chosen = _mm512_mask_mov_epi32((__m512i)rounded, nan, (__m512i)quiet);
    return (Halves)_mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
#else
    Words nan = (Words)(x != x);
    return __builtin_convertvector(((nan & quiet) | (~nan & rounded)) >> 16, Halves);
#endif
}

static inline Floats widen_f16(Halves h) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
    return (Floats)_mm256_cvtph_ps((__m128i)h);
#else
    Floats x;
    for (int lane = 0; lane < LANES; lane++) x[lane] = f16_to_f32(h[lane]);
    return x;
#endif
}

static inline Halves narrow_f16(Floats x) {
#if defined(__AVX512F__)
    Words nan = (Words)(x != x), bits = ((Words)x & ~(nan & 0x7fffffff)) | (nan & 0x7fc00000);
    return (Halves)_mm512_cvtps_ph((__m512)bits, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    Words nan = (Words)(x != x), bits = ((Words)x & ~(nan & 0x7fffffff)) | (nan & 0x7fc00000);
    return (Halves)_mm256_cvtps_ph((__m256)bits, _MM_FROUND_TO_NEAREST_INT);
#else
    Halves h;
    for (int lane = 0; lane < LANES; lane++) h[lane] = f16_of_f32(x[lane]);
    return h;
#endif
}

static inline Floats widen(DType dtype, const void *from) {
    Halves h;
    memcpy(&h, from, sizeof h);
    return dtype == BF16 ? widen_bf16(h) : widen_f16(h);
}

static inline Halves narrow(DType dtype, Floats x) { return dtype == BF16 ? narrow_bf16(x) : narrow_f16(x); }

// The next LANES elements, of which only `left` may exist: the others read as `fill`.
static inline Floats load_as(DType dtype, const void *from, int64_t left, float fill) {
    if (dtype == F32) return load_padded(from, left, fill);
    if (left >= LANES) return widen(dtype, from);
    uint16_t some[LANES] = {0};
    memcpy(some, from, (size_t)left * sizeof some[0]);
    Floats x = widen(dtype, some);
    for (int64_t lane = left; fill != 0 && lane < LANES; lane++) x[lane] = fill;
    return x;
}

static inline void store_as(DType dtype, void *to, int64_t left, Floats x) {
    if (dtype == F32) {
        store(to, left, x);
        return;
    }
    Halves h = narrow(dtype, x);
    if (left >= LANES)
        memcpy(to, &h, sizeof h);
    else
        memcpy(to, &h, (size_t)left * sizeof h[0]);
}

// Kernels are compiled once per element type: E of device.h, a number to load and to store.
typedef struct {
    uint16_t bits[CPU_ELEMENT == F32 ? 2 : 1];
} Element;

static inline Floats load_e_padded(const Element *from, int64_t left, float fill) {
    return load_as(CPU_ELEMENT, from, left, fill);
}
static inline Floats load_e(const Element *from, int64_t left) { return load_as(CPU_ELEMENT, from, left, 0); }
static inline void store_e(Element *to, int64_t left, Floats x) { store_as(CPU_ELEMENT, to, left, x); }

// ---- arithmetic -------------------------------------------------------------------------------------------

static inline Floats choose(Ints condition, Floats yes, Floats no) {
    return (Floats)((condition & (Ints)yes) | (~condition & (Ints)no));
}

static inline Floats square_root(Floats x) {
    for (int lane = 0; lane < LANES; lane++) x[lane] = sqrtf(x[lane]);
    return x;
}

// The larger; a NaN in either argument wins.
static inline Floats larger(Floats a, Floats b) { return choose((a >= b) | (a != a), a, b); }

static inline float sum_lanes(Floats x) {
    float sum[LANES];
    memcpy(sum, &x, sizeof x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) sum[lane] += sum[lane + half];
    return sum[0];
}

static inline float max_lanes(Floats x) {
    float max = x[0];
    for (int lane = 1; lane < LANES; lane++)
        if (x[lane] > max || isnan(x[lane])) max = x[lane];
    return max;
}

// e^x to about 1 unit in the last place. Below the smallest normal number (x < -87.33) it is 0, above 2^127.5
// (x > 88.37) infinity. x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial is a minimax fit of (e^r - 1 - r)
// / r^2, error 3e-9.
static inline Floats exponential(Floats x) {
    const float ROUND = 0x1.8p23f; // adding it leaves an integer in the low bits
    Floats shifted = x * 1.44269504f + ROUND, n = shifted - ROUND;
    Floats r = x - n * 0.693359375f; // ln 2 in two parts, the first short enough for an exact product
    r = r - n * -2.12194440e-4f;
    Floats q = r * 0x1.6a2256p-10f + 0x1.123b02p-7f;
    q = q * r + 0x1.5558f8p-5f;
    q = q * r + 0x1.555490p-3f;
    q = q * r + 0x1.fffffcp-2f;
    Floats y = q * (r * r) + r + 1.0f;
    Ints exponent = (Ints)shifted - (Ints)splat(ROUND);
    y = y * (Floats)((exponent + 127) << 23);
    y = choose(x > 88.37f, splat(INFINITY), y);
    return (Floats)(~(x < -87.33f) & (Ints)y);
}

// ---- dropout ----------------------------------------------------------------------------------------------

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

// Philox4x32-10 of LANES / 2 consecutive blocks (rng.h): 2 * LANES words, in the order of the elements. Each
// word lives in the low half of a 64-bit lane; what the rounds leave in the high halves never reaches a low
// one.
static inline void philox_words(RngKey key, uint64_t sample, uint64_t block, uint32_t *words) {
    static const uint64_t LANE_NUMBER[] = {0, 1, 2, 3, 4, 5, 6, 7};
    Wides c0, c1, c2 = sample - (Wides){0}, c3 = c2 >> 32;
    memcpy(&c0, LANE_NUMBER, sizeof c0);
    c0 += block;
    c1 = c0 >> 32;
    uint32_t k0 = key.word[0], k1 = key.word[1];
    for (int round = 0; round < 10; round++) {
        Wides p0 = wide_product(c0, 0xD2511F53u), p1 = wide_product(c2, 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ (uint64_t)k0;
        c2 = (p0 >> 32) ^ c3 ^ (uint64_t)k1;
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    Wides first = (c0 & 0xFFFFFFFFu) | (c1 << 32), second = (c2 & 0xFFFFFFFFu) | (c3 << 32);
    Wides low = __builtin_shufflevector(first, second, LOW_PAIRS);
    Wides high = __builtin_shufflevector(first, second, HIGH_PAIRS);
    memcpy(words, &low, sizeof low);
    memcpy(words + LANES, &high, sizeof high);
}

enum { MASK_SPAN = 512 }; // elements whose words are made at a time: they stay in the first-level cache

// The mask of one sample, a span at a time.
typedef struct {
    RngKey key;
    uint64_t sample;
    uint32_t threshold;
    float scale; // of what is kept
    bool drops;
    uint32_t words[MASK_SPAN + 4 * LANES];
} Mask;

static const uint32_t KEEP_ALL[MASK_SPAN + LANES]; // words for a probability of 0

static inline void mask_open(Mask *mask, const Dropout *dropout) {
    mask->key = dropout->key;
    mask->threshold = rng_dropout_threshold(dropout->probability);
    mask->scale = 1.0f / (1.0f - dropout->probability);
    mask->drops = dropout->probability != 0;
}

// Makes the words of elements [index, index + count), count <= MASK_SPAN; returns those of the first.
static inline const uint32_t *mask_span(Mask *mask, uint64_t index, int64_t count) {
    if (!mask->drops) return KEEP_ALL;
    int64_t first = (int64_t)(index % 4);
    for (int64_t i = 0; i < first + count + LANES; i += 2 * LANES)
        philox_words(mask->key, mask->sample, index / 4 + (uint64_t)i / 4, mask->words + i);
    return mask->words + first;
}

// x scaled where its word keeps it, else 0.
static inline Floats mask_apply(const Mask *mask, const uint32_t *words, Floats x) {
    Words w;
    memcpy(&w, words, sizeof w);
    return (Floats)((Ints)(w >= mask->threshold) & (Ints)(x * mask->scale));
}
