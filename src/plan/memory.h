// What the closed form of a rank's memory is made of. Internal to plan/.
#pragma once
#include "plan/plan.h"

enum { MAX_STAGES = 4096 };

// Layers of each stage.   ERR_CONFIG for more than MAX_STAGES.   layers [p v]
Status stage_layers(const Stack *stack, const ModelShape *model, const ParallelConfig *config, int *layers);
int stage_of_chunk(const ParallelConfig *config, int rank, int chunk);
// Activations of one chunk and microbatch that a pipeline rank holds at once, at most. Those of zero-bubble
// schedules are held until the weight gradient.
double chunks_in_flight(const ParallelConfig *config, int rank);
// Parameters of an embedding, a layer, a head on a tp rank; a tied table is the embedding's.
double part_parameters(const ModelShape *model, int tp, ModelPart part);
// Bytes that a layer keeps of one microbatch from forward to backward, and those that it works with when it
// is computed again; before activation_factor.
double layer_kept_bytes(const CostModel *costs, const ModelShape *model, const ParallelConfig *config);
double layer_again_bytes(const CostModel *costs, const ModelShape *model, const ParallelConfig *config);
// Bytes that `trireme train` would take for the candidate on the pipeline rank that takes most (`rank`), from
// the same measurement as training itself makes: exact.   ERR_OS, ERR_CONFIG.
Status trireme_memory(const ModelShape *model, const ParallelConfig *config, size_t *bytes, int *rank);
