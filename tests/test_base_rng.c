// Tests the random numbers: known answers, independence of how they are drawn, and distributions.
#include "base/rng.h"
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// Known answers from the authors' Random123 library (kat_vectors, philox4x32 with 10 rounds).
static void philox_known_answers(void) {
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } KNOWN[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(KNOWN[i].counter, (RngKey){{KNOWN[i].key[0], KNOWN[i].key[1]}}, out);
        EXPECT(memcmp(out, KNOWN[i].out, sizeof out) == 0, "answer %d: %08x %08x %08x %08x", i, out[0],
               out[1], out[2], out[3]);
        memcpy(out, KNOWN[i].counter, sizeof out);
        philox4x32(out, (RngKey){{KNOWN[i].key[0], KNOWN[i].key[1]}}, out);
        EXPECT(memcmp(out, KNOWN[i].out, sizeof out) == 0, "answer %d, in place", i);
    }
}

static void words_are_lanes_of_blocks(void) {
    RngKey key = {{1, 2}};
    uint64_t sample = 0x123456789ull, block = 0x1ffffffffull;
    uint32_t lanes[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)sample,
                         (uint32_t)(sample >> 32)};
    philox4x32(lanes, key, lanes);
    for (uint64_t i = 0; i < 4; i++)
        EXPECT(rng_word(key, sample, 4 * block + i) == lanes[i], "lane %d", (int)i);
}

static void keys_differ_by_every_part(void) {
    RngKey key = rng_key(1, "weight", 2), same = rng_key(1, "weight", 2);
    RngKey others[] = {rng_key(2, "weight", 1), rng_key(2, "weight", 2), rng_key(1, "weighs", 2),
                       rng_key(1, "weight", 3), rng_key(1, "", 2)};
    EXPECT(memcmp(&key, &same, sizeof key) == 0, "the same purpose");
    for (int i = 0; i < 5; i++) EXPECT(memcmp(&key, &others[i], sizeof key) != 0, "other purpose %d", i);
}

// Many are computed together, by other arithmetic: still each has the bits that it has alone.
static void fill_of_many_gives_the_single_values(void) {
    enum { COUNT = 1 << 18 };
    static float out[COUNT];
    int64_t bad = 0;
    RngKey key = rng_key(6, "many", 0);
    rng_fill_normal(key, 3, COUNT, 0, 1, out);
    for (uint64_t i = 0; i < COUNT; i++) bad += out[i] != rng_normal(key, 3 + i);
    EXPECT(!bad, "%lld differ", (long long)bad);
}

static void fill_gives_the_single_values(void) {
    enum { COUNT = 23 };
    RngKey key = rng_key(5, "fill", 0);
    for (uint64_t first = 0; first < 6; first++) {
        float out[COUNT];
        rng_fill_normal(key, first, COUNT, 0.5f, 2, out);
        for (uint64_t i = 0; i < COUNT; i++)
            EXPECT(out[i] == 0.5f + 2 * rng_normal(key, first + i), "element %d from %d", (int)i, (int)first);
    }
}

static void normals_are_normal(void) {
    enum { COUNT = 200000 };
    RngKey key = rng_key(11, "moments", 0);
    double sum = 0, squares = 0, fourth = 0;
    for (uint64_t i = 0; i < COUNT; i++) {
        double x = (double)rng_normal(key, i);
        sum += x, squares += x * x, fourth += x * x * x * x;
    }
    // Five standard errors: 1, sqrt(2) and sqrt(96) over sqrt(COUNT).
    EXPECT(fabs(sum / COUNT) < 0.0112, "mean %g", sum / COUNT);
    EXPECT(fabs(squares / COUNT - 1) < 0.0158, "variance %g", squares / COUNT);
    EXPECT(fabs(fourth / COUNT - 3) < 0.11, "fourth moment %g", fourth / COUNT);
}

static void dropout_drops_its_share(void) {
    enum { COUNT = 100000 };
    RngKey key = rng_key(11, "dropout", 0);
    uint32_t threshold = rng_dropout_threshold(0.1f);
    int dropped = 0;
    for (uint64_t i = 0; i < COUNT; i++) dropped += rng_word(key, 3, i) < threshold;
    EXPECT(abs(dropped - COUNT / 10) < 475, "%d of %d", dropped, COUNT); // five standard errors
    EXPECT(rng_dropout_threshold(0) == 0 && rng_dropout_threshold(0.5f) == 0x80000000u, "thresholds");
    EXPECT(rng_dropout_threshold(1) == 0xffffffffu, "no overflow");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"philox_known_answers", philox_known_answers},
                       {"words_are_lanes_of_blocks", words_are_lanes_of_blocks},
                       {"keys_differ_by_every_part", keys_differ_by_every_part},
                       {"fill_gives_the_single_values", fill_gives_the_single_values},
                       {"fill_of_many_gives_the_single_values", fill_of_many_gives_the_single_values},
                       {"normals_are_normal", normals_are_normal},
                       {"dropout_drops_its_share", dropout_drops_its_share},
                       {0}},
        argc, argv);
}
