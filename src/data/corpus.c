#include "data/corpus.h"
#include "data/maps.h"
#include <errno.h>
#include <fts.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// ---- The files ----------------------------------------------------------------------------------------

static bool ends_with(const char *path, const char *ending) {
    size_t length = strlen(path), tail = strlen(ending);
    return length >= tail && strcmp(path + length - tail, ending) == 0;
}

static void add_file(Corpus *corpus, const char *path, bool json, int64_t bytes) {
    grow_array(&corpus->files, sizeof *corpus->files, corpus->num_files + 1, &corpus->capacity);
    char *copy = strdup(path);
    CHECK(copy, "no memory for a file name");
    corpus->files[corpus->num_files++] = (CorpusFile){copy, json, bytes};
    corpus->bytes += bytes;
}

static int by_path(const void *a, const void *b) {
    return strcmp(((const CorpusFile *)a)->path, ((const CorpusFile *)b)->path);
}

static Status walk(Corpus *corpus, FTS *tree) {
    for (FTSENT *e; (e = fts_read(tree));) {
        if (e->fts_info == FTS_DNR || e->fts_info == FTS_ERR || e->fts_info == FTS_NS) {
            errno = e->fts_errno;
            return fail(errno_status(), "%s: %s", e->fts_path, strerror(errno));
        }
        bool hidden = e->fts_level > 0 && e->fts_name[0] == '.';
        if (hidden && e->fts_info == FTS_D) fts_set(tree, e, FTS_SKIP);
        if (!hidden && e->fts_info == FTS_F)
            add_file(corpus, e->fts_path, ends_with(e->fts_path, ".jsonl"), e->fts_statp->st_size);
    }
    return OK;
}

static Status add_folder(Corpus *corpus, const char *path) {
    char *name = strdup(path);
    CHECK(name, "no memory for a file name");
    size_t first = corpus->num_files, length = strlen(name);
    while (length > 1 && name[length - 1] == '/') name[--length] = 0;
    FTS *tree = fts_open((char *const[]){name, NULL}, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL);
    Status status = tree ? walk(corpus, tree) : fail(errno_status(), "%s: %s", path, strerror(errno));
    if (tree) fts_close(tree);
    free(name);
    if (corpus->num_files > first)
        qsort(corpus->files + first, corpus->num_files - first, sizeof *corpus->files, by_path);
    return status;
}

static Status add_input(Corpus *corpus, const char *path) {
    struct stat st;
    if (stat(path, &st)) return fail(errno_status(), "--input %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return add_folder(corpus, path);
    if (!S_ISREG(st.st_mode))
        return fail(ERR_NO_INPUT, "--input %s: neither a regular file nor a folder", path);
    add_file(corpus, path, ends_with(path, ".jsonl") || ends_with(path, ".json"), st.st_size);
    return OK;
}

Status corpus_open(Corpus *corpus, const char *const *inputs, int num_inputs) {
    *corpus = (Corpus){0};
    Status status = OK;
    for (int i = 0; status == OK && i < num_inputs; i++) status = add_input(corpus, inputs[i]);
    if (status != OK) corpus_close(corpus);
    return status;
}

void corpus_close(Corpus *corpus) {
    for (size_t i = 0; i < corpus->num_files; i++) free(corpus->files[i].path);
    free(corpus->files);
    *corpus = (Corpus){0};
}

// ---- The documents ------------------------------------------------------------------------------------

void batch_free(Batch *batch) {
    text_free(&batch->raw);
    free(batch->documents);
    *batch = (Batch){0};
}

void corpus_reader_open(CorpusReader *reader, const Corpus *corpus, int64_t max_bytes) {
    *reader = (CorpusReader){.corpus = corpus, .max_bytes = max_bytes};
}

void corpus_reader_close(CorpusReader *reader) {
    if (reader->lines) fclose(reader->lines);
    free(reader->line);
    *reader = (CorpusReader){0};
}

static Status add_document(CorpusReader *r, Batch *batch, const char *data, size_t bytes, const char *path,
                           int64_t line) {
    if (r->max_bytes && r->bytes + (int64_t)bytes > r->max_bytes) {
        r->full = true;
        if (r->bytes) return OK;
        return fail(ERR_CONFIG, "--max-bytes %" PRId64 ": the first document, %s, has %zu bytes already",
                    r->max_bytes, path, bytes);
    }
    r->bytes += (int64_t)bytes;
    r->num_files += line == 0;
    grow_array(&batch->documents, sizeof *batch->documents, batch->count + 1, &batch->capacity);
    batch->documents[batch->count++] = (Document){batch->raw.size, bytes, path, line};
    text_add_bytes(&batch->raw, data, bytes);
    return OK;
}

static Status read_text_file(CorpusReader *r, Batch *batch, const char *path) {
    char *data;
    size_t bytes;
    TRY(file_read(path, MAX_DOCUMENT_BYTES, &data, &bytes));
    Status status = OK;
    if (memchr(data, 0, bytes))
        r->skipped_binary++;
    else
        status = add_document(r, batch, data, bytes, path, 0);
    free(data);
    return status;
}

static Status read_line(CorpusReader *r, Batch *batch, const char *path) {
    errno = 0;
    ssize_t length = getline(&r->line, &r->line_capacity, r->lines);
    if (length < 0) {
        int error = ferror(r->lines) || errno == ENOMEM ? errno : 0;
        fclose(r->lines);
        r->lines = NULL;
        return error ? fail(ERR_IO, "%s:%" PRId64 ": cannot read: %s", path, r->line_number + 1,
                            strerror(error))
                     : OK;
    }
    r->line_number++;
    if (length > MAX_DOCUMENT_BYTES)
        return fail(ERR_DATA, "%s:%" PRId64 ": a line of %zd bytes; at most %d are allowed", path,
                    r->line_number, length, MAX_DOCUMENT_BYTES);
    if (strspn(r->line, " \t\r\n") == (size_t)length) return OK;
    return add_document(r, batch, r->line, (size_t)length, path, r->line_number);
}

static Status read_some(CorpusReader *r, Batch *batch) {
    if (r->lines) return read_line(r, batch, r->corpus->files[r->next_file - 1].path);
    const CorpusFile *file = &r->corpus->files[r->next_file++];
    if (!file->json) return read_text_file(r, batch, file->path);
    r->line_number = 0;
    r->num_files++;
    r->lines = fopen(file->path, "rb");
    return r->lines ? OK : fail(errno_status(), "%s: %s", file->path, strerror(errno));
}

Status corpus_read(CorpusReader *r, Batch *batch) {
    batch->count = batch->raw.size = 0;
    while (!r->full && batch->raw.size < BATCH_BYTES && (r->lines || r->next_file < r->corpus->num_files))
        TRY(read_some(r, batch));
    batch->bytes_read = r->bytes;
    return OK;
}
