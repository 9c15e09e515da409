// Which rank is slow: against ranks with the same work, against its own past, in the mean and in one step; and that
// nothing is found where all are alike, differ by stage, or become slower together.
#include "harness.h"
#include "train/stragglers.h"
#include <math.h>

static void expect_near(double value, double expected) {
    EXPECT(fabs(value - expected) < 1e-9, "%g, not %g", value, expected);
}

enum { RANKS = 4, STEPS = 5, SAMPLES = 40 };

static void set(Stragglers *s, int rank, double step_s) {
    RankWork *w = &s->work[rank];
    *w = (RankWork){{0, step_s * STEPS / 3, step_s * STEPS * 2 / 3, 0}, step_s};
}

// `stages`: how many kinds of work there are.
static Stragglers alike(int stages, double step_s) {
    Stragglers s;
    EXPECT(stragglers_open(&s, RANKS), "no memory");
    for (int i = 0; i < RANKS; i++) {
        s.work_of[i] = i % stages;
        set(&s, i, step_s * (1 + i % stages));
    }
    s.steps = STEPS;
    s.samples = SAMPLES;
    return s;
}

static void ranks_with_the_same_work_are_compared(void) {
    Stragglers s = alike(2, 0.2);
    EXPECT(stragglers_judge(&s).rank == -1, "found a stage that has twice the work");
    set(&s, 2, 0.29); // as others of its work + 45 %
    EXPECT(stragglers_judge(&s).rank == -1, "found 45 %%");
    set(&s, 2, 0.32);
    SlowRank slow = stragglers_judge(&s);
    EXPECT(slow.rank == 2 && !slow.of_past && !slow.one_step, "found rank %d", slow.rank);
    expect_near(slow.own_s, 0.32);
    expect_near(slow.usual_s, 0.2);
    EXPECT(slow.most == WORK_BACKWARD, "most in %s", work_parts[slow.most]);
    expect_near(slow.own_part_s, 0.32 * 2 / 3);
    s.work[2].part_s[WORK_READING] = 3;
    EXPECT(stragglers_judge(&s).most == WORK_READING, "most in %s", work_parts[stragglers_judge(&s).most]);
    stragglers_close(&s);
}

static void the_slowest_of_several_is_named(void) {
    Stragglers s = alike(1, 0.2);
    set(&s, 1, 0.5);
    set(&s, 3, 0.6);
    EXPECT(stragglers_judge(&s).rank == 3, "found rank %d", stragglers_judge(&s).rank);
    stragglers_close(&s);
}

static void short_differences_are_no_finding(void) {
    Stragglers s = alike(1, 0.02);
    EXPECT(!stragglers_can_judge(&s), "0.1 s of work is enough to judge");
    set(&s, 1, 0.05); // 0.15 s in all
    EXPECT(stragglers_judge(&s).rank == -1, "found 0.15 s");
    set(&s, 1, 0.08);
    EXPECT(stragglers_judge(&s).rank == 1, "did not find 0.3 s");
    stragglers_close(&s);
}

// As after SIGSTOP: in the mean of long steps it is little.
static void one_long_step_is_found(void) {
    Stragglers s = alike(1, 1);
    s.work[3].longest_s = 2;
    s.work[3].part_s[WORK_FORWARD] += 1;
    SlowRank slow = stragglers_judge(&s);
    EXPECT(slow.rank == 3 && slow.one_step && slow.most == WORK_FORWARD, "found rank %d", slow.rank);
    expect_near(slow.own_s, 2);
    expect_near(slow.usual_s, 1);
    s.work[3].longest_s = 1.4;
    EXPECT(stragglers_judge(&s).rank == -1, "found 0.4 s");
    stragglers_close(&s);
}

static void alone_in_its_stage_a_rank_is_compared_with_its_past(void) {
    Stragglers s = alike(RANKS, 0.1);
    EXPECT(stragglers_judge(&s).rank == -1, "found a stage with more work");
    EXPECT(stragglers_judge(&s).rank == -1, "found a rank that is as it was");
    set(&s, 1, 0.4);
    SlowRank slow = stragglers_judge(&s);
    EXPECT(slow.rank == 1 && slow.of_past, "found rank %d", slow.rank);
    expect_near(slow.usual_s, 0.2);
    EXPECT(stragglers_judge(&s).rank == 1, "a rank that stays slow is its own past");
    for (int i = 0; i < RANKS; i++) set(&s, i, 0.2 * (1 + i));
    EXPECT(stragglers_judge(&s).rank == -1, "all are slower, and one was found");
    // Twice the samples take twice the time.
    s.samples *= 2;
    for (int i = 0; i < RANKS; i++) set(&s, i, 0.4 * (1 + i));
    EXPECT(stragglers_judge(&s).rank == -1, "a larger batch was found");
    stragglers_close(&s);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"ranks_with_the_same_work_are_compared", ranks_with_the_same_work_are_compared},
                       {"the_slowest_of_several_is_named", the_slowest_of_several_is_named},
                       {"short_differences_are_no_finding", short_differences_are_no_finding},
                       {"one_long_step_is_found", one_long_step_is_found},
                       {"alone_in_its_stage_a_rank_is_compared_with_its_past",
                        alone_in_its_stage_a_rank_is_compared_with_its_past},
                       {0}},
        argc, argv);
}
