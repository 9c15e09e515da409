// Opens and closes the groups of ranks of a topology.
#include "comm/groups.h"
#include "comm/nccl.h"
#include <stdlib.h>
#include <string.h>

// The role whose group `role` uses: its own, or that of another one with the same ranks.
static Role group_role(Grid grid, Role role) {
    Role like = topology_roles[role].like;
    return like != role && grid_same(grid, role, like) ? group_role(grid, like) : role;
}

static Status open_group(Groups *groups, Comm *world, Role role) {
    int *ranks = malloc((size_t)comm_size(world) * sizeof *ranks);
    if (!ranks) return fail(ERR_OS, "no memory for the ranks of group %s", topology_roles[role].name);
    int count = topology_ranks(&groups->topology, role, ranks);
    Status status = OK;
    if (role != ROLE_ENDS || count == 2)
        status = comm_split(world, topology_roles[role].name, ranks, count, &groups->by_role[role]);
    free(ranks);
    return status;
}

Status groups_open(Groups *groups, Comm *world, Topology topology, unsigned roles) {
    CHECK(comm_size(world) == grid_size(topology.grid), "a world of %d ranks for a grid of %d",
          comm_size(world), grid_size(topology.grid));
    *groups = (Groups){.topology = topology};
    unsigned opened = 0;
    // Every rank opens a group of the same roles in turn. One that fails in one group fails on the ranks of all: they
    // would wait for its ranks in the next.
    for (Role role = 0; role < NUM_ROLES; role++) {
        Role same = group_role(topology.grid, role);
        if (!(roles & 1u << role)) continue;
        if (!(opened & 1u << same)) TRY(comm_agree(world, open_group(groups, world, same)));
        opened |= 1u << same;
        groups->by_role[role] = groups->by_role[same];
    }
    return OK;
}

size_t groups_staging_bytes(const Topology *topology, unsigned roles, size_t of_group(int ranks)) {
    unsigned counted = 0;
    size_t bytes = 0;
    for (Role role = 0; role < NUM_ROLES; role++) {
        Role same = group_role(topology->grid, role);
        if (!(roles & 1u << role) || counted & 1u << same) continue;
        counted |= 1u << same;
        bytes += of_group(topology_size(topology, same));
    }
    return bytes;
}

void groups_name_rank(const Groups *groups) {
    PlaceName name = place_name(groups->topology.grid, groups->topology.place);
    Rank *rank = rank_current();
    _Static_assert(sizeof name.text == sizeof rank->place, "a rank keeps the whole name");
    memcpy(rank->place, name.text, sizeof name.text);
}

void groups_close(Groups *groups) {
    for (Role role = NUM_ROLES; role-- > 0;)
        if (group_role(groups->topology.grid, role) == role) comm_close(groups->by_role[role]);
    *groups = (Groups){0};
}
