// The pieces of the closed form of a rank's memory, and the exact memory of trireme. For plan/, its tests, and the
// flags of a configuration.
#pragma once
#include "plan/plan.h"

enum { MAX_STAGES = 4096 };

// Writes the number of layers of each stage.   layers [p v]   ERR_CONFIG for more than MAX_STAGES.
Status parallel_config_layers(const Stack *stack, const ModelShape *model, const ParallelConfig *config,
                              int *layers);
// Returns the parameters that a tp rank has of an embedding, layer or head. A tied table counts for the embedding.
double part_parameters(const ModelShape *model, int tp, ModelPart part);
// Return the bytes that a layer keeps of one microbatch from its forward to its backward, and those that it needs
// while it is recomputed; without activation_factor.
double layer_kept_bytes(const CostModel *costs, const ModelShape *model, const ParallelConfig *config);
double layer_again_bytes(const CostModel *costs, const ModelShape *model, const ParallelConfig *config);
// Computes the bytes that `trireme train` takes for the configuration on the pipeline rank that takes most (`rank`),
// by the measurement with which training itself begins: they are exact, but for trireme_guessed_workspace. On a GPU
// they are those of its arenas: what CUDA takes for itself comes on top. `host`: the most that a rank keeps in its
// host's memory.   ERR_OS, ERR_CONFIG.
Status trireme_memory(const ModelShape *model, const ParallelConfig *config, size_t *bytes, size_t *host,
                      int *rank);
// Returns the workspace of operations on a GPU, about: that of a matrix product or, where it is more, of attention by
// cuDNN; 0 on a CPU.
size_t trireme_usual_workspace(const ModelShape *model, const ParallelConfig *config);
// Returns what of these bytes is a guess: the workspace of operations on a device whose module this machine lacks,
// taken to be the usual one; 0: all of them are exact.
size_t trireme_guessed_workspace(const ModelShape *model, const ParallelConfig *config);
