// Any grid gives the same training run.
//   bitwise    across p, v, schedule, transport and checks, other things equal
//   1e-5       per step over 20 steps across t and d
// The short form leaves grids and steps out.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 8, GLOBAL_BATCH = 16, LONG_RUN = 20, SHORT_RUN = 3, BRIEF_RUN = 2 };

static RunPlan plan_for(Grid grid, const char *schedule, int chunks, const char *transport) {
    return (RunPlan){.spec = run_spec(grid, schedule, chunks, LAYERS, GLOBAL_BATCH),
                     .steps = harness_short() ? BRIEF_RUN : SHORT_RUN,
                     .lr = 3e-3,
                     .transport = transport};
}

static void name_plan(const RunPlan *plan, char text[96]) {
    Grid g = plan->spec.grid;
    snprintf(text, 96, "t%d p%d d%d %s v%d on %s", grid_along(g, AXIS_TP), grid_along(g, AXIS_PP),
             grid_along(g, AXIS_DP), plan->spec.schedule, plan->spec.num_chunks, plan->transport);
}

static int long_run_steps(void) { return harness_short() ? BRIEF_RUN : LONG_RUN; }

static void expect_close(const RunResult *a, const RunResult *b, const char *name) {
    for (int i = 0; i < long_run_steps(); i++) {
        double loss = fabs((double)(a->loss[i] - b->loss[i])) / (double)a->loss[i];
        double norm = fabs(a->norm[i] - b->norm[i]) / a->norm[i];
        EXPECT(loss < 1e-5, "%s: loss %d differs by %.2g", name, i, loss);
        EXPECT(norm < 1e-5, "%s: norm %d differs by %.2g", name, i, norm);
    }
}

// ---- threads: all grids with t, p, d in {1, 2, 4} and at most 8 ranks -----------------------------------

typedef struct {
    const char *schedule;
    int chunks;
} Way;

static const Way ways[] = {{"gpipe", 1}, {"1f1b", 1}, {"interleaved", 2}};

static bool run(const RunPlan *plan, RunResult *result) {
    char name[96];
    name_plan(plan, name);
    return run_or_complain(plan, name, result);
}

// One (t, d): every p and schedule gives the same bits; returns them.
static bool all_pipelines(int t, int d, RunResult *first) {
    bool any = false;
    for (int p = 1; p <= 4 && t * d * p <= 8; p *= 2)
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            if (ways[w].chunks > 1 && p == 1) continue;
            RunPlan plan = plan_for((Grid)GRID(t, d, p), ways[w].schedule, ways[w].chunks, "threads");
            RunResult result;
            char name[96];
            name_plan(&plan, name);
            if (!run(&plan, &result)) return false;
            if (any) run_expect_same_bits(first, &result, name);
            if (!any) *first = result;
            any = true;
        }
    return any;
}

static void pipelines_change_no_bit(void) {
    RunResult result;
    for (int t = 1; t <= 4; t *= 2)
        for (int d = 1; d <= 4 && t * d <= 8; d *= 2) {
            if (harness_short() && (t != 2 || d != 2)) continue;
            if (!all_pipelines(t, d, &result)) return;
        }
}

// How the layers are dealt changes no bit either, nor do ranks that spin while they wait.
static void uneven_stages_change_no_bit(void) {
    RunPlan even = plan_for((Grid)GRID(1, 1, 2), "1f1b", 1, "threads"), uneven = even, chunked = even;
    uneven.spins = true;
    uneven.spec.split.last = 2;
    chunked.spec.grid.size[AXIS_PP] = 4;
    chunked.spec.schedule = "interleaved", chunked.spec.num_chunks = 2;
    chunked.spec.shape.layers = even.spec.shape.layers = uneven.spec.shape.layers = 12;
    chunked.spec.split.first = 2, chunked.spec.split.last = 2;
    chunked.spec.split.layers = even.spec.split.layers = uneven.spec.split.layers = 12;
    RunResult a, b;
    if (run(&even, &a) && run(&uneven, &b)) run_expect_same_bits(&a, &b, "10 and 2 layers");
    if (run(&chunked, &b)) run_expect_same_bits(&a, &b, "2, 4, 4 and 2 layers in 2 chunks each");
}

static bool long_run(RunPlan plan, RunResult *result) {
    plan.steps = long_run_steps();
    return run(&plan, result);
}

static void tensor_and_data_parallelism_are_close(void) {
    RunResult serial, result;
    if (!long_run(plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, "threads"), &serial)) return;
    for (int t = 1; t <= 4; t *= 2)
        for (int d = 1; d <= 4 && t * d <= 8; d *= 2) {
            if (harness_short() && t * d > 2) continue;
            char name[96];
            snprintf(name, sizeof name, "t%d d%d against one rank", t, d);
            if (!long_run(plan_for((Grid)GRID(t, d, 1), "1f1b", 1, "threads"), &result)) return;
            expect_close(&serial, &result, name);
        }
}

// Numbers alone: not in the short form.
static void a_repeated_batch_is_learnt(void) {
    if (harness_short()) return;
    RunPlan plan = plan_for((Grid)GRID(2, 2, 2), "interleaved", 2, "threads");
    plan.same_batch = true;
    plan.lr = 1e-2;
    RunResult result;
    plan.steps = LONG_RUN;
    if (!run(&plan, &result)) return;
    EXPECT(result.loss[LONG_RUN - 1] < 0.9f * result.loss[0], "the loss goes %g -> %g",
           (double)result.loss[0], (double)result.loss[LONG_RUN - 1]);
}

static void checks_change_no_bit(void) {
    RunPlan plain = plan_for((Grid)GRID(2, 2, 2), "interleaved", 2, "threads"), checked = plain;
    checked.check_comm = true;
    plain.spec.device = "cpu";
    checked.spec.device = "check";
    RunResult a, b;
    if (run(&plain, &a) && run(&checked, &b)) run_expect_same_bits(&a, &b, "checking device and comm");
}

static void reference_device_is_close(void) {
    RunPlan fast = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, "threads"), reference = fast;
    reference.spec.device = "reference";
    RunResult a, b;
    if (long_run(fast, &a) && long_run(reference, &b)) expect_close(&a, &b, "reference device");
}

static void microbatch_size_is_close(void) {
    RunPlan one = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, "threads"), two = one;
    two.spec.mode.microbatch = 2;
    two.spec.num_microbatches /= 2;
    RunResult a, b;
    if (long_run(one, &a) && long_run(two, &b)) expect_close(&a, &b, "micro-batch 2");
}

// t 8, p 4, d 2: far more ranks than cores.
static void sixty_four_ranks(void) {
    RunPlan many = plan_for((Grid)GRID(8, 2, 4), "interleaved", 2, "threads"),
            one = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, "threads");
    many.spec.shape.heads = one.spec.shape.heads = 8;
    many.spec.shape.head_size = one.spec.shape.head_size = 4;
    many.steps = one.steps = 2;
    RunResult a, b;
    if (!run(&one, &a) || !run(&many, &b)) return;
    for (int i = 0; i < 2; i++)
        EXPECT(fabs((double)(a.loss[i] - b.loss[i])) < 1e-5 * (double)a.loss[i], "loss %d: %.9g and %.9g", i,
               (double)a.loss[i], (double)b.loss[i]);
}

// ---- the arenas take what the null device predicted -----------------------------------------------------

static void memory_is_as_predicted(void) {
    const RunPlan plans[] = {plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, "threads"),
                             plan_for((Grid)GRID(2, 1, 2), "interleaved", 2, "threads"),
                             plan_for((Grid)GRID(1, 2, 4), "gpipe", 1, "threads")};
    for (int i = 0; i < 3; i++) {
        RunPlan plan = plans[i];
        plan.finished = run_expect_predicted_memory;
        RunResult result;
        run(&plan, &result);
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"pipelines_change_no_bit", pipelines_change_no_bit},
                       {"uneven_stages_change_no_bit", uneven_stages_change_no_bit},
                       {"tensor_and_data_parallelism_are_close", tensor_and_data_parallelism_are_close},
                       {"a_repeated_batch_is_learnt", a_repeated_batch_is_learnt},
                       {"checks_change_no_bit", checks_change_no_bit},
                       {"reference_device_is_close", reference_device_is_close},
                       {"microbatch_size_is_close", microbatch_size_is_close},
                       {"sixty_four_ranks", sixty_four_ranks},
                       {"memory_is_as_predicted", memory_is_as_predicted},
                       {0}},
        argc, argv);
}
