// Computes the coordinates of ranks and the ranks of each role from the tables of axes and roles.
#include "layout/topology.h"
#include <stdio.h>
#include <string.h>

#define X(axis, name, views, named) {name, views, named},
const AxisInfo topology_axes[NUM_AXES] = {TOPOLOGY_AXES(X)};
#undef X

#define ON(axis)                              (1u << AXIS_##axis)
#define X(role, name, view, axes, like, part) {name, view, axes, ROLE_##like, part},
const RoleInfo topology_roles[NUM_ROLES] = {TOPOLOGY_ROLES(X)};
#undef X
#undef ON

static bool is_in(Axis axis, View view) { return topology_axes[axis].views & view; }

static int product(Grid grid, View view, Axis but) {
    int size = 1;
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (is_in(axis, view) && axis != but) size *= grid_along(grid, axis);
    return size;
}

int grid_size(Grid grid) { return product(grid, VIEW_DENSE, NUM_AXES); }

int grid_along(Grid grid, Axis axis) {
    if (axis == AXIS_EDP) return grid_size(grid) / product(grid, VIEW_EXPERTS, AXIS_EDP);
    if (axis == AXIS_ETP && !grid.size[axis]) axis = AXIS_TP;
    return grid.size[axis] ? grid.size[axis] : 1;
}

Place grid_place(Grid grid, int rank) {
    static const View views[] = {VIEW_DENSE, VIEW_EXPERTS};
    Place place = {0};
    CHECK(rank >= 0 && rank < grid_size(grid), "rank %d of %d", rank, grid_size(grid));
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        int rest = rank;
        for (Axis axis = 0; axis < NUM_AXES; axis++) {
            if (!is_in(axis, views[i])) continue;
            place.at[axis] = rest % grid_along(grid, axis);
            rest /= grid_along(grid, axis);
        }
    }
    return place;
}

int grid_rank(Grid grid, Place place) {
    int rank = 0;
    for (Axis axis = NUM_AXES; axis-- > 0;)
        if (is_in(axis, VIEW_DENSE)) rank = rank * grid_along(grid, axis) + place.at[axis];
    return rank;
}

// Members of a group: `size` ranks, each `stride` after the one before.
typedef struct {
    int stride, size;
} Run;

// The runs whose combinations are the group of rank 0, the fastest first. Axes that follow each other make one run.
static int group_runs(Grid grid, View view, unsigned axes, Run runs[NUM_AXES]) {
    int count = 0, stride = 1;
    for (Axis axis = 0; axis < NUM_AXES; axis++) {
        if (!is_in(axis, view)) continue;
        int size = grid_along(grid, axis);
        if (axes & 1u << axis && size > 1) {
            if (count && runs[count - 1].stride * runs[count - 1].size == stride)
                runs[count - 1].size *= size;
            else
                runs[count++] = (Run){stride, size};
        }
        stride *= size;
    }
    return count;
}

static int along_axes(Grid grid, unsigned axes) {
    int count = 1;
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (axes & 1u << axis) count *= grid_along(grid, axis);
    return count;
}

static int num_instances(Grid grid) { return grid.instances ? grid.instances : 1; }

// The runs of a role. The axes of one that is a part make one run.
static int role_runs(Grid grid, Role role, Run runs[NUM_AXES]) {
    const RoleInfo *info = &topology_roles[role];
    int count = group_runs(grid, info->view, info->axes, runs), n = num_instances(grid);
    if (info->part == PART_WHOLE) return count;
    CHECK(count <= 1 && along_axes(grid, info->axes) % n == 0, "%d instances", n);
    if (!count) return 0;
    if (info->part == PART_ACROSS) runs[0].stride *= runs[0].size / n, runs[0].size = n;
    if (info->part == PART_INSTANCE) runs[0].size /= n;
    return runs[0].size > 1;
}

static int ranks_of_runs(int rank, const Run *runs, int num_runs, int *ranks) {
    int count = 1;
    ranks[0] = rank;
    for (int r = 0; r < num_runs; r++) ranks[0] -= rank / runs[r].stride % runs[r].size * runs[r].stride;
    for (int r = 0; r < num_runs; r++)
        for (int k = 1, members = count; k < runs[r].size; k++)
            for (int i = 0; i < members; i++) ranks[count++] = ranks[i] + k * runs[r].stride;
    return count;
}

int grid_group(Grid grid, int rank, View view, unsigned axes, int *ranks) {
    Run runs[NUM_AXES];
    return ranks_of_runs(rank, runs, group_runs(grid, view, axes, runs), ranks);
}

// Refuses instances that do not divide the replicas of all parameters.
static Status check_instances(Grid grid) {
    int dense = grid_count(grid, ROLE_REPLICAS), experts = grid_count(grid, ROLE_EXPERT_REPLICAS);
    int n = num_instances(grid), fits = n < dense ? n : dense;
    while (dense % fits || experts % fits) fits--;
    if (fits == n) return OK;
    return fail(
        ERR_CONFIG,
        "--num-distributed-optimizer-instances %d does not divide the %d replicas of parameters%s: use %d", n,
        dense, dense % n ? "" : ", or those of experts", fits);
}

Status grid_check(Grid grid) {
    int etp = grid_along(grid, AXIS_ETP), ep = grid_along(grid, AXIS_EP), pp = grid_along(grid, AXIS_PP);
    int ranks = grid_size(grid) / pp, fits = ep;
    if (ranks % (etp * ep) == 0) return check_instances(grid);
    if (ranks % etp)
        return fail(
            ERR_CONFIG,
            "--expert-tensor-parallel-size %d does not divide the %d ranks of a pipeline stage: use %d", etp,
            ranks, grid_along(grid, AXIS_TP));
    while (ranks % (etp * fits)) fits--;
    return fail(
        ERR_CONFIG,
        "--expert-model-parallel-size %d times %d ranks of each expert does not divide the %d ranks of a "
        "pipeline stage: use %d",
        ep, etp, ranks, fits);
}

PlaceName place_name(Grid grid, Place place) {
    PlaceName name = {0};
    size_t used = 0;
    for (Axis axis = 0; axis < NUM_AXES; axis++) {
        const AxisInfo *info = &topology_axes[axis];
        if (!info->named && (!is_in(axis, VIEW_DENSE) || grid_along(grid, axis) == 1)) continue;
        int length = snprintf(name.text + used, sizeof name.text - used, "%s%s%d", used ? " " : "",
                              info->name, place.at[axis]);
        used += (size_t)length;
        CHECK(used < sizeof name.text, "the coordinates of a rank take %zu characters", used);
    }
    return name;
}

// ---- roles --------------------------------------------------------------------------------------

Topology topology_of(Grid grid, int rank) {
    return (Topology){grid, rank, grid_place(grid, rank), {0, grid_along(grid, AXIS_PP) - 1}};
}

static bool is_end(const Topology *t, int pp) { return pp == t->ends[0] || pp == t->ends[1]; }

int topology_ranks(const Topology *t, Role role, int *ranks) {
    Run runs[NUM_AXES];
    int num_runs = role_runs(t->grid, role, runs), all = ranks_of_runs(t->rank, runs, num_runs, ranks);
    if (role != ROLE_ENDS) return all;
    int count = 0;
    for (int i = 0; i < all && is_end(t, t->place.at[AXIS_PP]); i++)
        if (is_end(t, grid_place(t->grid, ranks[i]).at[AXIS_PP])) ranks[count++] = ranks[i];
    return count;
}

int grid_count(Grid grid, Role role) {
    int count = along_axes(grid, topology_roles[role].axes);
    if (topology_roles[role].part == PART_INSTANCE) return count / num_instances(grid);
    return topology_roles[role].part == PART_ACROSS ? num_instances(grid) : count;
}

int topology_size(const Topology *t, Role role) {
    if (role != ROLE_ENDS) return grid_count(t->grid, role);
    return is_end(t, t->place.at[AXIS_PP]) ? 1 + (t->ends[0] != t->ends[1]) : 0;
}

int topology_rank(const Topology *t, Role role) {
    int number = 0;
    CHECK(role != ROLE_ENDS, "the ends of a pipeline have no numbers");
    for (Axis axis = NUM_AXES; axis-- > 0;)
        if (topology_roles[role].axes & 1u << axis)
            number = number * grid_along(t->grid, axis) + t->place.at[axis];
    int each = along_axes(t->grid, topology_roles[role].axes) / num_instances(t->grid);
    if (topology_roles[role].part == PART_INSTANCE) return number % each;
    return topology_roles[role].part == PART_ACROSS ? number / each : number;
}

bool topology_is_first(const Topology *t) { return t->place.at[AXIS_PP] == t->ends[0]; }
bool topology_is_last(const Topology *t) { return t->place.at[AXIS_PP] == t->ends[1]; }

// The groups of a role are shifted copies of that of rank 0, so that one comparison will do.
bool grid_same(Grid grid, Role a, Role b) {
    Run of_a[NUM_AXES], of_b[NUM_AXES];
    int count = role_runs(grid, a, of_a);
    if (count != role_runs(grid, b, of_b)) return false;
    for (int r = 0; r < count; r++)
        if (of_a[r].stride != of_b[r].stride || of_a[r].size != of_b[r].size) return false;
    return true;
}
