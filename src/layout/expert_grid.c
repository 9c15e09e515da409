// Which grids layers with experts can be computed on.
#include "layout/topology.h"

// The grid is one (grid_check).
static Status check_sizes(Grid grid, ExpertsCut cut, int etp, int ep) {
    int experts = cut.experts, width = cut.width, fits = ep;
    int ranks = grid_size(grid) / grid_along(grid, AXIS_PP) / etp;
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
static Status check_tensor_ranks(ExpertsCut cut, int t, int etp) {
    bool same_rows = t > 1 && !cut.sequence_parallel;
    if (etp == t || (etp == 1 && !same_rows)) return OK;
    return fail(ERR_CONFIG,
                "--expert-tensor-parallel-size %d with --tensor-model-parallel-size %d%s: use %d%s", etp, t,
                same_rows ? " and without --sequence-parallel" : "", t,
                same_rows && etp == 1 ? ", or add --sequence-parallel"
                : t > 1               ? " or 1"
                                      : "");
}

// Leaves are those of data-parallel ranks: an expert's replicas must be some of these.
static Status check_leaves(Grid grid, ExpertsCut cut, int t, int etp, int ep) {
    if (!cut.leaves) return OK;
    if (etp != t)
        return fail(
            ERR_CONFIG,
            "--virtual-data-parallel needs --expert-tensor-parallel-size %d, not %d: tensor ranks with whole "
            "experts are replicas of them, and their number would change the sums",
            t, etp);
    if (ep > 1 && grid_along(grid, AXIS_CP) > 1)
        return fail(ERR_CONFIG,
                    "--virtual-data-parallel with --expert-model-parallel-size %d needs "
                    "--context-parallel-size 1, not %d",
                    ep, grid_along(grid, AXIS_CP));
    return OK;
}

Status grid_check_experts(Grid grid, ExpertsCut cut) {
    int t = grid_along(grid, AXIS_TP), etp = grid_along(grid, AXIS_ETP), ep = grid_along(grid, AXIS_EP);
    TRY(grid_check(grid));
    TRY(check_sizes(grid, cut, etp, ep));
    TRY(check_tensor_ranks(cut, t, etp));
    return check_leaves(grid, cut, t, etp, ep);
}
