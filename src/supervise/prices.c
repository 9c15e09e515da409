// Asks the planner how long a step of a run takes on a grid.
#include "supervise/prices.h"
#include "plan/plan.h"
#include "train/train.h"
#include <stdlib.h>
#include <string.h>

struct Prices {
    Machine machine;
    Stack stack;
    CostModel costs;
    PlanCache *cache;
};

static Status open_files(Prices *p, const Options *options) {
    TRY(machine_open(&p->machine, options->machine));
    TRY(options->stack ? stack_open(&p->stack, options->stack)
                       : stack_for(&p->stack, &p->machine, (RunKind){0}));
    p->costs = (CostModel){
        .machine = &p->machine, .stack = &p->stack, .constants = constants_of(&p->machine, &p->stack)};
    return plan_cache_open(&p->cache);
}

Status prices_open(Prices **prices, const Options *options) {
    Prices *p = *prices = calloc(1, sizeof *p);
    CHECK(p, "no memory for a machine");
    Status status = open_files(p, options);
    return status == OK ? OK : fail(status, "--machine: %s", fail_message());
}

void prices_close(Prices *p) {
    if (!p) return;
    if (p->cache) plan_cache_close(p->cache);
    machine_close(&p->machine);
    free(p);
}

static ParallelConfig config_of(const Prices *p, const Options *o) {
    const RunShape *shape = &o->shape;
    SearchSpace space = {.devices = shape->world_size,
                         .batch = shape->global_batch,
                         .sequence_parallel = -1,
                         .zero_stage = -1,
                         .fused_attention = -1,
                         .recompute = -1,
                         .dtype = o->bf16   ? BF16
                                  : o->fp16 ? F16
                                            : F32};
    ParallelConfig c = parallel_config_of_stack(&p->stack, &space);
    c.grid.size[AXIS_TP] = shape->tp;
    c.grid.size[AXIS_PP] = shape->pp;
    c.grid.size[AXIS_DP] = shape->dp;
    c.grid.size[AXIS_CP] = shape->cp;
    c.chunks = shape->vp;
    c.microbatch = o->micro_batch_size;
    c.batch = shape->global_batch;
    c.schedule = shape->schedule;
    c.dtype = space.dtype;
    c.sequence_parallel = shape->sequence_parallel;
    c.zero_stage = (int)o->shape.sharding;
    c.recompute = !strcmp(shape->recompute, "selective") ? RECOMPUTE_SELECTIVE
                  : !strcmp(shape->recompute, "nothing") ? RECOMPUTE_NOTHING
                                                         : RECOMPUTE_UNIFORM;
    return c;
}

double prices_step_s(Prices *p, const Options *train) {
    Prediction predicted;
    char why[200];
    ParallelConfig config = config_of(p, train);
    enum { SOME_VOCABULARY = 50257 };
    ModelShape model =
        options_model(train, train->vocab_size != INT_UNSET ? train->vocab_size : SOME_VOCABULARY);
    if (parallel_config_refuse(&model, &p->machine, &config, why, sizeof why)) return 0;
    return predict(p->cache, &p->costs, &model, &config, &predicted) == OK ? predicted.step_s : 0;
}
