// Writes a checkpoint again with its tensors spread over another number of files.
#include "base/file.h"
#include "checkpoint/opened.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20 }; // elements that are in memory at a time

typedef struct {
    Checkpoint *from;
    const CheckpointNames *names;
    float *piece;
    Slice *slices; // [tensors] each a whole tensor
    int num_tensors, num_files;
    int64_t elements;
} Reshard;

// The file of the tensor that starts at element `at` of the whole model, which is cut into equal parts.
static int file_of(const Reshard *r, int64_t at) {
    return (int)((double)at / (double)r->elements * r->num_files);
}

static Status copy_tensor(Reshard *r, int i, ShardWriter *writer) {
    CheckpointTensor t = checkpoint_tensor(r->from, i);
    int64_t cols = t.cols < PIECE ? t.cols : PIECE, rows = PIECE / cols;
    for (int64_t row = 0; row < t.rows; row += rows)
        for (int64_t col = 0; col < t.cols; col += cols) {
            Rect part = {row, col, t.rows - row < rows ? t.rows - row : rows,
                         t.cols - col < cols ? t.cols - col : cols};
            TRY(checkpoint_read(r->from, i, part, r->piece, part.cols));
            TRY(shard_add(writer, r->piece, part.rows * part.cols));
        }
    return OK;
}

static Status write_file(Reshard *r, int file, int first, int count, Text *record) {
    ShardWriter writer;
    TRY(shard_open(&writer, r->names, file, r->slices + first, count));
    Status status = OK;
    for (int i = first; i < first + count && status == OK; i++) status = copy_tensor(r, i, &writer);
    if (status == OK) return shard_finish(&writer, record);
    shard_abandon(&writer);
    return status;
}

static Status write_files(Reshard *r, Text *records) {
    int64_t at = 0;
    for (int f = 0, first = 0, count; f < r->num_files; f++, first += count) {
        for (count = 0; first + count < r->num_tensors && file_of(r, at) <= f; count++)
            at += r->slices[first + count].rows * r->slices[first + count].cols;
        if (count) TRY(write_file(r, f, first, count, &records[f]));
    }
    return OK;
}

// Copies the other files except the configuration, which the commit writes.
static Status copy_others(const Reshard *r) {
    const Manifest *m = &r->from->manifest;
    for (int i = 0; i < m->num_others; i++) {
        char from[PATH_ROOM], to[PATH_ROOM], *data = NULL;
        size_t size;
        if (!strcmp(m->others[i].name, "config.yaml")) continue;
        TRY(path_join(from, r->from->folder, m->others[i].name));
        TRY(path_join(to, r->names->temporary, m->others[i].name));
        TRY(file_read(from, SIZE_MAX >> 1, &data, &size));
        Status status = file_write(to, data, size);
        free(data);
        TRY(status);
    }
    return OK;
}

static void list_tensors(Reshard *r) {
    for (int i = 0; i < r->num_tensors; i++) {
        CheckpointTensor t = checkpoint_tensor(r->from, i);
        Slice *slice = &r->slices[i];
        *slice = (Slice){.rows = t.rows, .cols = t.cols, .rect = {0, 0, t.rows, t.cols}, .stride = t.cols};
        snprintf(slice->tensor, sizeof slice->tensor, "%s", t.name);
        r->elements += t.rows * t.cols;
    }
}

static Status write_all(Reshard *r, int lock, Text *records) {
    Status status = checkpoint_begin(r->names, r->elements * (int64_t)sizeof(float));
    if (status == OK) status = write_files(r, records);
    if (status == OK) status = copy_others(r);
    if (status == OK)
        return checkpoint_commit(r->names, lock, checkpoint_info(r->from), NULL, records, r->num_files);
    checkpoint_abandon(r->names, lock);
    return status;
}

Status checkpoint_reshard(Checkpoint *from, const char *save, int num_files, double lock_wait_s) {
    CheckpointNames names;
    TRY(checkpoint_names(save, checkpoint_info(from)->state.iteration, &names));
    int lock;
    TRY(checkpoint_lock_new(&names, save, lock_wait_s, &lock));
    Reshard r = {from, &names, .num_tensors = checkpoint_num_tensors(from), .num_files = num_files};
    r.piece = malloc(PIECE * sizeof *r.piece);
    r.slices = calloc((size_t)r.num_tensors, sizeof *r.slices);
    Text *records = calloc((size_t)num_files, sizeof *records);
    CHECK(r.piece && r.slices && records, "no memory for a list of %d tensors", r.num_tensors);
    list_tensors(&r);
    Status status = write_all(&r, lock, records);
    for (int i = 0; i < num_files; i++) text_free(&records[i]);
    free(records);
    free(r.slices);
    free(r.piece);
    checkpoint_unlock(lock);
    return status;
}
