// A safetensors file. An input that begins with '{' is a header alone: its last two bytes say how many bytes
// of tensors follow it, and the size before it is right. Any other input is a whole file.
// Law: what opens can be read, and written again as a file of the same tensors.
#include "formats/formats.h"
#include "fuzz.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *write_input(const uint8_t *data, size_t size) {
    if (size < 3 || data[0] != '{') return fuzz_file("input", data, size);
    static const char ZEROS[1 << 16];
    FuzzInput tail = {data + size - 2, 2};
    size_t bytes = fuzz_take(&tail, 2);
    Text file = {0};
    for (int i = 0; i < 8; i++) text_add_bytes(&file, &(uint8_t){(uint8_t)((size - 2) >> 8 * i)}, 1);
    text_add_bytes(&file, data, size - 2);
    text_add_bytes(&file, ZEROS, bytes);
    const char *path = fuzz_file("input", file.data, file.size);
    text_free(&file);
    return path;
}

static void write_again(const Safetensors *file, const char *path) {
    SafetensorsWriter writer;
    CHECK(safetensors_create(&writer, path, file->tensors, file->count, file->metadata, file->num_metadata) ==
              OK,
          "%s", fail_message());
    for (int i = 0; i < file->count; i++) {
        const SafeTensor *t = &file->tensors[i];
        char *bytes = malloc((size_t)t->bytes + 1);
        CHECK(bytes && safetensors_find(file, t->name) == t, "%s is not found", t->name);
        int64_t elements = t->bytes / (int64_t)file_type_bytes(t->type);
        CHECK(safetensors_read(file, t, 0, elements, bytes) == OK, "%s", fail_message());
        CHECK(safetensors_add(&writer, bytes, (size_t)t->bytes) == OK, "%s", fail_message());
        free(bytes);
    }
    CHECK(safetensors_finish(&writer) == OK, "%s", fail_message());
}

static void compare(const Safetensors *a, const Safetensors *b) {
    CHECK(a->count == b->count && a->num_metadata == b->num_metadata, "%d and %d tensors", a->count,
          b->count);
    CHECK(a->file_bytes - a->header_bytes == b->file_bytes - b->header_bytes, "other bytes");
    for (int i = 0; i < a->count; i++) {
        const SafeTensor *x = &a->tensors[i], *y = safetensors_find(b, x->name);
        CHECK(y && x->type == y->type && x->ndim == y->ndim && x->bytes == y->bytes, "another %s", x->name);
        CHECK(x->offset - a->header_bytes == y->offset - b->header_bytes, "%s moved", x->name);
        CHECK(memcmp(x->shape, y->shape, sizeof x->shape) == 0, "another shape of %s", x->name);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Safetensors *file, *again;
    Status status = safetensors_open(&file, write_input(data, size));
    if (status != OK) {
        CHECK(status == ERR_DATA && !file, "status %d: %s", (int)status, fail_message());
        return 0;
    }
    char path[320];
    snprintf(path, sizeof path, "%s/again", fuzz_folder());
    write_again(file, path);
    CHECK(safetensors_open(&again, path) == OK, "%s", fail_message());
    compare(file, again);
    safetensors_close(file);
    safetensors_close(again);
    unlink(path);
    return 0;
}
