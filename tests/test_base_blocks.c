// Codes of few bits and the scales of their blocks, against their definitions: tables of what codes stand for, powers of
// two by logarithms, and numbers of the published recipes.
#include "base/blocks.h"
#include "base/rng.h"
#include "harness.h"
#include <string.h>

// ---- codes ------------------------------------------------------------------------------------------------

static const double E2M1_VALUES[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

static void e2m1_is_its_table(void) {
    static const struct {
        float x, wanted;
    } published[] = {{0.25f, 0}, {0.26f, 0.5f}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2},
                     {2.5f, 2},  {3.5f, 4},     {5, 4},     {5.01f, 6}, {1000, 6}};
    for (int code = 0; code < 16; code++) {
        double wanted = code < 8 ? E2M1_VALUES[code] : -E2M1_VALUES[code - 8];
        EXPECT((double)e2m1_to_f32((uint8_t)code) == wanted, "code %d is %g", code,
               (double)e2m1_to_f32((uint8_t)code));
        EXPECT(e2m1_of_f32((float)wanted) == code, "%g has code %d, wanted %d", wanted,
               (int)e2m1_of_f32((float)wanted), code);
    }
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        for (int sign = -1; sign <= 1; sign += 2) {
            float got = e2m1_to_f32(e2m1_of_f32((float)sign * published[i].x));
            EXPECT(got == (float)sign * published[i].wanted, "%g becomes %g", (double)published[i].x,
                   (double)got);
        }
}

// The nearest number of the table; of two, the one with the even code.
static void e2m1_is_the_nearest(void) {
    for (int i = 0; i <= 7 * 1024; i++) {
        double x = i / 1024.0;
        int best = 0;
        for (int code = 1; code < 8; code++) {
            double d = fabs(E2M1_VALUES[code] - x), least = fabs(E2M1_VALUES[best] - x);
            if (d < least || (d == least && code % 2 == 0)) best = code;
        }
        EXPECT(e2m1_of_f32((float)x) == best, "%g has code %d, wanted %d", x, (int)e2m1_of_f32((float)x),
               best);
    }
}

static void rounding_at_random_keeps_the_mean(void) {
    enum { WORDS = 1 << 16 };
    static const float numbers[] = {0, 0.1f, -0.4f, 0.5f, 0.8f, -1.3f, 2.75f, 3.9f, -5.99f, 6};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        double sum = 0, x = (double)numbers[i];
        for (uint32_t k = 0; k < WORDS; k++) {
            double got = (double)e2m1_to_f32(e2m1_of_f32_at_random(numbers[i], k << 16));
            EXPECT(fabs(got - x) < 2 && got * x >= 0, "%g becomes %g", x, got);
            sum += got;
        }
        EXPECT(fabs(sum / WORDS - x) < 1e-4, "the mean of %g is %g", x, sum / WORDS);
    }
    EXPECT(e2m1_of_f32_at_random(100, 0) == 7 && e2m1_of_f32_at_random(-100, UINT32_MAX) == 15,
           "100 is no 6");
}

static void what_is_not_finite_stays_so(void) {
    static const float numbers[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        for (Codes codes = CODES_E4M3; codes <= CODES_E2M1; codes++)
            EXPECT(isnan(codes_round(codes, numbers[i])), "%g in codes %d", (double)numbers[i], (int)codes);
        EXPECT(isnan(codes_round_at_random(numbers[i], 5)), "%g at random", (double)numbers[i]);
    }
}

// ---- scales -----------------------------------------------------------------------------------------------

static void scales_of_published_blocks(void) {
    static const float largest[] = {1, 448, 449, 0.01f, 3.7f}, down[] = {256, 1, 0.5f, 32768, 64};
    static const int up[] = {119, 127, 128, 112, 121};
    for (int i = 0; i < 5; i++) {
        BlockFactor f = block_factor(BLOCK_POWER_DOWN, CODES_E4M3, largest[i], 1);
        EXPECT(f.encode == down[i] && f.decode == 1 / down[i], "%g: %g, %g", (double)largest[i],
               (double)f.encode, (double)f.decode);
        f = block_factor(BLOCK_POWER_UP, CODES_E4M3, largest[i], 1);
        EXPECT(f.decode == ldexpf(1, up[i] - 127) && f.encode == ldexpf(1, 127 - up[i]), "%g: %a, %a",
               (double)largest[i], (double)f.encode, (double)f.decode);
    }
}

// By logarithms in doubles, over all exponents.
static void scales_are_powers_of_two(void) {
    static const double most[] = {448, 57344, 6};
    for (Codes codes = CODES_E4M3; codes <= CODES_E2M1; codes++)
        for (int e = -149; e < 128; e++)
            for (int k = 0; k < 8; k++) {
                float m = ldexpf(1 + (float)k / 8, e);
                BlockFactor up = block_factor(BLOCK_POWER_UP, codes, m, 1),
                            down = block_factor(BLOCK_POWER_DOWN, codes, m, 1);
                double wanted = exp2(fmax(ceil(log2((double)m / most[codes])), -127));
                EXPECT((double)up.decode == wanted && (double)up.encode == 1 / wanted, "%a: %a, wanted %a",
                       (double)m, (double)up.decode, wanted);
                wanted = exp2(fmin(floor(log2(most[codes] / (double)m)), 126));
                EXPECT((double)down.encode == wanted && (double)down.decode == 1 / wanted,
                       "%a: %a, wanted %a", (double)m, (double)down.encode, wanted);
            }
}

static void blocks_without_a_scale(void) {
    static const float largest[] = {0, INFINITY, NAN};
    for (int i = 0; i < 3; i++)
        for (BlockScale scale = BLOCK_POWER_DOWN; scale <= BLOCK_POWER_UP; scale++) {
            BlockFactor f = block_factor(scale, CODES_E4M3, largest[i], 1);
            EXPECT(f.encode == 1 && f.decode == 1, "%g: %g, %g", (double)largest[i], (double)f.encode,
                   (double)f.decode);
        }
    BlockFactor f = block_factor(BLOCK_E4M3, CODES_E2M1, 0, block_tensor_factor(CODES_E2M1, 0));
    EXPECT(f.decode == 0 && f.encode == FLT_MAX, "%g, %g", (double)f.encode, (double)f.decode);
}

// A block of a tensor whose largest magnitude is 10.
static void the_published_nvfp4_block(void) {
    static const float wanted[] = {-6, -6, -4, -4, -3, -2, -1.5f, -0.5f, 0, 0.5f, 1.5f, 2, 3, 4, 4, 6};
    float tensor = block_tensor_factor(CODES_E2M1, 10), most = 0;
    EXPECT(tensor == 268.8f, "the tensor's factor is %.9g", (double)tensor);
    for (int i = 0; i < 16; i++) most = fmaxf(most, fabsf(0.1f * (float)i - 0.8f));
    BlockFactor f = block_factor(BLOCK_E4M3, CODES_E2M1, most, tensor);
    EXPECT(f.decode == 36 && f.encode == 7.4666662f, "%.9g, %.9g", (double)f.decode, (double)f.encode);
    for (int i = 0; i < 16; i++) {
        float got = codes_round(CODES_E2M1, (0.1f * (float)i - 0.8f) * f.encode);
        EXPECT(got == wanted[i], "element %d: %g, wanted %g", i, (double)got, (double)wanted[i]);
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"e2m1_is_its_table", e2m1_is_its_table},
                       {"e2m1_is_the_nearest", e2m1_is_the_nearest},
                       {"rounding_at_random_keeps_the_mean", rounding_at_random_keeps_the_mean},
                       {"what_is_not_finite_stays_so", what_is_not_finite_stays_so},
                       {"scales_of_published_blocks", scales_of_published_blocks},
                       {"scales_are_powers_of_two", scales_are_powers_of_two},
                       {"blocks_without_a_scale", blocks_without_a_scale},
                       {"the_published_nvfp4_block", the_published_nvfp4_block},
                       {0}},
        argc, argv);
}
