// The types of tensors in GGUF, and the conversion of their blocks from and to fp32.
#include "formats/gguf_types.h"
#include "base/half.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define X(NAME, number, elements, bytes) {#NAME, number, elements, bytes},
const GgmlTypeInfo ggml_types[NUM_GGML_TYPES] = {GGML_TYPES(X)};
#undef X

const char *ggml_type_name(GgmlType type) { return ggml_types[type].name; }
int64_t ggml_type_block(GgmlType type) { return ggml_types[type].elements; }

int64_t ggml_type_bytes(GgmlType type, int64_t elements) {
    return elements / ggml_types[type].elements * ggml_types[type].bytes;
}

static FileType plain_type(GgmlType type) {
    return type == GGML_F32 ? FILE_F32 : type == GGML_F16 ? FILE_F16 : FILE_BF16;
}

enum { Q8_ELEMENTS = 32, Q8_BYTES = 34 }; // of a block

// As in ggml, the bytes are computed with the exact scale, and then the scale is rounded to fp16.
static Status quantize_block(const float *from, char *to) {
    float largest = 0;
    bool finite = true;
    for (int i = 0; i < Q8_ELEMENTS; i++) {
        finite = finite && isfinite(from[i]);
        largest = fmaxf(largest, fabsf(from[i]));
    }
    uint16_t scale = f16_of_f32(largest / 127);
    if (!finite || !isfinite(f16_to_f32(scale)))
        return fail(ERR_NUMERIC, "a block of q8_0 cannot hold %g", (double)largest);
    float inverse = largest > 0 ? 127 / largest : 0;
    memcpy(to, &scale, sizeof scale);
    for (int i = 0; i < Q8_ELEMENTS; i++) to[2 + i] = (char)(int8_t)roundf(from[i] * inverse);
    return OK;
}

Status ggml_of_f32(GgmlType type, const float *from, int64_t elements, void *to) {
    CHECK((int)type < NUM_WRITTEN_GGML_TYPES, "%s is not written", ggml_type_name(type));
    CHECK(elements % ggml_type_block(type) == 0, "%" PRId64 " elements as %s", elements,
          ggml_type_name(type));
    if (type != GGML_Q8_0) {
        file_type_of_f32(plain_type(type), from, elements, to);
        return OK;
    }
    char *block = to;
    for (int64_t i = 0; i < elements; i += Q8_ELEMENTS, block += Q8_BYTES)
        TRY(quantize_block(from + i, block));
    return OK;
}

void ggml_to_f32(GgmlType type, const void *from, int64_t elements, float *to) {
    int64_t size = ggml_type_block(type);
    CHECK(elements % size == 0, "%" PRId64 " elements of %s", elements, ggml_type_name(type));
    Dequantize *dequantize = ggml_dequantizers[type];
    if (!dequantize) {
        file_type_to_f32(plain_type(type), from, elements, to);
        return;
    }
    const char *block = from;
    for (int64_t i = 0; i < elements; i += size, block += ggml_types[type].bytes) dequantize(block, to + i);
}
