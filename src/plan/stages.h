// The stages of one pipeline: which layers each has, and how long a microbatch takes in it. Internal to plan/.
#pragma once
#include "plan/parts.h"

static const double US = 1e6; // microseconds in a second

typedef struct {
    const Parts *parts;
    int ranks, chunks, stages, microbatches;
    const ScheduleKind *kind;
    ScheduleSpec spec;
    int last_rank; // the rank that holds the last stage
    double slower; // factor on all times: stragglers and network contention
    int *layers;   // [stages]
    int *dense;    // [stages]: of them, those without experts where others have experts
    int further_heads;
    double *forward_us, *backward_us, *hop_us, *hold_us; // [stages], [stages], [stages - 1] twice
    StageExchange *exchanges;                            // [stages]; used where the schedule pairs
    void *memory;
} Stages;

// Counts the layers of each stage, and prices them with the parts, where slow nodes hold the ranks that the
// configuration says.   ERR_OS, ERR_CONFIG. The parts are borrowed.
Status stages_open(Stages *stages, const CostModel *costs, const Parts *parts, const ModelShape *model,
                   const ParallelConfig *config);
void stages_close(Stages *stages);
int stages_at(const Stages *stages, int rank, int chunk);
int stages_rank(const Stages *stages, int stage);                  // that holds the stage
int stages_count(const Stages *stages, int stage, ModelPart part); // how many of a part the stage has
ScheduleCosts stages_costs(const Stages *stages);                  // borrows the times
double stages_bound_s(const Stages *stages); // a lower bound of the time of all microbatches
// What pairs hide of a rank's messages to experts in a step.
double stages_hidden_seconds(const Stages *stages, int rank, const Simulation *simulation);
