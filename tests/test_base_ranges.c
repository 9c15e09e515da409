// Ranges of numbers that are left out: their text, their union, and the numbers that are left, against a plain count.
#include "base/ranges.h"
#include "base/rng.h"
#include "harness.h"
#include <string.h>

enum { NUMBERS = 300 };

static void ranges_parse_whole_or_not(void) {
    static const struct {
        const char *text, *printed;
    } good[] = {{"7", "7"},         {"0-0", "0"},     {"100-199", "100-199"}, {"5,1-3", "1-3,5"},
                {"1-2,3-4", "1-4"}, {"3,1,2", "1-3"}, {"1K-2K", "1000-2000"}, {"9,1-7", "1-7,9"}};
    static const char *const bad[] = {
        "",
        "-",
        "1-",
        "-1",
        "a",
        "2-1",
        "1-2-3",
        "1,",
        ",1",
        "1-3,3",
        "1-9,4-5",
        "1,1",
        "1 - 2",
        "9000000000000000",
        "99999999999999999999",
        "0000000000000000000000000000000000000000000000000000000000000000000000001"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        Ranges ranges;
        Text text = {0};
        EXPECT_OK(ranges_parse(&ranges, good[i].text, "--x"));
        ranges_print(&ranges, &text);
        EXPECT(!strcmp(text_string(&text), good[i].printed), "%s is %s", good[i].text, text_string(&text));
        text_free(&text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Ranges ranges;
        EXPECT(ranges_parse(&ranges, bad[i], "--x") == ERR_CONFIG, "\"%s\" is accepted", bad[i]);
        EXPECT(strstr(fail_message(), "--x"), "%s", fail_message());
    }
}

// Random ranges, added in any order, are the set of their numbers.
static void ranges_are_sets(void) {
    RngKey key = rng_key(5, "ranges test", 0);
    for (uint64_t round = 0; round < 300; round++) {
        bool out[2 * NUMBERS] = {false};
        Ranges ranges = {0};
        for (uint64_t k = 0; k < 1 + round % 9; k++) {
            int64_t first = rng_word(key, round, 2 * k) % NUMBERS,
                    end = first + 1 + rng_word(key, round, 2 * k + 1) % 20;
            EXPECT(ranges_add(&ranges, first, end), "no room");
            for (int64_t i = first; i < end; i++) out[i] = true;
        }
        int64_t size = 0, left = 0;
        for (int64_t i = 0; i < 2 * NUMBERS; i++) {
            size += out[i];
            if (out[i]) continue;
            EXPECT(ranges_left(&ranges, left) == i, "number %lld of those left is %lld, not %lld",
                   (long long)left, (long long)ranges_left(&ranges, left), (long long)i);
            left++;
        }
        EXPECT(ranges_size(&ranges) == size, "%lld numbers", (long long)ranges_size(&ranges));
        for (int i = 1; i < ranges.count; i++)
            EXPECT(ranges.items[i - 1].end < ranges.items[i].first, "neighbours touch");
    }
}

static void new_numbers_are_found(void) {
    Ranges old = {0}, more = {0};
    ranges_add(&old, 10, 20), ranges_add(&old, 30, 40);
    EXPECT(ranges_first_new(&old, &more, 100) == -1, "nothing is new");
    ranges_add(&more, 12, 20);
    EXPECT(ranges_first_new(&old, &more, 100) == -1, "a part is not new");
    ranges_add(&more, 35, 45);
    EXPECT(ranges_first_new(&old, &more, 100) == 40, "40 is new");
    EXPECT(ranges_first_new(&old, &more, 41) == 40 && ranges_first_new(&old, &more, 40) == -1, "the limit");
    ranges_add(&more, 5, 6);
    EXPECT(ranges_first_new(&old, &more, 100) == 5, "5 is new");
}

static void too_many_are_refused(void) {
    Ranges ranges = {0};
    for (int64_t i = 0; i < MAX_RANGES; i++)
        EXPECT(ranges_add(&ranges, 3 * i, 3 * i + 1), "range %lld", (long long)i);
    EXPECT(!ranges_add(&ranges, 3 * MAX_RANGES, 3 * MAX_RANGES + 1), "one too many");
    EXPECT(ranges.count == MAX_RANGES, "%d ranges", ranges.count);
    EXPECT(ranges_add(&ranges, 1, 3) && ranges.count == MAX_RANGES - 1, "one that joins two: %d ranges",
           ranges.count);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"ranges_parse_whole_or_not", ranges_parse_whole_or_not},
                                      {"ranges_are_sets", ranges_are_sets},
                                      {"new_numbers_are_found", new_numbers_are_found},
                                      {"too_many_are_refused", too_many_are_refused},
                                      {0}},
                       argc, argv);
}
