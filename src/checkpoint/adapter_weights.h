// Adapters: low-rank changes of the linear weights of a model (LoRA, Hu 2021). A module of an adapter belongs to such a
// weight, or to a part of its rows, and has two matrices, A [r, I] and B [O, r]: the weight W [O, I] becomes
// W + scale * B A, with the scale alpha / r, or alpha / sqrt(r) (rsLoRA, Kalajdzievski 2023). An adapter is small, and
// is in memory as a whole.
#pragma once
#include "checkpoint/foreign/mapping.h"

typedef struct {
    char name[96];      // "decoder.layers.3.self_attention.linear_q"
    char weight[96];    // the weight that it changes: "decoder.layers.3.self_attention.linear_qkv.weight"
    WeightStrip strip;  // the rows of the weight that the rows of B belong to, one after the other
    int target;         // its bit of LoraTargets
    int64_t rows, cols; // O, I
    float *a, *b;       // [r, I], [O, r]
} AdapterModule;

typedef struct AdapterWeights {
    int rank; // r, of all modules
    double alpha, dropout;
    bool rslora;
    AdapterModule *modules;
    int count, capacity;
} AdapterWeights;

void adapter_weights_destroy(AdapterWeights *adapter); // takes NULL
float adapter_weights_scale(const AdapterWeights *adapter);
int64_t adapter_weights_parameters(const AdapterWeights *adapter); // the elements of all matrices

// Reads the adapter of a model from its weights. The shape is the model's, with adapters.
Status adapter_weights_read(AdapterWeights **adapter, const ModelShape *shape, WeightReader reader);

// Whether modules may belong to a weight: it is the weight of a linear layer in a transformer layer, not of
// experts.
bool weight_takes_adapter(const WeightSpec *weight);
// Returns a module without its matrices: of a linear weight, or of a part of it.
AdapterModule adapter_module(const ModelShape *shape, const WeightSpec *weight, WeightPart part);
// Adds a module, with matrices of zeros, and returns it; it stays where it is until another is added.   ERR_OS without
// memory.
Status adapter_weights_add(AdapterWeights *adapter, AdapterModule module, AdapterModule **added);
const AdapterModule *adapter_weights_find(const AdapterWeights *adapter,
                                          const char *name); // NULL: it has none of this name
bool is_adapter_weight(const char *name);                    // whether it is the name of such a parameter

// Adds scale * B A to a rectangle of a weight, in fp32. Weights that the adapter does not change stay as they are.
void adapter_weights_merge(const AdapterWeights *adapter, const char *weight, Rect rect, float *values,
                           int64_t stride);

// ---- adapters of one base -------------------------------------------------------------------------------

// The adapters of a model. One alone is trained or merged. Several, or one that is served, are used one at a time: the
// model has the largest rank and the modules of all, a module that an adapter lacks is zeros, and B is multiplied by
// the adapter's own scale. Zero-initialise it.
typedef struct {
    AdapterWeights **items; // owned
    int count;
    int chosen; // -1: none, so that the model computes what its base does
    bool served;
} AdapterSet;

// Adds an adapter, which it owns from then on, also after a failure: ERR_CONFIG where it has modules of whole weights
// and another has modules of their parts.
Status adapter_set_add(AdapterSet *set, AdapterWeights *adapter, const char *path);
void adapter_set_free(AdapterSet *set);
uint64_t adapter_set_hash(const AdapterSet *set); // of all matrices and scales
ModelShape adapter_set_shape(const AdapterSet *set, const ModelShape *base);
// Reads a rectangle of a matrix of the chosen adapter by the name of its parameter, such as
// "decoder.layers.3.self_attention.linear_q.lora_A.weight". Fails with ERR_DATA, which names `path`, where one alone
// lacks it.
Status adapter_set_read(const AdapterSet *set, const char *path, const char *name, Rect rect, float *out,
                        int64_t stride);

// The adapter of a source, the chosen one of several. NULL: it has none.
const AdapterWeights *model_source_adapter(const ModelSource *source);
