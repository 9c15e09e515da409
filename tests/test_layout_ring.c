// The ring of context-parallel ranks: its posts cannot hang, lose a block, or add in another order, for any number of
// ranks; and it moves what the formulas say.
#include "harness.h"
#include "layout/ring.h"

static void rings_are_proved(void) {
    for (int ranks = 2; ranks <= 64; ranks++) {
        EXPECT_OK(ring_verify(ranks, false));
        EXPECT_OK(ring_verify(ranks, true));
    }
}

// A rank sends c - 1 blocks of keys in each direction, and in a backward c blocks of sums: one hop more, home.
static void rings_move_what_they_must(void) {
    for (int ranks = 2; ranks <= 16; ranks++)
        for (int backward = 0; backward < 2; backward++) {
            KeyRing ring = {.ranks = ranks, .rank = ranks / 2, .backward = backward};
            RingPost post = {0};
            int counts[NUM_RING_OPS] = {0};
            while (ring_next(&ring, &post)) counts[post.op]++;
            EXPECT(counts[RING_ATTEND] == ranks, "%d blocks for %d ranks", counts[RING_ATTEND], ranks);
            EXPECT(counts[RING_SEND_KEYS] == ranks - 1 && counts[RING_RECEIVE_KEYS] == ranks - 1,
                   "%d ranks: %d blocks of keys sent", ranks, counts[RING_SEND_KEYS]);
            EXPECT(counts[RING_SEND_SUMS] == backward * ranks && counts[RING_ADD] == backward * (ranks - 1),
                   "%d ranks: %d blocks of sums sent", ranks, counts[RING_SEND_SUMS]);
            EXPECT(!backward || (post.op == RING_WAIT_SUMS && post.block == ring.rank),
                   "%d ranks: the last post is %d for block %d", ranks, post.op, post.block);
        }
}

// The next block is posted before a rank computes, and awaited after it.
static void rings_overlap(void) {
    KeyRing ring = {.ranks = 5, .rank = 1, .backward = true};
    RingPost post;
    int posted = 0, awaited = 0;
    while (ring_next(&ring, &post)) {
        posted += post.op == RING_RECEIVE_KEYS || post.op == RING_SEND_KEYS;
        awaited += 2 * (post.op == RING_WAIT_KEYS);
        EXPECT(post.op != RING_ATTEND || ring.turn == 4 || posted == awaited + 2,
               "turn %d: nothing under way", ring.turn);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"rings are proved", rings_are_proved},
                                      {"rings move what they must", rings_move_what_they_must},
                                      {"rings overlap", rings_overlap},
                                      {0}},
                       argc, argv);
}
