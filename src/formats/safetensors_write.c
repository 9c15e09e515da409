// Writes a safetensors file piece by piece.
#include "formats/safetensors.h"
#include <string.h>

enum { ALIGNMENT = 64 };

static void add_metadata(Text *header, const SafeMetadata *metadata, int count) {
    json_add_string(header, "__metadata__", strlen("__metadata__"));
    text_add(header, ":{");
    for (int i = 0; i < count; i++) {
        if (i) text_add(header, ",");
        json_add_string(header, metadata[i].key, strlen(metadata[i].key));
        text_add(header, ":");
        json_add_string(header, metadata[i].value, strlen(metadata[i].value));
    }
    text_add(header, "}");
}

// Writes the entry of the tensor at `offset`, and moves `offset` to its end.
static Status add_tensor(Text *header, const char *path, const SafeTensor *tensor, int64_t *offset) {
    int64_t bytes = (int64_t)file_type_bytes(tensor->type), begin = *offset;
    CHECK(tensor->ndim >= 0 && tensor->ndim <= SAFETENSORS_DIMS, "%d dimensions", tensor->ndim);
    json_add_string(header, tensor->name, strlen(tensor->name));
    text_add(header, ":{\"dtype\":\"%s\",\"shape\":[", file_type_name(tensor->type));
    for (int i = 0; i < tensor->ndim; i++) {
        text_add(header, "%s%lld", i ? "," : "", (long long)tensor->shape[i]);
        if (tensor->shape[i] < 0 || __builtin_mul_overflow(bytes, tensor->shape[i], &bytes))
            return fail(ERR_DATA, "%s: tensor \"%s\": its shape is no size", path, tensor->name);
    }
    if (__builtin_add_overflow(begin, bytes, offset))
        return fail(ERR_DATA, "%s: tensor \"%s\": the file would be too large", path, tensor->name);
    text_add(header, "],\"data_offsets\":[%lld,%lld]}", (long long)begin, (long long)*offset);
    return OK;
}

static Status make_header(Text *header, const char *path, const SafeTensor *tensors, int count,
                          const SafeMetadata *metadata, int num_metadata, int64_t *data_bytes) {
    text_add(header, "{");
    if (num_metadata) add_metadata(header, metadata, num_metadata);
    for (int i = 0; i < count; i++) {
        if (i || num_metadata) text_add(header, ",");
        TRY(add_tensor(header, path, &tensors[i], data_bytes));
    }
    text_add(header, "}");
    while ((header->size + SAFETENSORS_SIZE_BYTES) % ALIGNMENT) text_add(header, " ");
    if (header->size > SAFETENSORS_MAX_HEADER)
        return fail(ERR_DATA, "%s: a header of %zu bytes; at most %d are allowed", path, header->size,
                    SAFETENSORS_MAX_HEADER);
    return OK;
}

// Checks the header with the reader, which finds, for example, two tensors of one name.
static Status check_header(const SafetensorsWriter *writer, const Text *header, const char *path) {
    Safetensors file = {.path = (char *)path,
                        .fd = -1,
                        .file_bytes = writer->total_bytes,
                        .header_bytes = writer->header_bytes};
    Status status = safetensors_parse(&file, header->data, header->size);
    safetensors_forget(&file);
    return status;
}

static Status write_header(SafetensorsWriter *writer, const Text *header, const char *path) {
    uint8_t size[SAFETENSORS_SIZE_BYTES];
    for (int i = 0; i < SAFETENSORS_SIZE_BYTES; i++) size[i] = (uint8_t)(header->size >> 8 * i);
    TRY(check_header(writer, header, path));
    TRY(file_writer_open(&writer->file, path));
    Status status = file_writer_add(&writer->file, size, sizeof size);
    if (status == OK) status = file_writer_add(&writer->file, header->data, header->size);
    if (status != OK) file_writer_abandon(&writer->file);
    return status;
}

Status safetensors_create(SafetensorsWriter *writer, const char *path, const SafeTensor *tensors, int count,
                          const SafeMetadata *metadata, int num_metadata) {
    Text header = {0};
    int64_t data_bytes = 0;
    *writer = (SafetensorsWriter){.file.fd = -1};
    Status status = make_header(&header, path, tensors, count, metadata, num_metadata, &data_bytes);
    writer->header_bytes = SAFETENSORS_SIZE_BYTES + (int64_t)header.size;
    if (status == OK && __builtin_add_overflow(writer->header_bytes, data_bytes, &writer->total_bytes))
        status = fail(ERR_DATA, "%s: the file would be too large", path);
    if (status == OK) status = write_header(writer, &header, path);
    text_free(&header);
    return status;
}

Status safetensors_add(SafetensorsWriter *writer, const void *data, size_t size) {
    return file_writer_add(&writer->file, data, size);
}

Status safetensors_finish(SafetensorsWriter *writer) {
    if (writer->file.bytes == writer->total_bytes) return file_writer_finish(&writer->file);
    Status status = fail(ERR_BUG, "%s: %lld bytes were added to a file of %lld", writer->file.path,
                         (long long)writer->file.bytes, (long long)writer->total_bytes);
    safetensors_abandon(writer);
    return status;
}

void safetensors_abandon(SafetensorsWriter *writer) { file_writer_abandon(&writer->file); }
