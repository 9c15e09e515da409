// The times of the parts of a model on a machine, for one microbatch on one rank. They are cached, since most
// configurations of a search have parts in common. Internal to plan/.
#pragma once
#include "plan/plan.h"

// Seconds.
typedef struct {
    double total;   // including launches and exposed collectives
    double tensor;  // the exposed collectives in it, without those of experts
    double experts; // the exposed messages to experts and back in it
} PartTime;

typedef struct {
    PartTime forward[NUM_PARTS], backward[NUM_PARTS];
    double again[NUM_PARTS]; // recomputation in a layer's backward, without its collectives
    // Of a layer whose rows travel to other ranks, in seconds; 0 where they stay.
    LayerExchange exchange_forward, exchange_backward;
    double weight_fraction;       // of a layer's backward: the weight half, which zero-bubble schedules delay
    double flops[NUM_PARTS];      // of forward, backward and recomputation on this rank, as in OpCount
    double parameters[NUM_PARTS]; // of this rank, without experts; a tied table counts for the embedding
    double expert_parameters;     // of a layer with experts, those of experts on this rank
    double message_bytes;         // between stages
    double factors;               // to make factors of a layer's weights, where that is done once per step
    double muon;                  // to make the matrices of a layer orthogonal, all by this rank
    double matrix_parameters;     // of a layer, on this rank
    int matrices;
} Parts;

// Returns the parts in the cache, and makes them when they are not there. `parts` is valid until the next call.
// ERR_OS, ERR_CONFIG.
Status parts_of(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                const ParallelConfig *config, const Parts **parts);
