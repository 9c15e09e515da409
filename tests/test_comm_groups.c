// The groups of a topology: every role has its ranks, and roles with the same ranks share a group.
#include "comm/groups.h"
#include "harness.h"
#include <string.h>

enum { MAX_RANKS = 16 };

// The sum of the ranks' numbers says which ranks are in a group, and their order is that of the list.
static void expect_ranks(const Groups *groups, Role role) {
    int ranks[MAX_RANKS], count = topology_ranks(&groups->topology, role, ranks);
    Comm *group = groups->by_role[role];
    const char *name = topology_roles[role].name;
    if (role == ROLE_ENDS && count < 2) {
        EXPECT(!group, "a group of %d ends", count);
        return;
    }
    EXPECT(group && comm_size(group) == count && ranks[comm_rank(group)] == groups->topology.rank, "group %s",
           name);
    double sum = groups->topology.rank;
    for (int i = 0; i < count; i++) sum -= (double)ranks[i] / count;
    comm_all_reduce_host(group, &sum, 1, REDUCE_SUM);
    EXPECT(sum > -1e-9 && sum < 1e-9, "group %s has other ranks", name);
}

static Status open_all(Comm *world, void *arg) {
    const Grid *grid = arg;
    Groups groups;
    EXPECT_OK(groups_open(&groups, world, topology_of(*grid, comm_rank(world)), ALL_ROLES));
    for (Role role = 0; role < NUM_ROLES; role++) {
        Role like = topology_roles[role].like;
        expect_ranks(&groups, role);
        EXPECT((groups.by_role[role] == groups.by_role[like]) == grid_same(*grid, role, like), "group %s",
               topology_roles[role].name);
    }
    groups_name_rank(&groups);
    EXPECT(!strncmp(rank_current()->place, "tp", 2), "named %s", rank_current()->place);
    groups_close(&groups);
    return OK;
}

static void every_role_has_its_ranks(void) {
    Grid grids[] = {GRID(1, 1, 1), GRID(2, 2, 2), GRID(2, 2, 2), GRID(2, 2, 2), GRID(1, 4, 1), GRID(2, 4, 1)};
    grids[2].size[AXIS_CP] = 2;
    grids[3].size[AXIS_CP] = 2, grids[3].size[AXIS_EP] = 4, grids[3].size[AXIS_ETP] = 1;
    grids[4].size[AXIS_EP] = 2;
    grids[5].size[AXIS_EP] = 4, grids[5].size[AXIS_ETP] = 2;
    for (size_t i = 0; i < sizeof grids / sizeof *grids; i++) {
        CommOptions options = {
            .transport = "threads", .ranks = grid_size(grids[i]), .timeout_s = 60, .check = true};
        EXPECT_OK(comm_launch(options, open_all, &grids[i]));
    }
}

// A role that is not asked for is not opened, and what is closed is closed once.
static Status open_two(Comm *world, void *arg) {
    Groups groups;
    EXPECT_OK(groups_open(&groups, world, topology_of(*(const Grid *)arg, comm_rank(world)),
                          1u << ROLE_REPLICAS | 1u << ROLE_TENSOR));
    for (Role role = 0; role < NUM_ROLES; role++)
        EXPECT(!groups.by_role[role] == (role != ROLE_REPLICAS && role != ROLE_TENSOR && role != ROLE_DATA),
               "group %s", topology_roles[role].name);
    groups_close(&groups);
    return OK;
}

static void roles_that_are_asked_for(void) {
    Grid grid = GRID(2, 2, 1);
    EXPECT_OK(
        comm_launch((CommOptions){.transport = "threads", .ranks = 4, .timeout_s = 60}, open_two, &grid));
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"every_role_has_its_ranks", every_role_has_its_ranks},
                                      {"roles_that_are_asked_for", roles_that_are_asked_for},
                                      {0}},
                       argc, argv);
}
