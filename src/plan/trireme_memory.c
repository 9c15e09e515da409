// The memory that `trireme train` takes for a configuration, measured in its own step on the null device.
#include "plan/memory.h"

static ModelMode mode_of(const ModelShape *model, const ParallelConfig *c) {
    return (ModelMode){.microbatch = c->microbatch,
                       .padded_vocabulary = padded_vocabulary(model->vocabulary, VOCABULARY_DIVISOR,
                                                              grid_along(c->grid, AXIS_TP)),
                       .dtype = c->dtype,
                       .float8 = c->factors ? FLOAT8_HYBRID : FLOAT8_NONE,
                       .context_ranks = grid_along(c->grid, AXIS_CP),
                       .context_way = c->context_way,
                       .sequence_parallel = c->sequence_parallel,
                       .keep_probabilities = c->attention == ATTENTION_UNFUSED,
                       .recompute = c->recompute,
                       .recompute_layers = c->recompute == RECOMPUTE_UNIFORM};
}

// The engine's spec of a configuration, with `train`'s defaults for all that a configuration does not say.
static EngineSpec spec_of(const ModelShape *model, const ParallelConfig *c) {
    const char *device = parallel_config_device(c);
    return (EngineSpec){.grid = c->grid,
                        .shape = *model,
                        .mode = mode_of(model, c),
                        .split = {.layers = model->layers},
                        .schedule = c->schedule,
                        .num_chunks = c->chunks,
                        .num_microbatches = parallel_config_microbatches(c),
                        .receive_ahead = 1,
                        .stash_limit = c->stash_limit,
                        .schedule_costs = {.forward_us = 1, .backward_us = 2, .weight_fraction = 0.5},
                        .scatter_gather = c->scatter_gather,
                        .sharding = (Sharding)c->zero_stage,
                        .reduce_every = c->reduce_every,
                        .overlap_gradients = c->overlap_gradients,
                        .adam = {0.9, 0.999, 1e-8, 1.0},
                        .muon = c->muon,
                        .offload = c->offload,
                        .bucket_elements = 40000000,
                        .device = device      ? device
                                  : c->device ? "reference"
                                              : "cpu",
                        .threads = 1};
}

static bool has_layer_without_window(const ModelShape *m) {
    for (int layer = 0; layer < m->layers; layer++) {
        int window = model_window(m, layer);
        if (!window || window >= m->sequence) return true;
    }
    return false;
}

// Whether cuDNN takes the attention of some layer. Ranks that share a sequence and keep their queries compute it in
// pieces, by the program's own kernels.
static bool is_for_cudnn(const ModelShape *m, const ParallelConfig *c) {
    bool pieces = grid_along(c->grid, AXIS_CP) > 1 && c->context_way != CONTEXT_ALL_TO_ALL;
    bool plain = m->softmax == SOFTMAX_PLAIN && m->softmax_cap == 0 && model_softmax_scale(m) == 0;
    bool shape = c->dtype != F32 && m->head_size % 8 == 0 && m->head_size <= 128 && m->attention_dropout == 0;
    return c->attention == ATTENTION_FUSED && !pieces && plain && shape && has_layer_without_window(m);
}

// The backward of cuDNN's attention, about: the gradients of the scores in 16 bits, which it keeps to add them in
// order, and sums of queries and keys in fp32.
static size_t attention_workspace(const ModelShape *m, const ParallelConfig *c) {
    const int sharing = grid_along(c->grid, AXIS_TP) * grid_along(c->grid, AXIS_CP);
    const size_t heads = (size_t)c->microbatch * (size_t)(m->heads / sharing);
    const size_t row = 2 * (size_t)m->sequence + 8 * (size_t)m->head_size;
    return is_for_cudnn(m, c) ? heads * (size_t)m->sequence * row : 0;
}

size_t trireme_usual_workspace(const ModelShape *model, const ParallelConfig *config) {
    const size_t of_products = (size_t)32 << 20, of_attention = attention_workspace(model, config);
    if (!config->device) return 0;
    return of_attention > of_products ? of_attention : of_products;
}

// Where the module of a GPU device is missing, nobody can say what workspace its operations take. These take most.
size_t trireme_guessed_workspace(const ModelShape *model, const ParallelConfig *config) {
    return parallel_config_device(config) ? 0 : trireme_usual_workspace(model, config);
}

Status trireme_memory(const ModelShape *model, const ParallelConfig *config, size_t *bytes, size_t *host,
                      int *rank) {
    EngineSpec spec = spec_of(model, config);
    *bytes = *host = 0;
    for (int stage = 0; stage < grid_along(spec.grid, AXIS_PP); stage++) {
        EngineMemory memory;
        TRY(engine_measure(&spec, grid_rank(spec.grid, (Place){.at[AXIS_PP] = stage}), &memory, NULL));
        if (memory.host > *host) *host = memory.host;
        if (memory.total <= *bytes) continue;
        *bytes = memory.total;
        *rank = stage;
    }
    *bytes += trireme_guessed_workspace(model, config);
    return OK;
}
