#include "layout/grid.h"
#include "base/error.h"
#include <stdbool.h>

int grid_size(Grid grid) { return grid.tp * grid.dp * grid.pp; }

Place grid_place(Grid grid, int rank) {
    CHECK(rank >= 0 && rank < grid_size(grid), "rank %d of %d", rank, grid_size(grid));
    return (Place){.tp = rank % grid.tp, .dp = rank / grid.tp % grid.dp, .pp = rank / grid.tp / grid.dp};
}

int grid_rank(Grid grid, Place place) { return place.tp + grid.tp * (place.dp + grid.dp * place.pp); }

int grid_group(Grid grid, int rank, unsigned axis_mask, int *ranks) {
    Place at = grid_place(grid, rank);
    bool tp = axis_mask & 1u << AXIS_TP, dp = axis_mask & 1u << AXIS_DP, pp = axis_mask & 1u << AXIS_PP;
    int count = 0;
    for (int other = 0; other < grid_size(grid); other++) {
        Place to = grid_place(grid, other);
        if ((tp || to.tp == at.tp) && (dp || to.dp == at.dp) && (pp || to.pp == at.pp))
            ranks[count++] = other;
    }
    return count;
}
