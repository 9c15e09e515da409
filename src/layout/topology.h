// The grid of ranks: its axes, the place of each rank, and the ranks that share something.
//
// The axes are rows of one table. Dense parameters and activations see the grid as (tp, cp, dp, pp), experts see
// the same ranks as (etp, ep, edp, pp): these are the two views. Within a view neighbouring ranks differ on its
// first axis; the order is Megatron-LM's, tp-cp-ep-dp-pp. A role names what some ranks have in common, for example
// that they hold replicas of the same parameters. It is a row, too: the axes of a view that its ranks span.
#pragma once
#include "base/error.h"
#include <stdbool.h>

typedef enum { VIEW_DENSE = 1, VIEW_EXPERTS = 2 } View;

// In rank order. Named axes appear in every message and file, the others only where they are larger than 1.
//  axis, name, views, named
#define TOPOLOGY_AXES(X)                                                                                     \
    X(TP, "tp", VIEW_DENSE, true)                /* cuts tensors */                                          \
    X(ETP, "etp", VIEW_EXPERTS, false)           /* cuts the tensors of experts; 0 counts as tp */           \
    X(CP, "cp", VIEW_DENSE, false)               /* cuts sequences */                                        \
    X(EP, "ep", VIEW_EXPERTS, false)             /* distributes experts */                                   \
    X(DP, "dp", VIEW_DENSE, true)                /* distributes samples */                                   \
    X(EDP, "edp", VIEW_EXPERTS, false)           /* replicates experts: the ranks that remain */             \
    X(PP, "pp", VIEW_DENSE | VIEW_EXPERTS, true) /* distributes layers */

#define X(axis, name, views, named) AXIS_##axis,
typedef enum { TOPOLOGY_AXES(X) NUM_AXES } Axis;
#undef X

typedef struct {
    const char *name;
    unsigned views;
    bool named;
} AxisInfo;

extern const AxisInfo topology_axes[NUM_AXES];

// The number of ranks along each axis; 0 counts as 1. That of edp follows from the others and is never set.
// `instances`: into how many parts of neighbours the replicas of parameters are divided, each of which has all shards
// of what replicas cut; 0 counts as 1.
typedef struct {
    int size[NUM_AXES];
    int instances;
} Grid;

// An initialiser: t x d x p ranks.
#define GRID(t, d, p)                                                                                        \
    {                                                                                                        \
        .size = { [AXIS_TP] = (t), [AXIS_DP] = (d), [AXIS_PP] = (p) }                                        \
    }

// The coordinates of one rank, in both views.
typedef struct {
    int at[NUM_AXES];
} Place;

int grid_along(Grid grid, Axis axis); // the number of ranks along an axis, at least 1
int grid_size(Grid grid);             // the number of all ranks
Place grid_place(Grid grid, int rank);
int grid_rank(Grid grid, Place place); // reads the dense coordinates alone
// Refuses a grid whose ranks do not divide into those of experts, or whose replicas into instances.   ERR_CONFIG says
// what would.
Status grid_check(Grid grid);
// What layers with experts ask of a grid: they have so many experts of so many inner columns; tensor ranks have rows of
// their own; a step is more than one leaf (layout/leaves.h).
typedef struct {
    int experts, width;
    bool sequence_parallel, leaves;
} ExpertsCut;
// Refuses a grid that grid_check refuses, or on which such layers cannot be computed.   ERR_CONFIG says what would do.
Status grid_check_experts(Grid grid, ExpertsCut experts);

typedef struct {
    char text[40];
} PlaceName;
PlaceName place_name(Grid grid, Place place); // "tp1 dp0 pp1"

// ---- roles --------------------------------------------------------------------------------------

// `name` is that of the role's group in messages. Two roles share one group where the second is `like` the first
// and spans the same ranks of this grid. `part`: of the ranks that the axes span, those of the same instance, or one of
// each instance (Grid.instances).
typedef enum { PART_WHOLE, PART_INSTANCE, PART_ACROSS } RolePart;

//  role, name, view, axes, like, part
#define TOPOLOGY_ROLES(X)                                                                                    \
    X(TENSOR, "tp", VIEW_DENSE, ON(TP), TENSOR, PART_WHOLE)             /* the shares of a tensor */         \
    X(CONTEXT, "cp", VIEW_DENSE, ON(CP), CONTEXT, PART_WHOLE)           /* the shares of a sequence */       \
    X(DATA, "dp", VIEW_DENSE, ON(DP), DATA, PART_WHOLE)                 /* other samples */                  \
    X(REPLICAS, "dp-cp", VIEW_DENSE, ON(DP) | ON(CP), DATA, PART_WHOLE) /* the same dense parameters */      \
    X(PIPELINE, "pp", VIEW_DENSE, ON(PP), PIPELINE, PART_WHOLE)         /* the stages of a model */          \
    X(MODEL, "model", VIEW_DENSE, ON(TP) | ON(PP), MODEL, PART_WHOLE)   /* one copy of the model */          \
    X(ENDS, "embedding", VIEW_DENSE, ON(PP), ENDS, PART_WHOLE) /* the first and the last stage of a model */ \
    X(EXPERT_TENSOR, "etp", VIEW_EXPERTS, ON(ETP), TENSOR,                                                   \
      PART_WHOLE)                                             /* the shares of an expert's tensor */         \
    X(EXPERT, "ep", VIEW_EXPERTS, ON(EP), EXPERT, PART_WHOLE) /* the experts of a layer */                   \
    X(EXPERT_REPLICAS, "edp", VIEW_EXPERTS, ON(EDP), REPLICAS, PART_WHOLE) /* the same experts */            \
    X(REPLICAS_SHARDS, "shards", VIEW_DENSE, ON(DP) | ON(CP), REPLICAS,                                      \
      PART_INSTANCE) /* all shards of dense parameters */                                                    \
    X(REPLICAS_COPIES, "copies", VIEW_DENSE, ON(DP) | ON(CP), REPLICAS,                                      \
      PART_ACROSS) /* the same shard of them */                                                              \
    X(EXPERT_REPLICAS_SHARDS, "edp-shards", VIEW_EXPERTS, ON(EDP), EXPERT_REPLICAS,                          \
      PART_INSTANCE) /* all shards of experts */                                                             \
    X(EXPERT_REPLICAS_COPIES, "edp-copies", VIEW_EXPERTS, ON(EDP), REPLICAS_COPIES,                          \
      PART_ACROSS) /* the same shard of them */

#define X(role, name, view, axes, like, part) ROLE_##role,
typedef enum { TOPOLOGY_ROLES(X) NUM_ROLES } Role;
#undef X

typedef struct {
    const char *name;
    View view;
    unsigned axes; // 1 << AXIS_TP | ...
    Role like;
    RolePart part;
} RoleInfo;

extern const RoleInfo topology_roles[NUM_ROLES];

// A grid as one of its ranks sees it. Zeros: a single rank.
typedef struct {
    Grid grid;
    int rank;
    Place place;
    int ends[2]; // the pipeline ranks that hold the first and the last stage of the model
} Topology;

// Here the first stage is on the first pipeline rank and the last stage on the last one.
Topology topology_of(Grid grid, int rank);
// The ranks that share `role` with this one, ascending. Writes them to `ranks` (room for grid_size) and returns
// how many. ENDS: none on a rank that holds neither end; one where both ends are on one rank.
int topology_ranks(const Topology *topology, Role role, int *ranks);
int topology_size(const Topology *topology, Role role); // how many they are
int topology_rank(const Topology *topology,
                  Role role);                     // this rank's number among them, from 0; CHECK: not ENDS
bool topology_is_first(const Topology *topology); // this rank holds the first stage of the model
bool topology_is_last(const Topology *topology);  // this rank holds the last stage
int grid_count(Grid grid, Role role);             // how many ranks share a role; of ENDS: the pipeline ranks
bool grid_same(Grid grid, Role a, Role b);        // both roles have the same ranks
// The ranks whose coordinates in `view` are those of `rank` but on `axes` (1 << AXIS_TP | ...), ascending. Writes
// them to `ranks` (room for grid_size) and returns how many.   Source: Megatron-LM's rank groups.
int grid_group(Grid grid, int rank, View view, unsigned axes, int *ranks);
