// Training on pairs: no grid changes a bit of it beyond rounding over tensor ranks, its gradients are those of finite
// differences, and its memory is what was predicted.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdlib.h>

enum { LAYERS = 4, GLOBAL_BATCH = 8, STEPS = 4 };

static RunPlan plan_for(Grid grid, const char *schedule, int chunks, RunModel model) {
    RunPlan plan = {.spec = run_spec(grid, schedule, chunks, LAYERS, GLOBAL_BATCH),
                    .steps = STEPS,
                    .lr = 3e-3,
                    .transport = "threads",
                    .finished = run_expect_predicted_memory};
    run_make_model(&plan.spec, model);
    run_prefer(&plan.spec, "sigmoid");
    plan.spec.shape.sequence = plan.spec.shape.positions = 20;
    plan.spec.mode.microbatch = 2;
    plan.spec.num_microbatches /= 2;
    return plan;
}

static void run(const RunPlan *plan, RunResult *result, const char *name) {
    EXPECT_OK(run_plan(plan, result));
    EXPECT(result->loss[0] > 0.2F && result->loss[0] < 2, "%s: first loss %g", name, (double)result->loss[0]);
    EXPECT(result->norm[0] > 1e-3, "%s: norm %g", name, result->norm[0]);
}

static void expect_same(const RunResult *a, const RunResult *b, const char *name) {
    run_expect_same_bits(a, b, name);
    for (int i = 0; i < a->steps; i++) {
        const PairMeans *x = &a->pairs[i], *y = &b->pairs[i];
        EXPECT(x->accuracy == y->accuracy && x->reward[CHOSEN] == y->reward[CHOSEN] &&
                   x->reward[REJECTED] == y->reward[REJECTED],
               "%s: step %d: means of pairs differ", name, i);
    }
}

static void pipelines_change_no_bit(void) {
    static const struct {
        int p;
        const char *schedule;
        int chunks;
    } WAYS[] = {{2, "1f1b", 1}, {2, "interleaved", 2}, {2, "zb-h1", 1}, {2, "zb-v", 2}, {4, "gpipe", 1}};
    for (RunModel model = 0; model < NUM_RUN_MODELS; model++) {
        RunResult first, result;
        RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, model);
        run(&plan, &first, run_model_names[model]);
        for (size_t w = 0; w < sizeof WAYS / sizeof *WAYS; w++) {
            plan = plan_for((Grid)GRID(1, 1, WAYS[w].p), WAYS[w].schedule, WAYS[w].chunks, model);
            run(&plan, &result, WAYS[w].schedule);
            expect_same(&first, &result, WAYS[w].schedule);
        }
    }
}

static void leaves_change_no_bit(void) {
    RunResult first, result;
    RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, RUN_LLAMA);
    plan.spec.virtual_data = 4;
    run(&plan, &first, "one rank");
    for (int d = 2; d <= 4; d *= 2) {
        plan = plan_for((Grid)GRID(1, d, 1), "1f1b", 1, RUN_LLAMA);
        plan.spec.virtual_data = 4;
        plan.spec.sharding = d == 4;
        run(&plan, &result, "data ranks");
        expect_same(&first, &result, "data ranks that are leaves");
    }
}

static void tensor_ranks_are_close(void) {
    for (RunModel model = 0; model < NUM_RUN_MODELS; model++)
        for (int sequence = 0; sequence < 2; sequence++) {
            RunResult serial, result;
            RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, model);
            run(&plan, &serial, run_model_names[model]);
            plan = plan_for((Grid)GRID(2, 1, 2), "1f1b", 1, model);
            plan.spec.mode.sequence_parallel = sequence;
            run(&plan, &result, run_model_names[model]);
            for (int i = 0; i < STEPS; i++) {
                double loss = fabs((double)(serial.loss[i] - result.loss[i])) / (double)serial.loss[i];
                double norm = fabs(serial.norm[i] - result.norm[i]) / serial.norm[i];
                EXPECT(loss < 1e-5 && norm < 1e-4, "%s: step %d: loss and norm differ by %.2g and %.2g",
                       run_model_names[model], i, loss, norm);
            }
        }
}

// The sums of an answer's tokens are those of all ranks: the first loss has the same bits.
static void cut_sequences_are_close(void) {
    for (RunModel model = 0; model < NUM_RUN_MODELS; model++) {
        RunResult serial, result;
        RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, model);
        run(&plan, &serial, run_model_names[model]);
        plan = plan_for((Grid)CUT_GRID(2, 1), "1f1b", 1, model);
        plan.spec.mode.context_ranks = 2;
        run(&plan, &result, run_model_names[model]);
        EXPECT(serial.loss[0] == result.loss[0], "%s: first losses %.9g and %.9g", run_model_names[model],
               (double)serial.loss[0], (double)result.loss[0]);
        for (int i = 0; i < STEPS; i++) {
            double loss = fabs((double)(serial.loss[i] - result.loss[i])) / (double)serial.loss[i];
            double norm = fabs(serial.norm[i] - result.norm[i]) / serial.norm[i];
            EXPECT(loss < 1e-5 && norm < 1e-4, "%s: step %d: loss and norm differ by %.2g and %.2g",
                   run_model_names[model], i, loss, norm);
        }
    }
}

// The head computes the logits of several chunks twice, and those of one chunk once.
static void chunks_give_what_the_whole_gives(void) {
    for (int t = 1; t <= 2; t++) {
        RunResult whole, chunks;
        RunPlan plan = plan_for((Grid)GRID(t, 1, 1), "1f1b", 1, RUN_SANDWICH);
        plan.spec.shape.layers = plan.spec.split.layers = 1;
        // 1100 tokens in three chunks, of which the last one is padding.
        plan.spec.shape.sequence = plan.spec.shape.positions = 550;
        plan.spec.mode.whole_logits = true;
        plan.steps = 2;
        EXPECT_OK(run_plan(&plan, &whole));
        plan.spec.mode.whole_logits = false;
        EXPECT_OK(run_plan(&plan, &chunks));
        for (int i = 0; i < plan.steps; i++)
            EXPECT(fabsf(whole.loss[i] - chunks.loss[i]) < 1e-5F * whole.loss[i] &&
                       fabs(whole.norm[i] - chunks.norm[i]) < 1e-4 * whole.norm[i] && whole.norm[i] > 0,
                   "t %d, step %d: losses %.9g and %.9g, norms %.9g and %.9g", t, i, (double)whole.loss[i],
                   (double)chunks.loss[i], whole.norm[i], chunks.norm[i]);
    }
}

static void other_precisions_train(void) {
    static const DType TYPES[] = {BF16, F16};
    for (int i = 0; i < 2; i++) {
        RunResult wide, narrow;
        RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, RUN_LLAMA);
        run(&plan, &wide, "f32");
        plan = plan_for((Grid)GRID(2, 1, 2), "1f1b", 1, RUN_LLAMA);
        plan.spec.mode.dtype = TYPES[i];
        if (TYPES[i] == F16) plan.scaler = loss_scaler(1024, 1, 1000, 2, true);
        run(&plan, &narrow, "narrow");
        for (int s = 0; s < STEPS; s++)
            EXPECT(fabsf(wide.loss[s] - narrow.loss[s]) < 0.02F, "step %d: %g and %g", s,
                   (double)wide.loss[s], (double)narrow.loss[s]);
    }
}

static void losses_differ_and_fall(void) {
    static const char *const LOSSES[] = {"sigmoid", "robust", "hinge", "ipo", "simpo", "orpo"};
    enum { COUNT = sizeof LOSSES / sizeof *LOSSES };
    float last[COUNT];
    for (int i = 0; i < COUNT; i++) {
        RunResult result;
        RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, RUN_LLAMA);
        run_prefer(&plan.spec, LOSSES[i]);
        plan.steps = 12, plan.same_batch = true, plan.lr = 1e-2;
        EXPECT_OK(run_plan(&plan, &result));
        EXPECT(result.loss[11] < result.loss[0], "%s: %g -> %g", LOSSES[i], (double)result.loss[0],
               (double)result.loss[11]);
        last[i] = result.loss[11];
        const PairMeans *before = &result.pairs[0], *after = &result.pairs[11];
        EXPECT(after->reward[CHOSEN] - after->reward[REJECTED] >
                   before->reward[CHOSEN] - before->reward[REJECTED],
               "%s: the margin does not grow", LOSSES[i]);
        EXPECT(after->accuracy > 0.9, "%s: accuracy %g", LOSSES[i], after->accuracy);
        for (int j = 0; j < i; j++) EXPECT(last[i] != last[j], "%s is %s", LOSSES[i], LOSSES[j]);
    }
}

static void the_check_device_agrees(void) {
    RunPlan plain = plan_for((Grid)GRID(2, 1, 2), "1f1b", 1, RUN_SANDWICH), checked = plain;
    RunResult a, b;
    plain.spec.device = "cpu", checked.spec.device = "check", checked.check_comm = true;
    run(&plain, &a, "cpu");
    run(&checked, &b, "check");
    expect_same(&a, &b, "the check device");
}

static void the_reference_device_is_close(void) {
    RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, RUN_GPT);
    RunResult a, b;
    run(&plan, &a, "cpu");
    plan.spec.device = "reference";
    run(&plan, &b, "reference");
    for (int i = 0; i < STEPS; i++)
        EXPECT(fabsf(a.loss[i] - b.loss[i]) < 1e-5F && fabs(a.norm[i] - b.norm[i]) < 1e-4 * a.norm[i],
               "step %d: %.9g and %.9g", i, (double)a.loss[i], (double)b.loss[i]);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"pipelines change no bit", pipelines_change_no_bit},
                                      {"leaves change no bit", leaves_change_no_bit},
                                      {"tensor ranks are close", tensor_ranks_are_close},
                                      {"cut sequences are close", cut_sequences_are_close},
                                      {"chunks give what the whole gives", chunks_give_what_the_whole_gives},
                                      {"other precisions train", other_precisions_train},
                                      {"losses differ and fall", losses_differ_and_fall},
                                      {"the check device agrees", the_check_device_agrees},
                                      {"the reference device is close", the_reference_device_is_close},
                                      {0}},
                       argc, argv);
}
