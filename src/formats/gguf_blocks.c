// The blocks of GGUF's quantised tensor types, to fp32. Source: the structs and the dequantize_row functions of ggml.
#include "base/blocks.h"
#include "formats/gguf_types.h"
#include <string.h>

static float half_at(const uint8_t *at) {
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return f16_to_f32(bits);
}

// ---- blocks of 32 elements ------------------------------------------------------------------------------

enum { SHORT = 32, LONG = 256 }; // elements

static void q8_0(const char *block, float *out) {
    float scale = half_at((const uint8_t *)block);
    for (int i = 0; i < SHORT; i++) out[i] = scale * (float)(int8_t)block[2 + i];
}

// Half a byte: the low halves are the first 16 elements.
static int half_byte(const uint8_t *bytes, int i) {
    return i < SHORT / 2 ? bytes[i] & 15 : bytes[i - SHORT / 2] >> 4;
}

// Bit i of 32.
static int bit_at(const uint8_t *bytes, int i) { return bytes[i / 8] >> i % 8 & 1; }

static void q4_0(const char *block, float *out) {
    const uint8_t *b = (const uint8_t *)block;
    float scale = half_at(b);
    for (int i = 0; i < SHORT; i++) out[i] = scale * (float)(half_byte(b + 2, i) - 8);
}

static void q4_1(const char *block, float *out) {
    const uint8_t *b = (const uint8_t *)block;
    float scale = half_at(b), least = half_at(b + 2);
    for (int i = 0; i < SHORT; i++) out[i] = scale * (float)half_byte(b + 4, i) + least;
}

static void q5_0(const char *block, float *out) {
    const uint8_t *b = (const uint8_t *)block;
    float scale = half_at(b);
    for (int i = 0; i < SHORT; i++)
        out[i] = scale * (float)((half_byte(b + 6, i) | bit_at(b + 2, i) << 4) - 16);
}

static void q5_1(const char *block, float *out) {
    const uint8_t *b = (const uint8_t *)block;
    float scale = half_at(b), least = half_at(b + 2);
    for (int i = 0; i < SHORT; i++)
        out[i] = scale * (float)(half_byte(b + 8, i) | bit_at(b + 4, i) << 4) + least;
}

// ggml counts scale 255 on, as 2^128; for MX it is NaN, and no program writes it.
static void mxfp4(const char *block, float *out) {
    const uint8_t *b = (const uint8_t *)block;
    float scale = e8m0_to_f32(b[0]);
    for (int i = 0; i < SHORT; i++) out[i] = scale * e2m1_to_f32((uint8_t)half_byte(b + 1, i));
}

// ---- blocks of 256 elements: parts with scales of their own ----------------------------------------------

// 16 scales and minima of 4 bits, 64 bytes of 2 bits, the scale of scales, that of minima. Two bits of 32 bytes are 32
// elements that follow each other.
static void q2_k(const char *block, float *out) {
    const uint8_t *scales = (const uint8_t *)block, *bits = scales + 16;
    float scale = half_at(scales + 80), least = half_at(scales + 82);
    for (int i = 0; i < LONG; i++) {
        int value = bits[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3, part = scales[i / 16];
        out[i] = scale * (float)(part & 15) * (float)value - least * (float)(part >> 4);
    }
}

// Scale `part` of 16: 4 low bits in the first 8 bytes, 2 high bits in the next 4.
static int q3_scale(const uint8_t *scales, int part) {
    int low = scales[part % 8] >> part / 8 * 4 & 15, high = scales[8 + part % 4] >> part / 4 * 2 & 3;
    return (low | high << 4) - 32;
}

// 32 bytes of third bits, 64 bytes of 2 bits, 12 bytes of scales, their scale.
static void q3_k(const char *block, float *out) {
    const uint8_t *third = (const uint8_t *)block, *bits = third + 32, *scales = third + 96;
    float scale = half_at(third + 108);
    for (int i = 0; i < LONG; i++) {
        int value = bits[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
        if (!(third[i % 32] >> i / 32 & 1)) value -= 4;
        out[i] = scale * (float)q3_scale(scales, i / 16) * (float)value;
    }
}

// Scale and minimum `part` of 8, 6 bits each, in 12 bytes.
static void q4_scale(const uint8_t *scales, int part, int *scale, int *least) {
    *scale = scales[part % 4] & 63, *least = scales[4 + part % 4] & 63;
    if (part < 4) return;
    *scale = (scales[4 + part] & 15) | scales[part - 4] >> 6 << 4;
    *least = scales[4 + part] >> 4 | scales[part] >> 6 << 4;
}

// The scales of scales and of minima, 12 bytes of scales, then Q5_K's 32 bytes of fifth bits, then half bytes: the low
// halves of 32 bytes are 32 elements, the high ones the next 32.
static void q4_or_q5(const uint8_t *block, const uint8_t *fifth, const uint8_t *bits, float *out) {
    float scale = half_at(block), least = half_at(block + 2);
    for (int part = 0; part < LONG / 32; part++) {
        int a, b;
        q4_scale(block + 4, part, &a, &b);
        float factor = scale * (float)a, minimum = least * (float)b;
        for (int i = 0; i < 32; i++) {
            int value = bits[part / 2 * 32 + i] >> part % 2 * 4 & 15;
            if (fifth) value |= (fifth[i] >> part & 1) << 4;
            out[part * 32 + i] = factor * (float)value - minimum;
        }
    }
}

static void q4_k(const char *block, float *out) {
    const uint8_t *b = (const uint8_t *)block;
    q4_or_q5(b, NULL, b + 16, out);
}

static void q5_k(const char *block, float *out) {
    const uint8_t *b = (const uint8_t *)block;
    q4_or_q5(b, b + 16, b + 48, out);
}

// 128 bytes of 4 low bits, 64 bytes of 2 high bits, 16 signed scales, their scale. 128 elements: the low halves of 64
// bytes, then the high ones.
static void q6_k(const char *block, float *out) {
    const uint8_t *low = (const uint8_t *)block, *high = low + 128;
    const int8_t *scales = (const int8_t *)low + 192;
    float scale = half_at(low + 208);
    for (int i = 0; i < LONG; i++) {
        int half = i / 128, at = i % 128;
        int value = low[half * 64 + at % 64] >> at / 64 * 4 & 15;
        value |= (high[half * 32 + at % 32] >> at / 32 * 2 & 3) << 4;
        out[i] = scale * (float)scales[i / 16] * (float)(value - 32);
    }
}

Dequantize *const ggml_dequantizers[NUM_GGML_TYPES] = {
    [GGML_Q8_0] = q8_0, [GGML_Q4_0] = q4_0,   [GGML_Q4_1] = q4_1, [GGML_Q5_0] = q5_0,
    [GGML_Q5_1] = q5_1, [GGML_MXFP4] = mxfp4, [GGML_Q2_K] = q2_k, [GGML_Q3_K] = q3_k,
    [GGML_Q4_K] = q4_k, [GGML_Q5_K] = q5_k,   [GGML_Q6_K] = q6_k};
