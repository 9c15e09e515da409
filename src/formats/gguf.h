// GGUF, version 3: llama.cpp's file of one model, little-endian. Typed metadata by key, a table of tensors,
// then their bytes, each on a multiple of the alignment.
//
// The writer streams: metadata and shapes first, then the bytes in pieces of any size. The reader checks
// everything: it verifies what was written, and files may be hostile. Source: the ggml repository's description of
// the format.
#pragma once
#include "formats/formats.h"

// ---- types of tensors -----------------------------------------------------------------------------

//  name, number in the file, elements of a block, bytes of a block
#define GGML_TYPES(X)                                                                                        \
    X(F32, 0, 1, 4)                                                                                          \
    X(F16, 1, 1, 2)                                                                                          \
    X(Q8_0, 8, 32, 34) /* an fp16 scale, then 32 signed bytes */                                             \
    X(BF16, 30, 1, 2)                                                                                        \
    /* The others are read only (gguf_blocks.c). */                                                          \
    X(Q4_0, 2, 32, 18)                                                                                       \
    X(Q4_1, 3, 32, 20)                                                                                       \
    X(Q5_0, 6, 32, 22)                                                                                       \
    X(Q5_1, 7, 32, 24)                                                                                       \
    X(Q2_K, 10, 256, 84)                                                                                     \
    X(Q3_K, 11, 256, 110)                                                                                    \
    X(Q4_K, 12, 256, 144)                                                                                    \
    X(Q5_K, 13, 256, 176)                                                                                    \
    X(Q6_K, 14, 256, 210)                                                                                    \
    X(MXFP4, 39, 32, 17) /* a power of two, then 32 codes of 4 bits */

#define X(NAME, number, elements, bytes) GGML_##NAME,
typedef enum { GGML_TYPES(X) NUM_GGML_TYPES } GgmlType;
#undef X
enum { NUM_WRITTEN_GGML_TYPES = GGML_BF16 + 1, GGML_LONGEST_BLOCK = 256 };

const char *ggml_type_name(GgmlType type);
int64_t ggml_type_block(GgmlType type); // elements of a block; a row is a whole number of blocks
int64_t ggml_type_bytes(GgmlType type, int64_t elements);
// Converts whole blocks from and to fp32. The first NUM_WRITTEN_GGML_TYPES types are written. Q8_0 rounds to 1/127 of
// the largest magnitude of a block; it fails with ERR_NUMERIC for a block whose scale does not fit fp16 (not finite, or
// above 8e6).
Status ggml_of_f32(GgmlType type, const float *from, int64_t elements, void *to);
void ggml_to_f32(GgmlType type, const void *from, int64_t elements, float *to);

// ---- writing --------------------------------------------------------------------------------------

enum { GGUF_ALIGNMENT = 32, GGUF_DIMS = 4, GGUF_LONGEST_NAME = 63 };

// Pairs of key and value for a file. Zero-initialise it; free `bytes` with text_free.
typedef struct {
    Text bytes;
    uint64_t count;
} GgufMetadata;

void gguf_set_u32(GgufMetadata *metadata, const char *key, uint32_t value);
void gguf_set_f32(GgufMetadata *metadata, const char *key, float value);
void gguf_set_bool(GgufMetadata *metadata, const char *key, bool value);
void gguf_set_string(GgufMetadata *metadata, const char *key, const char *value);
void gguf_set_u8s(GgufMetadata *metadata, const char *key, const void *values, uint64_t count);
void gguf_set_i32s(GgufMetadata *metadata, const char *key, const int32_t *values, uint64_t count);
void gguf_set_f32s(GgufMetadata *metadata, const char *key, const float *values, uint64_t count);
// Announces an array of strings. Exactly `count` calls of gguf_add_string must follow.
void gguf_begin_strings(GgufMetadata *metadata, const char *key, uint64_t count);
void gguf_add_string(GgufMetadata *metadata, const char *value, size_t size);

// A tensor. dims[0] is the fastest dimension: a matrix [rows, cols] is {cols, rows}.
typedef struct {
    char name[GGUF_LONGEST_NAME + 1];
    GgmlType type;
    int ndim;
    int64_t dims[GGUF_DIMS];
    int64_t offset, bytes; // in the file; a writer computes them
} GgufTensor;

typedef struct {
    FileWriter file;
    GgufTensor *tensors; // a copy
    int count, current;
    int64_t written; // bytes of the current tensor
} GgufWriter;

// Creates a file. Its bytes are a function of the arguments alone.
Status gguf_create(GgufWriter *writer, const char *path, const GgufMetadata *metadata,
                   const GgufTensor *tensors, int count);
// Adds the next bytes of the tensors in their order. One call adds bytes of one tensor.
Status gguf_add(GgufWriter *writer, const void *data, size_t size);
// Syncs and closes the file. Fails with ERR_BUG unless all tensors have all their bytes.
Status gguf_finish(GgufWriter *writer);
void gguf_abandon(GgufWriter *writer);

// ---- reading --------------------------------------------------------------------------------------

typedef enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_FLOAT32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_FLOAT64,
    NUM_GGUF_VALUE_TYPES
} GgufValueType;

// A piece of the file; not NUL-terminated.
typedef struct {
    const char *data;
    size_t size;
} GgufString;

typedef struct {
    GgufString key;
    GgufValueType type;     // of the elements, when it is an array
    bool is_array;          // an array of arrays is refused
    uint64_t count;         // of elements; 1: not an array
    const char *data;       // the elements in the file, unaligned
    const GgufString *text; // of strings: all elements
} GgufPair;

typedef struct {
    char *path;
    const char *map; // the whole file
    size_t size;
    GgufPair *pairs;
    int64_t num_pairs;
    GgufTensor *tensors;
    int64_t num_tensors;
    GgufString *strings; // of all pairs
    uint64_t num_strings;
} Gguf;

// Maps and checks a file. Fails with ERR_DATA, which names the byte, for everything that the format forbids, for
// features that are not supported (other versions, arrays of arrays), for two keys or tensors of one name, and for
// gaps between tensors or offsets past the end; with ERR_UNAVAILABLE, which names the tensor, for one of a type that is
// not read. Memory is bounded by a small multiple of the file's size.
Status gguf_open(Gguf **file, const char *path);
void gguf_close(Gguf *file);                                  // takes NULL
const GgufPair *gguf_find(const Gguf *file, const char *key); // NULL: absent
// Returns false when the pair is absent (NULL), of another type, or out of range.
bool gguf_int(const GgufPair *pair, int64_t *out);
bool gguf_real(const GgufPair *pair, double *out); // fp32 or fp64, finite
bool gguf_string_is(const GgufPair *pair, const char *value);
const GgufTensor *gguf_tensor(const Gguf *file, const char *name); // NULL: absent
// Reads elements [first, first + count) as fp32. They must be inside the tensor (CHECK).
void gguf_read(const Gguf *file, const GgufTensor *tensor, int64_t first, int64_t count, float *out);
