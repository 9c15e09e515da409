// Runs whose steps differ: batches that grow and shrink with evaluations in between, and steps that fp16's
// loss scale makes overflow. Neither p, v, the schedule, how receives are posted nor how the optimizer is
// spread changes a bit.
// The short form has one way of growing: every other path is that of another test.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdio.h>

enum { LAYERS = 12, STEPS = 6, OVERFLOWING_STEPS = 10 };

// ---- growing batches --------------------------------------------------------------------------------------

typedef struct {
    const char *schedule;
    int pp, chunks, group;
    int most, some, few; // microbatches of the largest batch and of two smaller ones
} Way;

static const Way ways[] = {{"1f1b", 4, 1, 0, 8, 3, 1},        {"gpipe", 3, 1, 0, 7, 4, 2},
                           {"interleaved", 2, 2, 3, 9, 5, 3}, {"interleaved", 2, 3, 0, 8, 6, 2},
                           {"interleaved", 3, 2, 0, 9, 6, 3}, {"zb-h1", 3, 1, 0, 6, 3, 2},
                           {"zb-h2", 4, 1, 0, 9, 7, 2},       {"zb-v", 2, 2, 0, 7, 3, 1},
                           {"auto", 3, 1, 0, 6, 3, 2},        {"auto", 4, 1, 0, 8, 5, 3}};

enum { SHORTEST = 2 }; // of those whose smaller batches may need larger pools

// The plan keeps `microbatches`.
static RunPlan growing(const Way *way, Grid grid, int microbatches[STEPS]) {
    const int sizes[STEPS] = {way->most, way->some, way->most, way->few, way->some, way->few};
    for (int i = 0; i < STEPS; i++) microbatches[i] = sizes[i];
    RunPlan plan = {
        .spec = run_spec(grid, way->schedule, way->chunks, LAYERS, way->most * grid_along(grid, AXIS_DP)),
        .steps = STEPS,
        .lr = 3e-3,
        .transport = "threads",
        .evaluates_between = true,
        .microbatches = microbatches,
        .finished = run_expect_predicted_memory};
    plan.spec.microbatch_group = way->group;
    plan.spec.schedule_costs =
        (ScheduleCosts){.forward_us = 1, .backward_us = 2.5, .weight_fraction = 0.3, .hop_us = 0.2};
    return plan;
}

static RunPlan growing_plainly(const Way *way, Grid grid, int microbatches[STEPS]) {
    Way plain = *way;
    plain.schedule = "1f1b", plain.chunks = 1, plain.group = 0;
    grid.size[AXIS_PP] = 1;
    return growing(&plain, grid, microbatches);
}

static void expect_growth_changes_no_bit(const Way *way, Grid grid, const RunResult *expected) {
    int microbatches[STEPS];
    grid.size[AXIS_PP] = way->pp;
    for (int ahead = 0; ahead < 3; ahead += 2) {
        RunPlan plan = growing(way, grid, microbatches);
        RunResult result;
        char name[96];
        plan.spec.receive_ahead = ahead;
        plan.spec.mode.recompute = ahead ? RECOMPUTE_UNIFORM : RECOMPUTE_NOTHING;
        plan.spec.mode.recompute_layers = 1;
        snprintf(name, sizeof name, "%s p%d v%d group %d of %d, %d and %d, %d ahead", way->schedule, way->pp,
                 way->chunks, way->group, way->most, way->some, way->few, ahead);
        if (run_or_complain(&plan, name, &result)) run_expect_same_bits(expected, &result, name);
    }
}

static void growing_batches_change_no_bit(void) {
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (harness_short() && i != SHORTEST) continue;
        int microbatches[STEPS];
        Grid grid = GRID(1, i % 2 ? 2 : 1, 1);
        RunPlan plain = growing_plainly(&ways[i], grid, microbatches);
        RunResult expected;
        if (run_or_complain(&plain, "one pipeline rank", &expected))
            expect_growth_changes_no_bit(&ways[i], grid, &expected);
    }
}

// An evaluation is of the same samples and microbatches whatever the step before it was.
static void evaluations_change_no_bit(void) {
    if (harness_short()) return;
    int microbatches[STEPS];
    RunPlan with = growing(&ways[2], (Grid)GRID(1, 1, 2), microbatches), without = with;
    without.evaluates_between = false;
    RunResult a, b;
    if (!run_or_complain(&with, "with evaluations", &a) || !run_or_complain(&without, "without", &b)) return;
    EXPECT(a.evaluation[0] > 0 && !(b.evaluation[0] > 0), "they are not what they should be");
    run_expect_same_bits(&a, &b, "evaluations between steps");
}

// ---- overflows --------------------------------------------------------------------------------------------

static RunPlan overflowing(Grid grid, const char *schedule, int chunks) {
    RunPlan plan = {.spec = run_spec(grid, schedule, chunks, LAYERS, 16),
                    .steps = OVERFLOWING_STEPS,
                    .lr = 3e-3,
                    .transport = "threads",
                    .scaler = loss_scaler(0x1p24, 1, 2, 1, true)};
    plan.spec.mode.dtype = F16;
    return plan;
}

// Steps are skipped and done, early and late, so that a skip in the middle of the run is one of them.
static void expect_overflows(const RunResult *r) {
    int skipped = 0, done = 0, late = 0;
    for (int i = 0; i < OVERFLOWING_STEPS; i++) {
        bool finite = isfinite(r->norm[i]);
        skipped += !finite, late += !finite && done, done += finite;
        EXPECT(isfinite(r->loss[i]), "loss %d is %g", i, (double)r->loss[i]);
    }
    EXPECT(skipped >= 3 && done >= 3 && late,
           "%d steps overflow, %d do not, %d of those after one that did not", skipped, done, late);
}

static void overflows_change_no_bit(void) {
    if (harness_short()) return;
    RunPlan plain = overflowing((Grid)GRID(1, 2, 1), "1f1b", 1);
    RunResult expected, result;
    if (!run_or_complain(&plain, "one pipeline rank", &expected)) return;
    expect_overflows(&expected);
    const RunPlan plans[] = {overflowing((Grid)GRID(1, 2, 2), "interleaved", 2),
                             overflowing((Grid)GRID(1, 2, 4), "zb-h1", 1),
                             overflowing((Grid)GRID(1, 2, 2), "zb-v", 2)};
    for (int i = 0; i < 3; i++) {
        RunPlan plan = plans[i];
        char name[96];
        plan.spec.sharding = plan.spec.overlap_gradients = true;
        plan.spec.overlap_weights = i != 1;
        snprintf(name, sizeof name, "%s, sharded and overlapped", plan.spec.schedule);
        if (run_or_complain(&plan, name, &result)) run_expect_same_bits(&expected, &result, name);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"growing_batches_change_no_bit", growing_batches_change_no_bit},
                                      {"evaluations_change_no_bit", evaluations_change_no_bit},
                                      {"overflows_change_no_bit", overflows_change_no_bit},
                                      {0}},
                       argc, argv);
}
