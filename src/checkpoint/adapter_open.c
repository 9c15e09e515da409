// Opens an adapter, a folder of PEFT or a checkpoint of a run that trained it, and the model that is its base.
#include "base/file.h"
#include "checkpoint/foreign/peft.h"
#include "checkpoint/source.h"
#include <inttypes.h>
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

static Status read_raw(void *source, const char *name, Rect rect, float *out, int64_t stride) {
    return source_read_raw(source, name, rect, out, stride);
}

// A value that is NaN or infinite is found when the matrices are used.
static WeightReader raw_reader(ModelSource *source) { return (WeightReader){read_raw, source}; }

static Status read_checkpoint(AdapterWeights **adapter, ModelSource *source, const ModelSource *base,
                              bool use_ema) {
    const CheckpointInfo *found = model_source_info(source);
    ModelShape bare = model_without_adapters(&found->shape);
    bool same;
    if (!found->shape.lora_rank)
        return fail(
            ERR_CONFIG,
            "%s is a whole model, no adapter: name a folder of PEFT, or a checkpoint of a run with --lora-rank",
            source->path);
    TRY(same_weights(&bare, &model_source_info(base)->shape, &same));
    if (!same)
        return fail(
            ERR_DATA,
            "%s is an adapter of %s, and %s has other weights: name the base model that the adapter was trained on",
            source->path, found->base.path, base->path);
    if (use_ema) TRY(model_source_use_ema(source));
    return adapter_weights_read(adapter, &found->shape, raw_reader(source));
}

static Status same_base(ModelSource *base, const BaseModel *wanted, bool *same) {
    BaseModel found = {0};
    TRY(model_source_base(base, &found));
    *same = found.hash == wanted->hash;
    return OK;
}

// A model that was exported or converted has the same weights and another hash, so that the user decides.
static Status note_base(ModelSource *source, ModelSource *adapter) {
    const BaseModel *wanted = &model_source_info(adapter)->base;
    bool same;
    if (adapter->passed_over.size)
        text_add(&source->notes, "WARNING: %s: going back to %s\n", adapter->passed_over.data, adapter->path);
    TRY(same_base(source->base, wanted, &same));
    if (!same)
        text_add(
            &source->notes,
            "WARNING: %s was trained beside the model %s, and %s is not that model, byte by byte: the two belong "
            "together only if its weights are the same\n",
            adapter->path, wanted->path, source->base->path);
    return OK;
}

static Status open_checkpoint(ModelSource *source, const char *path, bool use_ema, AdapterWeights **adapter) {
    ModelSource *alone;
    TRY(source_open(&alone, path, -1, AS_ADAPTER));
    Status status = read_checkpoint(adapter, alone, source->base, use_ema);
    if (status == OK) status = note_base(source, alone);
    model_source_close(alone);
    return status;
}

static Status open_weights(ModelSource *source, const char *path, bool use_ema, AdapterWeights **adapter) {
    ModelSource *base = source->base;
    *adapter = NULL;
    if (!peft_is_there(path)) return open_checkpoint(source, path, use_ema, adapter);
    if (use_ema) TRY(model_source_use_ema(base));
    return peft_open(adapter, path, &model_source_info(base)->shape, model_source_path(base));
}

// ---- an adapter and its base ----------------------------------------------------------------------------

static Status no_base(const char *folder, const char *base) {
    char what[4200] = "names no model";
    if (*base)
        snprintf(what, sizeof what,
                 "names the model \"%.4000s\", which is neither at that path nor in Hugging Face's cache",
                 base);
    return fail(
        ERR_NO_INPUT,
        "%s is an adapter (PEFT) and needs its base; base_model_name_or_path in its adapter_config.json %s: "
        "write the path of the model's folder there, or give --load MODEL --adapter %s",
        folder, what, folder);
}

static Status open_base(ModelSource **base, const char *folder) {
    PeftConfig config;
    TRY(peft_config_read(folder, &config));
    Status status = file_exists(config.base) || model_is_named(config.base)
                        ? source_open(base, config.base, -1, AS_BASE)
                        : no_base(folder, config.base);
    peft_config_free(&config);
    return status;
}

// Adapters that name each other as bases would be opened for ever.
static Status check_is_no_base(const ModelSource *source, const char *path) {
    if (source->role != AS_BASE) return OK;
    return fail(
        ERR_CONFIG,
        "%s is an adapter, and the base of another one has to be a whole model: export it with its base first "
        "(trireme export), and name the result as the base",
        path);
}

static Status refuse_adapter_of(const ModelSource *model, const char *folder) {
    return fail(
        ERR_CONFIG,
        "%s is an adapter, and so is %s, to which it would be added: export that one with its base first "
        "(trireme export), and name the result as the base",
        folder, model->path);
}

static Status add_adapter(ModelSource *source, const char *folder, bool use_ema) {
    AdapterWeights *adapter;
    const ModelShape *base = &model_source_info(source->base)->shape;
    Status status = open_weights(source, folder, use_ema, &adapter);
    if (status != OK) adapter_weights_destroy(adapter);
    TRY(status);
    TRY(adapter_set_add(&source->adapters, adapter, folder));
    source->info = *model_source_info(source->base);
    source->info.state = (RunState){0};
    source->info.has_optimizer = false;
    source->info.shape = adapter_set_shape(&source->adapters, base);
    source->hash = adapter_set_hash(&source->adapters);
    return OK;
}

Status source_open_adapter(ModelSource *source, const char *folder) {
    TRY(check_is_no_base(source, folder));
    TRY(open_base(&source->base, folder));
    source->found_base = true;
    return add_adapter(source, folder, false);
}

// Reads the adapter that is a checkpoint.
static Status read_own_adapter(ModelSource *source) {
    AdapterWeights *adapter;
    source->info = *checkpoint_info(source->checkpoint);
    TRY(adapter_weights_read(&adapter, &source->info.shape, raw_reader(source)));
    return adapter_set_add(&source->adapters, adapter, source->path);
}

static Status check_matrix(ModelSource *source, const AdapterModule *module, char which, Rect all,
                           const float *values) {
    char name[128];
    snprintf(name, sizeof name, "%s.lora_%c.weight", module->name, which);
    return source_check_finite(source, name, all, values, all.cols);
}

static Status check_finite(ModelSource *source, const AdapterWeights *adapter) {
    for (int i = 0; i < adapter->count; i++) {
        const AdapterModule *m = &adapter->modules[i];
        TRY(check_matrix(source, m, 'A', (Rect){0, 0, adapter->rank, m->cols}, m->a));
        TRY(check_matrix(source, m, 'B', (Rect){0, 0, m->rows, adapter->rank}, m->b));
    }
    return OK;
}

Status model_source_merge(ModelSource *source) {
    if (!source->base || source->merged) return OK;
    if (source->checkpoint) TRY(read_own_adapter(source));
    CHECK(source->adapters.count == 1, "%d adapters are merged", source->adapters.count);
    TRY(check_finite(source, source->adapters.items[0]));
    source->merged = true;
    source->info.shape = model_without_adapters(&source->info.shape);
    return OK;
}

void model_source_serve(ModelSource *source) {
    source->adapters.served = true;
    source->info.shape = adapter_set_shape(&source->adapters, &model_source_info(source->base)->shape);
}

void model_source_choose(ModelSource *source, int adapter) {
    CHECK(adapter >= -1 && adapter < source->adapters.count, "adapter %d of %d", adapter,
          source->adapters.count);
    source->adapters.chosen = adapter;
}

// The first elements of every weight: models of one shape and one config.json differ there.
static Status hash_weights(ModelSource *source, uint64_t *hash) {
    enum { MOST = 64 };
    float some[MOST];
    WeightSpec *weights;
    int count;
    TRY(model_weights(&model_source_info(source)->shape, &weights, &count));
    Status status = OK;
    for (int i = 0; i < count && status == OK; i++) {
        Rect start = {0, 0, 1, weights[i].cols < MOST ? weights[i].cols : MOST};
        status = source_read_raw(source, weights[i].name, start, some, start.cols);
        if (status == OK)
            *hash = (*hash ^ hash64_of(some, (size_t)start.cols * sizeof *some)) * 0x100000001B3u;
    }
    free(weights);
    return status;
}

Status model_source_base(ModelSource *source, BaseModel *base) {
    if (source->base) return model_source_base(source->base, base);
    if (!source->as_base.path) {
        source->as_base.hash = source->hash;
        if (!source->checkpoint) TRY(hash_weights(source, &source->as_base.hash));
        source->as_base.path = realpath(source->path, NULL);
        if (!source->as_base.path) return fail(ERR_NO_INPUT, "%s is not there any more", source->path);
    }
    *base = source->as_base;
    return OK;
}

// A checkpoint of adapters comes with the model beside which they were trained.
Status source_open_own_base(ModelSource *source) {
    const CheckpointInfo *info = model_source_info(source);
    if (!source->checkpoint || !info->shape.lora_rank || source->role == AS_ADAPTER) return OK;
    TRY(check_is_no_base(source, source->path));
    Status status = source_open(&source->base, info->base.path, -1, AS_BASE);
    bool same = true;
    if (status == OK) TRY(same_base(source->base, &info->base, &same));
    if (status == OK && same) return OK;
    char why[1024] = "";
    if (same) snprintf(why, sizeof why, " (%s)", fail_message());
    return fail(
        same ? status : ERR_NO_INPUT,
        "%s holds adapters for the model %s, %s: put the model back, or a link to it; generate, evaluate and "
        "export also take --load MODEL --adapter %s%s",
        source->path, info->base.path, same ? "which cannot be read" : "and another one is there now",
        source->path, why);
}

Status model_source_adapt(ModelSource **source, const char *path, bool use_ema) {
    if ((*source)->found_base || ((*source)->base && (*source)->checkpoint))
        return refuse_adapter_of(*source, path);
    if ((*source)->adapters.count) return add_adapter(*source, path, use_ema);
    ModelSource *adapted = calloc(1, sizeof *adapted);
    CHECK(adapted, "no memory for a model");
    adapted->base = *source;
    Status status = add_adapter(adapted, path, use_ema);
    if (status == OK) status = source_remember_path(adapted, path);
    if (status == OK) return *source = adapted, OK;
    adapted->base = NULL;
    model_source_close(adapted);
    return status;
}
