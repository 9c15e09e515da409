// Keeps an adapter in memory: its modules by name, and what they add to a weight.
#include "checkpoint/adapter_weights.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void adapter_weights_destroy(AdapterWeights *adapter) {
    if (!adapter) return;
    for (int i = 0; i < adapter->count; i++) {
        free(adapter->modules[i].a);
        free(adapter->modules[i].b);
    }
    free(adapter->modules);
    free(adapter);
}

float adapter_weights_scale(const AdapterWeights *adapter) {
    double rank = adapter->rank;
    return (float)(adapter->alpha / (adapter->rslora ? sqrt(rank) : rank));
}

int64_t adapter_weights_parameters(const AdapterWeights *adapter) {
    int64_t sum = 0;
    for (int i = 0; i < adapter->count; i++)
        sum += adapter->rank * (adapter->modules[i].rows + adapter->modules[i].cols);
    return sum;
}

// ---- modules ------------------------------------------------------------------------------------------

// The targets of modules that are a part of a weight; others have the name of the weight.
static const int part_targets[] = {[PART_QUERY] = LORA_NUMBER_Q,
                                   [PART_KEY] = LORA_NUMBER_K,
                                   [PART_VALUE] = LORA_NUMBER_V,
                                   [PART_GATE] = LORA_NUMBER_GATE,
                                   [PART_UP] = LORA_NUMBER_UP};

bool is_adapter_weight(const char *name) { return strstr(name, ".lora_A.") || strstr(name, ".lora_B."); }

bool weight_takes_adapter(const WeightSpec *weight) {
    return !strncmp(weight->name, "decoder.layers.", 15) && !weight_is_vector(weight) &&
           strstr(weight->name, ".linear_") && !strstr(weight->name, "experts.") &&
           !is_adapter_weight(weight->name);
}

AdapterModule adapter_module(const ModelShape *shape, const WeightSpec *weight, WeightPart part) {
    AdapterModule module = {.strip = weight_strip(shape, part, weight->rows), .cols = weight->cols};
    const char *word = strstr(weight->name, ".linear_") + 1, *end = strrchr(weight->name, '.');
    CHECK(weight_takes_adapter(weight), "%s is no weight of a linear layer", weight->name);
    if (part != PART_ALL) word = lora_target_name(part_targets[part]), end = word + strlen(word);
    module.rows = module.strip.per * module.strip.groups;
    module.target = lora_targets_of(word, (size_t)(end - word));
    snprintf(module.weight, sizeof module.weight, "%s", weight->name);
    snprintf(module.name, sizeof module.name, "%.*s%.*s",
             (int)(strstr(weight->name, "linear_") - weight->name), weight->name, (int)(end - word), word);
    return module;
}

Status adapter_weights_add(AdapterWeights *adapter, AdapterModule module, AdapterModule **added) {
    if (adapter->count == adapter->capacity) {
        int capacity = adapter->capacity ? 2 * adapter->capacity : 64;
        AdapterModule *more = realloc(adapter->modules, (size_t)capacity * sizeof *more);
        if (!more) return fail(ERR_OS, "no memory for %d modules of an adapter", capacity);
        adapter->modules = more;
        adapter->capacity = capacity;
    }
    module.a = calloc((size_t)(adapter->rank * module.cols), sizeof *module.a);
    module.b = calloc((size_t)(adapter->rank * module.rows), sizeof *module.b);
    if (module.a && module.b) {
        *added = &adapter->modules[adapter->count];
        adapter->modules[adapter->count++] = module;
        return OK;
    }
    free(module.a);
    free(module.b);
    return fail(ERR_OS, "no memory for %" PRId64 " numbers of %s",
                adapter->rank * (module.rows + module.cols), module.name);
}

const AdapterModule *adapter_weights_find(const AdapterWeights *adapter, const char *name) {
    for (int i = 0; i < adapter->count; i++)
        if (!strcmp(adapter->modules[i].name, name)) return &adapter->modules[i];
    return NULL;
}

// ---- the matrices as weights of a model ---------------------------------------------------------------

static Status read_matrix(WeightReader reader, const char *module, char which, Rect rect, float *out) {
    char name[128];
    snprintf(name, sizeof name, "%s.lora_%c.weight", module, which);
    return reader.read(reader.self, name, rect, out, rect.cols);
}

static Status read_module(AdapterWeights *adapter, AdapterModule module, WeightReader reader) {
    AdapterModule *added = NULL;
    TRY(adapter_weights_add(adapter, module, &added));
    TRY(read_matrix(reader, added->name, 'A', (Rect){0, 0, adapter->rank, added->cols}, added->a));
    return read_matrix(reader, added->name, 'B', (Rect){0, 0, added->rows, adapter->rank}, added->b);
}

static Status read_modules(AdapterWeights *adapter, const ModelShape *shape, const WeightSpec *weight,
                           WeightReader reader) {
    if (!weight_takes_adapter(weight)) return OK;
    AdapterModule whole = adapter_module(shape, weight, PART_ALL);
    if (shape->lora_targets & whole.target) return read_module(adapter, whole, reader);
    bool qkv = whole.target == LORA_QKV, halves = whole.target == LORA_FC1 && model_is_gated(shape);
    for (WeightPart part = qkv ? PART_QUERY : PART_GATE;
         part <= (qkv ? PART_VALUE : PART_UP) && (qkv || halves); part++) {
        AdapterModule module = adapter_module(shape, weight, part);
        if (shape->lora_targets & module.target) TRY(read_module(adapter, module, reader));
    }
    return OK;
}

Status adapter_weights_read(AdapterWeights **out, const ModelShape *shape, WeightReader reader) {
    WeightSpec *weights;
    int count;
    *out = NULL;
    TRY(model_weights(shape, &weights, &count));
    AdapterWeights *adapter = calloc(1, sizeof *adapter);
    CHECK(adapter, "no memory for an adapter");
    adapter->rank = shape->lora_rank, adapter->rslora = shape->lora_sqrt;
    adapter->alpha = (double)shape->lora_alpha, adapter->dropout = (double)shape->lora_dropout;
    Status status = OK;
    for (int i = 0; status == OK && i < count; i++)
        status = read_modules(adapter, shape, &weights[i], reader);
    free(weights);
    if (status != OK) adapter_weights_destroy(adapter), adapter = NULL;
    *out = adapter;
    return status;
}

// ---- what modules add to a weight -----------------------------------------------------------------------

// Adds scale * b A to elements [col, col + cols) of a row.
static void add_row(const AdapterWeights *adapter, const AdapterModule *m, const float *b, int64_t col,
                    int64_t cols, float *row) {
    enum { COLUMNS = 256 };
    float scale = adapter_weights_scale(adapter);
    for (int64_t at = 0; at < cols; at += COLUMNS) {
        float sums[COLUMNS] = {0};
        int64_t n = cols - at < COLUMNS ? cols - at : COLUMNS;
        for (int k = 0; k < adapter->rank; k++) {
            const float *a = m->a + k * m->cols + col + at;
            for (int64_t i = 0; i < n; i++) sums[i] += b[k] * a[i];
        }
        for (int64_t i = 0; i < n; i++) row[at + i] += scale * sums[i];
    }
}

void adapter_weights_merge(const AdapterWeights *adapter, const char *weight, Rect rect, float *values,
                           int64_t stride) {
    for (int m = 0; m < adapter->count; m++) {
        const AdapterModule *module = &adapter->modules[m];
        if (strcmp(module->weight, weight) != 0) continue;
        int64_t first = strip_rows_before(&module->strip, rect.row);
        int64_t end = strip_rows_before(&module->strip, rect.row + rect.rows);
        for (int64_t i = first; i < end; i++)
            add_row(adapter, module, module->b + i * adapter->rank, rect.col, rect.cols,
                    values + (strip_row(&module->strip, i) - rect.row) * stride);
    }
}
