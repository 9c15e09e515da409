// Ledgers of runs. Laws: every microsecond belongs to one part and to one start, no part is negative, and a line that
// is torn at the end changes nothing.
#include "fuzz.h"
#include "train/goodput.h"
#include <stdlib.h>
#include <string.h>

static void check_sums(const Goodput *g) {
    int64_t all = 0, of_starts = 0;
    for (int i = 0; i < NUM_TIME_PARTS; i++) {
        CHECK(g->us[i] >= 0, "%s takes %lld us", time_part_name((TimePart)i), (long long)g->us[i]);
        all += g->us[i];
    }
    for (int s = 0; s < g->num_starts; s++)
        for (int i = 0; i < NUM_TIME_PARTS; i++) {
            CHECK(g->starts[s].us[i] >= 0, "start %d takes %lld us", s, (long long)g->starts[s].us[i]);
            of_starts += g->starts[s].us[i];
        }
    CHECK(all == g->wall_us, "%lld of %lld us", (long long)all, (long long)g->wall_us);
    CHECK(!g->num_starts || of_starts == all, "starts: %lld of %lld us", (long long)of_starts,
          (long long)all);
    CHECK(g->failures <= g->num_starts, "%lld failures", (long long)g->failures);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char torn[] = "{\"at\": \"2026-11-24T06:55:50.123Z\", \"mono_s\": 9, \"event\": \"save\"}";
    Goodput g, again;
    const char *text = (const char *)data;
    if (goodput_of(&g, text, size, "input") != OK) return 0;
    check_sums(&g);
    size_t whole = size;
    while (whole && text[whole - 1] != '\n') whole--;
    char *longer = malloc(whole + sizeof torn);
    CHECK(longer, "no memory");
    memcpy(longer, text, whole);
    memcpy(longer + whole, torn, sizeof torn - 1);
    CHECK(goodput_of(&again, longer, whole + sizeof torn - 1, "torn") == OK && again.wall_us == g.wall_us &&
              !memcmp(again.us, g.us, sizeof g.us),
          "a torn line counts");
    free(longer);
    goodput_free(&again);
    goodput_free(&g);
    return 0;
}
