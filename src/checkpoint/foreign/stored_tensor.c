// Finds, checks and reads tensors of Hugging Face folders, in MXFP4 too. Source: OCP Microscaling Formats (MX) 1.0,
// section 5.3; what lies where is GPT-OSS's.
#include "checkpoint/foreign/stored_tensor.h"
#include "base/blocks.h"
#include <inttypes.h>
#include <string.h>

enum { BLOCK = 32, BLOCK_BYTES = BLOCK / 2 };

// ---- finding ------------------------------------------------------------------------------------------------

static const SafeTensor *find(Safetensors *const *files, int num_files, const char *name, const char *ending,
                              const Safetensors **file) {
    char whole[128];
    snprintf(whole, sizeof whole, "%s%s", name, ending);
    for (int i = 0; i < num_files; i++) {
        const SafeTensor *tensor = safetensors_find(*file = files[i], whole);
        if (tensor) return tensor;
    }
    *file = NULL;
    return NULL;
}

StoredTensor stored_tensor_find(Safetensors *const *files, int num_files, const char *name) {
    StoredTensor t = {0};
    t.tensor = find(files, num_files, name, "", &t.file);
    if (t.tensor) return t;
    t.tensor = find(files, num_files, name, "_blocks", &t.file);
    t.scales = find(files, num_files, name, "_scales", &t.scales_file);
    return t;
}

// ---- checking -----------------------------------------------------------------------------------------------

static Status check_shape(const Safetensors *file, const SafeTensor *t, const int64_t *shape, int ndim) {
    if (t->ndim == ndim && !memcmp(t->shape, shape, (size_t)ndim * sizeof *shape)) return OK;
    Text wanted = {0};
    for (int i = 0; i < ndim; i++) text_add(&wanted, "%s%" PRId64, i ? ", " : "", shape[i]);
    Status status = fail(ERR_DATA, "%s: tensor %s is not [%s]", file->path, t->name, text_string(&wanted));
    text_free(&wanted);
    return status;
}

// One of the two tensors: [matrices, rows, blocks of a row, 16] or, of scales, without the last.
static Status check_bytes(const Safetensors *file, const SafeTensor *t, const TheirTensor *theirs,
                          bool scales) {
    int64_t shape[4], matrices = theirs->matrices ? theirs->matrices : 1;
    int ndim = 0;
    if (t->type != FILE_U8)
        return fail(ERR_DATA, "%s: tensor %s is of type %s; MXFP4 is read from bytes (U8)", file->path,
                    t->name, file_type_name(t->type));
    if (theirs->matrices) shape[ndim++] = matrices;
    shape[ndim++] = theirs->rows / matrices;
    shape[ndim++] = theirs->cols / BLOCK;
    if (!scales) shape[ndim++] = BLOCK_BYTES;
    return check_shape(file, t, shape, ndim);
}

// Refuses blocks without scales, or scales without blocks: `t` is the one that is there.
static Status alone(const Safetensors *file, const SafeTensor *t, const char *name, const char *ending) {
    return fail(ERR_DATA,
                "%s: tensor %s is there, and %s%s is missing: MXFP4 needs both. A download may have left out "
                "a file of the model",
                file->path, t->name, name, ending);
}

static Status check_packed(const StoredTensor *t, const TheirTensor *theirs) {
    if (!t->tensor) return alone(t->scales_file, t->scales, theirs->name, "_blocks");
    if (!t->scales) return alone(t->file, t->tensor, theirs->name, "_scales");
    if (theirs->is_vector || theirs->cols % BLOCK)
        return fail(ERR_DATA,
                    "%s: tensor %s: rows of %" PRId64 " elements are not stored in MXFP4, whose blocks "
                    "have %d",
                    t->file->path, t->tensor->name, theirs->is_vector ? theirs->rows : theirs->cols, BLOCK);
    TRY(check_bytes(t->file, t->tensor, theirs, false));
    return check_bytes(t->scales_file, t->scales, theirs, true);
}

// Whether it is in MXFP4, as a whole or in part.
static bool is_packed(const StoredTensor *t, const TheirTensor *theirs) {
    return t->scales || (t->tensor && strlen(t->tensor->name) > strlen(theirs->name));
}

Status stored_tensor_check(const StoredTensor *t, const TheirTensor *theirs, const char *folder) {
    if (is_packed(t, theirs)) return check_packed(t, theirs);
    if (!t->tensor) return fail(ERR_DATA, "%s: tensor %s is missing", folder, theirs->name);
    if (!file_type_is_float(t->tensor->type))
        return fail(ERR_UNAVAILABLE, "%s: tensor %s is of type %s; F32, BF16 and F16 are read", t->file->path,
                    t->tensor->name, file_type_name(t->tensor->type));
    int64_t shape[3];
    int ndim = tensor_shape(theirs, shape);
    return check_shape(t->file, t->tensor, shape, ndim);
}

// ---- reading ------------------------------------------------------------------------------------------------

bool stored_tensor_is_transposed(const StoredTensor *t, const TheirTensor *theirs) {
    return theirs->transposed && !t->scales;
}

static Status read_packed(const StoredTensor *t, int64_t first, int64_t count, float *out) {
    enum { MOST = 256 }; // blocks
    uint8_t codes[MOST * BLOCK_BYTES], scales[MOST];
    int64_t end = first + count;
    for (int64_t at = first; at < end;) {
        int64_t block = at / BLOCK, blocks = (end - 1) / BLOCK - block + 1;
        if (blocks > MOST) blocks = MOST;
        TRY(safetensors_read(t->file, t->tensor, block * BLOCK_BYTES, blocks * BLOCK_BYTES, codes));
        TRY(safetensors_read(t->scales_file, t->scales, block, blocks, scales));
        for (int64_t i = at - block * BLOCK; at < end && i < blocks * BLOCK; i++, at++)
            *out++ = e2m1_to_f32((uint8_t)(codes[i / 2] >> i % 2 * 4)) * e8m0_to_f32(scales[i / BLOCK]);
    }
    return OK;
}

Status stored_tensor_read(const StoredTensor *t, int64_t first, int64_t count, float *out) {
    if (t->scales) return read_packed(t, first, count, out);
    return safetensors_read_f32(t->file, t->tensor, first, count, out);
}
