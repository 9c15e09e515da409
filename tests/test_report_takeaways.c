// The paper's own cases, on the machine that it measured them on: which of its configurations is the best,
// and what the search makes of its three takeaways.   Source: Narayanan 2021, figures 13 to 16.
#include "harness.h"
#include "plan_fixtures.h"
#include "report/plan_report.h"
#include <stdio.h>
#include <string.h>

static Machine machine;
static Stack stack;
static PlanCache *cache;
static CostModel costs;

static double step_of(const ModelShape *model, int t, int p, int d, int microbatch, int batch) {
    ParallelConfig c = candidate_of(t, p, d, 1);
    Prediction prediction = {0};
    c.microbatch = microbatch, c.batch = batch;
    c.scatter_gather = true;
    EXPECT_OK(predict(cache, &costs, model, &c, &prediction));
    return prediction.step_s;
}

// Figure 13: 162 billion parameters on 64 GPUs.
static void tensor_within_nodes_pipelines_between(void) {
    ModelShape model = gpt_of(32, 20480, 128);
    for (int batch = 32; batch <= 128; batch *= 4) {
        double best = step_of(&model, 8, 8, 1, 1, batch);
        for (int t = 2; t <= 32; t *= 2) {
            double step_s = step_of(&model, t, 64 / t, 1, 1, batch);
            EXPECT(t == 8 || step_s > best, "B %d, (p, t) = (%d, %d): %.3g s, (8, 8): %.3g s", batch, 64 / t,
                   t, step_s, best);
        }
    }
}

// Figure 14: 5.9 billion parameters on 64 GPUs.
static void data_parallelism_beats_pipelines(void) {
    ModelShape model = gpt_of(32, 3840, 32);
    for (int batch = 32; batch <= 512; batch *= 16)
        for (int p = 4; p <= 32; p *= 2) {
            double less = step_of(&model, 1, p / 2, 128 / p, 1, batch),
                   more = step_of(&model, 1, p, 64 / p, 1, batch);
            EXPECT(less < more, "B %d: %.3g s with p = %d, %.3g with %d", batch, less, p / 2, more, p);
        }
}

// Figure 15: the same model. With a batch of 32 the figure is flat within a node.
static void data_parallelism_beats_tensor(void) {
    ModelShape model = gpt_of(32, 3840, 32);
    for (int batch = 32; batch <= 512; batch *= 4)
        for (int t = batch == 32 ? 16 : 4; t <= 32; t *= 2) {
            double less = step_of(&model, t / 2, 1, 128 / t, 1, batch),
                   more = step_of(&model, t, 1, 64 / t, 1, batch);
            EXPECT(less < more, "B %d: %.3g s with t = %d, %.3g with %d", batch, less, t / 2, more, t);
        }
}

// Figure 16: 91 billion parameters, (t, p) = (8, 8). With a batch of 128, one sample is within 2 % of two.
static void two_samples_are_the_best_microbatch(void) {
    ModelShape model = gpt_of(32, 15360, 128);
    for (int batch = 128; batch <= 512; batch *= 4) {
        double best = step_of(&model, 8, 8, 1, 2, batch);
        for (int b = 1; b <= 8; b *= 2) {
            double step_s = step_of(&model, 8, 8, 1, b, batch), allowed = b == 1 && batch == 128 ? 0.98 : 1;
            EXPECT(b == 2 || step_s > allowed * best, "B %d: %.4g s with b = %d, %.4g with 2", batch, step_s,
                   b, best);
        }
    }
}

// ---- what the search makes of them ------------------------------------------------------------------------

// The lines of one check: its count is that of the counterexamples below. Returns where they end.
static const char *read_check(const char *at, const char *name, double *share) {
    int agreements = 0, cases = 0, against = 0;
    at = strstr(at, name);
    EXPECT(at, "no %s", name);
    const char *counts = at ? strstr(at, "agrees in ") : NULL;
    if (!counts) return "";
    EXPECT(sscanf(counts, "agrees in %d of %d cases", &agreements, &cases) == 2, "%.40s", counts);
    at = strchr(counts, '\n') + 1;
    for (; !strncmp(at, "    ", 4); at = strchr(at, '\n') + 1) against++;
    EXPECT(cases >= 10 && agreements == cases - against, "%s: %d of %d, %d counterexamples", name, agreements,
           cases, against);
    *share = (double)agreements / cases;
    return at;
}

// First in the paper's own setting. Whether pipelines begin before a node is full depends on the network too.
static void the_search_mostly_agrees(void) {
    static const char *const names[] = {"Takeaway 1a", "Takeaway 1b", "Takeaway 2", "Takeaway 3"};
    static const double least[] = {0.8, 0, 0.75, 0.75, 0.8, 0, 0, 0.75};
    Text text = {0};
    EXPECT_OK(plan_takeaways(cache, &costs, &text));
    const char *at = text_string(&text);
    for (int i = 0; i < 8; i++) {
        double share = -1;
        at = read_check(at, names[i % 4], &share);
        EXPECT(harness_short() || share >= least[i], "%s, setting %d: agrees in %g of the cases",
               names[i % 4], i / 4, share);
    }
    EXPECT(strstr(at, "Best microbatches: 1 in "), "at the end: %s", at);
    text_free(&text);
}

static void cpus_have_no_takeaways(void) {
    Machine cpu = machine;
    Text text = {0};
    cpu.is_cpu = true;
    CostModel other = {.machine = &cpu, .stack = &stack};
    EXPECT(plan_takeaways(cache, &other, &text) == ERR_CONFIG, "a CPU");
    text_free(&text);
}

int main(int argc, char **argv) {
    CHECK(machine_open(&machine, "dgx-a100-80gb") == OK, "%s", fail_message());
    CHECK(stack_open(&stack, "megatron-lm-2021") == OK, "%s", fail_message());
    CHECK(plan_cache_open(&cache) == OK, "%s", fail_message());
    // In the short form less fits, so that less is searched, but some of everything.
    if (harness_short()) machine.memory_gb = machine.usable_gb = 24;
    costs = costs_of(&machine, &stack);
    int code = harness_run(
        (const Test[]){{"tensor_within_nodes_pipelines_between", tensor_within_nodes_pipelines_between},
                       {"data_parallelism_beats_pipelines", data_parallelism_beats_pipelines},
                       {"data_parallelism_beats_tensor", data_parallelism_beats_tensor},
                       {"two_samples_are_the_best_microbatch", two_samples_are_the_best_microbatch},
                       {"the_search_mostly_agrees", the_search_mostly_agrees},
                       {"cpus_have_no_takeaways", cpus_have_no_takeaways},
                       {0}},
        argc, argv);
    plan_cache_close(cache);
    machine_close(&machine);
    return code;
}
