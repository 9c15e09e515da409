// Opens a safetensors file, checks its header, and reads its tensors.
#include "formats/safetensors.h"
#include "base/calls.h"
#include "base/file.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- the header ---------------------------------------------------------------------------------

static Status wrong(const Safetensors *file, const SafeTensor *tensor, const char *why) {
    return fail(ERR_DATA, "%s: header: tensor \"%.80s\": %s", file->path, tensor->name, why);
}

static bool find_type(const char *name, FileType *type) {
    for (int i = 0; name && i < NUM_FILE_TYPES; i++)
        if (strcmp(name, file_type_name((FileType)i)) == 0) {
            *type = (FileType)i;
            return true;
        }
    return false;
}

// Reads the shape and computes the bytes of the tensor.
static Status parse_shape(const Safetensors *file, const Json *shape, SafeTensor *tensor) {
    if (!shape || shape->type != JSON_ARRAY) return wrong(file, tensor, "\"shape\" is to be an array");
    if (shape->count > SAFETENSORS_DIMS) return wrong(file, tensor, "more than 8 dimensions");
    tensor->ndim = (int)shape->count;
    tensor->bytes = (int64_t)file_type_bytes(tensor->type);
    for (int i = 0; i < tensor->ndim; i++) {
        if (!json_int(&shape->items[i], &tensor->shape[i]) || tensor->shape[i] < 0)
            return wrong(file, tensor, "a dimension that is no size");
        if (__builtin_mul_overflow(tensor->bytes, tensor->shape[i], &tensor->bytes))
            return wrong(file, tensor, "a shape of more than 2^63 bytes");
    }
    return OK;
}

static Status parse_offsets(const Safetensors *file, const Json *offsets, SafeTensor *tensor) {
    int64_t begin, end;
    if (!offsets || offsets->type != JSON_ARRAY || offsets->count != 2 ||
        !json_int(&offsets->items[0], &begin) || !json_int(&offsets->items[1], &end))
        return wrong(file, tensor, "\"data_offsets\" are to be two integers");
    if (begin < 0 || end < begin) return wrong(file, tensor, "its data are not within the file");
    if (end > file->file_bytes - file->header_bytes)
        return wrong(file, tensor,
                     "its data end behind the end of the file, which is cut, as by a download that did not "
                     "end: download it again");
    if (end - begin != tensor->bytes) return wrong(file, tensor, "its shape and type do not fit its data");
    tensor->offset = file->header_bytes + begin;
    return OK;
}

static Status parse_tensor(const Safetensors *file, const Json *json, SafeTensor *tensor) {
    *tensor = (SafeTensor){.name = json->key};
    if (strlen(json->key) != json->key_size) return wrong(file, tensor, "a name with a NUL inside");
    if (json->type != JSON_OBJECT) return wrong(file, tensor, "an object is expected");
    if (!find_type(json_string(json_member(json, "dtype")), &tensor->type))
        return wrong(file, tensor, "\"dtype\" is none that is known");
    TRY(parse_shape(file, json_member(json, "shape"), tensor));
    return parse_offsets(file, json_member(json, "data_offsets"), tensor);
}

static Status parse_metadata(Safetensors *file, const Json *json) {
    if (json->type != JSON_OBJECT)
        return fail(ERR_DATA, "%s: header: \"__metadata__\" is no object", file->path);
    SafeMetadata *metadata = calloc(json->count + 1, sizeof *metadata);
    if (!metadata) return fail(ERR_OS, "%s: no memory for its metadata", file->path);
    file->metadata = metadata;
    file->num_metadata = (int)json->count;
    for (size_t i = 0; i < json->count; i++) {
        const Json *value = &json->items[i];
        metadata[i] = (SafeMetadata){value->key, json_string(value)};
        if (!metadata[i].value || strlen(value->key) != value->key_size)
            return fail(ERR_DATA, "%s: header: metadata \"%.80s\": text without NUL is expected", file->path,
                        value->key);
    }
    return OK;
}

// An empty tensor comes before the tensor that begins at the same place.
static int by_offset(const void *a, const void *b) {
    const SafeTensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const SafeTensor *const *)a)->name, (*(const SafeTensor *const *)b)->name);
}

static Status check_holes(const Safetensors *file) {
    int64_t end = file->header_bytes;
    for (int i = 0; i < file->count; i++) {
        const SafeTensor *tensor = &file->tensors[i];
        if (tensor->offset < end) return wrong(file, tensor, "its data overlap those of another");
        if (tensor->offset > end) return wrong(file, tensor, "bytes of no tensor stand before its data");
        end += tensor->bytes;
    }
    if (end == file->file_bytes) return OK;
    return fail(ERR_DATA, "%s: byte %lld: the tensors end here, the file has %lld bytes", file->path,
                (long long)end, (long long)file->file_bytes);
}

static Status parse_members(Safetensors *file, const Json *root) {
    SafeTensor *tensors = malloc((root->count + 1) * sizeof *tensors);
    const SafeTensor **index = malloc((root->count + 1) * sizeof *index);
    file->tensors = tensors;
    file->index = index;
    if (!tensors || !index) return fail(ERR_OS, "%s: no memory for its %zu tensors", file->path, root->count);
    const Json *metadata = json_member(root, "__metadata__");
    for (size_t i = 0; i < root->count; i++) {
        const Json *member = &root->items[i];
        if (member == metadata)
            TRY(parse_metadata(file, member));
        else
            TRY(parse_tensor(file, member, &tensors[file->count++]));
    }
    qsort(tensors, (size_t)file->count, sizeof *tensors, by_offset);
    for (int i = 0; i < file->count; i++) index[i] = &tensors[i];
    qsort(index, (size_t)file->count, sizeof *index, by_name);
    return check_holes(file);
}

Status safetensors_parse(Safetensors *file, const char *header, size_t size) {
    Text what = {0};
    Json *root;
    text_add(&what, "%s: header", file->path);
    Status status = json_parse(&root, header, size, text_string(&what));
    text_free(&what);
    TRY(status);
    file->memory = root;
    if (root->type != JSON_OBJECT || root->offset > 0)
        return fail(ERR_DATA, "%s: header: byte 0: '{' is expected", file->path);
    return parse_members(file, root);
}

void safetensors_forget(Safetensors *file) {
    json_free(file->memory);
    free(file->index);
    free((void *)file->tensors);
    free((void *)file->metadata);
}

// ---- opening ------------------------------------------------------------------------------------

static Status read_size(Safetensors *file, size_t *size) {
    uint8_t bytes[SAFETENSORS_SIZE_BYTES];
    uint64_t header = 0;
    if (file->file_bytes < SAFETENSORS_SIZE_BYTES)
        return fail(ERR_DATA, "%s: %lld bytes are no safetensors file", file->path,
                    (long long)file->file_bytes);
    TRY(file_read_at(file->fd, file->path, 0, bytes, sizeof bytes));
    for (int i = SAFETENSORS_SIZE_BYTES - 1; i >= 0; i--) header = header << 8 | bytes[i];
    if (header > SAFETENSORS_MAX_HEADER || (int64_t)header > file->file_bytes - SAFETENSORS_SIZE_BYTES)
        return fail(
            ERR_DATA,
            "%s: byte 0: a header of %llu bytes; at most %d are allowed, and the file has %lld: it is "
            "no safetensors file, or cut, as by a download that did not end",
            file->path, (unsigned long long)header, SAFETENSORS_MAX_HEADER, (long long)file->file_bytes);
    *size = (size_t)header;
    file->header_bytes = SAFETENSORS_SIZE_BYTES + (int64_t)header;
    return OK;
}

static Status read_header(Safetensors *file) {
    size_t size = 0;
    TRY(file_open_regular(file->path, &file->fd, &file->file_bytes));
    TRY(read_size(file, &size));
    char *header = malloc(size + 1);
    if (!header) return fail(ERR_OS, "%s: no memory for its header", file->path);
    Status status = file_read_at(file->fd, file->path, SAFETENSORS_SIZE_BYTES, header, size);
    if (status == OK) status = safetensors_parse(file, header, size);
    free(header);
    return status;
}

Status safetensors_open(Safetensors **file, const char *path) {
    *file = NULL;
    Safetensors *opened = calloc(1, sizeof *opened);
    char *name = strdup(path);
    if (!opened || !name) {
        free(opened);
        free(name);
        return fail(ERR_OS, "%s: no memory to open it", path);
    }
    *opened = (Safetensors){.path = name, .fd = -1};
    Status status = read_header(opened);
    if (status == OK)
        *file = opened;
    else
        safetensors_close(opened);
    return status;
}

void safetensors_close(Safetensors *file) {
    if (!file) return;
    if (file->fd >= 0) call_close(file->fd);
    safetensors_forget(file);
    free(file->path);
    free(file);
}

// ---- reading ------------------------------------------------------------------------------------

const SafeTensor *safetensors_find(const Safetensors *file, const char *name) {
    const SafeTensor key = {.name = name}, *wanted = &key;
    const SafeTensor **found = bsearch(&wanted, file->index, (size_t)file->count, sizeof wanted, by_name);
    return found ? *found : NULL;
}

const char *safetensors_metadata(const Safetensors *file, const char *key) {
    for (int i = 0; i < file->num_metadata; i++)
        if (strcmp(file->metadata[i].key, key) == 0) return file->metadata[i].value;
    return NULL;
}

Status safetensors_read(const Safetensors *file, const SafeTensor *tensor, int64_t first, int64_t count,
                        void *out) {
    int64_t size = (int64_t)file_type_bytes(tensor->type), elements = tensor->bytes / size;
    CHECK(first >= 0 && count >= 0 && count <= elements && first <= elements - count,
          "elements [%lld, %lld + %lld) of %s", (long long)first, (long long)first, (long long)count,
          tensor->name);
    return file_read_at(file->fd, file->path, tensor->offset + first * size, out, (size_t)(count * size));
}

Status safetensors_read_f32(const Safetensors *file, const SafeTensor *tensor, int64_t first, int64_t count,
                            float *out) {
    enum { PIECE = 16384 }; // elements
    uint16_t half[PIECE];
    if (!file_type_is_float(tensor->type))
        return fail(ERR_DATA, "%s: tensor \"%s\" is of %s; F32, BF16 or F16 are expected", file->path,
                    tensor->name, file_type_name(tensor->type));
    if (tensor->type == FILE_F32) return safetensors_read(file, tensor, first, count, out);
    for (int64_t done = 0; done < count; done += PIECE) {
        int64_t n = count - done < PIECE ? count - done : PIECE;
        TRY(safetensors_read(file, tensor, first + done, n, half));
        file_type_to_f32(tensor->type, half, n, out + done);
    }
    return OK;
}
