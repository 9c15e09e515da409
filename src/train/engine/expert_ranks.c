// Refuses grids on which layers with experts cannot be computed, and audits of them.
#include "train/engine/engine.h"

Status engine_check_experts(const EngineSpec *spec) {
    int ep = grid_along(spec->grid, AXIS_EP);
    if (!spec->shape.experts) return grid_check(spec->grid);
    TRY(grid_check_experts(spec->grid, (ExpertsCut){spec->shape.experts, spec->shape.expert_ffn,
                                                    spec->mode.sequence_parallel, spec->virtual_data > 1}));
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
