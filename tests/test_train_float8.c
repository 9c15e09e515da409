// Training with products in 8 bits: near bf16, over steps and over tensor ranks; in the layers that it is asked for; and on
// the simulated GPU near the cpu. test_train_covering.c has its laws.
#include "harness.h"
#include "nn/recipes.h"
#include "runs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, GLOBAL_BATCH = 4 };

typedef struct {
    Float8 float8;
    int wide; // first layers that stay in bf16
    int t;
    bool sequence_parallel;
    const char *device;
    int steps;
    ScalingRecipe recipe;
} Job;

static bool run(const Job *job, RunResult *result) {
    const Grid grid = GRID(job->t, 1, 1);
    RunPlan plan = {.spec = run_spec(grid, "1f1b", 1, LAYERS, GLOBAL_BATCH),
                    .steps = job->steps,
                    .lr = 3e-3,
                    .transport = "threads",
                    .same_batch = true,
                    .finished = run_expect_predicted_memory};
    plan.spec.shape.hidden_dropout = plan.spec.shape.attention_dropout = 0;
    plan.spec.device = job->device;
    plan.spec.mode.dtype = BF16;
    plan.spec.mode.float8 = job->float8;
    plan.spec.mode.recipe = job->recipe;
    plan.spec.mode.delayed = (DelayedScaling){.history = 4};
    plan.spec.mode.wide_first = job->wide;
    plan.spec.mode.sequence_parallel = job->sequence_parallel;
    char name[96];
    snprintf(name, sizeof name, "format %d, %s, %d wide layers, t%d, %s", (int)job->float8,
             recipe_rows[job->recipe].name, job->wide, job->t, job->device);
    return run_or_complain(&plan, name, result);
}

static bool same(const RunResult *a, const RunResult *b) {
    return !memcmp(a->loss, b->loss, sizeof *a->loss * (size_t)a->steps) &&
           !memcmp(a->norm, b->norm, sizeof *a->norm);
}

static double difference(const RunResult *a, const RunResult *b) {
    double worst = 0;
    for (int i = 0; i < a->steps; i++)
        worst = fmax(worst, fabs((double)(a->loss[i] - b->loss[i])) / (double)a->loss[i]);
    return worst;
}

static void expect_near(const RunResult *a, const RunResult *b, double loss, double norm, const char *name) {
    double found = difference(a, b), of_norm = fabs(a->norm[0] - b->norm[0]) / a->norm[0];
    if (getenv("TRIREME_TEST_REPORT")) printf("%s: %.2g, norm %.2g\n", name, found, of_norm);
    EXPECT(found <= loss && of_norm <= norm, "%s: losses differ by %.2g, the first norm by %.2g", name, found,
           of_norm);
}

static void losses_follow_those_of_bf16(void) {
    static const Job jobs[] = {{FLOAT8_NONE, 0, 1, false, "cpu", 40, RECIPE_TENSORWISE},
                               {FLOAT8_E4M3, 0, 1, false, "cpu", 40, RECIPE_TENSORWISE},
                               {FLOAT8_HYBRID, 0, 1, false, "cpu", 40, RECIPE_TENSORWISE},
                               {FLOAT8_HYBRID, 0, 1, false, "cpu", 40, RECIPE_DELAYED},
                               {FLOAT8_E4M3, 0, 1, false, "cpu", 40, RECIPE_BLOCKWISE},
                               {FLOAT8_E4M3, 0, 1, false, "cpu", 40, RECIPE_MXFP8},
                               {FLOAT4_E2M1, 0, 1, false, "cpu", 40, RECIPE_NVFP4}};
    enum { JOBS = sizeof jobs / sizeof *jobs };
    RunResult results[JOBS];
    for (int i = 0; i < JOBS; i++)
        if (!run(&jobs[i], &results[i])) return;
    EXPECT(results[0].loss[39] < 0.9f * results[0].loss[0], "nothing is learned: %g",
           (double)results[0].loss[39]);
    for (int i = 1; i < JOBS; i++) {
        bool narrow = jobs[i].float8 == FLOAT4_E2M1;
        expect_near(&results[0], &results[i], narrow ? 0.12 : 0.03, narrow ? 0.05 : 0.02,
                    recipe_rows[jobs[i].recipe].name);
        for (int k = 0; k < i; k++)
            EXPECT(!same(&results[i], &results[k]), "%s changes nothing", recipe_rows[jobs[i].recipe].name);
    }
}

static void wide_layers_are_in_bf16(void) {
    static const Job jobs[] = {{FLOAT8_NONE, 0, 1, false, "cpu", 2, RECIPE_TENSORWISE},
                               {FLOAT8_HYBRID, LAYERS, 1, false, "cpu", 2, RECIPE_TENSORWISE},
                               {FLOAT8_HYBRID, LAYERS - 1, 1, false, "cpu", 2, RECIPE_TENSORWISE}};
    RunResult results[3];
    for (int i = 0; i < 3; i++)
        if (!run(&jobs[i], &results[i])) return;
    run_expect_same_bits(&results[0], &results[1], "all layers in bf16");
    EXPECT(!same(&results[0], &results[2]), "one layer in 8 bits changes nothing");
}

// A tensor has one scale, however it is cut: tensor ranks round differently, and no more. Blocks of 16 are whole.
static void tensor_ranks_round_with(Float8 float8, ScalingRecipe recipe, double loss, double norm) {
    const Job one = {float8, 0, 1, false, "cpu", 4, recipe};
    RunResult whole, cut;
    if (!run(&one, &whole)) return;
    for (int t = 2; t <= 4; t *= 2)
        for (int sp = 0; sp < 2; sp++) {
            Job job = one;
            job.t = t, job.sequence_parallel = sp;
            if (run(&job, &cut))
                expect_near(&whole, &cut, loss, norm, sp ? "sequence parallel" : "tensor parallel");
        }
}

static void tensor_ranks_round(void) {
    tensor_ranks_round_with(FLOAT8_HYBRID, RECIPE_TENSORWISE, 2e-3, 5e-3);
    tensor_ranks_round_with(FLOAT8_HYBRID, RECIPE_DELAYED, 2e-3, 5e-3);
    tensor_ranks_round_with(FLOAT8_E4M3, RECIPE_MXFP8, 2e-3, 5e-3);
    tensor_ranks_round_with(FLOAT4_E2M1, RECIPE_NVFP4, 1e-2, 3e-2);
}

static void near_the_cpu_on_a_gpu(void) {
    static const struct {
        Float8 float8;
        ScalingRecipe recipe;
    } ways[] = {{FLOAT8_HYBRID, RECIPE_TENSORWISE},
                {FLOAT8_HYBRID, RECIPE_DELAYED},
                {FLOAT8_E4M3, RECIPE_BLOCKWISE},
                {FLOAT8_E4M3, RECIPE_MXFP8},
                {FLOAT4_E2M1, RECIPE_NVFP4}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        Job cpu = {ways[i].float8, 1, 2, true, "cpu", 2, ways[i].recipe}, gpu = cpu;
        gpu.device = "cuda-sim";
        RunResult a, b;
        bool narrow = ways[i].float8 == FLOAT4_E2M1;
        if (run(&gpu, &a) && run(&cpu, &b))
            expect_near(&a, &b, narrow ? 1e-2 : 2e-3, narrow ? 3e-2 : 5e-3, "the simulated GPU");
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"losses_follow_those_of_bf16", losses_follow_those_of_bf16},
                                      {"wide_layers_are_in_bf16", wide_layers_are_in_bf16},
                                      {"tensor_ranks_round", tensor_ranks_round},
                                      {"near_the_cpu_on_a_gpu", near_the_cpu_on_a_gpu},
                                      {0}},
                       argc, argv);
}
