// A folder of PEFT. The input is adapter_config.json, and after a NUL the header of adapter_model.safetensors, whose
// last two bytes say how many bytes of tensors follow it. Laws: what opens has matrices of the sizes of the model, and
// merges into its weights.
#include "checkpoint/foreign/peft.h"
#include "fuzz.h"
#include <stdlib.h>
#include <string.h>

enum { HIDDEN = 4, LARGEST = 64 };

static ModelShape small_llama(void) {
    return (ModelShape){.layers = 2,
                        .hidden = HIDDEN,
                        .heads = 2,
                        .head_size = 2,
                        .groups = 1,
                        .ffn = 8,
                        .sequence = 8,
                        .vocabulary = 5,
                        .activation = ACTIVATION_SWIGLU,
                        .position = POSITION_ROTARY,
                        .rotary_base = 10000,
                        .rms_norm = true,
                        .no_linear_bias = true,
                        .untied = true,
                        .norm_epsilon = 1e-6f};
}

static void write_tensors(const uint8_t *data, size_t size) {
    static const char zeros[1 << 16];
    FuzzInput tail = {data + (size < 2 ? 0 : size - 2), size < 2 ? 0 : 2};
    size_t bytes = (size_t)fuzz_take(&tail, 2), header = size < 2 ? 0 : size - 2;
    Text file = {0};
    for (int i = 0; i < 8; i++) text_add_bytes(&file, &(uint8_t){(uint8_t)(header >> 8 * i)}, 1);
    text_add_bytes(&file, data, header);
    text_add_bytes(&file, zeros, bytes);
    fuzz_file("adapter_model.safetensors", file.data, file.size);
    text_free(&file);
}

static void merge(const AdapterWeights *adapter, const WeightSpec *weight) {
    float values[LARGEST] = {0};
    CHECK(weight->rows * weight->cols <= LARGEST, "%s is too large", weight->name);
    adapter_weights_merge(adapter, weight->name, (Rect){0, 0, weight->rows, weight->cols}, values,
                          weight->cols);
    for (int64_t i = 0; i < weight->rows * weight->cols; i++) CHECK(values[i] == 0, "zeros add something");
}

static void check(const AdapterWeights *adapter, const ModelShape *shape) {
    WeightSpec *weights;
    int count;
    CHECK(adapter->rank > 0 && adapter->count > 0, "rank %d, %d modules", adapter->rank, adapter->count);
    CHECK(model_weights(shape, &weights, &count) == OK, "%s", fail_message());
    for (int i = 0; i < count; i++) merge(adapter, &weights[i]);
    free(weights);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *end = memchr(data, 0, size);
    size_t config = end ? (size_t)(end - data) : size;
    AdapterWeights *adapter;
    ModelShape shape = small_llama();
    fuzz_file("adapter_config.json", data, config);
    write_tensors(end ? end + 1 : data, end ? size - config - 1 : 0);
    Status status = peft_open(&adapter, fuzz_folder(), &shape, "base");
    CHECK(status == OK || (!adapter && (status == ERR_DATA || status == ERR_UNAVAILABLE)), "status %d: %s",
          (int)status, fail_message());
    if (status == OK) check(adapter, &shape);
    adapter_weights_destroy(adapter);
    return 0;
}
