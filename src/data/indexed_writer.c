#include "data/data.h"
#include "data/indexed_format.h"
#include "data/maps.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

struct IndexedWriter {
    char bin[PATH_MAX], idx[PATH_MAX], bin_temporary[PATH_MAX], idx_temporary[PATH_MAX];
    FILE *file; // of .bin
    int type;
    int32_t *lengths; // of each sequence
    int64_t *ends;    // of each document: the number of sequences up to its end
    size_t num_sequences, lengths_capacity, num_documents, ends_capacity;
};

static Status name_files(IndexedWriter *w, const char *prefix) {
    long pid = (long)getpid();
    if (snprintf(w->bin_temporary, PATH_MAX, "%s.bin.tmp.%ld", prefix, pid) >= PATH_MAX)
        return fail(ERR_CREATE, "%s: the name is too long", prefix);
    snprintf(w->idx_temporary, PATH_MAX, "%s.idx.tmp.%ld", prefix, pid);
    snprintf(w->bin, PATH_MAX, "%s.bin", prefix);
    snprintf(w->idx, PATH_MAX, "%s.idx", prefix);
    return OK;
}

static Status create(const char *path, FILE **file) {
    *file = fopen(path, "wb");
    if (*file) return OK;
    return fail(create_status(), "%s: cannot create: %s", path, strerror(errno));
}

Status indexed_writer_open(IndexedWriter **writer, const char *prefix, int vocab_size) {
    IndexedWriter *w = *writer = calloc(1, sizeof *w);
    if (!w) return fail(ERR_OS, "%s: no memory to write it", prefix);
    w->type = vocab_size < U16_VOCABULARY_BELOW ? TOKENS_U16 : TOKENS_I32;
    Status status = name_files(w, prefix);
    if (status == OK) status = create(w->bin_temporary, &w->file);
    if (status == OK) return OK;
    free(w);
    *writer = NULL;
    return status;
}

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

Status indexed_writer_add(IndexedWriter *w, const int32_t *ids, size_t count) {
    if (count > INT32_MAX)
        return fail(ERR_DATA, "%s: a document of %zu tokens; at most %d fit", w->bin, count, INT32_MAX);
    if (!write_tokens(w, ids, count))
        return fail(create_status(), "%s: cannot write: %s", w->bin_temporary, strerror(errno));
    if (count) {
        grow_array(&w->lengths, sizeof *w->lengths, w->num_sequences + 1, &w->lengths_capacity);
        w->lengths[w->num_sequences++] = (int32_t)count;
    }
    grow_array(&w->ends, sizeof *w->ends, w->num_documents + 1, &w->ends_capacity);
    w->ends[w->num_documents++] = (int64_t)w->num_sequences;
    return OK;
}

static void put_u64(FILE *file, uint64_t value) { fwrite(&value, sizeof value, 1, file); }

// stdio remembers an error until fclose, so one check at the end is enough.
static void write_index(const IndexedWriter *w, FILE *file) {
    fwrite(index_magic, 1, INDEX_MAGIC_BYTES, file);
    put_u64(file, INDEX_VERSION);
    fputc(w->type, file);
    put_u64(file, w->num_sequences);
    put_u64(file, w->num_documents + 1);
    if (w->num_sequences) fwrite(w->lengths, sizeof *w->lengths, w->num_sequences, file);
    uint64_t offset = 0, token_bytes = w->type == TOKENS_U16 ? 2 : 4;
    for (size_t i = 0; i < w->num_sequences; i++) {
        put_u64(file, offset);
        offset += (uint64_t)w->lengths[i] * token_bytes;
    }
    put_u64(file, 0);
    if (w->num_documents) fwrite(w->ends, sizeof *w->ends, w->num_documents, file);
}

// Flushed, on disk, closed.
static Status settle(FILE *file, const char *path) {
    bool good = !ferror(file) && fflush(file) == 0 && fsync(fileno(file)) == 0;
    int error = errno;
    good = fclose(file) == 0 && good;
    if (good) return OK;
    errno = error;
    return fail(create_status(), "%s: cannot write: %s", path, strerror(errno));
}

static Status move(const char *from, const char *to) {
    if (rename(from, to) == 0) return OK;
    return fail(create_status(), "%s: cannot rename to %s: %s", from, to, strerror(errno));
}

Status indexed_writer_retire_old(IndexedWriter *w) {
    FILE *bin = w->file, *idx;
    w->file = NULL;
    TRY(settle(bin, w->bin_temporary));
    TRY(create(w->idx_temporary, &idx));
    write_index(w, idx);
    TRY(settle(idx, w->idx_temporary));
    if (unlink(w->idx) && errno != ENOENT)
        return fail(create_status(), "%s: cannot replace: %s", w->idx, strerror(errno));
    return OK;
}

// The .idx comes last: it never stands beside a .bin that is not its own.
Status indexed_writer_finish(IndexedWriter *w) {
    if (w->file) TRY(indexed_writer_retire_old(w));
    TRY(move(w->bin_temporary, w->bin));
    return move(w->idx_temporary, w->idx);
}

void indexed_writer_close(IndexedWriter *writer) {
    if (!writer) return;
    if (writer->file) fclose(writer->file);
    unlink(writer->bin_temporary); // both are gone when finished
    unlink(writer->idx_temporary);
    free(writer->lengths);
    free(writer->ends);
    free(writer);
}
