// Writes a dataset: the tokens as they come, the index at the end. Both files get their names when they are complete.
#include "base/file.h"
#include "base/text.h"
#include "dataset/dataset.h"
#include "dataset/indexed_format.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

// The spool holds the length of each sequence, and a 0 after those of each document.
struct IndexedWriter {
    char bin[PATH_MAX], idx[PATH_MAX];
    char bin_temporary[PATH_MAX], idx_temporary[PATH_MAX], spool_temporary[PATH_MAX];
    FILE *file, *index, *spool; // for .bin, .idx and the lengths
    bool retired;               // an old .idx has been removed
    int type;
    size_t open_tokens, document_tokens; // in the open sequence, in the open document
    uint64_t num_sequences, num_documents;
    int64_t num_tokens;
};

// ---- Temporary files --------------------------------------------------------------------------------------

static Status name_files(IndexedWriter *w, const char *prefix) {
    if (snprintf(w->spool_temporary, PATH_MAX, "%s.lengths.tmp", prefix) >= PATH_MAX)
        return fail(ERR_CREATE, "%s: the name is too long", prefix);
    snprintf(w->bin_temporary, PATH_MAX, "%s.bin.tmp", prefix);
    snprintf(w->idx_temporary, PATH_MAX, "%s.idx.tmp", prefix);
    snprintf(w->bin, PATH_MAX, "%s.bin", prefix);
    snprintf(w->idx, PATH_MAX, "%s.idx", prefix);
    return OK;
}

static Status cannot(const char *what, const char *path) {
    return fail(create_status(), "%s: cannot %s: %s", path, what, strerror(errno));
}

// True when the name still belongs to the file: its owner may have renamed it before we had the lock.
static bool is_named(int fd, const char *path) {
    struct stat file, name;
    return fstat(fd, &file) == 0 && stat(path, &name) == 0 && file.st_ino == name.st_ino &&
           file.st_dev == name.st_dev;
}

// A lock ends with its process, so a file without a lock is left from an earlier run.
static Status open_locked(const char *path, int *fd) {
    do {
        *fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (*fd < 0) return cannot("create", path);
        if (flock(*fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
            close(*fd);
            return fail(ERR_CREATE, "%s: it is being written by another run", path);
        }
    } while (!is_named(*fd, path) && close(*fd) == 0);
    return OK;
}

static Status create(const char *path, FILE **file) {
    int fd;
    TRY(open_locked(path, &fd));
    *file = ftruncate(fd, 0) ? NULL : fdopen(fd, "w+b");
    if (*file) return OK;
    Status status = cannot("create", path);
    close(fd);
    return status;
}

Status indexed_writer_open(IndexedWriter **writer, const char *prefix, int vocab_size) {
    IndexedWriter *w = *writer = calloc(1, sizeof *w);
    if (!w) return fail(ERR_OS, "%s: no memory to write it", prefix);
    w->type = vocab_size < U16_VOCABULARY_BELOW ? TOKENS_U16 : TOKENS_I32;
    Status status = name_files(w, prefix);
    if (status == OK) status = create(w->bin_temporary, &w->file);
    if (status == OK) status = create(w->spool_temporary, &w->spool);
    if (status == OK) status = create(w->idx_temporary, &w->index);
    if (status == OK) return OK;
    indexed_writer_close(w);
    *writer = NULL;
    return status;
}

// ---- Documents --------------------------------------------------------------------------------------------

static bool write_tokens(IndexedWriter *w, const int32_t *ids, size_t count) {
    if (w->type == TOKENS_I32) return fwrite(ids, sizeof *ids, count, w->file) == count;
    uint16_t some[4096];
    for (size_t done = 0; done < count;) {
        size_t n = 0;
        for (; n < 4096 && done < count; n++, done++) some[n] = (uint16_t)ids[done];
        if (fwrite(some, sizeof *some, n, w->file) != n) return false;
    }
    return true;
}

Status indexed_writer_extend(IndexedWriter *w, const int32_t *ids, size_t count) {
    if (count > INT32_MAX - w->open_tokens)
        return fail(ERR_DATA, "%s: a document of more than %d tokens", w->bin, INT32_MAX);
    if (count && !write_tokens(w, ids, count)) return cannot("write", w->bin_temporary);
    w->open_tokens += count;
    w->document_tokens += count;
    w->num_tokens += (int64_t)count;
    return OK;
}

static Status spool_length(IndexedWriter *w, int32_t length) {
    return fwrite(&length, sizeof length, 1, w->spool) == 1 ? OK : cannot("write", w->spool_temporary);
}

Status indexed_writer_end_sequence(IndexedWriter *w) {
    if (!w->open_tokens) return OK;
    TRY(spool_length(w, (int32_t)w->open_tokens));
    w->open_tokens = 0;
    w->num_sequences++;
    return OK;
}

Status indexed_writer_end_document(IndexedWriter *w, int32_t eod) {
    if (eod >= 0 && w->document_tokens) TRY(indexed_writer_extend(w, &eod, 1));
    TRY(indexed_writer_end_sequence(w));
    w->document_tokens = 0;
    w->num_documents++;
    return spool_length(w, 0);
}

Status indexed_writer_add(IndexedWriter *w, const int32_t *ids, size_t count) {
    TRY(indexed_writer_extend(w, ids, count));
    return indexed_writer_end_document(w, -1);
}

int64_t indexed_writer_num_tokens(const IndexedWriter *w) { return w->num_tokens; }

// ---- The index --------------------------------------------------------------------------------------------

static void put_u64(FILE *file, uint64_t value) { fwrite(&value, sizeof value, 1, file); }

// Calls `put` with each length of the spool; `put` keeps a running sum in *sum.
static Status each_length(IndexedWriter *w, void (*put)(FILE *index, int32_t length, uint64_t *sum)) {
    int32_t some[4096];
    uint64_t sum = 0;
    rewind(w->spool);
    for (size_t count; (count = fread(some, sizeof *some, 4096, w->spool)) > 0;)
        for (size_t i = 0; i < count; i++) put(w->index, some[i], &sum);
    if (!ferror(w->spool)) return OK;
    return fail(ERR_IO, "%s: cannot read: %s", w->spool_temporary, strerror(errno));
}

static void put_length(FILE *index, int32_t length, uint64_t *sum) {
    (void)sum;
    if (length) fwrite(&length, sizeof length, 1, index);
}

static void put_u16_offset(FILE *index, int32_t length, uint64_t *sum) {
    if (length) put_u64(index, *sum);
    *sum += 2 * (uint64_t)length;
}

static void put_i32_offset(FILE *index, int32_t length, uint64_t *sum) {
    if (length) put_u64(index, *sum);
    *sum += 4 * (uint64_t)length;
}

static void put_document(FILE *index, int32_t length, uint64_t *sum) {
    if (length)
        ++*sum;
    else
        put_u64(index, *sum);
}

// stdio remembers an error until fclose, so one check at the end is enough.
static Status write_index(IndexedWriter *w) {
    fwrite(index_magic, 1, INDEX_MAGIC_BYTES, w->index);
    put_u64(w->index, INDEX_VERSION);
    fputc(w->type, w->index);
    put_u64(w->index, w->num_sequences);
    put_u64(w->index, w->num_documents + 1);
    TRY(each_length(w, put_length));
    TRY(each_length(w, w->type == TOKENS_U16 ? put_u16_offset : put_i32_offset));
    put_u64(w->index, 0);
    return each_length(w, put_document);
}

// Flushes and syncs the file. It stays open, and so locked, until indexed_writer_close.
static Status settle(FILE *file, const char *path) {
    bool good = !ferror(file) && fflush(file) == 0 && fsync(fileno(file)) == 0;
    return good ? OK : cannot("write", path);
}

static Status move(const char *from, const char *to) {
    if (rename(from, to) == 0) return OK;
    return fail(create_status(), "%s: cannot rename to %s: %s", from, to, strerror(errno));
}

Status indexed_writer_retire_old(IndexedWriter *w) {
    TRY(settle(w->file, w->bin_temporary));
    if (fflush(w->spool)) return cannot("write", w->spool_temporary);
    TRY(write_index(w));
    TRY(settle(w->index, w->idx_temporary));
    if (unlink(w->idx) && errno != ENOENT) return cannot("replace", w->idx);
    w->retired = true;
    return OK;
}

static Status sync_folder_of(const char *path) {
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    return folder_sync(folder);
}

// The .idx is renamed last, so that it never stands beside the .bin of another run.
Status indexed_writer_finish(IndexedWriter *w) {
    if (!w->retired) TRY(indexed_writer_retire_old(w));
    TRY(move(w->bin_temporary, w->bin));
    TRY(move(w->idx_temporary, w->idx));
    return sync_folder_of(w->idx);
}

// Removes a temporary file that still exists, while we still hold its lock.
static void discard(FILE *file, const char *path) {
    if (!file) return;
    if (is_named(fileno(file), path)) unlink(path);
    fclose(file);
}

void indexed_writer_close(IndexedWriter *writer) {
    if (!writer) return;
    discard(writer->file, writer->bin_temporary);
    discard(writer->spool, writer->spool_temporary);
    discard(writer->index, writer->idx_temporary);
    free(writer);
}
