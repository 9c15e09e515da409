// Refuses grids on which layers with experts cannot be computed.
#include "train/engine/engine.h"

// The grid is one (grid_check).
static Status check_sizes(const EngineSpec *spec, int etp, int ep) {
    int experts = spec->shape.experts, width = spec->shape.expert_ffn, fits = ep;
    int ranks = grid_size(spec->grid) / grid_along(spec->grid, AXIS_PP) / etp;
    while (experts % fits || ranks % fits) fits--;
    if (experts % ep)
        return fail(ERR_CONFIG, "%d experts do not divide over --expert-model-parallel-size %d: use %d",
                    experts, ep, fits);
    if (width % etp)
        return fail(
            ERR_CONFIG,
            "the %d inner columns of an expert do not divide over --expert-tensor-parallel-size %d: use 1",
            width, etp);
    return OK;
}

// Tensor ranks with the same rows need a share of every expert; with other rows they may have a share or whole experts.
static Status check_tensor_ranks(const EngineSpec *spec, int t, int etp) {
    bool same_rows = t > 1 && !spec->mode.sequence_parallel;
    if (etp == t || (etp == 1 && !same_rows)) return OK;
    return fail(ERR_CONFIG,
                "--expert-tensor-parallel-size %d with --tensor-model-parallel-size %d%s: use %d%s", etp, t,
                same_rows ? " and without --sequence-parallel" : "", t,
                same_rows && etp == 1 ? ", or add --sequence-parallel"
                : t > 1               ? " or 1"
                                      : "");
}

// Leaves are those of data-parallel ranks: an expert's replicas must be some of these.
static Status check_leaves(const EngineSpec *spec, int t, int etp, int ep) {
    if (!spec->virtual_data || spec->virtual_data == 1) return OK;
    if (etp != t)
        return fail(
            ERR_CONFIG,
            "--virtual-data-parallel needs --expert-tensor-parallel-size %d, not %d: tensor ranks with whole "
            "experts are replicas of them, and their number would change the sums",
            t, etp);
    if (ep > 1 && grid_along(spec->grid, AXIS_CP) > 1)
        return fail(ERR_CONFIG,
                    "--virtual-data-parallel with --expert-model-parallel-size %d needs "
                    "--context-parallel-size 1, not %d",
                    ep, grid_along(spec->grid, AXIS_CP));
    return OK;
}

Status engine_check_experts(const EngineSpec *spec) {
    int t = grid_along(spec->grid, AXIS_TP), etp = grid_along(spec->grid, AXIS_ETP);
    int ep = grid_along(spec->grid, AXIS_EP);
    TRY(grid_check(spec->grid));
    if (!spec->shape.experts) return OK;
    TRY(check_sizes(spec, etp, ep));
    TRY(check_tensor_ranks(spec, t, etp));
    TRY(check_leaves(spec, t, etp, ep));
    if (spec->mode.router.capacity > 0 && grid_along(spec->grid, AXIS_CP) > 1)
        return fail(
            ERR_CONFIG,
            "--moe-expert-capacity-factor needs --context-parallel-size 1, not %d: capacities are of whole "
            "sequences",
            grid_along(spec->grid, AXIS_CP));
    if (spec->audits && spec->per_token && (spec->mode.router.balance > 0 || spec->mode.router.z > 0))
        return fail(
            ERR_CONFIG,
            "--audit-interval does not go with --moe-aux-loss-coeff or --moe-z-loss-coeff where the loss is "
            "per token: an audit does not know how many tokens of the step count; leave it out");
    if (spec->audits && ep > 1)
        return fail(
            ERR_CONFIG,
            "--audit-interval computes a part of another rank's step, and with --expert-model-parallel-size %d "
            "its experts have the tokens of several ranks: leave it out",
            ep);
    return OK;
}
