// The head makes its logits a chunk of tokens at a time. What comes out is what all tokens at once give, but
// for the order in which the gradient of its weight is added up, on one rank and cut over several; it takes
// the memory of a chunk.
#include "harness.h"
#include "runs.h"
#include <math.h>

enum { SEQUENCE = 550, SAMPLES = 2, CHUNKS = 3 }; // 1100 tokens in chunks of 367, 367 and 366

static int steps(void) { return harness_short() ? 1 : 3; }

static EngineSpec head_spec(int tp, bool sequence_parallel, DType dtype, bool whole) {
    EngineSpec spec = run_spec((Grid)GRID(tp, 1, 1), "1f1b", 1, 1, SAMPLES);
    spec.shape.sequence = spec.shape.positions = SEQUENCE, spec.mode.microbatch = SAMPLES;
    spec.num_microbatches = 1;
    spec.mode.dtype = dtype;
    spec.mode.sequence_parallel = sequence_parallel;
    spec.mode.whole_logits = whole;
    return spec;
}

static RunResult run_head(EngineSpec spec, const char *name) {
    RunPlan plan = {.spec = spec,
                    .steps = steps(),
                    .lr = 1e-2,
                    .transport = "threads",
                    .evaluates_between = true,
                    .finished = run_expect_predicted_memory};
    RunResult result = {0};
    run_or_complain(&plan, name, &result);
    return result;
}

static void expect_near(double got, double want, double tolerance, const char *name, const char *what,
                        int step) {
    EXPECT(fabs(got - want) <= tolerance * fabs(want) && want != 0, "%s: %s of step %d is %.9g, not %.9g",
           name, what, step, got, want);
}

static void compare(int tp, bool sequence_parallel, DType dtype, double tolerance, const char *name) {
    RunResult whole = run_head(head_spec(tp, sequence_parallel, dtype, true), name);
    RunResult chunks = run_head(head_spec(tp, sequence_parallel, dtype, false), name);
    EXPECT(whole.steps == steps() && chunks.steps == steps(), "%s: %d and %d steps", name, whole.steps,
           chunks.steps);
    for (int step = 0; step < whole.steps; step++) {
        expect_near((double)chunks.loss[step], (double)whole.loss[step], tolerance, name, "loss", step);
        expect_near((double)chunks.evaluation[step], (double)whole.evaluation[step], tolerance, name,
                    "evaluation", step);
        expect_near(chunks.norm[step], whole.norm[step], 10 * tolerance, name, "norm", step);
    }
}

static void chunks_give_what_the_whole_gives(void) {
    if (!harness_short()) compare(1, false, F32, 1e-6, "one rank");
    compare(2, false, F32, 1e-6, "two ranks");
    compare(2, true, F32, 1e-6, "two ranks, sequence-parallel");
    compare(1, false, BF16, 1e-3, "bf16");
}

static void chunks_take_the_memory_of_one(void) {
    for (int i = 0; i < 2; i++) {
        DType dtype = i ? BF16 : F32;
        EngineSpec whole = head_spec(1, false, dtype, true), chunks = head_spec(1, false, dtype, false);
        whole.mode.padded_vocabulary = chunks.mode.padded_vocabulary = 8192; // so that logits are most of it
        EngineMemory most = {0}, less = {0};
        EXPECT(engine_measure(&whole, 0, &most, NULL) == OK && engine_measure(&chunks, 0, &less, NULL) == OK,
               "%s", fail_message());
        size_t element = i ? sizeof(float) + 2 : sizeof(float);
        size_t left_out = (size_t)(SEQUENCE * SAMPLES) * 8192 * element * (CHUNKS - 1) / CHUNKS;
        EXPECT(less.total < most.total && most.total - less.total > left_out - left_out / 50,
               "%s: %zu bytes with all logits, %zu with a chunk of them, %zu logits less", dtype_name(dtype),
               most.total, less.total, left_out);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"chunks give what the whole gives", chunks_give_what_the_whole_gives},
                                      {"chunks take the memory of one", chunks_take_the_memory_of_one},
                                      {0}},
                       argc, argv);
}
