// The two 16-bit floating point formats as bits: bf16 (8 bits of exponent, 7 of fraction) and IEEE fp16 (5
// and 10). Conversions round to nearest even, except bf16_split; infinities stay and NaNs stay NaNs. Every
// device and transport rounds as these functions do.
#pragma once
#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float bf16_to_f32(uint16_t h) { return float_of_bits((uint32_t)h << 16); }

static inline uint16_t bf16_of_f32(float x) {
    uint32_t bits = bits_of_float(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40); // NaN, quiet
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// An fp32 number as a bf16 value and the 16 bits that this leaves out: bits of the number = bits of the value
// * 2^16 + remainder, which is signed. So the value is the number rounded to nearest like bf16_of_f32's, but
// halfway away from zero: the remainder of the other choice has no 16 bits. A NaN loses its payload.
static inline uint16_t bf16_split(float x, uint16_t *remainder) {
    uint32_t bits = x != x ? 0x7fc00000 : bits_of_float(x);
    *remainder = (uint16_t)bits;
    return (uint16_t)((bits + 0x8000) >> 16);
}

static inline float bf16_join(uint16_t value, uint16_t remainder) {
    return float_of_bits(((uint32_t)value << 16) + (remainder ^ 0x8000u) - 0x8000u);
}

static inline float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | rest << 13); // infinity, NaN
    // As a fraction of fp32 the exponent is too small by 112; the product is exact, subnormals included.
    return float_of_bits(sign | bits_of_float(float_of_bits(rest << 13) * 0x1p112f));
}

static inline uint16_t f16_of_f32(float x) {
    uint32_t bits = bits_of_float(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00);  // NaN
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00); // rounds to 65536 or more
    if (rest < 0x38800000) {
        // Subnormal: adding 0.5 leaves the fraction, rounded, in the lowest bits.
        return (uint16_t)(sign | (bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000));
    }
    return (uint16_t)(sign | (rest + 0xfff + (rest >> 13 & 1) - 0x38000000) >> 13);
}
