// Two in one: the input as a GGUF file, and as instructions to write one.
// Laws: what is written opens, and has the metadata and the tensors that were written; of what opens,
// everything is inside the file, and its tokenizer is opened or refused.
#include "checkpoint/foreign/gguf_tokenizer.h"
#include "fuzz.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_TENSORS = 6, MAX_PAIRS = 6, MAX_VALUES = 300 };

// ---- reading ------------------------------------------------------------------------------------

static void read_tensors(const Gguf *file) {
    for (int64_t i = 0; i < file->num_tensors; i++) {
        const GgufTensor *t = &file->tensors[i];
        int64_t block = ggml_type_block(t->type), size = ggml_type_bytes(t->type, block);
        CHECK(t->offset >= 0 && t->bytes >= 0 && t->bytes <= (int64_t)file->size - t->offset, "%s at %lld",
              t->name, (long long)t->offset);
        CHECK(gguf_tensor(file, t->name) == t, "%s is not found", t->name);
        float out[GGML_LONGEST_BLOCK];
        if (t->bytes >= size) gguf_read(file, t, (t->bytes / size - 1) * block, block, out);
    }
}

static void read_tokenizer(const Gguf *file) {
    Tokenizer *t;
    Status status = gguf_read_tokenizer(file, &t);
    CHECK(status == OK || status == ERR_DATA || status == ERR_UNAVAILABLE || status == ERR_NO_INPUT,
          "status %d: %s", (int)status, fail_message());
    if (status != OK) return;
    TokenList ids = {0};
    if (tokenizer_encode(t, "a text, 123", 11, &ids) == OK)
        for (size_t i = 0; i < ids.count; i++)
            CHECK(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_vocab_size(t), "token %d", ids.ids[i]);
    token_list_free(&ids);
    tokenizer_close(t);
}

static void read_file(const char *path) {
    Gguf *file;
    Status status = gguf_open(&file, path);
    CHECK(status == OK || status == ERR_DATA || status == ERR_UNAVAILABLE, "status %d: %s", (int)status,
          fail_message());
    if (status != OK) return;
    for (int64_t i = 0; i < file->num_pairs; i++) {
        int64_t value;
        gguf_int(&file->pairs[i], &value);
        gguf_string_is(&file->pairs[i], "llama");
    }
    read_tensors(file);
    read_tokenizer(file);
    gguf_close(file);
}

// ---- writing ------------------------------------------------------------------------------------

typedef struct {
    GgufMetadata metadata;
    int num_pairs, num_tensors;
    uint32_t kinds[MAX_PAIRS], values[MAX_PAIRS];
    GgufTensor tensors[MAX_TENSORS];
} Plan;

static void add_strings(Plan *plan, const char *key, uint32_t value) {
    uint32_t count = value % MAX_VALUES;
    gguf_begin_strings(&plan->metadata, key, count);
    for (uint32_t i = 0; i < count; i++) gguf_add_string(&plan->metadata, "\0\xff long", (value + i) % 8);
}

static void add_pair(Plan *plan, FuzzInput *input) {
    int32_t numbers[MAX_VALUES] = {0};
    char key[32];
    uint32_t kind = (uint32_t)fuzz_take(input, 1) % 6, value = (uint32_t)fuzz_take(input, 4);
    snprintf(key, sizeof key, "key.%d", plan->num_pairs);
    numbers[0] = (int32_t)value;
    switch (kind) {
    case 0: gguf_set_u32(&plan->metadata, key, value); break;
    case 1: gguf_set_f32(&plan->metadata, key, (float)value); break;
    case 2: gguf_set_bool(&plan->metadata, key, value & 1); break;
    case 3: gguf_set_string(&plan->metadata, key, value & 1 ? "" : key); break;
    case 4: gguf_set_i32s(&plan->metadata, key, numbers, value % MAX_VALUES); break;
    default: add_strings(plan, key, value); break;
    }
    plan->kinds[plan->num_pairs] = kind;
    plan->values[plan->num_pairs++] = value;
}

static void add_tensor(Plan *plan, FuzzInput *input) {
    GgufTensor *t = &plan->tensors[plan->num_tensors];
    snprintf(t->name, sizeof t->name, "tensor.%d", plan->num_tensors++);
    t->type = (GgmlType)(fuzz_take(input, 1) % NUM_WRITTEN_GGML_TYPES);
    t->ndim = 1 + (int)(fuzz_take(input, 1) % GGUF_DIMS);
    for (int i = 0; i < t->ndim; i++) t->dims[i] = 1 + (int64_t)(fuzz_take(input, 1) % 7);
    t->dims[0] *= ggml_type_block(t->type);
}

static int64_t elements_of(const GgufTensor *t) {
    int64_t elements = 1;
    for (int i = 0; i < t->ndim; i++) elements *= t->dims[i];
    return elements;
}

// Element i of every tensor is i modulo 64, which all types hold.
static void add_elements(GgufWriter *writer, const GgufTensor *t) {
    int64_t elements = elements_of(t), bytes = ggml_type_bytes(t->type, elements);
    float *values = malloc((size_t)elements * sizeof *values);
    char *stored = malloc((size_t)bytes);
    CHECK(values && stored, "no memory for %s", t->name);
    for (int64_t i = 0; i < elements; i++) values[i] = (float)(i % 64);
    CHECK(ggml_of_f32(t->type, values, elements, stored) == OK, "%s", fail_message());
    CHECK(gguf_add(writer, stored, (size_t)(bytes / 2)) == OK, "%s", fail_message());
    CHECK(gguf_add(writer, stored + bytes / 2, (size_t)(bytes - bytes / 2)) == OK, "%s", fail_message());
    free(values);
    free(stored);
}

static void compare_tensor(const Gguf *file, const GgufTensor *want) {
    const GgufTensor *t = gguf_tensor(file, want->name);
    CHECK(t && t->type == want->type && t->bytes == ggml_type_bytes(want->type, elements_of(want)),
          "another %s", want->name);
    int64_t block = ggml_type_block(t->type), last = elements_of(want) - block;
    float out[32];
    gguf_read(file, t, last, block, out);
    for (int64_t i = 0; i < block; i++) {
        float x = (float)((last + i) % 64), allowed = t->type == GGML_Q8_0 ? 0.3f : 0;
        CHECK(out[i] - x <= allowed && x - out[i] <= allowed, "%s: %g instead of %g", want->name,
              (double)out[i], (double)x);
    }
}

static void compare(const Plan *plan, const char *path) {
    Gguf *file;
    CHECK(gguf_open(&file, path) == OK, "%s", fail_message());
    CHECK(file->num_pairs >= plan->num_pairs && file->num_tensors == plan->num_tensors, "%lld tensors",
          (long long)file->num_tensors);
    for (int i = 0; i < plan->num_pairs; i++) {
        char key[32];
        int64_t value = -1;
        snprintf(key, sizeof key, "key.%d", i);
        const GgufPair *pair = gguf_find(file, key);
        CHECK(pair && pair->is_array == (plan->kinds[i] >= 4), "no %s", key);
        if (plan->kinds[i] == 0) CHECK(gguf_int(pair, &value) && value == plan->values[i], "another %s", key);
        if (plan->kinds[i] == 3)
            CHECK(gguf_string_is(pair, plan->values[i] & 1 ? "" : key), "another %s", key);
        if (pair->is_array) CHECK(pair->count == plan->values[i] % MAX_VALUES, "size of %s", key);
    }
    for (int i = 0; i < plan->num_tensors; i++) compare_tensor(file, &plan->tensors[i]);
    gguf_close(file);
}

static void write_file(const Plan *plan, const char *path) {
    GgufWriter writer;
    CHECK(gguf_create(&writer, path, &plan->metadata, plan->tensors, plan->num_tensors) == OK, "%s",
          fail_message());
    for (int i = 0; i < plan->num_tensors; i++) add_elements(&writer, &plan->tensors[i]);
    CHECK(gguf_finish(&writer) == OK, "%s", fail_message());
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    read_file(fuzz_file("input.gguf", data, size));
    if (size >= 4 && memcmp(data, "GGUF", 4) == 0) return 0;
    FuzzInput input = {data, size};
    Plan plan = {0};
    char path[320];
    for (uint64_t n = fuzz_take(&input, 1) % (MAX_PAIRS + 1); n; n--) add_pair(&plan, &input);
    for (uint64_t n = fuzz_take(&input, 1) % (MAX_TENSORS + 1); n; n--) add_tensor(&plan, &input);
    snprintf(path, sizeof path, "%s/written.gguf", fuzz_folder());
    write_file(&plan, path);
    compare(&plan, path);
    unlink(path);
    text_free(&plan.metadata.bytes);
    return 0;
}
