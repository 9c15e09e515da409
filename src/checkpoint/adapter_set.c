// Keeps the adapters of one base: the shape of the model with them, and the matrices of the chosen one as its weights.
#include "base/hash.h"
#include "checkpoint/adapter_weights.h"
#include <stdlib.h>
#include <string.h>

static int targets_of(const AdapterWeights *adapter) {
    int targets = 0;
    for (int i = 0; i < adapter->count; i++) targets |= adapter->modules[i].target;
    return targets;
}

static int targets_of_all(const AdapterSet *set) {
    int targets = 0;
    for (int i = 0; i < set->count; i++) targets |= targets_of(set->items[i]);
    return targets;
}

Status adapter_set_add(AdapterSet *set, AdapterWeights *adapter, const char *path) {
    AdapterWeights **more = realloc(set->items, ((size_t)set->count + 1) * sizeof *more);
    CHECK(more, "no memory for %d adapters", set->count + 1);
    set->items = more;
    set->items[set->count++] = adapter;
    int targets = targets_of_all(set);
    bool queries = targets & LORA_QKV && targets & (LORA_Q | LORA_K | LORA_V);
    if (!queries && !(targets & LORA_FC1 && targets & (LORA_GATE | LORA_UP))) return OK;
    return fail(
        ERR_CONFIG,
        "%s: it and another adapter change %s in two ways, with one A for the whole matrix and with one for each "
        "part of it: use them in runs of their own",
        path, queries ? "linear_qkv" : "linear_fc1");
}

void adapter_set_free(AdapterSet *set) {
    for (int i = 0; i < set->count; i++) adapter_weights_destroy(set->items[i]);
    free(set->items);
    *set = (AdapterSet){0};
}

uint64_t adapter_set_hash(const AdapterSet *set) {
    Hasher hasher;
    hasher_start(&hasher);
    for (int i = 0; i < set->count; i++) {
        const AdapterWeights *adapter = set->items[i];
        float scale = adapter_weights_scale(adapter);
        hasher_add(&hasher, &scale, sizeof scale);
        for (int m = 0; m < adapter->count; m++) {
            const AdapterModule *module = &adapter->modules[m];
            hasher_add(&hasher, module->name, strlen(module->name));
            hasher_add(&hasher, module->a, (size_t)(adapter->rank * module->cols) * sizeof *module->a);
            hasher_add(&hasher, module->b, (size_t)(adapter->rank * module->rows) * sizeof *module->b);
        }
    }
    return hasher_end64(&hasher);
}

ModelShape adapter_set_shape(const AdapterSet *set, const ModelShape *base) {
    const AdapterWeights *first = set->items[0];
    ModelShape shape = *base;
    for (int i = 0; i < set->count; i++)
        if (set->items[i]->rank > shape.lora_rank) shape.lora_rank = set->items[i]->rank;
    shape.lora_targets = targets_of_all(set);
    shape.lora_alpha = set->served ? (float)shape.lora_rank : (float)first->alpha;
    shape.lora_sqrt = !set->served && first->rslora;
    shape.lora_dropout = set->served ? 0 : (float)first->dropout;
    return shape;
}

// ---- the matrices -----------------------------------------------------------------------------------------

// Copies a rectangle of a matrix [rows, cols], times `factor`, into zeros.
static void copy(const float *matrix, int64_t rows, int64_t cols, float factor, Rect rect, float *out,
                 int64_t stride) {
    for (int64_t row = 0; row < rect.rows; row++)
        for (int64_t col = 0; col < rect.cols; col++) {
            bool inside = rect.row + row < rows && rect.col + col < cols;
            out[row * stride + col] = inside ? factor * matrix[(rect.row + row) * cols + rect.col + col] : 0;
        }
}

Status adapter_set_read(const AdapterSet *set, const char *path, const char *name, Rect rect, float *out,
                        int64_t stride) {
    char module[96];
    const char *suffix = strstr(name, ".lora_");
    CHECK(suffix, "%s is no matrix of an adapter", name);
    snprintf(module, sizeof module, "%.*s", (int)(suffix - name), name);
    const AdapterWeights *adapter = set->chosen < 0 ? NULL : set->items[set->chosen];
    const AdapterModule *m = adapter ? adapter_weights_find(adapter, module) : NULL;
    if (!m && !set->served)
        return fail(
            ERR_DATA,
            "%s: the adapter leaves out %s, which it has in other layers: it can be merged and used, but not "
            "trained",
            path, module);
    if (!m)
        copy(NULL, 0, 0, 0, rect, out, stride);
    else if (!strcmp(suffix, ".lora_A.weight"))
        copy(m->a, adapter->rank, m->cols, 1, rect, out, stride);
    else
        copy(m->b, m->rows, adapter->rank, set->served ? adapter_weights_scale(adapter) : 1, rect, out,
             stride);
    return OK;
}
