// Who is where (Grid), and who holds which slice of a tensor (Shard), as plain integers.
#pragma once

// ---- Grid: rank = tp + t * (dp + d * pp) ------------------------------------------------------------

typedef enum { AXIS_TP, AXIS_DP, AXIS_PP, NUM_AXES } Axis;

typedef struct {
    int tp, dp, pp; // sizes
} Grid;

typedef struct {
    int tp, dp, pp; // coordinates of one rank
} Place;

int grid_size(Grid grid);
Place grid_place(Grid grid, int rank);
int grid_rank(Grid grid, Place place);
// The ranks that share all coordinates with `rank` but those on the axes of `axis_mask` (1 << AXIS_TP | ...),
// in rank order. Writes them to `ranks` (room for grid_size) and returns how many. Source: Megatron-LM's rank
// groups.
int grid_group(Grid grid, int rank, unsigned axis_mask, int *ranks);

// ---- Shard: how a tensor is cut over tp ----------------------------------------------------------------

// Dimension `dim` is cut into t equal slices, slice i on tp rank i; dim -1: every rank holds the whole
// tensor. A tensor of several equal `blocks` along dim (0 is one: gate and up of a gated MLP are two) is cut
// block by block: a rank holds its slice of each, one after the other.
typedef struct {
    int dim, blocks;
} Shard;
