// Full recomputation takes less memory than none: on every rank where a backward is whole. Where it is split,
// what was computed again is kept until the weights' turn comes, for as many microbatches as wait for it: few
// on the first rank, which has most in flight, and less on all ranks together.
#include "harness.h"
#include "runs.h"
#include <string.h>

static EngineSpec spec_of(const ScheduleKind *kind, Grid grid) {
    bool two_chunks = !strcmp(kind->name, "interleaved") || !strcmp(kind->name, "zb-v");
    EngineSpec spec = run_spec(grid, kind->name, two_chunks ? 2 : 1, 16, 8 * grid_along(grid, AXIS_DP));
    spec.shape.sequence = spec.shape.positions = 64, spec.mode.microbatch = 2;
    return spec;
}

static EngineMemory measured(const EngineSpec *spec, int rank) {
    EngineMemory memory = {0};
    Status status = engine_measure(spec, rank, &memory, NULL);
    EXPECT(status == OK, "%s: %s", spec->schedule, fail_message());
    return memory;
}

static void expect_less(const ScheduleKind *kind, int p, int layers_at_once) {
    EngineSpec without = spec_of(kind, (Grid)GRID(1, 1, p)), with = without;
    with.mode.recompute = RECOMPUTE_UNIFORM, with.mode.recompute_layers = layers_at_once;
    size_t sum = 0, sum_without = 0;
    for (int rank = 0; rank < p; rank++) {
        EngineMemory most = measured(&without, rank), less = measured(&with, rank);
        sum += less.total, sum_without += most.total;
        EXPECT(less.total < most.total || (rank > 0 && kind->splits_backward),
               "%s p%d rank %d, %d layers at once: %zu bytes, %zu without", kind->name, p, rank,
               layers_at_once, less.total, most.total);
        EXPECT(most.recomputed == 0 && less.num_recomputed <= less.num_stashes,
               "%s p%d rank %d: room for %d of %zu bytes beside %d stashes, %zu bytes without", kind->name, p,
               rank, less.num_recomputed, less.recomputed, less.num_stashes, most.recomputed);
    }
    EXPECT(sum < sum_without, "%s p%d, %d layers at once: %zu bytes on all ranks, %zu without", kind->name, p,
           layers_at_once, sum, sum_without);
}

static void recomputation_saves_memory(void) {
    for (int i = 0; i < num_schedule_kinds; i++)
        for (int p = 1; p <= 4; p *= 2) {
            bool needs_ranks = schedule_kinds[i]->splits_backward || schedule_kinds[i]->min_ranks > 1;
            if (p == 1 && needs_ranks) continue;
            for (int layers = 1; layers <= 2; layers++) expect_less(schedule_kinds[i], p, layers);
        }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"recomputation_saves_memory", recomputation_saves_memory}, {0}}, argc,
                       argv);
}
