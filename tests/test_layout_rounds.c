// Rows on their way to experts on other ranks: whatever the ranks have for each other, what they post within a forward,
// a backward and a pair of the two cannot hang; and the walk that proves it names the rank and the step of a wrong
// order.
#include "base/rng.h"
#include "harness.h"
#include "layout/rounds.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 16, MOST_LAYERS = 4, MOST_ROUNDS = 4 };

typedef struct {
    RoundsWork work;
    int wanted[MOST_RANKS * NUM_ROUNDS_COMPUTES * MOST_LAYERS];
} Case;

static int most_layers(const RoundsWork *w) {
    return w->layers[0] > w->layers[1] ? w->layers[0] : w->layers[1];
}

// Every rank wants numbers of its own; those that share parts of experts want the same.
static void draw_rounds(Case *c, uint64_t seed) {
    int each = NUM_ROUNDS_COMPUTES * most_layers(&c->work);
    for (int rank = 0; rank < c->work.ep * c->work.groups; rank++)
        for (int i = 0; i < each; i++) {
            int tokens = c->work.parts ? rank % c->work.ep : rank;
            uint32_t word = rng_word(rng_key(seed, "rounds", 0), (uint64_t)tokens, (uint64_t)i);
            c->wanted[rank * each + i] = 1 + (int)(word % MOST_ROUNDS);
        }
    c->work.wanted = c->wanted;
}

static Case pair_of(int ep, int groups, int layers, int rounds) {
    Case c = {.work = {.ep = ep, .groups = groups, .layers = {layers, layers}, .backward = ROUNDS_BACKWARD}};
    for (int i = 0; i < MOST_RANKS * NUM_ROUNDS_COMPUTES * MOST_LAYERS; i++) c.wanted[i] = rounds;
    return c;
}

// ---- right orders -------------------------------------------------------------------------------------------

static void prove_layers(Case *c, uint64_t seed) {
    for (int forward = 0; forward <= MOST_LAYERS; forward++)
        for (int backward = 0; backward <= MOST_LAYERS; backward++)
            for (int again = 0; again < 3; again++) {
                c->work.layers[ROUNDS_OF_FORWARD] = forward, c->work.layers[ROUNDS_OF_BACKWARD] = backward;
                c->work.again = again;
                draw_rounds(c, seed);
                EXPECT(rounds_verify(&c->work) == OK, "layers %d and %d, %d again, %d groups: %s", forward,
                       backward, again, c->work.groups, fail_message());
            }
}

static void rounds_are_proved(void) {
    static const RoundsPass passes[] = {ROUNDS_BACKWARD, ROUNDS_INPUT_HALF, ROUNDS_WEIGHT_HALF};
    for (int ep = 2; ep <= 5; ep++)
        for (int i = 0; i < 3 * 3 * 2 * 2; i++) {
            Case c = {.work = {.ep = ep,
                               .groups = 1 + i % 3,
                               .backward = passes[i / 3 % 3],
                               .parts = i / 9 % 2,
                               .looks = i / 18}};
            prove_layers(&c, (uint64_t)(ep * 36 + i));
        }
}

// How often a rank that has `rounds` rounds gives its turn, and how many all-to-alls of rows it posts.
static void count_layer(RoundsPass pass, int rounds, bool looks, int *turns, int *travels) {
    Rounds r = {.pass = pass, .rounds = rounds, .looks = looks};
    *turns = *travels = 0;
    for (RoundPost post; rounds_next(&r, &post);) {
        bool travel = post.op == ROUND_ROWS || post.op == ROUND_GRADIENTS || post.op == ROUND_RETURN;
        *travels += travel, *turns += travel && rounds_give_turn(post.round);
    }
}

// A backward sends the rows of all rounds but the first again; who looks sends those once more.
static void layers_send_what_they_must(void) {
    for (int rounds = 1; rounds <= MOST_ROUNDS; rounds++)
        for (int looks = 0; looks < 2; looks++) {
            static const int turns[] = {2, 2, 2, 1}, sends[] = {2, 3, 3, 2}, kept[] = {0, 1, 1, 1},
                             looked[] = {1, 2, 2, 0};
            for (int pass = ROUNDS_FORWARD; pass <= ROUNDS_WEIGHT_HALF; pass++) {
                int got_turns, got,
                    want = sends[pass] * rounds - kept[pass] + looks * looked[pass] * (rounds - 1);
                count_layer((RoundsPass)pass, rounds, looks, &got_turns, &got);
                EXPECT(got_turns == turns[pass] && got == want,
                       "pass %d, %d rounds, looks %d: %d turns, %d of %d", pass, rounds, looks, got_turns,
                       got, want);
            }
        }
}

// ---- wrong orders -------------------------------------------------------------------------------------------

static void add_step(RoundSteps *steps, RoundStep step) {
    if (steps->count == steps->capacity) {
        steps->capacity = steps->capacity * 2 + 8;
        steps->steps = realloc(steps->steps, steps->capacity * sizeof step);
        CHECK(steps->steps, "no memory");
    }
    steps->steps[steps->count++] = step;
}

// The steps of one of the two computes.
static RoundSteps steps_alone(const RoundsWork *work, int rank, RoundsCompute compute) {
    RoundSteps both = {0}, one = {0};
    rounds_steps(work, rank, &both);
    for (size_t i = 0; i < both.count; i++)
        if (both.steps[i].compute == compute) add_step(&one, both.steps[i]);
    rounds_steps_free(&both);
    return one;
}

// Whether a step ends the turn of a compute, by the rules of a program that is wrong.
typedef bool Gives(const RoundStep *step);
static bool as_it_should(const RoundStep *step) { return step->gives; }
static bool never(const RoundStep *step) { return (void)step, false; }
static bool in_every_round(const RoundStep *step) {
    RoundOp op = step->post.op;
    return !step->waits && (op == ROUND_ROWS || op == ROUND_GRADIENTS || op == ROUND_RETURN);
}

static RoundSteps paired_otherwise(const RoundsWork *work, int rank, RoundsCompute first, Gives *gives) {
    RoundSteps of[] = {steps_alone(work, rank, ROUNDS_OF_FORWARD),
                       steps_alone(work, rank, ROUNDS_OF_BACKWARD)},
               steps = {0};
    size_t at[2] = {0};
    for (int now = (int)first; at[0] < of[0].count || at[1] < of[1].count;) {
        if (at[now] == of[now].count) now = !now;
        add_step(&steps, of[now].steps[at[now]++]);
        if (gives(&steps.steps[steps.count - 1])) now = !now;
    }
    for (int i = 0; i < 2; i++) rounds_steps_free(&of[i]);
    return steps;
}

static void take_steps(const RoundsWork *work, RoundSteps *steps) {
    memset(steps, 0, MOST_RANKS * sizeof *steps);
    for (int rank = 0; rank < work->ep * work->groups; rank++) rounds_steps(work, rank, &steps[rank]);
}

static void expect_named(const RoundsWork *work, RoundSteps *steps, const char *want) {
    Status status = rounds_walk(work, steps);
    EXPECT(status == ERR_BUG && strstr(fail_message(), want), "%d, \"%s\", not \"%s\"", status,
           status == OK ? "" : fail_message(), want);
    for (int rank = 0; rank < work->ep * work->groups; rank++) rounds_steps_free(&steps[rank]);
}

static void expect_named_otherwise(RoundsCompute first, Gives *gives, const char *want) {
    Case c = pair_of(2, 1, 2, 1);
    RoundSteps steps[MOST_RANKS];
    c.work.wanted = c.wanted;
    take_steps(&c.work, steps);
    rounds_steps_free(&steps[1]);
    steps[1] = paired_otherwise(&c.work, 1, first, gives);
    expect_named(&c.work, steps, want);
}

// What a test builds by the right rules is what is listed.
static void the_builder_of_wrong_orders_can_build_right_ones(void) {
    Case c = pair_of(2, 1, 3, 2);
    RoundSteps steps[MOST_RANKS];
    c.work.wanted = c.wanted;
    take_steps(&c.work, steps);
    rounds_steps_free(&steps[1]);
    steps[1] = paired_otherwise(&c.work, 1, ROUNDS_OF_BACKWARD, as_it_should);
    EXPECT_OK(rounds_walk(&c.work, steps));
    for (int rank = 0; rank < 2; rank++) rounds_steps_free(&steps[rank]);
}

static void swapped_turns_are_named(void) {
    expect_named_otherwise(
        ROUNDS_OF_FORWARD, as_it_should,
        "experts on 2 ranks: rank 1, step 2, posts the counts of round 0 of layer 0 of the forward: "
        "there rank 0 posts the gradients of round 0 of layer 1 of the backward");
    expect_named_otherwise(ROUNDS_OF_BACKWARD, never,
                           "rank 0, step 3, posts the counts of round 0 of layer 0 of the forward: "
                           "there rank 1 posts the results of round 0 of layer 1 of the backward");
}

// Without the agreement each rank takes its own number of rounds.
static void rounds_that_are_not_agreed_are_named(void) {
    Case c = pair_of(2, 1, 1, 3), own = pair_of(2, 1, 1, 1);
    RoundSteps steps[MOST_RANKS];
    c.work.layers[ROUNDS_OF_BACKWARD] = own.work.layers[ROUNDS_OF_BACKWARD] = 0;
    c.work.wanted = c.wanted, own.work.wanted = own.wanted;
    take_steps(&c.work, steps);
    rounds_steps_free(&steps[1]);
    rounds_steps(&own.work, 1, &steps[1]);
    expect_named(&c.work, steps,
                 "rank 0, step 11, awaits the rows of round 1 of layer 0 of the forward: it waits for ever: "
                 "rank 1 does not post it");
}

// Groups of experts have other numbers of rounds: with a turn in each round their ranks would come to the group that
// they share in different turns.
static void turns_of_every_round_are_named(void) {
    Case c = pair_of(2, 2, 2, 1);
    RoundSteps steps[MOST_RANKS] = {{0}};
    for (int i = 0; i < 2 * NUM_ROUNDS_COMPUTES * 2; i++) c.wanted[i] = 3;
    c.work.wanted = c.wanted;
    EXPECT_OK(rounds_verify(&c.work));
    for (int rank = 0; rank < 4; rank++)
        steps[rank] = paired_otherwise(&c.work, rank, ROUNDS_OF_BACKWARD, in_every_round);
    expect_named(&c.work, steps, "posts the collective of another group");
}

// Ranks with parts of the same experts multiply together, so they must have the same rounds.
static void parts_in_other_rounds_are_named(void) {
    Case c = pair_of(2, 2, 1, 1);
    RoundSteps steps[MOST_RANKS];
    c.work.parts = true, c.work.wanted = c.wanted;
    EXPECT_OK(rounds_verify(&c.work));
    for (int i = 0; i < 2 * NUM_ROUNDS_COMPUTES; i++) c.wanted[i] = 2;
    take_steps(&c.work, steps);
    expect_named(&c.work, steps, "the products of round 1 of layer 0 of the ");
}

static void posts_that_nobody_awaits_are_named(void) {
    Case c = pair_of(2, 1, 1, 1);
    RoundSteps steps[MOST_RANKS];
    c.work.wanted = c.wanted, c.work.layers[ROUNDS_OF_BACKWARD] = 0;
    take_steps(&c.work, steps);
    steps[1].count--;
    expect_named(&c.work, steps,
                 "rank 1, step 9, posts the results of round 0 of layer 0 of the forward: nobody awaits it");
}

// Each of four ranks is between two groups and waits in one for a rank that waits in its other one.
static void circles_of_waits_are_named(void) {
    Case c = pair_of(2, 2, 1, 1);
    RoundSteps steps[MOST_RANKS] = {{0}};
    for (int rank = 0; rank < 4; rank++)
        for (int i = 0; i < 2; i++)
            for (int waits = 0; waits < 2; waits++) {
                bool others = i == (rank == 1 || rank == 2);
                add_step(&steps[rank],
                         (RoundStep){.post.op = others ? ROUND_OTHERS : ROUND_COUNTS, .waits = waits});
            }
    expect_named(
        &c.work, steps,
        "rank 0, step 1, awaits the collective of another group of round 0 of layer 0 of the forward: it "
        "waits for ever: rank 2 does not post it");
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"rounds are proved", rounds_are_proved},
                       {"layers send what they must", layers_send_what_they_must},
                       {"the builder of wrong orders can build right ones",
                        the_builder_of_wrong_orders_can_build_right_ones},
                       {"swapped turns are named", swapped_turns_are_named},
                       {"rounds that are not agreed are named", rounds_that_are_not_agreed_are_named},
                       {"turns of every round are named", turns_of_every_round_are_named},
                       {"parts in other rounds are named", parts_in_other_rounds_are_named},
                       {"posts that nobody awaits are named", posts_that_nobody_awaits_are_named},
                       {"circles of waits are named", circles_of_waits_are_named},
                       {0}},
        argc, argv);
}
