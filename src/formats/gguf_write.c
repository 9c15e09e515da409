// Writes a GGUF file: metadata, the table of tensors, and their bytes in pieces.
#include "formats/gguf_types.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- metadata -----------------------------------------------------------------------------------------

static void add_u32(Text *out, uint32_t value) { text_add_bytes(out, &value, sizeof value); }
static void add_u64(Text *out, uint64_t value) { text_add_bytes(out, &value, sizeof value); }

static void add_string(Text *out, const char *string, size_t size) {
    add_u64(out, size);
    text_add_bytes(out, string, size);
}

static void begin_pair(GgufMetadata *metadata, const char *key, GgufValueType type) {
    metadata->count++;
    add_string(&metadata->bytes, key, strlen(key));
    add_u32(&metadata->bytes, type);
}

static void begin_array(GgufMetadata *metadata, const char *key, GgufValueType type, uint64_t count) {
    begin_pair(metadata, key, GGUF_ARRAY);
    add_u32(&metadata->bytes, type);
    add_u64(&metadata->bytes, count);
}

void gguf_set_u32(GgufMetadata *metadata, const char *key, uint32_t value) {
    begin_pair(metadata, key, GGUF_U32);
    add_u32(&metadata->bytes, value);
}

void gguf_set_f32(GgufMetadata *metadata, const char *key, float value) {
    begin_pair(metadata, key, GGUF_FLOAT32);
    text_add_bytes(&metadata->bytes, &value, sizeof value);
}

void gguf_set_bool(GgufMetadata *metadata, const char *key, bool value) {
    begin_pair(metadata, key, GGUF_BOOL);
    text_add_bytes(&metadata->bytes, &(char){value}, 1);
}

void gguf_set_string(GgufMetadata *metadata, const char *key, const char *value) {
    begin_pair(metadata, key, GGUF_STRING);
    add_string(&metadata->bytes, value, strlen(value));
}

void gguf_set_u8s(GgufMetadata *metadata, const char *key, const void *values, uint64_t count) {
    begin_array(metadata, key, GGUF_U8, count);
    text_add_bytes(&metadata->bytes, values, count);
}

void gguf_set_i32s(GgufMetadata *metadata, const char *key, const int32_t *values, uint64_t count) {
    begin_array(metadata, key, GGUF_I32, count);
    text_add_bytes(&metadata->bytes, values, count * sizeof *values);
}

void gguf_set_f32s(GgufMetadata *metadata, const char *key, const float *values, uint64_t count) {
    begin_array(metadata, key, GGUF_FLOAT32, count);
    text_add_bytes(&metadata->bytes, values, count * sizeof *values);
}

void gguf_begin_strings(GgufMetadata *metadata, const char *key, uint64_t count) {
    begin_array(metadata, key, GGUF_STRING, count);
}

void gguf_add_string(GgufMetadata *metadata, const char *value, size_t size) {
    add_string(&metadata->bytes, value, size);
}

// ---- the file -------------------------------------------------------------------------------------------

static int64_t aligned(int64_t n) { return (n + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT; }

static void describe(Text *head, GgufTensor *tensor, int64_t offset) {
    int64_t elements = 1;
    add_string(head, tensor->name, strlen(tensor->name));
    add_u32(head, (uint32_t)tensor->ndim);
    for (int d = 0; d < tensor->ndim; d++) {
        add_u64(head, (uint64_t)tensor->dims[d]);
        elements *= tensor->dims[d];
    }
    CHECK(tensor->dims[0] % ggml_type_block(tensor->type) == 0, "%s: rows of %" PRId64 " as %s", tensor->name,
          tensor->dims[0], ggml_type_name(tensor->type));
    add_u32(head, ggml_types[tensor->type].number);
    add_u64(head, (uint64_t)offset);
    tensor->bytes = ggml_type_bytes(tensor->type, elements);
}

static Status pad(GgufWriter *writer) {
    static const char zeros[GGUF_ALIGNMENT];
    int64_t bytes = writer->file.bytes;
    return file_writer_add(&writer->file, zeros, (size_t)(aligned(bytes) - bytes));
}

Status gguf_create(GgufWriter *writer, const char *path, const GgufMetadata *metadata,
                   const GgufTensor *tensors, int count) {
    *writer = (GgufWriter){.count = count};
    TRY(file_writer_open(&writer->file, path));
    writer->tensors = malloc(((size_t)count + 1) * sizeof *tensors);
    CHECK(writer->tensors, "no memory for %d tensors", count);
    memcpy(writer->tensors, tensors, (size_t)count * sizeof *tensors);
    Text head = {0};
    text_add_bytes(&head, "GGUF", 4);
    add_u32(&head, GGUF_VERSION);
    add_u64(&head, (uint64_t)count);
    add_u64(&head, metadata->count);
    text_add_bytes(&head, text_string(&metadata->bytes), metadata->bytes.size);
    int64_t offset = 0;
    for (int i = 0; i < count; i++) {
        describe(&head, &writer->tensors[i], offset);
        offset += aligned(writer->tensors[i].bytes);
    }
    Status status = file_writer_add(&writer->file, head.data, head.size);
    text_free(&head);
    if (status == OK) status = pad(writer);
    if (status != OK) gguf_abandon(writer);
    return status;
}

Status gguf_add(GgufWriter *writer, const void *data, size_t size) {
    CHECK(writer->current < writer->count, "more bytes than the %d tensors have", writer->count);
    const GgufTensor *tensor = &writer->tensors[writer->current];
    CHECK((int64_t)size <= tensor->bytes - writer->written, "%s has %" PRId64 " bytes", tensor->name,
          tensor->bytes);
    TRY(file_writer_add(&writer->file, data, size));
    writer->written += (int64_t)size;
    if (writer->written < tensor->bytes) return OK;
    writer->current++;
    writer->written = 0;
    return pad(writer);
}

Status gguf_finish(GgufWriter *writer) {
    bool complete = writer->current == writer->count;
    if (!complete) {
        Status status = fail(ERR_BUG, "%s: tensor %s is not complete", writer->file.path,
                             writer->tensors[writer->current].name);
        gguf_abandon(writer);
        return status;
    }
    free(writer->tensors);
    writer->tensors = NULL;
    return file_writer_finish(&writer->file);
}

void gguf_abandon(GgufWriter *writer) {
    free(writer->tensors);
    writer->tensors = NULL;
    file_writer_abandon(&writer->file);
}
