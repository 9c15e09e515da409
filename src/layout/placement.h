// Placement: the part of a tensor that each rank holds. A tensor says over which axis one of its dimensions is cut and
// how its gradient becomes whole. One that holds the matrices of all experts of a layer, one after the other along its
// rows, is cut over ep in whole experts first; then each of these matrices is cut by itself. From that follow the share
// of a rank, the ranks that hold replicas of it, the regions and buckets that it lies in, and its rectangles in a
// checkpoint.
#pragma once
#include "layout/topology.h"
#include <stdint.h>

// ---- how a tensor is cut --------------------------------------------------------------------------

// Dimension `dim` is cut into equal slices, slice i on the rank with coordinate i on `axis`; dim -1: every rank
// holds the whole tensor. A tensor of several equal `blocks` along dim (0 is one: gate and up of a gated MLP are two)
// is cut block by block: a rank holds its slice of each, one after the other.
typedef struct {
    int dim, blocks;
    Axis axis; // tp, unless it is said; of experts always etp
} Cut;

// ---- how its gradient becomes whole ---------------------------------------------------------------

enum { NO_ROLE = NUM_ROLES };

// A gradient is first summed over the ranks of `first`, at the end of a step, then over the `replicas`, which also
// share its optimizer state: each of their instances (Grid.instances) has all shards of it. Without `first` it is final
// on a rank as soon as the last backward has passed it. Where no other rank has the role `first`, the row `alone` holds
// instead. The order of rows is that of the regions of a
// chunk's memory (nn/params.h). MATRIX is WHOLE, apart from the others: matrices that an optimizer steps as wholes. So
// is EXPERT_MATRIX of EXPERT. An expert's gradient holds the tokens of all ranks that share it over ep.
//  reduction, first, replicas, alone, matrices, what a rank does in the first sum
#define PLACEMENT_REDUCTIONS(X)                                                                              \
    X(WHOLE, NO_ROLE, REPLICAS, WHOLE, false, "")                                                            \
    X(MATRIX, NO_ROLE, REPLICAS, MATRIX, true, "")                                                           \
    X(PARTIAL, ROLE_TENSOR, REPLICAS, WHOLE, false, "sum of partial gradients over tp")                      \
    X(PARTIAL_MATRIX, ROLE_TENSOR, REPLICAS, MATRIX, true, "sum of partial gradients over tp")               \
    X(TIED, ROLE_ENDS, REPLICAS, TIED, false, "sum of tied gradients")                                       \
    X(EXPERT, NO_ROLE, EXPERT_REPLICAS, EXPERT, false, "")                                                   \
    X(EXPERT_MATRIX, NO_ROLE, EXPERT_REPLICAS, EXPERT_MATRIX, true, "")

#define X(reduction, first, replicas, alone, matrices, doing) REDUCTION_##reduction,
typedef enum { PLACEMENT_REDUCTIONS(X) NUM_REDUCTIONS } Reduction;
#undef X

typedef struct {
    int first; // a Role or NO_ROLE
    Role replicas;
    // Of the replicas those that keep all shards together, and those that keep the same one.
    Role shards, copies;
    Reduction alone;
    bool matrices; // of matrices that an optimizer steps as wholes
    const char *doing;
} ReductionInfo;

extern const ReductionInfo placement_reductions[NUM_REDUCTIONS];

// The row that holds on this grid.
Reduction reduction_on(Grid grid, Reduction reduction);

// What replicas cut into equal shards, of which each replica keeps one; every row includes the rows before it. The
// names are Megatron-LM's (--data-parallel-sharding-strategy).   Source: Rajbhandari 2020 (ZeRO, stages 1 to 3).
#define PLACEMENT_SHARDINGS(X)                                                                               \
    X(NOTHING, "no_shard")                                                                                   \
    X(OPTIMIZER, "optim")           /* the state of the optimizer */                                         \
    X(GRADIENTS, "optim_grads")     /* gradients, from when they are complete */                             \
    X(VALUES, "optim_grads_params") /* values, while no unit that they belong to is in use */

#define X(what, name) SHARD_##what,
typedef enum { PLACEMENT_SHARDINGS(X) NUM_SHARDINGS } Sharding;
#undef X
extern const char *const sharding_names[NUM_SHARDINGS];

// ---- what a rank holds ------------------------------------------------------------------------------

typedef struct {
    Cut cut;                   // `blocks` counts those of all experts of this rank
    int64_t rows, cols;        // of the whole tensor; a vector is one row
    int64_t real_rows;         // rows from here on are padding
    int64_t first_row, height; // the rows that are cut: those of this rank's experts, else all
    int parts, part;           // the number of slices, and the one that this rank holds
    Reduction reduction;
    bool first; // true on the lowest rank that holds this share, and on that rank's replicas
} Placement;

// A tensor of rows x cols, whose rows from `real_rows` on are padding. With `experts` it holds as many matrices of
// rows / experts x cols, one after the other, and `cut` is that of each of them; 0: it does not.
typedef struct {
    Cut cut;
    Reduction reduction;
    int64_t rows, cols, real_rows;
    int experts;
} PlacedTensor;
// Says what this rank holds of a tensor.   CHECK: experts and blocks divide into slices.
Placement placement_of(const Topology *topology, PlacedTensor tensor);
int64_t placement_rows(const Placement *placement); // of the share
int64_t placement_cols(const Placement *placement);
int64_t placement_count(const Placement *placement); // its elements
// Returns whether the ranks of `role` hold replicas of this share.
bool placement_is_replicated(const Placement *placement, Role role);

// Neighbouring elements of the whole tensor that a rank holds: `count` of row `row` from column `col` on, at `local`
// in its share. A share has placement_runs of them.
typedef struct {
    int64_t row, col, count, local;
} PlacementRun;
int64_t placement_runs(const Placement *placement);
PlacementRun placement_run(const Placement *placement, int64_t i);

// A rectangle of the whole tensor. Its row i is at share element local + i * stride.
typedef struct {
    int64_t row, col, rows, cols;
    int64_t local, stride;
} PlacementRect;
// The rectangles of elements [begin, begin + count) of a share, without padding rows. placement_next_rect gives one
// after the other, and false behind the last one.
typedef struct {
    int64_t row, col, rows, cols;
} PlacementArea; // of a share
typedef struct {
    const Placement *placement; // borrowed
    PlacementArea areas[3];
    int num_areas, area, block;
} PlacementRects;
PlacementRects placement_rects(const Placement *placement, int64_t begin, int64_t count);
bool placement_next_rect(PlacementRects *rects, PlacementRect *rect);
