// Opens a checkpoint and reads rectangles of its tensors, with their checksums verified.
#include "base/calls.h"
#include "base/file.h"
#include "checkpoint/finite.h"
#include "checkpoint/opened.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE = 1 << 20, MAX_OPEN = 64, MAX_MANIFEST_BYTES = 1 << 30 };

// ---- opening ------------------------------------------------------------------------------------

static Status check_header(const ShardFile *want, const Safetensors *file) {
    if (file->file_bytes != want->bytes)
        return fail(ERR_DATA, "%s: %" PRId64 " bytes; the manifest says %" PRId64, file->path,
                    file->file_bytes, want->bytes);
    if (file->header_bytes != want->header_bytes)
        return fail(ERR_DATA, "%s: a header of %" PRId64 " bytes; the manifest says %" PRId64, file->path,
                    file->header_bytes, want->header_bytes);
    char *header = malloc((size_t)file->header_bytes);
    if (!header) return fail(ERR_OS, "%s: no memory for its header", file->path);
    Status status = file_read_at(file->fd, file->path, 0, header, (size_t)file->header_bytes);
    if (status == OK && hash64_of(header, (size_t)file->header_bytes) != want->header_hash)
        status = fail(ERR_DATA,
                      "%s: damaged, or of another checkpoint: its header does not have the checksum "
                      "that the manifest says",
                      file->path);
    free(header);
    return status;
}

static Status find_slice(const Safetensors *file, SliceEntry *slice) {
    char name[SLICE_NAME];
    slice_name(slice, name);
    const SafeTensor *tensor = safetensors_find(file, name);
    if (!tensor) return fail(ERR_DATA, "%s: it has no %s, as the manifest says", file->path, name);
    if (tensor->type != FILE_F32 || tensor->ndim != 2 || tensor->shape[0] != slice->rect.rows ||
        tensor->shape[1] != slice->rect.cols)
        return fail(ERR_DATA, "%s: %s is not F32 [%" PRId64 ", %" PRId64 "], as the manifest says",
                    file->path, name, slice->rect.rows, slice->rect.cols);
    slice->offset = tensor->offset;
    return OK;
}

// `slices` are those of the file.
static Status check_file(const Safetensors *file, const ShardFile *want, SliceEntry **slices, int count) {
    TRY(check_header(want, file));
    for (int i = 0; i < count; i++) TRY(find_slice(file, slices[i]));
    if (file->count == count) return OK;
    return fail(ERR_DATA, "%s: it has %d tensors, of which the manifest knows %d", file->path, file->count,
                count);
}

static int by_file(const void *a, const void *b) {
    return (*(SliceEntry *const *)a)->file - (*(SliceEntry *const *)b)->file;
}

static Status check_files(Checkpoint *c) {
    Manifest *m = &c->manifest;
    SliceEntry **slices = malloc((size_t)m->num_slices * sizeof(SliceEntry *));
    CHECK(slices, "no memory for %d slices", m->num_slices);
    for (int i = 0; i < m->num_slices; i++) slices[i] = &m->slices[i];
    qsort(slices, (size_t)m->num_slices, sizeof *slices, by_file);
    Status status = OK;
    for (int f = 0, first = 0; f < m->num_files && status == OK; f++) {
        int count = 0;
        while (first + count < m->num_slices && slices[first + count]->file == f) count++;
        char path[PATH_ROOM];
        Safetensors *file = NULL;
        status = path_join(path, c->folder, m->files[f].name);
        if (status == OK) status = safetensors_open(&file, path);
        if (status == ERR_NO_INPUT) status = fail(ERR_DATA, "%s: missing", path);
        if (status == OK) status = check_file(file, &m->files[f], slices + first, count);
        safetensors_close(file);
        first += count;
    }
    free(slices);
    return status;
}

// Compares a file with its checksum. The configuration stays in memory.
static Status check_other(Checkpoint *c, const OtherFile *want) {
    char path[PATH_ROOM], *data = NULL;
    size_t size;
    TRY(path_join(path, c->folder, want->name));
    Status status = file_read(path, (size_t)want->bytes, &data, &size);
    if (status == ERR_NO_INPUT) return fail(ERR_DATA, "%s: missing", path);
    TRY(status);
    bool same = (int64_t)size == want->bytes && hash_same(hash_of(data, size), want->hash);
    if (same && !c->config && !strcmp(want->name, "config.yaml"))
        c->config = data;
    else
        free(data);
    return same ? OK : fail(ERR_DATA, "%s: damaged: it is not what the manifest says", path);
}

static Status open_all(Checkpoint *c) {
    char path[PATH_ROOM], *text = NULL;
    size_t size;
    TRY(path_join(path, c->folder, "manifest.json"));
    TRY(file_read(path, MAX_MANIFEST_BYTES, &text, &size));
    Status status = manifest_read(&c->manifest, text, size, path);
    free(text);
    TRY(status);
    TRY(check_files(c));
    for (int i = 0; i < c->manifest.num_others; i++) TRY(check_other(c, &c->manifest.others[i]));
    c->manifest.info.config = c->config;
    c->fds = malloc((size_t)c->manifest.num_files * sizeof *c->fds);
    if (!c->fds) return fail(ERR_OS, "%s: no memory for %d files", c->folder, c->manifest.num_files);
    for (int i = 0; i < c->manifest.num_files; i++) c->fds[i] = -1;
    return OK;
}

Status checkpoint_open(Checkpoint **checkpoint, const char *folder) {
    Checkpoint *c = calloc(1, sizeof *c);
    CHECK(c, "no memory for a checkpoint");
    c->folder = strdup(folder);
    c->piece = malloc(PIECE * sizeof *c->piece);
    CHECK(c->folder && c->piece, "no memory for a checkpoint");
    *checkpoint = c;
    Status status = open_all(c);
    if (status == OK) return OK;
    checkpoint_close(c);
    *checkpoint = NULL;
    return status;
}

static void close_files(Checkpoint *c) {
    for (int i = 0; c->fds && i < c->manifest.num_files; i++) {
        if (c->fds[i] >= 0) call_close(c->fds[i]);
        c->fds[i] = -1;
    }
    c->num_open = 0;
}

void checkpoint_close(Checkpoint *c) {
    if (!c) return;
    close_files(c);
    free(c->fds);
    manifest_free(&c->manifest);
    free(c->config);
    free(c->piece);
    free(c->folder);
    free(c);
}

// ---- what there is ------------------------------------------------------------------------------

const CheckpointInfo *checkpoint_info(const Checkpoint *c) { return &c->manifest.info; }
const char *checkpoint_folder(const Checkpoint *c) { return c->folder; }
int checkpoint_num_tensors(const Checkpoint *c) { return c->manifest.num_tensors; }
int checkpoint_find(const Checkpoint *c, const char *tensor) { return manifest_find(&c->manifest, tensor); }

bool checkpoint_keeps(const Checkpoint *c, StateTensor which) { return manifest_keeps(&c->manifest, which); }

CheckpointTensor checkpoint_tensor(const Checkpoint *c, int i) {
    CHECK(i >= 0 && i < c->manifest.num_tensors, "%s has no tensor %d", c->folder, i);
    TensorEntry tensor = c->manifest.tensors[i];
    const SliceEntry *slice = &c->manifest.slices[tensor.first];
    return (CheckpointTensor){slice->tensor, slice->rows, slice->cols, tensor.count};
}

// ---- reading ------------------------------------------------------------------------------------

// The destination of a rectangle of a tensor; `out` NULL: it is only verified.
typedef struct {
    Rect rect;
    float *out;
    int64_t stride;
} Target;

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// The common part of two rectangles. It is empty when its rows or cols are below 1.
static Rect overlap(Rect a, Rect b) {
    int64_t row = larger(a.row, b.row), col = larger(a.col, b.col);
    return (Rect){row, col, smaller(a.row + a.rows, b.row + b.rows) - row,
                  smaller(a.col + a.cols, b.col + b.cols) - col};
}

// Copies those of elements [begin, end) of the slice that the target contains.
static void copy_piece(const SliceEntry *s, const float *piece, int64_t begin, int64_t end,
                       const Target *target) {
    int64_t width = s->rect.cols;
    for (int64_t row = begin / width; row * width < end; row++) {
        int64_t from = larger(begin, row * width), to = smaller(end, (row + 1) * width);
        Rect run = {s->rect.row + row, s->rect.col + from - row * width, 1, to - from};
        Rect part = overlap(run, target->rect);
        if (part.rows < 1 || part.cols < 1) continue;
        memcpy(target->out + (part.row - target->rect.row) * target->stride + part.col - target->rect.col,
               piece + (from - begin) + (part.col - run.col), (size_t)part.cols * sizeof *piece);
    }
}

static Status open_file(Checkpoint *c, int file, char path[PATH_ROOM]) {
    TRY(path_join(path, c->folder, c->manifest.files[file].name));
    if (c->fds[file] >= 0) return OK;
    if (c->num_open >= MAX_OPEN) close_files(c);
    int64_t bytes;
    TRY(file_open_regular(path, &c->fds[file], &bytes));
    c->num_open++;
    return OK;
}

static void count_values(Checkpoint *c, const SliceEntry *s, int64_t count) {
    int64_t found = count_non_finite(c->piece, count, NULL);
    if (found && !c->non_finite) c->non_finite_tensor = s->tensor;
    c->non_finite += found;
}

// Reads elements [begin, end) of a slice, and verifies the checksum where they are the whole slice.
static Status stream(Checkpoint *c, SliceEntry *s, int64_t begin, int64_t end, const Target *target) {
    char path[PATH_ROOM], name[SLICE_NAME];
    Hasher hasher;
    TRY(open_file(c, s->file, path));
    bool whole = begin == 0 && end == s->rect.rows * s->rect.cols;
    if (whole) hasher_start(&hasher);
    for (int64_t at = begin, next; at < end; at = next) {
        next = smaller(at + PIECE, end);
        size_t bytes = (size_t)(next - at) * sizeof *c->piece;
        TRY(file_read_at(c->fds[s->file], path, s->offset + at * (int64_t)sizeof *c->piece, c->piece, bytes));
        if (whole) hasher_add(&hasher, c->piece, bytes);
        if (target->out)
            copy_piece(s, c->piece, at, next, target);
        else
            count_values(c, s, next - at);
    }
    bool same = !whole || hash_same(hasher_end(&hasher), s->hash);
    if (whole) s->verified = same;
    if (same) return OK;
    slice_name(s, name);
    return fail(ERR_DATA, "%s: damaged: tensor %s, slice %s: the checksum of its bytes is not the manifest's",
                path, s->tensor, name);
}

static Status read_slice(Checkpoint *c, SliceEntry *s, const Target *target) {
    Rect part = overlap(s->rect, target->rect);
    if (part.rows < 1 || part.cols < 1) return OK;
    if (!s->verified) return stream(c, s, 0, s->rect.rows * s->rect.cols, target);
    int64_t begin = (part.row - s->rect.row) * s->rect.cols + part.col - s->rect.col;
    return stream(c, s, begin, begin + (part.rows - 1) * s->rect.cols + part.cols, target);
}

Status checkpoint_read(Checkpoint *c, int i, Rect rect, float *out, int64_t stride) {
    CheckpointTensor tensor = checkpoint_tensor(c, i);
    CHECK(rect.row >= 0 && rect.col >= 0 && rect.row + rect.rows <= tensor.rows &&
              rect.col + rect.cols <= tensor.cols,
          "reads outside of %s", tensor.name);
    TensorEntry entry = c->manifest.tensors[i];
    Target target = {rect, out, stride};
    for (int s = 0; s < entry.count; s++) TRY(read_slice(c, &c->manifest.slices[entry.first + s], &target));
    return OK;
}

// Drops pages of the cache that are on disk, so that they are read from it again.
static Status drop_cache(Checkpoint *c) {
    char path[PATH_ROOM];
    for (int i = 0; i < c->manifest.num_files; i++) {
        TRY(open_file(c, i, path));
        (void)posix_fadvise(c->fds[i], 0, 0, POSIX_FADV_DONTNEED);
    }
    return OK;
}

Status checkpoint_verify(Checkpoint *c) {
    Target nowhere = {0};
    c->non_finite = 0;
    TRY(drop_cache(c));
    for (int i = 0; i < c->manifest.num_slices; i++) {
        SliceEntry *s = &c->manifest.slices[i];
        TRY(stream(c, s, 0, s->rect.rows * s->rect.cols, &nowhere));
    }
    return OK;
}

int64_t checkpoint_non_finite(const Checkpoint *c, const char **tensor) {
    *tensor = c->non_finite_tensor;
    return c->non_finite;
}
