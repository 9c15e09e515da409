// The rules of shards: what data-parallel ranks cut, how they sum gradients and gather values, and where the
// optimizer's state lies.
#include "config/rules.h"
#include "layout/kinds.h"
#include "layout/topology.h"
#include <string.h>

Sharding options_sharding(const Options *o) {
    const char *name = o->data_parallel_sharding_strategy;
    if (!name) return o->use_distributed_optimizer ? SHARD_OPTIMIZER : SHARD_NOTHING;
    Sharding sharding = 0;
    while (strcmp(name, sharding_names[sharding]) != 0) sharding++;
    return sharding;
}

Status resolve_sharding(Options *o) {
    o->shape.sharding = options_sharding(o);
    if (o->shape.sharding == SHARD_NOTHING && o->use_distributed_optimizer)
        return fail(
            ERR_CONFIG,
            "--use-distributed-optimizer cuts the optimizer state, and --data-parallel-sharding-strategy "
            "no_shard nothing: leave out one of them");
    o->use_distributed_optimizer = o->shape.sharding >= SHARD_OPTIMIZER;
    return OK;
}

// Source: Megatron-LM, validate_args.
Status check_gathers(Options *o) {
    const char *missing = !o->use_distributed_optimizer ? "--use-distributed-optimizer"
                          : !o->overlap_grad_reduce     ? "--overlap-grad-reduce"
                                                        : NULL;
    if (!o->overlap_param_gather || !missing) return OK;
    return fail(ERR_CONFIG, "--overlap-param-gather needs %s: add it, or leave this out", missing);
}

Grid options_grid(const Options *o) {
    Grid grid = GRID(o->shape.tp, o->shape.dp, o->shape.pp);
    grid.size[AXIS_CP] = o->shape.cp;
    grid.size[AXIS_EP] = o->expert_model_parallel_size;
    grid.size[AXIS_ETP] = o->expert_tensor_parallel_size == INT_UNSET ? 0 : o->expert_tensor_parallel_size;
    grid.instances = o->num_distributed_optimizer_instances;
    return grid;
}

// Which ranks share experts, and how many groups have all shards.
Status check_grid(Options *o) {
    ExpertsCut cut = {o->num_experts, o->shape.expert_width, o->shape.sequence_parallel,
                      o->shape.virtual_data > 1};
    return o->num_experts == INT_UNSET ? grid_check(options_grid(o))
                                       : grid_check_experts(options_grid(o), cut);
}

static Status refuse_sums(const char *option, const char *why) {
    return fail(
        ERR_CONFIG,
        "--reduce-grads-every-microbatch and %s cannot be set at the same time: %s; leave out one of them",
        option, why);
}

Status check_sums(Options *o) {
    const ScheduleKind *kind = schedule_kind(o->shape.schedule);
    if (!o->reduce_grads_every_microbatch) return OK;
    if (kind->splits_backward)
        return fail(
            ERR_CONFIG,
            "--reduce-grads-every-microbatch: --schedule %s adds to the gradients of all layers in turn: use "
            "--schedule %s, or leave one of them out",
            kind->name, schedule_kind_default(o->shape.vp)->name);
    if (o->shape.virtual_data)
        return refuse_sums("--virtual-data-parallel", "it adds the microbatches of a rank first");
    if (o->audit_interval > 0)
        return refuse_sums("--audit-interval", "an audit looks at sums of microbatches");
    if (!strcmp(o->optimizer, "muon"))
        return refuse_sums("--optimizer muon", "it steps matrices in the memory of whole gradients");
    return OK;
}

// With a device of the host all state is in its memory (idle.def).
Status check_offload(Options *o) {
    bool on_host = !strcmp(o->device, "cpu") || !strcmp(o->device, "reference");
    if (!(options_offload(o) > 0) || strcmp(o->optimizer, "muon") != 0 || on_host) return OK;
    return fail(
        ERR_CONFIG,
        "--optimizer-cpu-offload cannot be used with --optimizer muon, which steps whole matrices on the GPU. "
        "Use --optimizer adam; or leave out --optimizer-cpu-offload, and cut Muon's state over data-parallel "
        "ranks with --data-parallel-sharding-strategy optim");
}

double options_offload(const Options *o) {
    return o->optimizer_cpu_offload ? o->optimizer_offload_fraction : 0;
}
