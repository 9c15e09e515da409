// Maps a GGUF file, checks all of it, and reads its metadata and tensors.
#include "base/file.h"
#include "formats/gguf_types.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

// ---- a cursor that never passes the end -----------------------------------------------------------------

typedef struct {
    Gguf *file;
    size_t at;
    uint64_t alignment;
    uint64_t room; // capacity of file->strings
} Cursor;

#define CUT ": it is cut, as by a download that did not end: download it again"

static Status bad(const Cursor *c, const char *what) {
    return fail(ERR_DATA, "%s: byte %zu: %s", c->file->path, c->at, what);
}

static uint64_t left(const Cursor *c) { return c->file->size - c->at; }

static Status take(Cursor *c, uint64_t size, const char **data) {
    if (size > left(c)) return bad(c, "the file ends inside the header" CUT);
    *data = c->file->map + c->at;
    c->at += size;
    return OK;
}

static uint64_t aligned(const Cursor *c, uint64_t n) { return (n + c->alignment - 1) & ~(c->alignment - 1); }

static Status take_u32(Cursor *c, uint32_t *value) {
    const char *data = NULL;
    TRY(take(c, sizeof *value, &data));
    memcpy(value, data, sizeof *value);
    return OK;
}

static Status take_u64(Cursor *c, uint64_t *value) {
    const char *data = NULL;
    TRY(take(c, sizeof *value, &data));
    memcpy(value, data, sizeof *value);
    return OK;
}

static Status take_string(Cursor *c, GgufString *string) {
    uint64_t size = 0;
    TRY(take_u64(c, &size));
    string->size = size;
    return take(c, size, &string->data);
}

// ---- metadata -----------------------------------------------------------------------------------------

static const uint8_t value_bytes[NUM_GGUF_VALUE_TYPES] = {
    [GGUF_U8] = 1,      [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4,    [GGUF_I32] = 4,
    [GGUF_FLOAT32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_FLOAT64] = 8};

static Status take_type(Cursor *c, GgufValueType *type) {
    uint32_t number = 0;
    TRY(take_u32(c, &number));
    if (number >= NUM_GGUF_VALUE_TYPES) return bad(c, "no such type of value");
    *type = (GgufValueType)number;
    return OK;
}

static Status make_room(Cursor *c, uint64_t strings) {
    if (strings <= c->room) return OK;
    c->room = 2 * strings;
    GgufString *more = realloc(c->file->strings, c->room * sizeof *more);
    if (!more) return fail(ERR_OS, "%s: no memory for its strings", c->file->path);
    c->file->strings = more;
    return OK;
}

// A string takes at least 8 bytes, so the size of the file bounds the table of strings.
static Status take_strings(Cursor *c, GgufPair *pair) {
    Gguf *file = c->file;
    if (pair->count > left(c) / sizeof(uint64_t)) return bad(c, "more strings than the file has room for");
    TRY(make_room(c, file->num_strings + pair->count));
    for (uint64_t i = 0; i < pair->count; i++) TRY(take_string(c, &file->strings[file->num_strings++]));
    return OK;
}

static Status take_value(Cursor *c, GgufPair *pair) {
    pair->count = 1;
    TRY(take_type(c, &pair->type));
    if (pair->type == GGUF_ARRAY) {
        pair->is_array = true;
        TRY(take_type(c, &pair->type));
        TRY(take_u64(c, &pair->count));
    }
    if (pair->type == GGUF_ARRAY) return bad(c, "an array of arrays");
    if (pair->type == GGUF_STRING) return take_strings(c, pair);
    if (pair->count > left(c) / value_bytes[pair->type])
        return bad(c, "more values than the file has room for");
    TRY(take(c, pair->count * value_bytes[pair->type], &pair->data));
    for (uint64_t i = 0; pair->type == GGUF_BOOL && i < pair->count; i++)
        if (pair->data[i] & ~1) return bad(c, "a truth value is neither 0 nor 1");
    return OK;
}

static int compare_strings(GgufString a, GgufString b) {
    int order = memcmp(a.data, b.data, a.size < b.size ? a.size : b.size);
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

static int compare_names(const void *a, const void *b) {
    return compare_strings(*(const GgufString *)a, *(const GgufString *)b);
}

// Sorts `names`.
static Status check_different(const Cursor *c, GgufString *names, int64_t count) {
    qsort(names, (size_t)count, sizeof *names, compare_names);
    for (int64_t i = 1; i < count; i++)
        if (!compare_strings(names[i - 1], names[i]))
            return fail(ERR_DATA, "%s: '%.*s' is there twice", c->file->path,
                        (int)(names[i].size < 200 ? names[i].size : 200), names[i].data);
    return OK;
}

static void place_strings(Gguf *file) {
    const GgufString *next = file->strings;
    for (int64_t i = 0; i < file->num_pairs; i++) {
        if (file->pairs[i].type != GGUF_STRING || !file->pairs[i].count) continue;
        file->pairs[i].text = next;
        next += file->pairs[i].count;
    }
}

static Status take_pairs(Cursor *c) {
    Gguf *file = c->file;
    for (int64_t i = 0; i < file->num_pairs; i++) {
        GgufPair *pair = &file->pairs[i];
        TRY(take_string(c, &pair->key));
        if (!pair->key.size || pair->key.size > UINT16_MAX) return bad(c, "a key of no or too many bytes");
        TRY(take_value(c, pair));
    }
    place_strings(file);
    GgufString *keys = malloc(((size_t)file->num_pairs + 1) * sizeof *keys);
    CHECK(keys, "no memory for %" PRId64 " keys", file->num_pairs);
    for (int64_t i = 0; i < file->num_pairs; i++) keys[i] = file->pairs[i].key;
    Status status = check_different(c, keys, file->num_pairs);
    free(keys);
    return status;
}

// ---- tensors ------------------------------------------------------------------------------------------

static Status take_ggml_type(Cursor *c, GgufTensor *tensor) {
    uint32_t number = 0;
    TRY(take_u32(c, &number));
    for (int t = 0; t < NUM_GGML_TYPES; t++)
        if (ggml_types[t].number == number) {
            tensor->type = (GgmlType)t;
            return OK;
        }
    Text known = {0};
    for (int t = 0; t < NUM_GGML_TYPES; t++) text_add(&known, "%s%s", t ? ", " : "", ggml_types[t].name);
    Status status = fail(ERR_UNAVAILABLE,
                         "%s: tensor %s is of GGUF's type %" PRIu32 ", which is not read; these are: %s. "
                         "llama.cpp's `llama-quantize --allow-requantize FILE NEW.gguf q8_0` converts it",
                         c->file->path, tensor->name, number, text_string(&known));
    text_free(&known);
    return status;
}

static Status take_shape(Cursor *c, GgufTensor *tensor, int64_t *elements) {
    uint32_t ndim = 0;
    TRY(take_u32(c, &ndim));
    if (ndim < 1 || ndim > GGUF_DIMS) return bad(c, "a tensor has 1 to 4 dimensions");
    tensor->ndim = (int)ndim;
    *elements = 1;
    for (int d = 0; d < tensor->ndim; d++) {
        uint64_t size = 0;
        TRY(take_u64(c, &size));
        if (size < 1 || size > INT64_MAX / 4 || __builtin_mul_overflow(*elements, (int64_t)size, elements) ||
            *elements > INT64_MAX / 4)
            return bad(c, "a tensor of no elements, or of too many");
        tensor->dims[d] = (int64_t)size;
    }
    return OK;
}

// `end` is where the tensors before it end, from the start of all tensors.
static Status take_tensor(Cursor *c, GgufTensor *tensor, int64_t *end) {
    GgufString name = {0};
    int64_t elements = 0, size = (int64_t)c->file->size;
    uint64_t offset = 0;
    TRY(take_string(c, &name));
    if (!name.size || name.size > GGUF_LONGEST_NAME || memchr(name.data, 0, name.size))
        return bad(c, "a tensor's name has 1 to 63 bytes");
    memcpy(tensor->name, name.data, name.size);
    TRY(take_shape(c, tensor, &elements));
    TRY(take_ggml_type(c, tensor));
    if (tensor->dims[0] % ggml_type_block(tensor->type))
        return bad(c, "a row is no multiple of its type's block");
    TRY(take_u64(c, &offset));
    if (offset != (uint64_t)*end) return bad(c, "tensors do not follow each other");
    tensor->offset = *end;
    tensor->bytes = ggml_type_bytes(tensor->type, elements);
    // Only padding may follow the last byte, so the sum stays near the size of the file.
    if (*end > size || tensor->bytes > size - *end) return bad(c, "a tensor passes the end of the file" CUT);
    *end = (int64_t)aligned(c, (uint64_t)(*end + tensor->bytes));
    return OK;
}

static int compare_tensor_names(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static Status check_tensor_names(const Gguf *file) {
    const char **names = malloc(((size_t)file->num_tensors + 1) * sizeof *names);
    CHECK(names, "no memory for %" PRId64 " names", file->num_tensors);
    for (int64_t i = 0; i < file->num_tensors; i++) names[i] = file->tensors[i].name;
    qsort(names, (size_t)file->num_tensors, sizeof *names, compare_tensor_names);
    Status status = OK;
    for (int64_t i = 1; status == OK && i < file->num_tensors; i++)
        if (!strcmp(names[i - 1], names[i]))
            status = fail(ERR_DATA, "%s: tensor '%s' is there twice", file->path, names[i]);
    free(names);
    return status;
}

static Status take_tensors(Cursor *c) {
    Gguf *file = c->file;
    int64_t end = 0, last = 0;
    for (int64_t i = 0; i < file->num_tensors; i++) {
        TRY(take_tensor(c, &file->tensors[i], &end));
        last = file->tensors[i].offset + file->tensors[i].bytes;
    }
    TRY(check_tensor_names(file));
    uint64_t start = aligned(c, c->at), size = file->size;
    if (!file->num_tensors) start = size < start ? size : start;
    if (size < start + (uint64_t)last || size > start + (uint64_t)end)
        return fail(ERR_DATA, "%s: %zu bytes instead of %" PRIu64 "%s", file->path, file->size,
                    start + (uint64_t)end, size < start + (uint64_t)last ? CUT : "");
    for (int64_t i = 0; i < file->num_tensors; i++) file->tensors[i].offset += (int64_t)start;
    return OK;
}

// ---- the file -------------------------------------------------------------------------------------------

static Status take_alignment(Cursor *c) {
    int64_t value;
    const GgufPair *pair = gguf_find(c->file, "general.alignment");
    c->alignment = GGUF_ALIGNMENT;
    if (!pair) return OK;
    if (!gguf_int(pair, &value) || value < 8 || value > 1 << 20 || value & (value - 1))
        return fail(ERR_DATA, "%s: general.alignment is no power of two from 8 to 1048576", c->file->path);
    c->alignment = (uint64_t)value;
    return OK;
}

static Status parse(Gguf *file) {
    enum { MIN_PAIR = 8 + 1 + 4 + 1, MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8 };
    Cursor c = {.file = file};
    const char *magic = NULL;
    uint32_t version = 0;
    uint64_t tensors = 0, pairs = 0;
    TRY(take(&c, 4, &magic));
    if (memcmp(magic, "GGUF", 4)) return fail(ERR_DATA, "%s: not a GGUF file", file->path);
    TRY(take_u32(&c, &version));
    if (version != GGUF_VERSION)
        return fail(ERR_DATA,
                    "%s: version %" PRIu32
                    " of GGUF instead of %d: convert the model again with a llama.cpp of today",
                    file->path, version, GGUF_VERSION);
    TRY(take_u64(&c, &tensors));
    TRY(take_u64(&c, &pairs));
    if (tensors > left(&c) / MIN_TENSOR || pairs > left(&c) / MIN_PAIR)
        return bad(&c, "more tensors or keys than the file has room for");
    file->num_pairs = (int64_t)pairs, file->num_tensors = (int64_t)tensors;
    file->pairs = calloc(pairs + 1, sizeof *file->pairs);
    file->tensors = calloc(tensors + 1, sizeof *file->tensors);
    if (!file->pairs || !file->tensors) return fail(ERR_OS, "%s: no memory for its header", file->path);
    TRY(take_pairs(&c));
    TRY(take_alignment(&c));
    return take_tensors(&c);
}

static Status map_file(Gguf *file) {
    int fd;
    int64_t bytes;
    TRY(file_open_regular(file->path, &fd, &bytes));
    if (bytes < 4) {
        close(fd);
        return fail(ERR_DATA, "%s: not a GGUF file", file->path);
    }
    void *map = mmap(NULL, (size_t)bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return fail(ERR_OS, "%s: cannot be mapped: %s", file->path, strerror(errno));
    file->map = map;
    file->size = (size_t)bytes;
    return OK;
}

Status gguf_open(Gguf **out, const char *path) {
    Gguf *file = *out = calloc(1, sizeof *file);
    CHECK(file, "no memory for a file");
    file->path = strdup(path);
    CHECK(file->path, "no memory for a path");
    Status status = map_file(file);
    if (status == OK) status = parse(file);
    if (status != OK) {
        gguf_close(file);
        *out = NULL;
    }
    return status;
}

void gguf_close(Gguf *file) {
    if (!file) return;
    if (file->map) munmap((void *)file->map, file->size);
    free(file->strings);
    free(file->tensors);
    free(file->pairs);
    free(file->path);
    free(file);
}

const GgufPair *gguf_find(const Gguf *file, const char *key) {
    GgufString name = {key, strlen(key)};
    for (int64_t i = 0; i < file->num_pairs; i++)
        if (!compare_strings(file->pairs[i].key, name)) return &file->pairs[i];
    return NULL;
}

bool gguf_int(const GgufPair *pair, int64_t *out) {
    if (!pair || pair->is_array) return false;
    uint32_t u32;
    int32_t i32;
    uint64_t u64;
    switch (pair->type) {
    case GGUF_U32: memcpy(&u32, pair->data, sizeof u32), *out = u32; return true;
    case GGUF_I32: memcpy(&i32, pair->data, sizeof i32), *out = i32; return true;
    case GGUF_I64: memcpy(out, pair->data, sizeof *out); return true;
    case GGUF_U64: memcpy(&u64, pair->data, sizeof u64), *out = (int64_t)u64; return u64 <= INT64_MAX;
    default: return false;
    }
}

bool gguf_real(const GgufPair *pair, double *out) {
    float f32;
    if (!pair || pair->is_array) return false;
    if (pair->type == GGUF_FLOAT64) {
        memcpy(out, pair->data, sizeof *out);
        return isfinite(*out);
    }
    if (pair->type != GGUF_FLOAT32) return false;
    memcpy(&f32, pair->data, sizeof f32);
    *out = (double)f32;
    return isfinite(f32);
}

bool gguf_string_is(const GgufPair *pair, const char *value) {
    GgufString wanted = {value, strlen(value)};
    return pair && !pair->is_array && pair->type == GGUF_STRING && !compare_strings(pair->text[0], wanted);
}

const GgufTensor *gguf_tensor(const Gguf *file, const char *name) {
    for (int64_t i = 0; i < file->num_tensors; i++)
        if (!strcmp(file->tensors[i].name, name)) return &file->tensors[i];
    return NULL;
}

// One block, of which some elements are asked for.
static void read_part(const Gguf *file, const GgufTensor *t, int64_t first, int64_t count, float *out) {
    float block[GGML_LONGEST_BLOCK];
    int64_t size = ggml_type_block(t->type), skipped = first % size;
    ggml_to_f32(t->type, file->map + t->offset + ggml_type_bytes(t->type, first - skipped), size, block);
    memcpy(out, block + skipped, (size_t)count * sizeof *out);
}

void gguf_read(const Gguf *file, const GgufTensor *t, int64_t first, int64_t count, float *out) {
    int64_t size = ggml_type_block(t->type), all = t->bytes / ggml_type_bytes(t->type, size) * size;
    CHECK(first >= 0 && count >= 0 && first <= all && count <= all - first,
          "%s: elements %" PRId64 " and %" PRId64 " more", t->name, first, count);
    for (int64_t i = 0, run; i < count; i += run) {
        int64_t skipped = (first + i) % size, rest = count - i;
        run = skipped || rest < size ? size - skipped : rest / size * size;
        if (run > rest) run = rest;
        if (skipped || run < size)
            read_part(file, t, first + i, run, out + i);
        else
            ggml_to_f32(t->type, file->map + t->offset + ggml_type_bytes(t->type, first + i), run, out + i);
    }
}
