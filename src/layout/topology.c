// Computes the coordinates of ranks and the ranks of each role from the tables of axes and roles.
#include "layout/topology.h"
#include <stdio.h>
#include <string.h>

#define X(axis, name, views, named, option) {name, views, named, option},
const AxisInfo topology_axes[NUM_AXES] = {TOPOLOGY_AXES(X)};
#undef X

#define ON(axis)                        (1u << AXIS_##axis)
#define X(role, name, view, axes, like) {name, view, axes, ROLE_##like},
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

static bool agree_outside(Place a, Place b, View view, unsigned axes) {
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (is_in(axis, view) && !(axes & 1u << axis) && a.at[axis] != b.at[axis]) return false;
    return true;
}

int grid_group(Grid grid, int rank, View view, unsigned axes, int *ranks) {
    Place at = grid_place(grid, rank);
    int count = 0;
    for (int other = 0; other < grid_size(grid); other++)
        if (agree_outside(at, grid_place(grid, other), view, axes)) ranks[count++] = other;
    return count;
}

Status grid_check(Grid grid) {
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (topology_axes[axis].option && grid.size[axis] > 1)
            return fail(ERR_CONFIG,
                        "--%s %d: the layers of this program do not know this axis yet; it must be 1",
                        topology_axes[axis].option, grid.size[axis]);
    return OK;
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
    int all = grid_group(t->grid, t->rank, topology_roles[role].view, topology_roles[role].axes, ranks);
    if (role != ROLE_ENDS) return all;
    int count = 0;
    for (int i = 0; i < all && is_end(t, t->place.at[AXIS_PP]); i++)
        if (is_end(t, grid_place(t->grid, ranks[i]).at[AXIS_PP])) ranks[count++] = ranks[i];
    return count;
}

int grid_count(Grid grid, Role role) {
    int count = 1;
    for (Axis axis = 0; axis < NUM_AXES; axis++)
        if (topology_roles[role].axes & 1u << axis) count *= grid_along(grid, axis);
    return count;
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
    return number;
}

bool topology_is_first(const Topology *t) { return t->place.at[AXIS_PP] == t->ends[0]; }
bool topology_is_last(const Topology *t) { return t->place.at[AXIS_PP] == t->ends[1]; }

// The groups of a role are shifted copies of that of rank 0, so that one comparison will do.
bool grid_same(Grid grid, Role a, Role b) {
    Place zero = {0};
    for (int rank = 0; rank < grid_size(grid); rank++) {
        Place at = grid_place(grid, rank);
        if (agree_outside(zero, at, topology_roles[a].view, topology_roles[a].axes) !=
            agree_outside(zero, at, topology_roles[b].view, topology_roles[b].axes))
            return false;
    }
    return true;
}
