// The types of tensors in files, and the conversion of 16-bit floats from and to fp32.
#include "base/half.h"
#include "formats/formats.h"
#include <string.h>

#define X(NAME, name, bytes) {name, bytes},
static const struct {
    const char *name;
    size_t bytes;
} types[NUM_FILE_TYPES] = {FILE_TYPES(X)};
#undef X

size_t file_type_bytes(FileType type) { return types[type].bytes; }
const char *file_type_name(FileType type) { return types[type].name; }
bool file_type_is_float(FileType type) { return type == FILE_F32 || type == FILE_BF16 || type == FILE_F16; }

void file_type_to_f32(FileType type, const void *from, int64_t count, float *to) {
    CHECK(file_type_is_float(type), "elements of %s as fp32", file_type_name(type));
    const uint16_t *half = from;
    if (type == FILE_F32) memcpy(to, from, (size_t)count * sizeof *to);
    for (int64_t i = 0; type != FILE_F32 && i < count; i++)
        to[i] = type == FILE_BF16 ? bf16_to_f32(half[i]) : f16_to_f32(half[i]);
}

void file_type_of_f32(FileType type, const float *from, int64_t count, void *to) {
    CHECK(file_type_is_float(type), "fp32 as elements of %s", file_type_name(type));
    uint16_t *half = to;
    if (type == FILE_F32) memcpy(to, from, (size_t)count * sizeof *from);
    for (int64_t i = 0; type != FILE_F32 && i < count; i++)
        half[i] = type == FILE_BF16 ? bf16_of_f32(from[i]) : f16_of_f32(from[i]);
}
