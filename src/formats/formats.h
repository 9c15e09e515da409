// File formats of other programs: JSON, YAML, safetensors; GGUF is in gguf.h. Tensors are names, types, shapes and
// bytes here; checkpoint/ knows what the names mean to a model.
//
// Files from outside are hostile: sizes are compared with the file before anything is allocated, arithmetic on them
// cannot overflow, nothing may be declared twice, and a message names file and byte.
#pragma once
#include "base/file.h"
#include "base/text.h"

// ---- JSON (RFC 8259), strictly ------------------------------------------------------------------

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

// A value. Strings are unescaped UTF-8 and may contain NUL. A number is kept as text.
typedef struct Json {
    JsonType type;
    int64_t offset;           // of its first character in the text; in YAML its line, from 1
    const char *key;          // the name of a member of an object, NUL-terminated; else NULL
    size_t key_size;          // a name may contain NUL
    const char *string;       // the characters of a string or number, NUL-terminated
    size_t size;              // the number of these characters
    const struct Json *items; // elements of an array or members of an object, in the order of the text
    size_t count;
} Json;

// Parses exactly one value, at most 64 deep. Every message begins with `what`, a path. Fails with ERR_DATA, which
// names the byte, for everything that is not JSON: duplicate names, invalid UTF-8, lone surrogates, control
// characters, trailing text. Takes one block of memory: 64 bytes per value and one per byte of text.
Status json_parse(Json **root, const char *text, size_t size, const char *what);
void json_free(Json *root);                                    // takes NULL
const Json *json_member(const Json *object, const char *name); // NULL: absent, or not an object
// Each returns false when the value is absent (NULL), of another type, or out of range.
bool json_int(const Json *value, int64_t *out);
bool json_double(const Json *value, double *out);
bool json_flag(const Json *value, bool *out);
const char *json_string(const Json *value); // NULL: absent, not a string, or one that contains a NUL
// Appends a string with quotes and escapes. Invalid UTF-8 becomes U+FFFD.
void json_add_string(Text *out, const char *string, size_t size);
// Appends the shortest decimal that reads back as the same double. A number that is not finite becomes null.
void json_add_double(Text *out, double value);

// ---- YAML 1.1, the part that JSON has -----------------------------------------------------------------------

// Parses one document into a tree as json_parse does; json_free frees it, and `offset` is a line. A plain scalar
// that is a number in JSON is a number; true, false, null, ~ and the empty scalar have their values; all other
// scalars, and quoted ones, are strings. A text without a document is null. Fails with ERR_DATA, which names `what`
// and the line, for invalid YAML and for features that JSON lacks: anchors, aliases, tags, names that are not
// scalars, several documents; also for duplicate names, values more than 64 deep, and mappings of more than 1000
// names.
Status yaml_parse(Json **root, const char *text, size_t size, const char *what);

// ---- types of tensors in files ------------------------------------------------------------------

//  name, name in safetensors, bytes of an element
#define FILE_TYPES(X)                                                                                        \
    X(BOOL, "BOOL", 1)                                                                                       \
    X(U8, "U8", 1)                                                                                           \
    X(I8, "I8", 1)                                                                                           \
    X(F8_E5M2, "F8_E5M2", 1)                                                                                 \
    X(F8_E4M3, "F8_E4M3", 1)                                                                                 \
    X(I16, "I16", 2)                                                                                         \
    X(U16, "U16", 2)                                                                                         \
    X(F16, "F16", 2)                                                                                         \
    X(BF16, "BF16", 2)                                                                                       \
    X(I32, "I32", 4)                                                                                         \
    X(U32, "U32", 4)                                                                                         \
    X(F32, "F32", 4)                                                                                         \
    X(F64, "F64", 8)                                                                                         \
    X(I64, "I64", 8)                                                                                         \
    X(U64, "U64", 8)

#define X(NAME, name, bytes) FILE_##NAME,
typedef enum { FILE_TYPES(X) NUM_FILE_TYPES } FileType;
#undef X

size_t file_type_bytes(FileType type);
const char *file_type_name(FileType type); // "BF16"
// True for floating point of 16 or 32 bits.
bool file_type_is_float(FileType type);
// Converts elements of F32, BF16 or F16 to and from fp32, rounded to nearest even. Other types are a CHECK.
void file_type_to_f32(FileType type, const void *from, int64_t count, float *to);
void file_type_of_f32(FileType type, const float *from, int64_t count, void *to);

// ---- safetensors --------------------------------------------------------------------------------

// A file is the size of the header in 8 bytes, the header as JSON, and the tensors without gaps.
// Source: the safetensors repository's description of its format.

enum { SAFETENSORS_DIMS = 8 };

typedef struct {
    const char *name;
    FileType type;
    int ndim;
    int64_t shape[SAFETENSORS_DIMS];
    int64_t offset, bytes; // in the file; a writer ignores them
} SafeTensor;

typedef struct {
    const char *key, *value;
} SafeMetadata;

typedef struct {
    char *path;
    int fd;
    int64_t file_bytes;
    int64_t header_bytes;      // with the first 8: the tensors begin there
    const SafeTensor *tensors; // in the order of their offsets
    int count;
    const SafeMetadata *metadata;
    int num_metadata;
    void *index, *memory; // private to the reader
} Safetensors;

// Opens a file. Fails with ERR_DATA for everything that the format forbids: a header of more than 100 MB or larger
// than the file, unknown types, shapes that overflow or do not fit their bytes, overlaps, gaps, bytes after the
// last tensor.
Status safetensors_open(Safetensors **file, const char *path);
void safetensors_close(Safetensors *file);                                     // takes NULL
const SafeTensor *safetensors_find(const Safetensors *file, const char *name); // NULL: absent
const char *safetensors_metadata(const Safetensors *file, const char *key);    // NULL: absent
// Reads elements [first, first + count) of a tensor as they are stored. Any number of threads may read.
Status safetensors_read(const Safetensors *file, const SafeTensor *tensor, int64_t first, int64_t count,
                        void *out);
// The same, converted to fp32. Fails with ERR_DATA for a tensor that is not F32, BF16 or F16.
Status safetensors_read_f32(const Safetensors *file, const SafeTensor *tensor, int64_t first, int64_t count,
                            float *out);

// Writes a file tensor by tensor in pieces of any size, so that it may be larger than memory. The bytes are a
// function of the arguments alone.
typedef struct {
    FileWriter file;
    int64_t header_bytes, total_bytes; // of the header with its first 8 bytes; of the whole file
} SafetensorsWriter;

// Tensors are written in the order given; two of one name fail with ERR_DATA. A tensor starts at a multiple of 64
// bytes in the file where the sizes of those before allow it; the header is padded to such a multiple.
Status safetensors_create(SafetensorsWriter *writer, const char *path, const SafeTensor *tensors, int count,
                          const SafeMetadata *metadata, int num_metadata);
Status safetensors_add(SafetensorsWriter *writer, const void *data, size_t size);
// Syncs and closes the file. Fails with ERR_BUG unless exactly the announced bytes have been added.
Status safetensors_finish(SafetensorsWriter *writer);
void safetensors_abandon(SafetensorsWriter *writer);
