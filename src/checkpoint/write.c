// Writes a checkpoint: the folder, the file of each rank, and the commit by one rename.
#include "base/calls.h"
#include "base/file.h"
#include "base/file_sums.h"
#include "base/half.h"
#include "checkpoint/manifest.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 20 }; // elements that are hashed and then written while they are in the cache

// ---- 1. the folder ------------------------------------------------------------------------------

// The name of an older checkpoint while a new one takes its place, where two folders cannot be exchanged at once.
static Status aside_name(char path[PATH_ROOM], const CheckpointNames *names) {
    const char *slash = strrchr(names->final, '/');
    int size =
        snprintf(path, PATH_ROOM, "%.*s/.old-%s", (int)(slash - names->final), names->final, slash + 1);
    return size < PATH_ROOM ? OK : fail(ERR_CREATE, "%s: the name is too long", names->final);
}

// After a save that was killed between two renames: gives the older checkpoint its name back.
static Status settle_aside(const CheckpointNames *names) {
    char aside[PATH_ROOM];
    TRY(aside_name(aside, names));
    if (!file_exists(aside)) return OK;
    if (file_exists(names->final)) return folder_remove(aside);
    if (call_rename(aside, names->final) == 0) return OK;
    return fail(create_status(), "%s: cannot rename to %s: %s", aside, names->final, strerror(errno));
}

// The folder that `path` is in.
static void parent_of(char parent[PATH_ROOM], const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash)
        snprintf(parent, PATH_ROOM, ".");
    else
        snprintf(parent, PATH_ROOM, "%.*s", slash > path ? (int)(slash - path) : 1, path);
}

// Like folder_make, and makes the names of new folders durable.
static Status make_durably(const char *path) {
    char above[PATH_ROOM];
    if (file_exists(path)) return folder_make(path);
    parent_of(above, path);
    TRY(make_durably(above));
    TRY(folder_make(path));
    return folder_sync(above);
}

Status checkpoint_begin(const CheckpointNames *names, int64_t bytes) {
    char save[PATH_ROOM];
    parent_of(save, names->temporary);
    TRY(make_durably(save));
    TRY(settle_aside(names));
    TRY(folder_remove(names->temporary)); // first, since it takes space
    TRY(checkpoint_check_room(save, bytes, 1));
    return folder_make(names->temporary);
}

// fail_message keeps the failure that led here; a failure of the removal does not replace it.
void checkpoint_abandon(const CheckpointNames *names, int lock) {
    char save[PATH_ROOM], message[1024];
    snprintf(message, sizeof message, "%s", fail_message());
    parent_of(save, names->temporary);
    Status status = checkpoint_lock_check(save, lock); // without it the folder is another run's
    if (status == OK) status = folder_remove(names->temporary);
    if (status != OK) (void)fail(ERR_OTHER, "%s", message);
}

// ---- 2. a rank's file ---------------------------------------------------------------------------

static void join_halves(const Slice *s, int64_t at, int64_t count, float *to) {
    for (int64_t i = 0; i < count; i++) to[i] = bf16_join(s->values[at + i], s->remainders[at + i]);
}

// Returns a slice's elements from `at` on. Those in two parts, or read by a function, are gathered in `piece`.
static const float *elements(const Slice *s, int64_t at, int64_t count, float *piece) {
    if (s->data) return s->data + at;
    if (s->read)
        s->read(s, at, count, piece);
    else
        join_halves(s, at, count, piece);
    return piece;
}

void slice_read(const Slice *slice, int64_t at, int64_t count, float *to) {
    const float *from = elements(slice, at, count, to);
    if (from != to) memcpy(to, from, (size_t)count * sizeof *to);
}

static Status add_stretch(ShardWriter *w, const Slice *s, int64_t first, int64_t count, float *piece) {
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t some = count - at < PIECE ? count - at : PIECE;
        TRY(shard_add(w, elements(s, first + at, some, piece), some));
    }
    return OK;
}

static Status add_gathered(ShardWriter *w, const Slice *s, float *piece) {
    int64_t cols = s->rect.cols, most = PIECE / cols;
    for (int64_t row = 0; row < s->rect.rows; row += most) {
        int64_t rows = s->rect.rows - row < most ? s->rect.rows - row : most;
        for (int64_t i = 0; i < rows; i++) {
            float *to = piece + i * cols;
            const float *from = elements(s, (row + i) * s->stride, cols, to);
            if (from != to) memcpy(to, from, (size_t)cols * sizeof *to);
        }
        TRY(shard_add(w, piece, rows * cols));
    }
    return OK;
}

// Adds rows that are too long to be gathered, one after the other.
static Status add_long_rows(ShardWriter *w, const Slice *s, float *piece) {
    for (int64_t row = 0; row < s->rect.rows; row++)
        TRY(add_stretch(w, s, row * s->stride, s->rect.cols, piece));
    return OK;
}

static Status add_slices(ShardWriter *w, const Slice *slices, int count, float *piece) {
    for (int i = 0; i < count; i++) {
        const Slice *s = &slices[i];
        if (s->stride == s->rect.cols || s->rect.rows == 1)
            TRY(add_stretch(w, s, 0, s->rect.rows * s->rect.cols, piece));
        else if (s->rect.cols > PIECE)
            TRY(add_long_rows(w, s, piece));
        else
            TRY(add_gathered(w, s, piece));
    }
    return OK;
}

Status checkpoint_write_shard(const CheckpointNames *names, int rank, const Slice *slices, int count,
                              Text *record) {
    if (count == 0) return OK;
    float *piece = malloc(PIECE * sizeof *piece);
    if (!piece) return fail(ERR_OS, "no memory to gather slices for %s", names->final);
    ShardWriter w;
    Status status = shard_open(&w, names, rank, slices, count);
    if (status == OK) {
        status = add_slices(&w, slices, count, piece);
        if (status == OK)
            status = shard_finish(&w, record);
        else
            shard_abandon(&w);
    }
    free(piece);
    return status;
}

// ---- 3. the commit ------------------------------------------------------------------------------

static Status write_file(const CheckpointNames *names, const char *name, const void *data, size_t size) {
    char path[PATH_ROOM];
    FileWriter file;
    TRY(path_join(path, names->temporary, name));
    TRY(file_writer_open(&file, path));
    file.read_back = true;
    file.in_memory = names->in_memory;
    Status status = file_writer_add(&file, data, size);
    if (status == OK) return file_writer_finish(&file);
    file_writer_abandon(&file);
    return status;
}

static int sync_file(int fd) {
    int result;
    do result = call_fsync(fd);
    while (result < 0 && errno == EINTR);
    return result;
}

// Compares a file on disk with `data`, which may have been read from the page cache.
static Status compare_existing(const char *path, const void *data, size_t size) {
    FileSums *sums = file_sums_create();
    if (!sums) return fail(ERR_OS, "%s: no memory to read it back", path);
    file_sums_add(sums, data, size);
    Status status = file_sums_compare(sums, path);
    file_sums_free(sums);
    return status;
}

static Status sync_existing(const char *path) {
    int fd = call_open(path, O_RDONLY | O_CLOEXEC, 0);
    bool synced = fd >= 0 && sync_file(fd) == 0;
    Status status = synced ? OK : fail(create_status(), "%s: cannot sync: %s", path, strerror(errno));
    if (fd >= 0) call_close(fd);
    return status;
}

static bool is_shard(const Manifest *m, const char *name) {
    for (int i = 0; i < m->num_files; i++)
        if (!strcmp(m->files[i].name, name)) return true;
    return false;
}

static Status add_other(Manifest *m, const CheckpointNames *names, const char *name) {
    char path[PATH_ROOM], *data = NULL;
    size_t size;
    TRY(path_join(path, names->temporary, name));
    TRY(file_read(path, SIZE_MAX >> 1, &data, &size));
    manifest_add_other(m, (OtherFile){name, (int64_t)size, hash_of(data, size)});
    Status status = names->in_memory ? OK : sync_existing(path);
    if (status == OK && !names->in_memory) status = compare_existing(path, data, size);
    free(data);
    return status;
}

// Adds every file of the folder that is not a rank's: all belong to the checkpoint.
static Status add_others(Manifest *m, const CheckpointNames *names, char *const *files, int count) {
    for (int i = 0; i < count; i++)
        if (!is_shard(m, files[i])) TRY(add_other(m, names, files[i]));
    return OK;
}

static Status write_manifest(Manifest *m, const CheckpointNames *names) {
    char **files = NULL;
    int count = 0;
    Text text = {0};
    TRY(folder_list(names->temporary, &files, &count));
    Status status = add_others(m, names, files, count);
    if (status == OK) {
        manifest_write(m, &text);
        status = write_file(names, "manifest.json", text.data, text.size);
    }
    text_free(&text);
    free(files);
    return status == OK && !names->in_memory ? folder_sync(names->temporary) : status;
}

static Status fill(const CheckpointNames *names, const CheckpointInfo *info, const Tokenizer *tokenizer,
                   const Text *records, int num_ranks) {
    Manifest m = {.info = *info};
    Status status = OK;
    for (int i = 0; i < num_ranks && status == OK; i++)
        if (records[i].size) status = manifest_add(&m, records[i].data, records[i].size, names->final);
    if (status == OK) status = manifest_finish(&m, names->final);
    if (status == OK && info->config)
        status = write_file(names, "config.yaml", info->config, strlen(info->config));
    if (status == OK && tokenizer) status = tokenizer_save_folder(tokenizer, names->temporary);
    if (status == OK) status = write_manifest(&m, names);
    manifest_free(&m);
    return status;
}

static Status cannot_rename(const CheckpointNames *names) {
    return fail(create_status(), "%s: cannot rename to %s: %s", names->temporary, names->final,
                strerror(errno));
}

// For file systems that cannot exchange two names: renames the older checkpoint first.
static Status replace_in_two(const CheckpointNames *names) {
    char aside[PATH_ROOM];
    TRY(aside_name(aside, names));
    if (call_rename(names->final, aside)) return cannot_rename(names);
    if (call_rename(names->temporary, names->final)) {
        Status status = cannot_rename(names);
        return call_rename(aside, names->final) ? ERR_IO : status;
    }
    (void)call_rename(aside, names->temporary); // if it stays, the next save removes it
    return OK;
}

// Gives the temporary folder its final name; an older checkpoint of that name becomes the temporary one.
static Status exchange(const CheckpointNames *names) {
    if (!file_exists(names->final))
        return call_rename(names->temporary, names->final) ? cannot_rename(names) : OK;
    if (call_exchange(names->temporary, names->final) == 0) return OK;
    if (errno == EINVAL || errno == ENOSYS) return replace_in_two(names);
    return cannot_rename(names);
}

// Where the rename cannot be made durable it is undone, so that a failed save leaves everything as it was.
static Status publish(const CheckpointNames *names) {
    char save[PATH_ROOM];
    CheckpointNames back;
    parent_of(save, names->final);
    memcpy(back.temporary, names->final, sizeof back.temporary);
    memcpy(back.final, names->temporary, sizeof back.final);
    TRY(exchange(names));
    Status status = names->in_memory ? OK : folder_sync(save);
    if (status == OK) return OK;
    char message[1024];
    snprintf(message, sizeof message, "%s", fail_message());
    (void)exchange(&back);
    return fail(status, "%s", message);
}

Status checkpoint_commit(const CheckpointNames *names, int lock, const CheckpointInfo *info,
                         const Tokenizer *tokenizer, const Text *records, int num_ranks) {
    char save[PATH_ROOM];
    parent_of(save, names->temporary);
    TRY(checkpoint_lock_check(save, lock));
    Status status = fill(names, info, tokenizer, records, num_ranks);
    if (status == OK) status = checkpoint_lock_check(save, lock);
    if (status == OK) status = publish(names);
    checkpoint_abandon(names, lock); // the folder now holds nothing, the older checkpoint, or the failed one
    return status;
}
