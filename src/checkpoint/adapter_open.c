// Opens an adapter wherever it is: a folder of PEFT, or a checkpoint of a run that trained it.
#include "checkpoint/foreign/peft.h"
#include <stdlib.h>
#include <string.h>

// Two models have the same weights by name and size.
static Status same_weights(const ModelShape *a, const ModelShape *b, bool *same) {
    WeightSpec *weights, *others = NULL;
    int count, num_others;
    TRY(model_weights(a, &weights, &count));
    Status status = model_weights(b, &others, &num_others);
    *same = status == OK && count == num_others;
    for (int i = 0; *same && i < count; i++)
        *same = !strcmp(weights[i].name, others[i].name) && weights[i].rows == others[i].rows &&
                weights[i].cols == others[i].cols;
    free(weights);
    free(others);
    return status;
}

static Status read_checkpoint(AdapterWeights **adapter, ModelSource *source, const ModelShape *shape,
                              const char *base) {
    const ModelShape *found = &model_source_info(source)->shape;
    ModelShape bare = model_without_adapters(found);
    bool same;
    if (!found->lora_rank)
        return fail(
            ERR_CONFIG,
            "%s is a whole model, no adapter: name a folder of PEFT, or a checkpoint of a run with --lora-rank",
            model_source_path(source));
    TRY(same_weights(&bare, shape, &same));
    if (same) return adapter_weights_read(adapter, found, model_source_reader(source));
    return fail(
        ERR_DATA,
        "%s is an adapter of %s, and %s has other weights: name the base model that the adapter was trained on",
        model_source_path(source), model_source_base_path(source), base);
}

Status adapter_weights_open(AdapterWeights **adapter, const char *path, const ModelShape *shape,
                            const char *base) {
    ModelSource *source;
    *adapter = NULL;
    if (peft_is_there(path)) return peft_open(adapter, path, shape, base);
    TRY(model_source_open(&source, path, -1));
    Status status = read_checkpoint(adapter, source, shape, base);
    model_source_close(source);
    return status;
}
