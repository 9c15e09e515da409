// Two functions on one thread: each has a stack of its own, and the order of their turns is that of their calls.
#include "base/turns.h"
#include "harness.h"
#include <stdio.h>
#include <string.h>

typedef struct {
    Turns *turns;
    char seen[256];
    int gives[2]; // how often each gives its turn
    int sums[2];
} Game;

static void note(Game *g, char who, int i) {
    size_t used = strlen(g->seen);
    snprintf(g->seen + used, sizeof g->seen - used, "%c%d ", who, i);
}

// Uses stack at every depth, and gives its turns from the deepest on.
static int play(Game *g, int side, int depth) {
    unsigned char room[2000];
    memset(room, side + depth, sizeof room);
    int sum = depth ? play(g, side, depth - 1) : 0;
    if (depth <= g->gives[side]) note(g, side ? 'b' : 'a', depth);
    if (depth < g->gives[side]) turns_give(g->turns);
    for (size_t i = 0; i < sizeof room; i++) sum += room[i] == side + depth;
    return sum;
}

static void first(void *self) { ((Game *)self)->sums[0] = play(self, 0, 100); }
static void second(void *self) { ((Game *)self)->sums[1] = play(self, 1, 200); }

static void expect_game(Turns *turns, int gives, int other_gives, const char *seen) {
    Game game = {.turns = turns, .gives = {gives, other_gives}};
    turns_run(turns, first, second, &game);
    EXPECT(!strcmp(game.seen, seen), "%d and %d turns: %s, not %s", gives, other_gives, game.seen, seen);
    EXPECT(game.sums[0] == 101 * 2000 && game.sums[1] == 201 * 2000, "the stacks hold %d and %d",
           game.sums[0], game.sums[1]);
}

// Again and again on the same stack.
static void they_take_turns(void) {
    Turns *turns;
    EXPECT_OK(turns_open(&turns));
    for (int i = 0; i < 100; i++) {
        expect_game(turns, 2, 2, "a0 b0 a1 b1 a2 b2 ");
        expect_game(turns, 0, 3, "a0 b0 b1 b2 b3 ");
        expect_game(turns, 3, 0, "a0 b0 a1 a2 a3 ");
        expect_game(turns, 1, 3, "a0 b0 a1 b1 b2 b3 ");
        expect_game(turns, 0, 0, "a0 b0 ");
    }
    turns_close(turns);
}

static void closing_takes_nothing(void) { turns_close(NULL); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"they take turns", they_take_turns},
                                      {"closing takes nothing", closing_takes_nothing},
                                      {0}},
                       argc, argv);
}
