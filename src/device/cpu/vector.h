// The arithmetic of one instruction set: vectors of floats, the element types in memory, and exp.
//
// Floats is as wide as the CPU's registers. A loop over n floats goes in steps of LANES; its last,
// partial vector passes the same instructions as all others, so that an element's bits do not depend on
// its place. NaN and infinity follow IEEE rules. Written with the vector extensions of gcc and clang,
// which leave the choice of instructions to the compiler, but where it makes a poor one.
#pragma once
#include "base/half.h"
#include "device/cpu/cpu.h"
#include <math.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif __ARM_FEATURE_SVE_BITS
#include <arm_sve.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__) || __ARM_FEATURE_SVE_BITS == 512
enum { LANES = 16 };
#define LOW_PAIRS  0, 8, 1, 9, 2, 10, 3, 11
#define HIGH_PAIRS 4, 12, 5, 13, 6, 14, 7, 15
#elif defined(__AVX2__) || __ARM_FEATURE_SVE_BITS == 256
enum { LANES = 8 };
#define LOW_PAIRS  0, 4, 1, 5
#define HIGH_PAIRS 2, 6, 3, 7
#else
enum { LANES = 4 };
#define LOW_PAIRS  0, 2
#define HIGH_PAIRS 1, 3
#endif

typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints
    __attribute__((vector_size(4 * LANES))); // also the result of a comparison: 0 or -1 per lane
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint64_t Wides __attribute__((vector_size(4 * LANES))); // half as many lanes
typedef int64_t Longs __attribute__((vector_size(4 * LANES)));
typedef double Doubles __attribute__((vector_size(4 * LANES))); // half as many lanes
enum { DOUBLE_LANES = LANES / 2 };
typedef float FloatsOfDoubles __attribute__((vector_size(4 * DOUBLE_LANES)));

static inline Floats splat(float x) { return x - (Floats){0}; }

// Halves are the bits of bf16 or fp16. SVE's loads and stores leave out lanes, and the high halves of lanes.
#if __ARM_FEATURE_SVE_BITS
enum { SVE = 1 };
typedef uint32_t Halves __attribute__((vector_size(4 * LANES)));
static inline svbool_t first_lanes(int64_t count) { return svwhilelt_b32_s64(0, count); }
static inline svbool_t nans(Floats x) { return svcmpuo_f32(svptrue_b32(), x, x); }
// Whether the compiler knows that all lanes exist. Then there is no mask, with which gcc would keep a sum twice.
static inline bool is_whole(int64_t left) { return __builtin_constant_p(left) && left >= LANES; }
#else
enum { SVE = 0 };
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));
#endif

// x with `fill` in place of the zeros from lane `left` on.
static inline Floats padded(Floats x, int64_t left, float fill) {
#if __ARM_FEATURE_SVE_BITS
    if (left < LANES && fill != 0) return svsel_f32(first_lanes(left), x, splat(fill));
#else
    for (int64_t lane = left; fill != 0 && lane < LANES; lane++) x[lane] = fill;
#endif
    return x;
}

// The next LANES floats, of which only `left` may exist: the others read as `fill`.
static inline Floats load_padded(const float *from, int64_t left, float fill) {
#if __ARM_FEATURE_SVE_BITS
    if (!is_whole(left)) return padded(svld1_f32(first_lanes(left), from), left, fill);
    Floats x;
    memcpy(&x, from, sizeof x);
    return x;
#else
    Floats x = splat(fill);
    if (left >= LANES)
        memcpy(&x, from, sizeof x);
    else
        memcpy(&x, from, (size_t)left * sizeof(float));
    return x;
#endif
}

static inline Floats load(const float *from, int64_t left) { return load_padded(from, left, 0); }

// Not left to the compiler where there are 8 doubles: gcc would convert in halves.
static inline Doubles load_doubles(const float *from, int64_t left) {
#if __ARM_FEATURE_SVE_BITS
    svuint64_t bits = svld1uw_u64(svwhilelt_b64_s64(0, left), (const uint32_t *)from);
    return svcvt_f64_f32_x(svptrue_b64(), svreinterpret_f32_u64(bits));
#else
    FloatsOfDoubles x = {0};
    if (left >= DOUBLE_LANES)
        memcpy(&x, from, sizeof x);
    else
        memcpy(&x, from, (size_t)left * sizeof(float));
#if defined(__AVX512F__)
    return (Doubles)_mm512_cvtps_pd((__m256)x);
#else
    return __builtin_convertvector(x, Doubles);
#endif
#endif
}

static inline void store(float *to, int64_t left, Floats x) {
#if __ARM_FEATURE_SVE_BITS
    if (!is_whole(left))
        svst1_f32(first_lanes(left), to, x);
    else
        memcpy(to, &x, sizeof x);
#else
    if (left >= LANES)
        memcpy(to, &x, sizeof x);
    else
        memcpy(to, &x, (size_t)left * sizeof(float));
#endif
}

// The bits of the next LANES numbers of 16 bits, of which only `left` may exist: the others read as 0.
static inline Halves load_halves(const void *from, int64_t left) {
#if __ARM_FEATURE_SVE_BITS
    return svld1uh_u32(first_lanes(left), from);
#else
    Halves h = {0};
    if (left >= LANES)
        memcpy(&h, from, sizeof h);
    else
        memcpy(&h, from, (size_t)left * sizeof h[0]);
    return h;
#endif
}

static inline void store_halves(void *to, int64_t left, Halves h) {
#if __ARM_FEATURE_SVE_BITS
    svst1h_u32(first_lanes(left), to, h);
#else
    if (left >= LANES)
        memcpy(to, &h, sizeof h);
    else
        memcpy(to, &h, (size_t)left * sizeof h[0]);
#endif
}

// ---- element types: rounded as base/half.h does -----------------------------------------------------------

// Not left to the compiler where there are 16 lanes: gcc would convert them in halves.
static inline Words words_of(Halves h) {
#if defined(__AVX512F__)
    return (Words)_mm512_cvtepu16_epi32((__m256i)h);
#elif __ARM_FEATURE_SVE_BITS
    return h;
#else
    return __builtin_convertvector(h, Words);
#endif
}

static inline Floats widen_bf16(Halves h) { return (Floats)(words_of(h) << 16); }

static inline Halves high_halves(Words x) {
#if defined(__AVX512F__)
    return (Halves)_mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)x, 16));
#elif __ARM_FEATURE_SVE_BITS
    return x >> 16;
#else
    return __builtin_convertvector(x >> 16, Halves);
#endif
}

#if defined(__AVX512BF16__)
// The instruction that rounds takes numbers below the smallest normal one for zero: those go the long way.
static inline __mmask16 not_rounded_by_bf16(Floats x) {
    enum { DENORMAL = 0x20 };
    return _mm512_fpclass_ps_mask((__m512)x, DENORMAL);
}
#endif

static inline Halves narrow_bf16(Floats x) {
#if defined(__AVX512BF16__)
    if (__builtin_expect(!not_rounded_by_bf16(x), 1)) return (Halves)_mm512_cvtneps_pbh((__m512)x);
#elif __ARM_FEATURE_SVE_BITS && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return svreinterpret_u32_bf16(svcvt_bf16_f32_x(svptrue_b32(), x));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return (Halves)vcvt_bf16_f32((float32x4_t)x);
#endif
    Words bits = (Words)x, rounded = bits + (bits >> 16 & 1) + 0x7fff, quiet = bits | 0x400000;
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return high_halves((Words)_mm512_mask_mov_epi32((__m512i)rounded, nan, (__m512i)quiet));
#elif __ARM_FEATURE_SVE_BITS
    return high_halves(svsel_u32(nans(x), quiet, rounded));
#else
    Words nan = (Words)(x != x);
    return high_halves((nan & quiet) | (~nan & rounded));
#endif
}

static inline Floats widen_f16(Halves h) {
#if defined(__AVX512F__)
    return (Floats)_mm512_cvtph_ps((__m256i)h);
#elif defined(__F16C__)
    return (Floats)_mm256_cvtph_ps((__m128i)h);
#elif __ARM_FEATURE_SVE_BITS
    return svcvt_f32_f16_x(svptrue_b32(), svreinterpret_f16_u32(h));
#else
    Floats x;
    for (int lane = 0; lane < LANES; lane++) x[lane] = f16_to_f32(h[lane]);
    return x;
#endif
}

// Returns the bits of x. A NaN becomes the quiet NaN of its sign, as in f16_of_f32.
static inline Words without_payload(Floats x) {
#if __ARM_FEATURE_SVE_BITS
    Words quiet = ((Words)x & 0x80000000) | 0x7fc00000;
    return svsel_u32(nans(x), quiet, (Words)x);
#else
    Words nan = (Words)(x != x);
    return ((Words)x & ~(nan & 0x7fffffff)) | (nan & 0x7fc00000);
#endif
}

static inline Halves narrow_f16(Floats x) {
#if defined(__AVX512F__)
    return (Halves)_mm512_cvtps_ph((__m512)without_payload(x), _MM_FROUND_TO_NEAREST_INT);
#elif defined(__F16C__)
    return (Halves)_mm256_cvtps_ph((__m256)without_payload(x), _MM_FROUND_TO_NEAREST_INT);
#elif __ARM_FEATURE_SVE_BITS
    return svreinterpret_u32_f16(svcvt_f16_f32_x(svptrue_b32(), svreinterpret_f32_u32(without_payload(x))));
#else
    Halves h;
    for (int lane = 0; lane < LANES; lane++) h[lane] = f16_of_f32(x[lane]);
    return h;
#endif
}

static inline Floats widen(DType dtype, Halves h) { return dtype == BF16 ? widen_bf16(h) : widen_f16(h); }

static inline Halves narrow(DType dtype, Floats x) { return dtype == BF16 ? narrow_bf16(x) : narrow_f16(x); }

// The next LANES elements, of which only `left` may exist: the others read as `fill`.
static inline Floats load_as(DType dtype, const void *from, int64_t left, float fill) {
    if (dtype == F32) return load_padded(from, left, fill);
    if (!SVE && left >= LANES) return widen(dtype, load_halves(from, LANES));
    return padded(widen(dtype, load_halves(from, left)), left, fill);
}

static inline void store_as(DType dtype, void *to, int64_t left, Floats x) {
    if (dtype == F32)
        store(to, left, x);
    else
        store_halves(to, left, narrow(dtype, x));
}

// Kernels are compiled once per element type: E of ops.h, a number to load and to store.
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

// a b + c, rounded once where the instruction set can, and twice where it cannot. No file leaves this choice to the
// compiler (-ffp-contract=off): of a b + c d, or of a product that is used twice, each compiler makes another one.
static inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif __ARM_FEATURE_SVE_BITS
    return svmla_x(svptrue_b32(), c, a, b);
#elif defined(__ARM_FEATURE_FMA) && defined(__ARM_NEON)
    return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

static inline Floats square_root(Floats x) {
#if __ARM_FEATURE_SVE_BITS
    return svsqrt_f32_x(svptrue_b32(), x);
#else
    for (int lane = 0; lane < LANES; lane++) x[lane] = sqrtf(x[lane]);
    return x;
#endif
}

// The larger; a NaN in either argument wins.
static inline Floats larger(Floats a, Floats b) {
#if __ARM_FEATURE_SVE_BITS
    return svmax_f32_x(svptrue_b32(), a, b);
#else
    return choose((a >= b) | (a != a), a, b);
#endif
}

// By halves, in vectors of any width.
static inline float sum_lanes(Floats x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#elif __ARM_FEATURE_SVE_BITS // whose own sum of the lanes adds neighbours first
    Floats others = svext_f32(x, x, LANES / 2);
    x += others, others = svext_f32(x, x, LANES / 4);
    x += others, others = svext_f32(x, x, LANES / 8);
    x += others;
    return LANES == 16 ? x[0] + x[1] : x[0];
#else
    float sum[LANES];
    memcpy(sum, &x, sizeof x);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) sum[lane] += sum[lane + half];
    return sum[0];
#endif
}

static inline float dot(const Element *a, const Element *b, int64_t count) {
    Floats sum = {0};
    for (int64_t i = 0; i < count; i += LANES)
        sum = fused(load_e(a + i, count - i), load_e(b + i, count - i), sum);
    return sum_lanes(sum);
}

static inline float max_lanes(Floats x) {
#if __ARM_FEATURE_SVE_BITS
    return svmaxv_f32(svptrue_b32(), x);
#else
    float max = x[0];
    for (int lane = 1; lane < LANES; lane++)
        if (x[lane] > max || isnan(x[lane])) max = x[lane];
    return max;
#endif
}

// 1 / x to about 1 unit in the last place, for x of at most 2^125 and no smaller than 2^-125.
static inline Floats reciprocal(Floats x) {
#if defined(__AVX512F__)
    Floats guess = (Floats)_mm512_rcp14_ps((__m512)x); // a step of Newton's doubles its 14 bits
    return fused(guess, fused(-x, guess, splat(1.0f)), guess);
#else
    return 1.0f / x;
#endif
}

static const float LOG2_E = 1.44269504f;

// A number to which this was added has its whole part in the low bits.
static const float EXPONENT_ROUND = 0x1.8p23f;

// The last step of an exponential of x: y 2^n for whole n, but 0 where x < least; a NaN stays one. `shifted` is
// n + EXPONENT_ROUND, for instruction sets that need n as an integer.
static inline Floats power_from(float least, Floats x, Floats y, Floats shifted, Floats n) {
#if defined(__AVX512F__)
    (void)shifted;
    __mmask16 exists = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(least), _CMP_NLT_UQ);
    return (Floats)_mm512_maskz_scalef_ps(exists, (__m512)y, (__m512)n);
#elif __ARM_FEATURE_SVE_BITS
    (void)n;
    Floats power = svscale_f32_x(svptrue_b32(), y, (Ints)shifted - (Ints)splat(EXPONENT_ROUND));
    return (Floats)(~(x < least) & (Ints)power);
#else
    (void)n;
    Ints exponent = (Ints)shifted - (Ints)splat(EXPONENT_ROUND);
    return (Floats)(~(x < least) & (Ints)(y * (Floats)((exponent + 127) << 23)));
#endif
}

// e^x to about 1 unit in the last place for x <= 88.37, or NaN. Below the smallest normal number (x < -87.33)
// it is 0. x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial is a minimax fit of (e^r - 1 - r) / r^2, error
// 3e-9.
static inline Floats exponential(Floats x) {
    // Adding it leaves an integer in the low bits.
    Floats shifted = fused(x, splat(LOG2_E), splat(EXPONENT_ROUND)), n = shifted - EXPONENT_ROUND;
    Floats r =
        fused(n, splat(-0.693359375f), x); // ln 2 in two parts, the first short enough for an exact product
    r = fused(n, splat(2.12194440e-4f), r);
    Floats high = fused(r, splat(0x1.123b02p-7f), splat(0x1.5558f8p-5f));
    Floats low = fused(r, splat(0x1.555490p-3f), splat(0x1.fffffcp-2f));
    Floats r2 = r * r, y = fused(r2, splat(0x1.6a2256p-10f), high); // in pairs: a short way to the end
    y = fused(fused(y, r2, low), r2, r) + 1.0f;
    return power_from(-87.33f, x, y, shifted, n);
}

// 2^x for x < 127.5, or NaN: fewer steps, and less exact where x is a rounded product. Below 2^-126 it is 0.
// x = n + r with |r| <= 1/2; the polynomial is a minimax fit of (2^r - 1) / r, error 9e-8.
static inline Floats exponential_of_base_2(Floats x) {
    Floats shifted = x + EXPONENT_ROUND, n = shifted - EXPONENT_ROUND, r = x - n, r2 = r * r;
    Floats high = fused(r, splat(0x1.5bba16p-10f), splat(0x1.3cea8ap-7f));
    Floats low = fused(r, splat(0x1.c6b752p-5f), splat(0x1.ebf9bcp-3f));
    Floats y = fused(fused(high, r2, low), r2, fused(r, splat(0x1.62e42ap-1f), splat(1.0f)));
    return power_from(-126.0f, x, y, shifted, n);
}

// tanh(x) to about 3 units in the last place: by powers of 2, and near 0, where they would cancel, by its series.
static inline Floats hyperbolic_tangent(Floats x) {
    Floats size = choose(x < 0.0f, -x, x), e = exponential_of_base_2(size * (-2.0f * LOG2_E));
    Floats far = (1.0f - e) / (1.0f + e), x2 = x * x;
    Floats series = fused(x2, splat(62.0f / 2835), splat(-17.0f / 315));
    series = fused(fused(series, x2, splat(2.0f / 15)), x2, splat(-1.0f / 3));
    return choose(size < 0.25f, fused(x * x2, series, x), choose(x < 0.0f, -far, far));
}
