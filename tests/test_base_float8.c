// The 8-bit formats: every code has the value of its definition, and every number becomes the code that is nearest.
#include "base/float8.h"
#include "harness.h"
#include <math.h>

typedef struct {
    const char *name;
    int fraction_bits, bias, num_finite; // num_finite: codes from 0 on that are finite and not negative
    float most;
    float (*to_f32)(uint8_t);
    uint8_t (*of_f32)(float);
} Format;

static const Format FORMATS[] = {{"e4m3", 3, 7, 0x7f, E4M3_MAX, e4m3_to_f32, e4m3_of_f32},
                                 {"e5m2", 2, 15, 0x7c, E5M2_MAX, e5m2_to_f32, e5m2_of_f32}};
enum { NUM_FORMATS = sizeof FORMATS / sizeof *FORMATS };

// (1 + fraction / 2^bits) * 2^(exponent - bias), or for exponent 0 fraction / 2^bits * 2^(1 - bias).
static double definition(const Format *f, int code) {
    int exponent = code >> f->fraction_bits, fraction = code & ((1 << f->fraction_bits) - 1);
    double mantissa = (double)fraction / (1 << f->fraction_bits);
    return exponent ? ldexp(1 + mantissa, exponent - f->bias) : ldexp(mantissa, 1 - f->bias);
}

static void codes_have_their_values(void) {
    for (int i = 0; i < NUM_FORMATS; i++) {
        const Format *f = &FORMATS[i];
        for (int code = 0; code < 0x80; code++) {
            float x = f->to_f32((uint8_t)code), negative = f->to_f32((uint8_t)(code | 0x80));
            EXPECT(bits_of_float(negative) == (bits_of_float(x) ^ 0x80000000), "%s: sign of %#x", f->name,
                   code);
            if (code < f->num_finite)
                EXPECT((double)x == definition(f, code), "%s: %#x is %g", f->name, code, (double)x);
            else
                EXPECT(isnan(x) || (isinf(x) && code == 0x7c && i == 1), "%s: %#x is %g", f->name, code,
                       (double)x);
        }
        EXPECT(f->to_f32((uint8_t)(f->num_finite - 1)) == f->most, "%s: the largest", f->name);
    }
}

// The code nearest to x >= 0 of those from `code` on, of two as near the even one.
static int nearest_from(const Format *f, int code, double x) {
    for (; code + 1 < f->num_finite; code++) {
        double below = x - definition(f, code), above = definition(f, code + 1) - x;
        if (below < above || (below == above && code % 2 == 0)) break;
    }
    return code;
}

// Numbers in rising order: all with 11 bits of fraction, which hold every midpoint, and their neighbours in fp32.
static void numbers_become_the_nearest(void) {
    static const uint32_t LOW[] = {0, 1, 0xfff};
    for (int i = 0; i < NUM_FORMATS; i++) {
        const Format *f = &FORMATS[i];
        int code = 0;
        for (uint32_t high = 0; high < 0x7f800; high++)
            for (int k = 0; k < 3; k++) {
                float x = float_of_bits(high << 12 | LOW[k]);
                code = nearest_from(f, code, (double)x);
                EXPECT(f->of_f32(x) == code, "%s of %a is %#x", f->name, (double)x, (unsigned)f->of_f32(x));
                EXPECT(f->of_f32(-x) == (code | 0x80), "%s of %a is %#x", f->name, (double)-x,
                       (unsigned)f->of_f32(-x));
            }
        EXPECT(code == f->num_finite - 1, "%s: numbers end at %#x", f->name, code);
    }
}

static void what_is_not_finite_becomes_nan(void) {
    for (int i = 0; i < NUM_FORMATS; i++)
        for (int k = 0; k < 4; k++) {
            float x = k < 2 ? INFINITY : NAN;
            uint8_t code = FORMATS[i].of_f32(k % 2 ? -x : x);
            EXPECT(isnan(FORMATS[i].to_f32(code)), "%s: %#x", FORMATS[i].name, (unsigned)code);
        }
}

// Vectors that others publish.
static void published_roundings(void) {
    static const float E4M3_PAIRS[][2] = {
        {0.3f, 0.3125f}, {1.0625f, 1},          {1.1875f, 1.25f},     {17, 16}, {19, 20}, {464, 448},
        {0x1p-10f, 0},   {0x1.8p-10f, 0x1p-9f}, {0.003f, 0.00390625f}};
    static const float E5M2_PAIRS[][2] = {{17, 16}, {240.1f, 256}, {500, 512}, {0.003f, 0.0029296875f}};
    for (size_t i = 0; i < sizeof E4M3_PAIRS / sizeof *E4M3_PAIRS; i++)
        EXPECT(e4m3_to_f32(e4m3_of_f32(E4M3_PAIRS[i][0])) == E4M3_PAIRS[i][1], "e4m3 of %g",
               (double)E4M3_PAIRS[i][0]);
    for (size_t i = 0; i < sizeof E5M2_PAIRS / sizeof *E5M2_PAIRS; i++)
        EXPECT(e5m2_to_f32(e5m2_of_f32(E5M2_PAIRS[i][0])) == E5M2_PAIRS[i][1], "e5m2 of %g",
               (double)E5M2_PAIRS[i][0]);
}

static void factors(void) {
    EXPECT(float8_factor(E4M3_MAX, 2) == 224 && float8_factor(E5M2_MAX, 16) == 3584, "of the largest");
    EXPECT(float8_factor(E4M3_MAX, 0) == 1 && float8_factor(E4M3_MAX, INFINITY) == 1 &&
               float8_factor(E4M3_MAX, NAN) == 1,
           "of none");
    for (uint32_t bits = 1; bits < 0x7f800000; bits += 0x12345) {
        float factor = float8_factor(E5M2_MAX, float_of_bits(bits));
        EXPECT(isnormal(factor) && isnormal(1 / factor), "of %a: %a", (double)float_of_bits(bits),
               (double)factor);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"codes_have_their_values", codes_have_their_values},
                                      {"numbers_become_the_nearest", numbers_become_the_nearest},
                                      {"what_is_not_finite_becomes_nan", what_is_not_finite_becomes_nan},
                                      {"published_roundings", published_roundings},
                                      {"factors", factors},
                                      {0}},
                       argc, argv);
}
