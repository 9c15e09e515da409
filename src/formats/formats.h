// File formats of others, as files: JSON, YAML, safetensors, GGUF. They know tensors as names, types, shapes
// and bytes; what the names mean to a model is told elsewhere.
//
// Files from outside are hostile: sizes are checked against the file before anything is allocated, arithmetic
// on them cannot overflow, nothing is declared twice, and a message names file and byte.
#pragma once
#include "base/file.h"
#include "base/text.h"

// ---- JSON (RFC 8259), strictly ------------------------------------------------------------------

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

// A value. Strings are unescaped UTF-8 and may contain NUL; a number is kept as it is written.
typedef struct Json {
    JsonType type;
    int64_t offset;           // of its first character in the text; from YAML: its line, from 1
    const char *key;          // as a member of an object: its name, NUL-terminated; else NULL
    size_t key_size;          // a name may contain NUL
    const char *string;       // of a string or a number: its characters, NUL-terminated
    size_t size;              // how many
    const struct Json *items; // of an array or object: elements or members, in the order of the text
    size_t count;
} Json;

// Parses exactly one value, at most 64 deep; `what` (a path) begins every message. ERR_DATA with the byte for
// everything that is not JSON: duplicate names, invalid UTF-8, lone surrogates, control characters, trailing
// text. Memory: one block, 64 bytes per value and one per byte of text.
Status json_parse(Json **root, const char *text, size_t size, const char *what);
void json_free(Json *root);                                    // takes NULL
const Json *json_member(const Json *object, const char *name); // NULL: absent, or no object
// False when the value is absent (NULL), of another type, or out of range.
bool json_int(const Json *value, int64_t *out);
bool json_double(const Json *value, double *out);
bool json_flag(const Json *value, bool *out);
const char *json_string(const Json *value); // NULL: absent, no string, or one with a NUL inside
// Appends a string with quotes and escapes; bytes that are no UTF-8 become U+FFFD.
void json_add_string(Text *out, const char *string, size_t size);
// The shortest decimal that reads back as the same double; one that is not finite becomes null.
void json_add_double(Text *out, double value);

// ---- YAML 1.1, a part of it -----------------------------------------------------------------------

// Parses one document into the tree that json_parse makes, freed by json_free; `offset` is a line. Plain
// scalars that JSON would take for numbers are numbers; true, false, null, ~ and nothing at all are what they
// say; every other scalar is a string, and so is whatever is quoted. Without a document: null.
// ERR_DATA with file (`what`) and line for what is no YAML, and for what YAML has beyond JSON: anchors,
// aliases, tags, names that are no scalars, further documents; also for duplicate names, values more than 64
// deep, mappings of more than 1000 names.
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
// False for types that are no floating point of 16 or 32 bits.
bool file_type_is_float(FileType type);
// Elements of F32, BF16 or F16 to and from fp32 (rounded to nearest even). CHECKs the type.
void file_type_to_f32(FileType type, const void *from, int64_t count, float *to);
void file_type_of_f32(FileType type, const float *from, int64_t count, void *to);

// ---- safetensors --------------------------------------------------------------------------------

// 8 bytes: size of the header; the header, JSON; then the tensors without holes.
// Source: the safetensors repository's description of its format.

enum { SAFETENSORS_DIMS = 8 };

typedef struct {
    const char *name;
    FileType type;
    int ndim;
    int64_t shape[SAFETENSORS_DIMS];
    int64_t offset, bytes; // in the file; where a writer is given one: of no meaning
} SafeTensor;

typedef struct {
    const char *key, *value;
} SafeMetadata;

typedef struct {
    char *path;
    int fd;
    int64_t file_bytes;
    int64_t header_bytes;      // the first 8 included: where the tensors begin
    const SafeTensor *tensors; // in the order of their offsets
    int count;
    const SafeMetadata *metadata;
    int num_metadata;
    void *index, *memory; // the reader's own
} Safetensors;

// ERR_DATA for everything that the format forbids: a header beyond 100 MB or the file, unknown types, shapes
// that overflow or do not fit their bytes, overlaps, holes, bytes behind the last tensor.
Status safetensors_open(Safetensors **file, const char *path);
void safetensors_close(Safetensors *file);                                     // takes NULL
const SafeTensor *safetensors_find(const Safetensors *file, const char *name); // NULL: absent
const char *safetensors_metadata(const Safetensors *file, const char *key);    // NULL: absent
// Elements [first, first + count) of a tensor, as they are stored. Any number of threads may read.
Status safetensors_read(const Safetensors *file, const SafeTensor *tensor, int64_t first, int64_t count,
                        void *out);
// The same in fp32: ERR_DATA for a tensor that is not F32, BF16 or F16.
Status safetensors_read_f32(const Safetensors *file, const SafeTensor *tensor, int64_t first, int64_t count,
                            float *out);

// Writes a file tensor by tensor, in pieces of any size, so that one larger than memory can be written. The
// bytes are a function of the arguments alone.
typedef struct {
    FileWriter file;
    int64_t header_bytes, total_bytes; // of the header with its first 8; of the whole file
} SafetensorsWriter;

// Tensors are laid out in the order given; ERR_DATA for two of one name. Tensors start on a multiple of 64
// bytes in the file when the sizes of those before allow it (the header is padded to one).
Status safetensors_create(SafetensorsWriter *writer, const char *path, const SafeTensor *tensors, int count,
                          const SafeMetadata *metadata, int num_metadata);
Status safetensors_add(SafetensorsWriter *writer, const void *data, size_t size);
// ERR_BUG when not exactly the announced bytes have been added. Synced and closed.
Status safetensors_finish(SafetensorsWriter *writer);
void safetensors_abandon(SafetensorsWriter *writer);
