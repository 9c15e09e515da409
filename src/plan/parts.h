// What each part of a model takes on a machine, for one microbatch on one rank; kept, since the candidates of
// a search differ in what lies between the parts far more often than in the parts. Internal to plan/.
#pragma once
#include "plan/plan.h"

// Seconds.
typedef struct {
    double total;  // with the host's floor and the collectives that nothing hides
    double tensor; // of it: those collectives
} PartTime;

typedef struct {
    PartTime forward[NUM_PARTS], backward[NUM_PARTS];
    double again;                 // of a layer's backward: what is computed again, without its collectives
    double weight_fraction;       // of a layer's backward: what zero-bubble schedules may put off
    double flops[NUM_PARTS];      // of both and of what is computed again, on this rank: OpCount
    double parameters[NUM_PARTS]; // that this rank holds of each; a tied table is the embedding's
    double message_bytes;         // between stages
} Parts;

// Borrowed until the next call.   ERR_OS, ERR_CONFIG.
Status parts_of(PlanCache *cache, const CostModel *costs, const ModelShape *model,
                const ParallelConfig *config, const Parts **parts);
