// The two 8-bit floating point formats (Micikevicius 2022) as bits. E4M3: 4 bits of exponent, 3 of fraction, up to 448,
// no infinity; all ones are NaN. E5M2: 5 and 2, up to 57344; it is the upper half of IEEE fp16. Conversions round to
// nearest even. A finite number above the largest becomes the largest, as products of tensors that were scaled to it
// need; infinity becomes NaN, so that what is not finite stays so.
#pragma once
#include "base/half.h"

#define E4M3_MAX 448.0f
#define E5M2_MAX 57344.0f

// As a fraction of fp32 the exponent is too small by 120 (112): the product is exact, subnormals included.
static inline float e4m3_to_f32(uint8_t x) {
    uint32_t sign = (uint32_t)(x & 0x80) << 24, rest = x & 0x7fu;
    if (rest == 0x7f) return float_of_bits(sign | 0x7fc00000);
    return float_of_bits(sign | bits_of_float(float_of_bits(rest << 20) * 0x1p120f));
}

static inline float e5m2_to_f32(uint8_t x) {
    uint32_t sign = (uint32_t)(x & 0x80) << 24, rest = x & 0x7fu;
    if (rest >= 0x7c) return float_of_bits(sign | 0x7f800000 | rest << 21); // infinity, NaN
    return float_of_bits(sign | bits_of_float(float_of_bits(rest << 21) * 0x1p112f));
}

// Adding 2^14 (2^7) to a number below the least normal one leaves the fraction, rounded, in the lowest bits.
static inline uint8_t e4m3_of_f32(float x) {
    uint32_t bits = bits_of_float(x), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
    if (rest >= 0x7f800000) return (uint8_t)(sign | 0x7f); // infinity, NaN
    if (rest >= 0x43e00000) return (uint8_t)(sign | 0x7e); // 448 or more
    if (rest < 0x3c800000)
        return (uint8_t)(sign | (bits_of_float(float_of_bits(rest) + 0x1p14f) - 0x46800000));
    return (uint8_t)(sign | (rest + 0x7ffff + (rest >> 20 & 1) - 0x3c000000) >> 20);
}

static inline uint8_t e5m2_of_f32(float x) {
    uint32_t bits = bits_of_float(x), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
    if (rest >= 0x7f800000) return (uint8_t)(sign | 0x7f); // infinity, NaN
    if (rest >= 0x47600000) return (uint8_t)(sign | 0x7b); // 57344 or more
    if (rest < 0x38800000)
        return (uint8_t)(sign | (bits_of_float(float_of_bits(rest) + 0x1p7f) - 0x43000000));
    return (uint8_t)(sign | (rest + 0xfffff + (rest >> 21 & 1) - 0x38000000) >> 21);
}

// Returns the factor with which a tensor is scaled before it is rounded to a format whose largest number is `most`:
// what is largest in it, `abs_max`, becomes `most`. It is 1 where that is zero or not finite, and at most 2^126, so
// that 1 / factor is a normal number. Every device computes these bits.
static inline float float8_factor(float most, float abs_max) {
    if (!(abs_max > 0 && abs_max <= 0x1.fffffep127f)) return 1;
    return most / abs_max < 0x1p126f ? most / abs_max : 0x1p126f;
}
