// Tensors in codes of few bits whose blocks have scales: the codes are E4M3, E5M2 (base/float8.h) or E2M1, and a block
// of neighbouring elements shares one scale. These are the formats of Transformer Engine's recipes: scales that are
// powers of two (DeepSeek-V3; OCP's Microscaling formats, MX), and NVFP4's, which are E4M3 numbers beside one fp32
// number of the tensor. Every function gives the same bits on every device.
#pragma once
#include "base/float8.h"
#include <float.h>
#include <math.h>

// ---- E2M1 -------------------------------------------------------------------------------------------------

// A sign, 2 bits of exponent and 1 of fraction: 0, 0.5, 1, 1.5, 2, 3, 4, 6, without infinity and NaN. Code 8 + c is -c.
#define E2M1_MAX 6.0f

static inline float e2m1_to_f32(uint8_t code) {
    int rest = code & 7;
    float x = rest < 2 ? 0.5f * (float)rest : 0.25f * (float)((2 + (rest & 1)) << (rest >> 1));
    return code & 8 ? -x : x;
}

// Rounds to nearest, ties to the even code; what is larger than the largest becomes it. NaN becomes 0.
static inline uint8_t e2m1_of_f32(float x) {
    float a = fabsf(x);
    int rest =
        (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
    return (uint8_t)((bits_of_float(x) >> 28 & 8) | (uint32_t)rest);
}

// Rounds to one of the two neighbours at random, to the farther from zero with the probability of its share of the
// distance: the mean is x. `word` is uniform; 24 of its bits decide.
static inline uint8_t e2m1_of_f32_at_random(float x, uint32_t word) {
    float a = fabsf(x);
    int rest =
        (a >= 0.5f) + (a >= 1.0f) + (a >= 1.5f) + (a >= 2.0f) + (a >= 3.0f) + (a >= 4.0f) + (a >= 6.0f);
    if (rest < 7) {
        float below = e2m1_to_f32((uint8_t)rest), above = e2m1_to_f32((uint8_t)(rest + 1));
        rest += (float)(word >> 8) < (a - below) / (above - below) * 0x1p24f;
    }
    return (uint8_t)((bits_of_float(x) >> 28 & 8) | (uint32_t)rest);
}

// ---- codes ------------------------------------------------------------------------------------------------

typedef enum { CODES_E4M3, CODES_E5M2, CODES_E2M1 } Codes;

static inline float codes_max(Codes codes) {
    return codes == CODES_E2M1 ? E2M1_MAX : codes == CODES_E5M2 ? E5M2_MAX : E4M3_MAX;
}

// Returns the number that the nearest code stands for; NaN for what is not finite.
static inline float codes_round(Codes codes, float x) {
    if (codes == CODES_E5M2) return e5m2_to_f32(e5m2_of_f32(x));
    if (codes == CODES_E4M3) return e4m3_to_f32(e4m3_of_f32(x));
    return x - x == 0 ? e2m1_to_f32(e2m1_of_f32(x)) : float_of_bits(0x7fc00000);
}

// The same of E2M1, at random.
static inline float codes_round_at_random(float x, uint32_t word) {
    return x - x == 0 ? e2m1_to_f32(e2m1_of_f32_at_random(x, word)) : float_of_bits(0x7fc00000);
}

// The power of two that a scale of MX (E8M0) stands for: 2^(code - 127). Code 255 is NaN.
static inline float e8m0_to_f32(uint8_t code) {
    if (code == 255) return float_of_bits(0x7fc00000);
    return code ? float_of_bits((uint32_t)code << 23) : 0x1p-127f;
}

// ---- scales of blocks -------------------------------------------------------------------------------------

// The scale of a block whose largest magnitude is m, with codes up to `most`:
//   POWER_DOWN  the power of two at most most / m multiplies elements before they become codes
//   POWER_UP    the power of two at least m / most divides them: MX, E8M0
//   E4M3        with the tensor's factor f = E4M3_MAX most / its largest magnitude, the code c = E4M3(m f / most)
//               divides them by c / f: NVFP4. Elements are about code * c * (1 / f)
typedef enum { BLOCK_POWER_DOWN, BLOCK_POWER_UP, BLOCK_E4M3 } BlockScale;

// What elements are multiplied by before they become codes, and codes to be elements again; with BLOCK_E4M3 the latter
// leaves out 1 / f. Both are 1 for blocks of powers of two whose largest magnitude is 0 or not finite.
typedef struct {
    float encode, decode;
} BlockFactor;

// The factor f of a tensor with BLOCK_E4M3; 1 where its largest magnitude is 0 or not finite.
static inline float block_tensor_factor(Codes codes, float abs_max) {
    return float8_factor(E4M3_MAX * codes_max(codes), abs_max);
}

static inline BlockFactor block_power_up(float most, float abs_max) {
    BlockFactor factor = {1, 1};
    if (!(abs_max > 0 && abs_max <= FLT_MAX)) return factor;
    uint32_t bits = bits_of_float(abs_max / most), exponent = bits >> 23, fraction = bits & 0x7fffff;
    exponent +=
        exponent ? fraction > 0 : fraction > 0x400000; // the number is at most 2^-127 where it stays 0
    factor.decode = e8m0_to_f32((uint8_t)exponent);
    factor.encode = exponent < 254 ? float_of_bits((254 - exponent) << 23) : 0x1p-127f;
    return factor;
}

static inline BlockFactor block_factor(BlockScale scale, Codes codes, float abs_max, float tensor_factor) {
    BlockFactor factor;
    float most = codes_max(codes);
    if (scale == BLOCK_POWER_UP) return block_power_up(most, abs_max);
    if (scale == BLOCK_POWER_DOWN) {
        factor.encode = float_of_bits(bits_of_float(float8_factor(most, abs_max)) & 0xff800000);
        factor.decode = 1 / factor.encode;
        return factor;
    }
    factor.decode = e4m3_to_f32(e4m3_of_f32(abs_max * (tensor_factor * (1 / most))));
    factor.encode = 1 / (factor.decode * (1 / tensor_factor));
    if (factor.encode > FLT_MAX) factor.encode = FLT_MAX;
    return factor;
}
