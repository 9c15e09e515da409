#include "base/cores.h"
#include "harness.h"
#include <string.h>

// Processors such as a container leaves them: with holes.
static Cores some(int count) {
    Cores all = {.count = count};
    for (int i = 0; i < count; i++) all.ids[i] = 2 * i + i / 5;
    return all;
}

static void check_shares(int count, int ranks, int threads) {
    Cores all = some(count), mine;
    int next = 0;
    bool fit = ranks * threads <= count;
    for (int rank = 0; rank < ranks; rank++) {
        EXPECT(cores_share(&all, ranks, threads, rank, &mine) == fit, "%d cores, %d ranks of %d threads",
               count, ranks, threads);
        EXPECT(mine.count >= threads || !fit, "rank %d has %d cores for %d threads", rank, mine.count,
               threads);
        EXPECT(mine.count <= count / ranks + 1 || !fit, "rank %d has %d of %d", rank, mine.count, count);
        for (int i = 0; fit && i < mine.count && next < count; i++, next++)
            EXPECT(mine.ids[i] == all.ids[next], "rank %d has core %d", rank, mine.ids[i]);
        EXPECT(fit || !memcmp(&mine, &all, sizeof all), "a rank that does not fit is left alone");
    }
    EXPECT(next == (fit ? count : 0), "%d of %d cores are used", next, count);
}

// Each core belongs to one rank, in order, and to each rank about as many, enough for its threads.
static void shares(void) {
    for (int count = 1; count <= 20; count++)
        for (int ranks = 1; ranks <= count + 1; ranks++)
            for (int threads = 1; threads <= count; threads++) check_shares(count, ranks, threads);
    check_shares(CORES_MAX / 2, 7, 3);
}

static void binding(void) {
    Cores before, now, one;
    cores_allowed(&before);
    EXPECT(before.count >= 1, "%d processors", before.count);
    one = before;
    one.ids[0] = before.ids[before.count - 1];
    one.count = 1;
    cores_bind(&one);
    cores_allowed(&now);
    EXPECT(now.count == 1 && now.ids[0] == one.ids[0], "bound to %d, on %d of %d", one.ids[0], now.ids[0],
           now.count);
    cores_bind(&before);
    cores_allowed(&now);
    EXPECT(!memcmp(&now, &before, sizeof now), "let go of again");
}

static void expect_text(Cores cores, const char *expected) {
    Text text = {0};
    cores_print(&cores, &text);
    EXPECT(!strcmp(text_string(&text), expected), "%s, not %s", text_string(&text), expected);
    text_free(&text);
}

static void words(void) {
    expect_text((Cores){1, {3}}, "3");
    expect_text((Cores){4, {0, 1, 2, 3}}, "0-3");
    expect_text((Cores){5, {0, 2, 3, 7, 9}}, "0,2-3,7,9");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"shares", shares}, {"binding", binding}, {"words", words}, {0}}, argc,
                       argv);
}
