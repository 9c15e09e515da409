// Folders of PEFT with a LoRA adapter: adapter_config.json and adapter_model.safetensors.
#pragma once
#include "checkpoint/adapter_weights.h"

// The fields of adapter_config.json.
typedef struct {
    char *base; // the name or path of the base model; "": none
    int rank;
    double alpha, dropout;
    bool rslora;
    bool some_layers; // it may leave layers out
} PeftConfig;

bool peft_is_there(const char *folder);
// Fails with ERR_DATA for members that are missing, of another type or out of range, and with ERR_UNAVAILABLE for
// adapters that are not plain LoRA.
Status peft_config_read(const char *folder, PeftConfig *config);
void peft_config_free(PeftConfig *config);
// Writes the file's text as PEFT does; `targets` is the array of the names of modules.
void peft_config_write(const AdapterWeights *adapter, const char *base, bool fan_in_fan_out,
                       const Text *targets, Text *out);

// Reads the adapter in a folder, of a model of this shape, which was opened from `base`. Fails as peft_config_read, and
// with ERR_DATA, which names file and tensor, for an adapter of another model. Takes values that are NaN or infinite.
Status peft_open(AdapterWeights **adapter, const char *folder, const ModelShape *shape, const char *base);

// What a tensor of a mapping is to adapters: the module of the weight that it holds, or of the part of one that it
// holds. Returns false where it can have none.
bool peft_module(const Mapping *mapping, const ModelShape *shape, const TheirTensor *tensor,
                 AdapterModule *module);
// The name of matrix 'A' or 'B' for a tensor.
void peft_name(const TheirTensor *tensor, char which, char name[160]);
