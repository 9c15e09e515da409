// The stages of the pipeline of a configuration, priced. Internal to plan/.
#pragma once
#include "plan/parts.h"

static const double US = 1e6; // microseconds in a second

// The stages of one pipeline: their layers and times.
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

// Finds the layers of each stage.   ERR_OS, ERR_CONFIG.
Status stages_open(Stages *stages, const CostModel *costs, const Parts *parts, const ModelShape *model,
                   const ParallelConfig *config);
void stages_close(Stages *stages);
int stages_at(const Stages *stages, int rank, int chunk); // the stage that a chunk of a rank is
int stages_part_count(const Stages *stages, int stage, ModelPart part);
void stages_price(Stages *stages, const CostModel *costs, const ParallelConfig *config);
ScheduleCosts stages_costs(const Stages *stages); // borrows
// The least times of a stage: pairs hide its messages to experts at best.
double stages_least_forward_us(const Stages *stages, int stage);
double stages_least_backward_us(const Stages *stages, int stage);
double stages_hidden_seconds(const Stages *stages, int rank, const Simulation *simulation);
