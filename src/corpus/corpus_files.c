// Lists the input files of preprocess: files, folders and standard input.
#include "base/array.h"
#include "corpus/corpus_reader.h"
#include "tokenizer/hash_map.h"
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

static void add_file(Corpus *corpus, const char *path, CorpusFile file) {
    array_grow(&corpus->files, sizeof *corpus->files, corpus->num_files + 1, &corpus->capacity);
    file.path = strdup(path);
    CHECK(file.path, "no memory for a file name");
    corpus->files[corpus->num_files++] = file;
    corpus->bytes += file.bytes;
}

static Compression compression_of(const char *path) {
    return ends_with(path, ".gz") ? GZIP : ends_with(path, ".zst") ? ZSTANDARD : PLAIN;
}

// The kind of a file by its name, without the ending of an archive.
static bool is_named(const char *path, const char *ending) {
    static const char *const archives[] = {"", ".gz", ".zst"};
    char whole[32];
    for (int i = 0; i < 3; i++) {
        snprintf(whole, sizeof whole, "%s%s", ending, archives[i]);
        if (ends_with(path, whole)) return true;
    }
    return false;
}

// `named`: the user named the file itself.
static void add_by_name(Corpus *corpus, const char *path, bool named, int64_t bytes) {
    bool json = is_named(path, ".jsonl") || (named && is_named(path, ".json"));
    FileKind kind = json ? JSON_LINES : TEXT_FILE;
    add_file(corpus, path, (CorpusFile){NULL, kind, compression_of(path), bytes, named});
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
        if (!hidden && e->fts_info == FTS_F) add_by_name(corpus, e->fts_path, false, e->fts_statp->st_size);
    }
    return OK;
}

// Leaves out the files from `first` on of which `stays` is false.
static void keep_files(Corpus *corpus, size_t first, bool (*stays)(const CorpusFile *)) {
    size_t kept = first;
    for (size_t i = first; i < corpus->num_files; i++) {
        CorpusFile *file = &corpus->files[i];
        if (stays(file)) {
            corpus->files[kept++] = *file;
            continue;
        }
        corpus->bytes -= file->bytes;
        free(file->path);
    }
    corpus->num_files = kept;
}

// Files that come with a data set that is downloaded, and are none of its data.
static bool is_data(const CorpusFile *file) {
    static const char *const names[] = {"README.md", "dataset_info.json", "dataset_infos.json"};
    const char *slash = strrchr(file->path, '/'), *name = slash ? slash + 1 : file->path;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return false;
    return true;
}

static bool any_lines(const Corpus *corpus, size_t first) {
    for (size_t i = first; i < corpus->num_files; i++)
        if (corpus->files[i].kind == JSON_LINES && !corpus->files[i].named) return true;
    return false;
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
    if (any_lines(corpus, first)) keep_files(corpus, first, is_data);
    return status;
}

static Status add_standard_input(Corpus *corpus) {
    if (corpus->endless) return fail(ERR_USAGE, "--input names standard input twice; it can be read once");
    corpus->endless = true;
    add_file(corpus, "standard input", (CorpusFile){NULL, STANDARD_INPUT, PLAIN, 0, true});
    return OK;
}

static Status add_input(Corpus *corpus, const char *path) {
    struct stat st;
    if (!strcmp(path, "-")) return add_standard_input(corpus);
    if (stat(path, &st)) return fail(errno_status(), "--input %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) return add_folder(corpus, path);
    if (!S_ISREG(st.st_mode))
        return fail(ERR_NO_INPUT, "--input %s: neither a regular file nor a folder; - reads standard input",
                    path);
    add_by_name(corpus, path, true, st.st_size);
    return OK;
}

Status corpus_open(Corpus *corpus, const char *const *inputs, int num_inputs) {
    *corpus = (Corpus){0};
    Status status = OK;
    for (int i = 0; status == OK && i < num_inputs; i++) status = add_input(corpus, inputs[i]);
    if (status != OK) corpus_close(corpus);
    return status;
}

static bool is_lines(const CorpusFile *file) { return file->named || file->kind == JSON_LINES; }

FolderLines corpus_keep_lines(Corpus *corpus) {
    size_t number = corpus->num_files;
    FolderLines found = any_lines(corpus, 0) ? LINES_JSONL : LINES_NONE;
    for (size_t i = 0; found != LINES_JSONL && i < number; i++) {
        CorpusFile *file = &corpus->files[i];
        if (file->named || !is_named(file->path, ".json") || !is_data(file)) continue;
        file->kind = JSON_LINES;
        found = LINES_JSON;
    }
    if (found) keep_files(corpus, 0, is_lines);
    corpus->left_out = (int64_t)(number - corpus->num_files);
    return found;
}

void corpus_close(Corpus *corpus) {
    for (size_t i = 0; i < corpus->num_files; i++) free(corpus->files[i].path);
    free(corpus->files);
    *corpus = (Corpus){0};
}
