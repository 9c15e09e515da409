// The configuration that the planner is asked about is that of the run: every axis, way and share that its options say.
#include "config/config.h"
#include "harness.h"
#include "plan/plan.h"
#include <string.h>

#define COMMON                                                                                               \
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 255 --num-layers 4 --hidden-size 64 "           \
    "--num-attention-heads 4 --seq-length 64 --train-iters 1 --lr 1e-3 --micro-batch-size 1 "                \
    "--global-batch-size 16 "
enum { MAX_WORDS = 60 };

static Status config_of(const char *options, int ranks, ParallelConfig *config) {
    char text[1000], *words[MAX_WORDS], *rest = NULL;
    int count = 0;
    Options o;
    snprintf(text, sizeof text, COMMON "--ranks %d %s", ranks, options);
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        CHECK(count < MAX_WORDS, "more than %d words", MAX_WORDS);
        words[count++] = word;
    }
    EXPECT_OK(options_parse(&o, FOR_TRAIN, count, words));
    EXPECT_OK(options_resolve(&o, ranks));
    Status status = parallel_config_of_run(&o, config);
    options_destroy(&o);
    return status;
}

static void expect_grid(const char *options, int ranks, int tp, int cp, int dp, int pp, int ep) {
    ParallelConfig c;
    EXPECT_OK(config_of(options, ranks, &c));
    Grid g = c.grid;
    EXPECT(grid_along(g, AXIS_TP) == tp && grid_along(g, AXIS_CP) == cp && grid_along(g, AXIS_DP) == dp &&
               grid_along(g, AXIS_PP) == pp && grid_along(g, AXIS_EP) == ep,
           "%s: t %d c %d d %d p %d ep %d", options, grid_along(g, AXIS_TP), grid_along(g, AXIS_CP),
           grid_along(g, AXIS_DP), grid_along(g, AXIS_PP), grid_along(g, AXIS_EP));
    EXPECT(c.batch == 16 && c.microbatch == 1, "%s: b %d of %d", options, c.microbatch, c.batch);
}

static void grids_are_those_of_the_run(void) {
    expect_grid("", 1, 1, 1, 1, 1, 1);
    expect_grid("--tp 2 --sequence-parallel --pp 2 --cp 2", 16, 2, 2, 2, 2, 1);
    expect_grid("--num-experts 4 --expert-model-parallel-size 4", 8, 1, 1, 8, 1, 4);
}

static void ways_are_those_of_the_run(void) {
    ParallelConfig c;
    EXPECT_OK(
        config_of("--cp 2 --cp-comm-type p2p --pp 2 --schedule zb-h1 --overlap-grad-reduce --bf16", 8, &c));
    EXPECT(c.context_way == CONTEXT_RING && !strcmp(c.schedule, "zb-h1") && c.overlap_gradients &&
               c.dtype == BF16,
           "way %d, %s", (int)c.context_way, c.schedule);
    static const char *const strategies[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
    for (int stage = 0; stage < 4; stage++) {
        char words[100];
        snprintf(words, sizeof words, "--data-parallel-sharding-strategy %s", strategies[stage]);
        EXPECT_OK(config_of(words, 4, &c));
        EXPECT(c.zero_stage == stage, "%s: stage %d", strategies[stage], c.zero_stage);
    }
    EXPECT_OK(config_of("--num-experts 4 --expert-model-parallel-size 2 --overlap-moe-expert-parallel-comm",
                        2, &c));
    EXPECT(parallel_config_kind(&c)->pairs, "%s", c.schedule);
}

// State stays where the device computes but for a GPU, whose host can keep it.
static void hosts_keep_state_of_gpus_alone(void) {
    ParallelConfig c;
    EXPECT_OK(config_of("--optimizer-cpu-offload --use-distributed-optimizer", 2, &c));
    EXPECT(c.offload == 0 && !c.device, "on the cpu the host keeps %g", c.offload);
    EXPECT_OK(config_of(
        "--optimizer-cpu-offload --optimizer-offload-fraction 0.5 --use-distributed-optimizer --device cuda",
        2, &c));
    EXPECT(c.offload == 0.5 && c.device && !strcmp(c.device, "cuda"), "of cuda the host keeps %g", c.offload);
}

static void what_is_not_predicted_is_refused(void) {
    ParallelConfig c;
    Status status =
        config_of("--recompute-granularity full --recompute-method block --recompute-num-layers 1", 1, &c);
    EXPECT(status == ERR_CONFIG && strstr(fail_message(), "uniform"), "%d: %s", (int)status, fail_message());
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"grids are those of the run", grids_are_those_of_the_run},
                                      {"ways are those of the run", ways_are_those_of_the_run},
                                      {"hosts keep state of GPUs alone", hosts_keep_state_of_gpus_alone},
                                      {"what is not predicted is refused", what_is_not_predicted_is_refused},
                                      {0}},
                       argc, argv);
}
