// Exports an adapter as a folder of PEFT.
#include "checkpoint/foreign/new_folder.h"
#include "checkpoint/foreign/peft.h"
#include "checkpoint/manifest.h"
#include <stdlib.h>
#include <string.h>

// One tensor of the base model that the adapter changes: A and B for it are those of a module, or of the rows of a
// module that the tensor holds.
typedef struct {
    const TheirTensor *tensor;
    const AdapterModule *module;
    char a[160], b[160]; // names in the file
} Target;

typedef struct {
    const AdapterWeights *adapter;
    const ModelShape *shape;
    const char *base;
    FileType type;
    Mapping mapping;
    Target *targets;
    int count;
} Export;

// ---- which tensors -----------------------------------------------------------------------------------

// Whether the adapter has a module of a part of this weight, but not of the whole.
static bool has_parts(const AdapterWeights *adapter, const char *weight) {
    for (int i = 0; i < adapter->count; i++)
        if (!strcmp(adapter->modules[i].weight, weight)) return true;
    return false;
}

// The matrices of a whole weight serve each tensor that holds a part of it, with the same A.
static Status find_target(Export *e, const TheirTensor *t) {
    AdapterModule wanted;
    if (!peft_module(&e->mapping, e->shape, t, &wanted)) return OK;
    const WeightSpec *weight = &e->mapping.weights[e->mapping.strips[t->strip].weight];
    AdapterModule whole = adapter_module(e->shape, weight, PART_ALL);
    const AdapterModule *module = adapter_weights_find(e->adapter, wanted.name);
    if (!module) module = adapter_weights_find(e->adapter, whole.name);
    if (!module && wanted.strip.part == PART_ALL && has_parts(e->adapter, weight->name))
        return fail(
            ERR_UNAVAILABLE,
            "the adapter changes parts of %s, each with an A of its own, but the family of the model has one "
            "tensor for all of it, %s, to which PEFT gives one A: export the merged model (--to hf), or train "
            "with --lora-target-modules %s",
            weight->name, t->name, strrchr(whole.name, '.') + 1);
    if (!module) return OK;
    Target *target = &e->targets[e->count++];
    *target = (Target){.tensor = t, .module = module};
    peft_name(t, 'A', target->a);
    peft_name(t, 'B', target->b);
    return OK;
}

static Status find_targets(Export *e) {
    e->targets = calloc((size_t)e->mapping.num_tensors + 1, sizeof *e->targets);
    if (!e->targets) return fail(ERR_OS, "no memory for %d tensors", e->mapping.num_tensors);
    for (int i = 0; i < e->mapping.num_tensors; i++) TRY(find_target(e, &e->mapping.tensors[i]));
    CHECK(e->count > 0, "an adapter without a module of its model");
    return OK;
}

// ---- their names in adapter_config.json ----------------------------------------------------------------

static bool ends_with(const char *name, const char *words) {
    size_t size = strlen(name), tail = strlen(words);
    return size == tail ? !strcmp(name, words)
                        : size > tail && name[size - tail - 1] == '.' && !strcmp(name + size - tail, words);
}

static bool is_target(const Export *e, const TheirTensor *t) {
    for (int i = 0; i < e->count; i++)
        if (e->targets[i].tensor == t) return true;
    return false;
}

// PEFT takes every module whose name ends with these words. `words` ends with ".weight".
static bool names_targets_alone(const Export *e, const char *words) {
    for (int i = 0; i < e->mapping.num_tensors; i++) {
        const TheirTensor *t = &e->mapping.tensors[i];
        if (ends_with(t->name, words) && !is_target(e, t)) return false;
    }
    return true;
}

// Returns the fewest words at the end of a tensor's name that name no tensor which is not changed: "q_proj.weight", or
// the whole name where layers differ.
static const char *short_name(const Export *e, const char *name) {
    const char *words = strrchr(name, '.');
    while (words > name) {
        for (words--; words > name && words[-1] != '.';) words--;
        if (*words >= '0' && *words <= '9') break;
        if (names_targets_alone(e, words)) return words;
    }
    return name;
}

static void list_names(const Export *e, Text *out) {
    const char **names = calloc((size_t)e->count + 1, sizeof *names);
    int count = 0;
    CHECK(names, "no memory for %d names", e->count);
    for (int i = 0; i < e->count; i++) {
        bool named = false;
        for (int n = 0; n < count && !named; n++) named = ends_with(e->targets[i].tensor->name, names[n]);
        if (!named) names[count++] = short_name(e, e->targets[i].tensor->name);
    }
    for (int n = 0; n < count; n++) {
        text_add(out, "%s", n ? ", " : "[");
        json_add_string(out, names[n], strlen(names[n]) - strlen(".weight"));
    }
    text_add(out, "]");
    free(names);
}

// ---- files -------------------------------------------------------------------------------------------

static Status write_config(const Export *e, const char *path) {
    Text names = {0}, text = {0};
    list_names(e, &names);
    peft_config_write(e->adapter, e->base, e->targets[0].tensor->transposed, &names, &text);
    Status status = folder_write_text(path, &text);
    text_free(&text);
    text_free(&names);
    return status;
}

static Status add_values(const Export *e, SafetensorsWriter *writer, const float *values, int64_t count) {
    size_t bytes = (size_t)count * file_type_bytes(e->type);
    void *converted = malloc(bytes);
    if (!converted) return fail(ERR_OS, "no memory for %zu bytes", bytes);
    file_type_of_f32(e->type, values, count, converted);
    Status status = safetensors_add(writer, converted, bytes);
    free(converted);
    return status;
}

// Writes the rows of B in the order of the tensor.
static Status add_rows(const Export *e, SafetensorsWriter *writer, const Target *target) {
    const TheirTensor *t = target->tensor;
    int64_t rank = e->adapter->rank;
    float *rows = malloc((size_t)(t->rows * rank) * sizeof *rows);
    if (!rows) return fail(ERR_OS, "no memory for %s", target->b);
    for (int s = 0; s < t->strips; s++) {
        const WeightStrip *strip = &e->mapping.strips[t->strip + s];
        for (int64_t i = 0; i < strip->per * strip->groups; i++) {
            int64_t row = target->module->strip.part == PART_ALL ? strip_row(strip, i) : i;
            memcpy(rows + (strip->first + tensor_row_stored(t, i)) * rank, target->module->b + row * rank,
                   (size_t)rank * sizeof *rows);
        }
    }
    Status status = add_values(e, writer, rows, t->rows * rank);
    free(rows);
    return status;
}

static Status add_all(const Export *e, SafetensorsWriter *writer) {
    for (int i = 0; i < e->count; i++) {
        const Target *target = &e->targets[i];
        TRY(add_values(e, writer, target->module->a, e->adapter->rank * target->module->cols));
        TRY(add_rows(e, writer, target));
    }
    return OK;
}

static Status write_tensors(const Export *e, const char *path) {
    SafeTensor *tensors = calloc(2 * (size_t)e->count, sizeof *tensors);
    if (!tensors) return fail(ERR_OS, "no memory for %d tensors", 2 * e->count);
    for (int i = 0; i < e->count; i++) {
        const Target *target = &e->targets[i];
        int64_t rank = e->adapter->rank;
        tensors[2 * i] = (SafeTensor){
            .name = target->a, .type = e->type, .ndim = 2, .shape = {rank, target->module->cols}};
        tensors[2 * i + 1] = (SafeTensor){
            .name = target->b, .type = e->type, .ndim = 2, .shape = {target->tensor->rows, rank}};
    }
    SafetensorsWriter writer;
    Status status =
        safetensors_create(&writer, path, tensors, 2 * e->count, &(SafeMetadata){"format", "pt"}, 1);
    free(tensors);
    TRY(status);
    status = add_all(e, &writer);
    if (status == OK) return safetensors_finish(&writer);
    safetensors_abandon(&writer);
    return status;
}

static Status fill(void *self, const char *folder) {
    const Export *e = self;
    char path[PATH_ROOM];
    TRY(path_join(path, folder, "adapter_config.json"));
    TRY(write_config(e, path));
    TRY(path_join(path, folder, "adapter_model.safetensors"));
    return write_tensors(e, path);
}

Status export_peft(const ModelSource *source, const char *folder, FileType type) {
    ModelShape shape = model_without_adapters(&model_source_info(source)->shape);
    Export e = {.adapter = model_source_adapter(source), .shape = &shape, .type = type};
    const Family *family;
    CHECK(file_type_is_float(type), "matrices as %s", file_type_name(type));
    if (!e.adapter)
        return fail(
            ERR_CONFIG,
            "%s is a whole model, without an adapter: PEFT's format is for what a run with --lora-rank trains, "
            "or for an adapter of --adapter; a whole model is exported with --to hf or gguf",
            model_source_path(source));
    TRY(family_of(e.shape, &family));
    char *base = realpath(model_source_base_path(source), NULL);
    if (!base)
        return fail(ERR_NO_INPUT, "%s: the base model is not there any more", model_source_base_path(source));
    e.base = base;
    Status status = mapping_create(&e.mapping, e.shape, family, FORMAT_HUGGING_FACE);
    if (status == OK) status = find_targets(&e);
    if (status == OK) status = folder_write_new(folder, fill, &e);
    mapping_destroy(&e.mapping);
    free(e.targets);
    free(base);
    return status;
}
