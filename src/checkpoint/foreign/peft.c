// Reads the matrices of a LoRA adapter that PEFT wrote. Its modules have the names of the base model's tensors.
#include "checkpoint/foreign/peft.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *folder, *base;
    const ModelShape *shape;
    PeftConfig config;
    Mapping mapping;
    Safetensors *file;
    bool *used; // of the tensors of the file
    AdapterWeights *adapter;
} Peft;

bool peft_module(const Mapping *m, const ModelShape *shape, const TheirTensor *t, AdapterModule *module) {
    if (t->is_vector || !t->strips) return false;
    const WeightStrip *strip = &m->strips[t->strip];
    const WeightSpec *weight = &m->weights[strip->weight];
    if (!weight_takes_adapter(weight)) return false;
    *module = adapter_module(shape, weight, t->rows == weight->rows ? PART_ALL : strip->part);
    return true;
}

void peft_name(const TheirTensor *t, char which, char name[160]) {
    size_t size = strlen(t->name) - strlen(".weight");
    snprintf(name, 160, "base_model.model.%.*s.lora_%c.weight", (int)size, t->name, which);
}

// ---- files --------------------------------------------------------------------------------------------

static Status open_file(Peft *p) {
    char path[4096], pickle[4096];
    int size = snprintf(path, sizeof path, "%s/adapter_model.safetensors", p->folder);
    snprintf(pickle, sizeof pickle, "%s/adapter_model.bin", p->folder);
    if (size >= (int)sizeof path) return fail(ERR_NO_INPUT, "%s: the name is too long", p->folder);
    if (!file_exists(path) && file_exists(pickle))
        return fail(
            ERR_UNAVAILABLE,
            "%s is a pickle, which can run any program; only adapter_model.safetensors is read. This writes it "
            "beside it: python3 -c \"import torch; from safetensors.torch import save_file as s; "
            "s(torch.load('%s', weights_only=True), '%s', {'format': 'pt'})\"",
            pickle, pickle, path);
    if (!file_exists(path))
        return fail(
            ERR_NO_INPUT,
            "%s: there is an adapter_config.json, but no adapter_model.safetensors: copy the whole folder "
            "again",
            p->folder);
    TRY(safetensors_open(&p->file, path));
    p->used = calloc((size_t)p->file->count + 1, sizeof *p->used);
    return p->used ? OK : fail(ERR_OS, "no memory for %d tensors", p->file->count);
}

// ---- modules ------------------------------------------------------------------------------------------

static Status check_matrix(const Peft *p, const SafeTensor *t, int64_t rows, int64_t cols) {
    if (!file_type_is_float(t->type))
        return fail(ERR_UNAVAILABLE, "%s: tensor %.200s is of type %s; F32, BF16 and F16 are read",
                    p->file->path, t->name, file_type_name(t->type));
    if (t->ndim == 2 && t->shape[0] == rows && t->shape[1] == cols) return OK;
    return fail(ERR_DATA,
                "%s: tensor %.200s is not [%" PRId64 ", %" PRId64
                "], which the rank %d in adapter_config.json and the "
                "model in %s make it: name the base model that the adapter was trained on",
                p->file->path, t->name, rows, cols, p->adapter->rank, p->base);
}

static Status read_matrix(const Peft *p, const SafeTensor *t, float *out) {
    return safetensors_read_f32(p->file, t, 0, t->shape[0] * t->shape[1], out);
}

// Reads B, whose rows are in the order of their tensor.
static Status read_rows(const Peft *p, const TheirTensor *theirs, const SafeTensor *t,
                        AdapterModule *module) {
    int64_t rank = p->adapter->rank;
    if (module->strip.part != PART_ALL) return read_matrix(p, t, module->b);
    float *rows = malloc((size_t)(module->rows * rank) * sizeof *rows);
    if (!rows) return fail(ERR_OS, "no memory for %s", t->name);
    Status status = read_matrix(p, t, rows);
    for (int s = 0; status == OK && s < theirs->strips; s++) {
        const WeightStrip *strip = &p->mapping.strips[theirs->strip + s];
        for (int64_t i = 0; i < strip->per * strip->groups; i++)
            memcpy(module->b + strip_row(strip, i) * rank,
                   rows + (strip->first + tensor_row_stored(theirs, i)) * rank, (size_t)rank * sizeof *rows);
    }
    free(rows);
    return status;
}

static const SafeTensor *find(const Peft *p, const TheirTensor *theirs, char which) {
    char name[160];
    peft_name(theirs, which, name);
    const SafeTensor *t = safetensors_find(p->file, name);
    if (t) p->used[t - p->file->tensors] = true;
    return t;
}

static Status read_module(Peft *p, const TheirTensor *theirs) {
    AdapterModule made, *module;
    char name[160];
    if (!peft_module(&p->mapping, p->shape, theirs, &made)) return OK;
    const SafeTensor *a = find(p, theirs, 'A'), *b = find(p, theirs, 'B');
    if (!a && !b) return OK;
    peft_name(theirs, a ? 'B' : 'A', name);
    if (!a || !b)
        return fail(ERR_DATA, "%s: tensor %s is missing: copy the whole folder again", p->file->path, name);
    TRY(check_matrix(p, a, p->adapter->rank, made.cols));
    TRY(check_matrix(p, b, made.rows, p->adapter->rank));
    TRY(adapter_weights_add(p->adapter, made, &module));
    TRY(read_matrix(p, a, module->a));
    return read_rows(p, theirs, b, module);
}

// ---- the adapter is of this model -----------------------------------------------------------------------

// The number of the layer in a name; -1: it has none.
static int layer_in(const char *name) {
    for (const char *at = name; (at = strchr(at, '.')); at++) {
        size_t digits = strspn(at + 1, "0123456789");
        if (digits > 0 && digits < 8 && at[1 + digits] == '.') return atoi(at + 1);
    }
    return -1;
}

static Status refuse_unused(const Peft *p, const char *name) {
    int layer = layer_in(name);
    if (layer >= p->shape->layers)
        return fail(
            ERR_DATA,
            "%s: tensor %.200s is of layer %d, and the model in %s has layers 0 to %d: name the base model "
            "that the adapter was trained on",
            p->file->path, name, layer, p->base, p->shape->layers - 1);
    return fail(
        ERR_DATA,
        "%s: tensor %.200s belongs to no linear layer of the model in %s: the adapter is of another model, or "
        "changes an embedding, a norm, experts or the head, which no adapter does here",
        p->file->path, name, p->base);
}

static Status check_used(const Peft *p) {
    for (int i = 0; i < p->file->count; i++)
        if (!p->used[i]) TRY(refuse_unused(p, p->file->tensors[i].name));
    if (p->adapter->count) return OK;
    return fail(ERR_DATA, "%s: it has no tensors: copy the whole folder again", p->file->path);
}

static bool has_in_layer(const Peft *p, const AdapterModule *module, int layer) {
    char name[sizeof module->name];
    const char *part = strstr(module->name + strlen("decoder.layers."), ".");
    snprintf(name, sizeof name, "decoder.layers.%d%.64s", layer, part);
    return adapter_weights_find(p->adapter, name);
}

// A module that is there in one layer is there in all: where it is not, there are two neighbours that differ.
static Status check_layers(const Peft *p) {
    AdapterModule module;
    for (int i = 0; i < p->mapping.num_tensors; i++) {
        const TheirTensor *t = &p->mapping.tensors[i];
        if (!peft_module(&p->mapping, p->shape, t, &module) || adapter_weights_find(p->adapter, module.name))
            continue;
        int layer = layer_in(module.name);
        if (!has_in_layer(p, &module, layer - 1) && !has_in_layer(p, &module, layer + 1)) continue;
        return fail(
            ERR_DATA,
            "%s: no tensors for %s, although other layers have them and adapter_config.json leaves none out: "
            "the model in %s has %d layers; name the base model that the adapter was trained on",
            p->file->path, t->name, p->base, p->shape->layers);
    }
    return OK;
}

// ---- opening ------------------------------------------------------------------------------------------

static Status open_adapter(Peft *p) {
    const Family *family;
    TRY(peft_config_read(p->folder, &p->config));
    TRY(family_of(p->shape, &family));
    TRY(mapping_create(&p->mapping, p->shape, family, FORMAT_HUGGING_FACE));
    TRY(open_file(p));
    p->adapter->rank = p->config.rank, p->adapter->alpha = p->config.alpha;
    p->adapter->dropout = p->config.dropout, p->adapter->rslora = p->config.rslora;
    for (int i = 0; i < p->mapping.num_tensors; i++) TRY(read_module(p, &p->mapping.tensors[i]));
    TRY(check_used(p));
    return p->config.some_layers ? OK : check_layers(p);
}

Status peft_open(AdapterWeights **adapter, const char *folder, const ModelShape *shape, const char *base) {
    Peft p = {.folder = folder, .base = base, .shape = shape, .adapter = calloc(1, sizeof *p.adapter)};
    CHECK(p.adapter, "no memory for an adapter");
    Status status = open_adapter(&p);
    safetensors_close(p.file);
    mapping_destroy(&p.mapping);
    peft_config_free(&p.config);
    free(p.used);
    *adapter = p.adapter;
    if (status == OK) return OK;
    adapter_weights_destroy(p.adapter);
    *adapter = NULL;
    return status;
}
