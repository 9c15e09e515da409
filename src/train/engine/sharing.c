// Decides what the replicas of a run cut into shards, and what they share.
#include "train/engine/engine.h"
#include <stdlib.h>

Sharding engine_sharding(const EngineSpec *spec) {
    for (Reduction r = 0; r < NUM_REDUCTIONS; r++)
        if (grid_count(spec->grid, placement_reductions[r].shards) > 1) return spec->sharding;
    return SHARD_NOTHING;
}

// With one microbatch no other order of sums follows. The halves of a split backward add to all units in turn.
bool engine_cuts_gradients(const EngineSpec *spec) {
    return engine_sharding(spec) >= SHARD_GRADIENTS && (spec->num_microbatches == 1 || spec->reduce_every) &&
           !schedule_kind(spec->schedule)->splits_backward;
}

// Returns whether the replicas of every parameter are the same ranks, more than one, and of one instance.
static bool has_one_set_of_replicas(Grid grid) {
    bool one = grid_count(grid, ROLE_REPLICAS) > 1 && grid_count(grid, ROLE_REPLICAS_COPIES) == 1;
    for (Reduction r = 0; r < NUM_REDUCTIONS; r++)
        one &= grid_same(grid, placement_reductions[r].replicas, ROLE_REPLICAS);
    return one;
}

EngineSpec engine_spec_here(const EngineSpec *spec, int rank_here) {
    EngineSpec here = *spec;
    here.mode.attention = device_choose_attention(
        &(DeviceOptions){.kind = spec->device, .rank_here = rank_here, .attention = spec->mode.attention});
    here.share_values = spec->share_values && spec->sharding == SHARD_VALUES &&
                        device_is_host(spec->device) && has_one_set_of_replicas(spec->grid);
    return here;
}

bool engine_replicas_share_machines(Grid grid, Comm *world) {
    const RoleInfo *role = &topology_roles[ROLE_REPLICAS];
    int size = comm_size(world), mine = comm_first_here(world);
    int *first = calloc(2 * (size_t)size, sizeof *first), *replicas = first + size;
    CHECK(first, "no memory for the machines of %d ranks", size);
    comm_all_gather_host(world, &mine, first, sizeof mine);
    bool share = true;
    for (int rank = 0; rank < size; rank++) {
        int count = grid_group(grid, rank, role->view, role->axes, replicas);
        for (int i = 0; i < count; i++) share &= first[replicas[i]] == first[rank];
    }
    free(first);
    return share;
}
