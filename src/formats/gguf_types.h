// The table of GGUF's tensor types, for its writer and its reader.
#pragma once
#include "formats/gguf.h"

enum { GGUF_VERSION = 3 };

typedef struct {
    const char *name;
    uint32_t number;
    int elements, bytes; // of a block
} GgmlTypeInfo;

extern const GgmlTypeInfo ggml_types[NUM_GGML_TYPES];

// gguf_blocks.c: one block of a quantised type. NULL: the type is not quantised.
typedef void Dequantize(const char *block, float *out);
extern Dequantize *const ggml_dequantizers[NUM_GGML_TYPES];
