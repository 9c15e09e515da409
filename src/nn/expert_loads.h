// What the experts of all layers had to do in a step, and the losses of their routers: counted by each rank for its own
// rows, then added up over all ranks. Counts are whole numbers, so their sums do not depend on the grid.
#pragma once
#include "comm/comm.h"
#include "nn/params.h"
#include "nn/shape.h"
#include "nn/stage.h"

// Columns of a layer's row of numbers, after those of its E experts.
typedef enum {
    LOAD_BALANCE_LOSS, // without its coefficient: 1 where all experts have as many tokens
    LOAD_Z_LOSS,       // without its coefficient
    LOAD_DROPPED,      // pairs that went to no expert, for its capacity
    NUM_LOAD_SUMS
} LoadSum;

typedef struct ExpertLoads {
    int layers, experts; // 0: no layer has experts
    const ModelShape *shape;
    // [layers][E + NUM_LOAD_SUMS]: the pairs of a token and an expert that chose each expert; then losses, means over
    // the microbatches of the step, and pairs.
    double *sums;
    Param **biases; // [layers]: of this rank's layers, where experts have biases; else NULL
} ExpertLoads;

// The ends of the names of a bias of experts, and of the weight of the gate of shared experts.
#define ROUTER_BIAS "expert_bias"
#define SHARED_GATE "gate_weight"

// For a model without experts it does nothing. `params` has its parameters; both are borrowed.   ERR_OS without host
// memory.
Status expert_loads_open(ExpertLoads *loads, const ModelShape *shape, const Params *params);
void expert_loads_close(ExpertLoads *loads); // takes what was only zeroed
void expert_loads_begin(ExpertLoads *loads); // of a step
// Adds up what all ranks have counted of a step of so many microbatches on all data-parallel ranks.
//   Collective over `world`.
void expert_loads_end(ExpertLoads *loads, Comm *world, int microbatches);

// After a step that changes something: adds `rate` to the biases of experts with less than the mean of their layer's
// pairs, and subtracts it from those with more.   Source: Wang 2024, auxiliary-loss-free load balancing.
void expert_biases_step(const ExpertLoads *loads, Device *device, Stream *stream, float rate);

// Returns whether the forward of a microbatch counts: that of training, once where it is computed again.
bool expert_loads_count(const Context *context, const Microbatch *microbatch);
double *expert_loads_of(const ExpertLoads *loads, int layer);              // [E]
double *expert_load_sum(const ExpertLoads *loads, int layer, LoadSum sum); //

bool expert_loads_has(const ExpertLoads *loads, int layer); // the layer has experts

// How even the loads of a layer are.
typedef struct {
    double most;    // the largest load, in means
    double dropped; // the share of all pairs
    double entropy; // of the shares, 1: all are alike, 0: one expert has all
} LoadStatistics;
LoadStatistics expert_load_statistics(const ExpertLoads *loads, int layer);
// Returns the mean of a sum over the layers that have experts.
double expert_loads_mean(const ExpertLoads *loads, LoadSum sum);
