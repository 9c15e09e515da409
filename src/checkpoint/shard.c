// Writes the file of one rank: its slices, piece by piece, with their checksums.
#include "base/calls.h"
#include "checkpoint/manifest.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Status path_join(char path[PATH_ROOM], const char *folder, const char *name) {
    if (snprintf(path, PATH_ROOM, "%s/%s", folder, name) < PATH_ROOM) return OK;
    return fail(ERR_CREATE, "%s: the name is too long", folder);
}

void slice_name(const SliceEntry *s, char name[SLICE_NAME]) {
    Rect r = s->rect;
    if (r.rows == s->rows && r.cols == s->cols)
        snprintf(name, SLICE_NAME, "%s", s->tensor);
    else
        snprintf(name, SLICE_NAME, "%s[%" PRId64 ":%" PRId64 ",%" PRId64 ":%" PRId64 "]", s->tensor, r.row,
                 r.row + r.rows, r.col, r.col + r.cols);
}

// ---- the header ---------------------------------------------------------------------------------

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

// The header contains step and rank, so the file of another step or rank has another checksum.
static Status write_header(ShardWriter *w, const char *checkpoint, bool in_memory) {
    int count = w->record.num_slices;
    char(*names)[SLICE_NAME] = malloc((size_t)count * sizeof *names);
    SafeTensor *tensors = calloc((size_t)count, sizeof *tensors);
    CHECK(names && tensors, "no memory for the names of %d slices", count);
    for (int i = 0; i < count; i++) {
        const SliceEntry *s = &w->record.slices[i];
        slice_name(s, names[i]);
        tensors[i] = (SafeTensor){
            .name = names[i], .type = FILE_F32, .ndim = 2, .shape = {s->rect.rows, s->rect.cols}};
    }
    SafeMetadata metadata[] = {{"checkpoint", checkpoint}, {"file", w->name}};
    Status status = safetensors_create(&w->file, w->path, tensors, count, metadata, 2);
    w->file.file.read_back = true;
    w->file.file.in_memory = in_memory;
    free(names);
    free(tensors);
    return status;
}

// Hashes the header as it is in the file.
static Status hash_header(const char *path, int64_t size, uint64_t *hash) {
    char *header = malloc((size_t)size);
    if (!header) return fail(ERR_OS, "%s: no memory for its header of %" PRId64 " bytes", path, size);
    int fd;
    int64_t bytes;
    Status status = file_open_regular(path, &fd, &bytes);
    if (status == OK) status = file_read_at(fd, path, 0, header, (size_t)size);
    if (fd >= 0) call_close(fd);
    if (status == OK) *hash = hash64_of(header, (size_t)size);
    free(header);
    return status;
}

// ---- in pieces ----------------------------------------------------------------------------------

static void start_slice(ShardWriter *w) {
    if (w->slice == w->record.num_slices) return;
    Rect r = w->record.slices[w->slice].rect;
    w->left = r.rows * r.cols;
    hasher_start(&w->hasher);
}

Status shard_open(ShardWriter *w, const CheckpointNames *names, int rank, const Slice *slices, int count) {
    *w = (ShardWriter){0};
    snprintf(w->name, sizeof w->name, "rank-%05d.safetensors", rank);
    TRY(path_join(w->path, names->temporary, w->name));
    Manifest *m = &w->record;
    m->files = calloc(1, sizeof *m->files);
    m->slices = calloc((size_t)count, sizeof *m->slices);
    CHECK(m->files && m->slices, "no memory for %d slices", count);
    m->files[m->num_files++].name = w->name;
    for (int i = 0; i < count; i++)
        m->slices[m->num_slices++] = (SliceEntry){.tensor = slices[i].tensor,
                                                  .rows = slices[i].rows,
                                                  .cols = slices[i].cols,
                                                  .rect = slices[i].rect};
    Status status = write_header(w, last_part(names->final), names->in_memory);
    if (status != OK) manifest_free(m);
    start_slice(w);
    return status;
}

Status shard_add(ShardWriter *w, const float *data, int64_t count) {
    CHECK(count <= w->left, "%s: %" PRId64 " elements too many for slice %d", w->name, count - w->left,
          w->slice);
    hasher_add(&w->hasher, data, (size_t)count * sizeof *data);
    TRY(safetensors_add(&w->file, data, (size_t)count * sizeof *data));
    w->left -= count;
    if (w->left) return OK;
    w->record.slices[w->slice++].hash = hasher_end(&w->hasher);
    start_slice(w);
    return OK;
}

static Status finish(ShardWriter *w, Text *record) {
    CHECK(w->slice == w->record.num_slices, "%s: slice %d was not written", w->name, w->slice);
    ShardFile *file = w->record.files;
    file->bytes = w->file.total_bytes;
    file->header_bytes = w->file.header_bytes;
    TRY(safetensors_finish(&w->file));
    TRY(hash_header(w->path, file->header_bytes, &file->header_hash));
    manifest_write_record(&w->record, record);
    return OK;
}

Status shard_finish(ShardWriter *w, Text *record) {
    Status status = finish(w, record);
    if (status != OK) call_unlink(w->path);
    manifest_free(&w->record);
    return status;
}

void shard_abandon(ShardWriter *w) {
    safetensors_abandon(&w->file);
    manifest_free(&w->record);
}
