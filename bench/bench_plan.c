// How fast plans are made: replays of pipeline schedules, each with its compute order made anew; bounds of
// candidates and their replays; a whole search.
//
//   bench_plan
#include "median.h"
#include "plan/plan.h"
#include <stdio.h>
#include <stdlib.h>

// ---- layout: replays -------------------------------------------------------------------------------------

static Status replay(const ScheduleSpec *spec) {
    ScheduleCosts costs = {.forward_us = 1, .backward_us = 2, .weight_fraction = 0.5, .hop_us = 0.125};
    Schedule order;
    Simulation out;
    TRY(schedule_order(&order, spec));
    schedule_replay(&order, costs, &out);
    simulation_destroy(&out, &order);
    schedule_destroy(&order);
    return OK;
}

static Status bench_replay(const ScheduleSpec *spec) {
    enum { RUNS = 101 };
    double seconds[RUNS];
    for (int run = 0; run < RUNS; run++) {
        double begin_s = clock_s();
        TRY(replay(spec));
        seconds[run] = clock_s() - begin_s;
    }
    double s = median(seconds, RUNS);
    printf("%-12s p %2d v %d m %3d  %7.3f ms  %8.0f replays/s\n", spec->kind, spec->ranks, spec->chunks,
           spec->microbatches, s * 1e3, 1 / s);
    return OK;
}

static Status bench_replays(void) {
    static const ScheduleSpec specs[] = {
        {.kind = "1f1b", .ranks = 64, .chunks = 1, .microbatches = 512},
        {.kind = "gpipe", .ranks = 64, .chunks = 1, .microbatches = 512},
        {.kind = "interleaved", .ranks = 64, .chunks = 2, .microbatches = 512},
        {.kind = "zb-h1", .ranks = 64, .chunks = 1, .microbatches = 512},
        {.kind = "1f1b", .ranks = 8, .chunks = 1, .microbatches = 64},
        {.kind = "interleaved", .ranks = 8, .chunks = 2, .microbatches = 64},
        {.kind = "zb-v", .ranks = 8, .chunks = 2, .microbatches = 64},
        {.kind = "1f1b", .ranks = 4, .chunks = 1, .microbatches = 16}};
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) TRY(bench_replay(&specs[i]));
    return OK;
}

// ---- plan: gpt3-175b on 1024 A100 -------------------------------------------------------------------------

static const ModelShape gpt3 = {.layers = 96,
                                .hidden = 12288,
                                .heads = 96,
                                .head_size = 128,
                                .ffn = 4 * 12288,
                                .sequence = 2048,
                                .positions = 2048,
                                .vocabulary = 50257,
                                .hidden_dropout = 0.1f,
                                .attention_dropout = 0.1f};

typedef struct {
    Machine machine;
    Stack stack;
    CostModel costs;
} Selene;

static Status open_selene(Selene *selene) {
    TRY(machine_open(&selene->machine, "dgx-a100-80gb"));
    TRY(stack_open(&selene->stack, "megatron-lm-2021"));
    selene->costs = (CostModel){.machine = &selene->machine,
                                .stack = &selene->stack,
                                .constants = constants_of(&selene->machine, &selene->stack)};
    return OK;
}

static SearchSpace space_of(int devices, int batch) {
    return (SearchSpace){.devices = devices,
                         .batch = batch,
                         .sequence_parallel = -1,
                         .zero_stage = -1,
                         .fused_attention = -1,
                         .recompute = -1,
                         .dtype = F16};
}

// The possible ones of all grids, chunks, microbatches and recomputations.
static int candidates_of(const CostModel *costs, const SearchSpace *space, ParallelConfig *out, int most) {
    int count = 0;
    char why[200];
    for (int i = 0; i < 4 * 10 * 8 * 4 * 3; i++) {
        ParallelConfig c = parallel_config_of_stack(costs->stack, space);
        c.grid.size[AXIS_TP] = 1 << i % 4;
        c.grid.size[AXIS_PP] = 1 << i / 4 % 10;
        c.grid.size[AXIS_DP] = space->devices / (grid_along(c.grid, AXIS_TP) * grid_along(c.grid, AXIS_PP));
        c.chunks = 1 + i / 40 % 8;
        c.microbatch = 1 << i / 320 % 4;
        c.recompute = (Recompute)(i / 1280 % 3);
        c.schedule = c.chunks > 1 ? "interleaved" : "1f1b";
        bool possible = grid_along(c.grid, AXIS_DP) > 0 &&
                        !parallel_config_refuse(&gpt3, costs->machine, &c, why, sizeof why);
        if (possible && count < most) out[count++] = c;
    }
    return count;
}

static Status bound_all(PlanCache *cache, const CostModel *costs, const ParallelConfig *configs, int count) {
    double step_s;
    MemoryNeed memory;
    for (int i = 0; i < count; i++) TRY(predict_bound(cache, costs, &gpt3, &configs[i], &step_s, &memory));
    return OK;
}

static Status predict_all(PlanCache *cache, const CostModel *costs, const ParallelConfig *configs,
                          int count) {
    Prediction prediction;
    for (int i = 0; i < count; i++) TRY(predict(cache, costs, &gpt3, &configs[i], &prediction));
    return OK;
}

typedef Status ForAll(PlanCache *cache, const CostModel *costs, const ParallelConfig *configs, int count);

// The first run, which records and prices the parts, is told apart.
static Status bench_all(const char *what, ForAll *for_all, const CostModel *costs, int runs) {
    enum { MAX_CONFIGS = 2000, MAX_RUNS = 21 };
    static ParallelConfig configs[MAX_CONFIGS];
    SearchSpace space = space_of(1024, 1536);
    int count = candidates_of(costs, &space, configs, MAX_CONFIGS);
    double seconds[MAX_RUNS], begin_s = clock_s();
    PlanCache *cache;
    TRY(plan_cache_open(&cache));
    Status status = for_all(cache, costs, configs, count);
    double first_s = clock_s() - begin_s;
    for (int run = 0; run < runs && status == OK; run++) {
        begin_s = clock_s();
        status = for_all(cache, costs, configs, count);
        seconds[run] = clock_s() - begin_s;
    }
    plan_cache_close(cache);
    if (status == OK)
        printf("%-12s %4d candidates, the first time %6.3f s, then %8.0f/s\n", what, count, first_s,
               count / median(seconds, runs));
    return status;
}

static Status bench_search(const CostModel *costs, int devices, int batch) {
    SearchSpace space = space_of(devices, batch);
    PlanResult result;
    PlanCache *cache;
    TRY(plan_cache_open(&cache));
    double begin_s = clock_s();
    Status status = plan_search(cache, costs, &gpt3, &space, 10, &result);
    double seconds = clock_s() - begin_s;
    if (status == OK)
        printf("search       %4d devices  %6.3f s: %lld tried, %lld replayed, best %.2f s a step\n", devices,
               seconds, (long long)result.tried, (long long)result.replayed, result.best[0].step_s);
    plan_result_free(&result);
    plan_cache_close(cache);
    return status;
}

static Status bench_plans(void) {
    static Selene selene;
    TRY(open_selene(&selene));
    Status status = bench_all("bounds", bound_all, &selene.costs, 21);
    if (status == OK) status = bench_all("predictions", predict_all, &selene.costs, 3);
    if (status == OK) status = bench_search(&selene.costs, 1024, 1536);
    if (status == OK) status = bench_search(&selene.costs, 3072, 3072);
    machine_close(&selene.machine);
    return status;
}

int main(void) {
    Status status = bench_replays();
    if (status == OK) status = bench_plans();
    if (status != OK) fprintf(stderr, "%s\n", fail_message());
    return (int)status;
}
