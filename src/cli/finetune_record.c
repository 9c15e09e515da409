// Keeps what a fine-tuning was asked for and what it has decided, so that the same command goes on with the same
// numbers on a machine that may have less memory by then.
#include "base/file.h"
#include "base/hash.h"
#include "cli/finetune.h"
#include "formats/formats.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_RECORD = 4 << 20 };

void finetune_checkpoints(const Finetune *f, char path[4096]) {
    snprintf(path, 4096, "%.3000s/checkpoints", f->folder);
}

int64_t finetune_newest_step(const Finetune *f) {
    char path[4096];
    int64_t *steps, newest = -1;
    int count;
    finetune_checkpoints(f, path);
    if (checkpoint_steps(path, &steps, &count) != OK) return -1;
    if (count) newest = steps[0];
    free(steps);
    return newest;
}

static void record_path(const Finetune *f, char path[4096]) {
    snprintf(path, 4096, "%.3000s/finetune.json", f->folder);
}

// ---- what is asked --------------------------------------------------------------------------------

static void add_member(const char *before, const char *name, const char *value, Text *out) {
    text_add(out, "%s\n    ", before);
    json_add_string(out, name, strlen(name));
    text_add(out, ": ");
    json_add_string(out, value, strlen(value));
}

static void add_place(const char *before, const char *name, const char *path, Text *out) {
    char *real = realpath(path, NULL);
    add_member(before, name, real ? real : path, out);
    free(real);
}

static Status hash_file(int file, const char *path, int64_t size, uint64_t *hash) {
    enum { PART = 1 << 20 };
    Hasher hasher;
    char *data = malloc(PART);
    CHECK(data, "no memory for a part of a file");
    hasher_start(&hasher);
    Status status = OK;
    for (int64_t at = 0; at < size && status == OK; at += PART) {
        size_t part = size - at < PART ? (size_t)(size - at) : PART;
        status = file_read_at(file, path, at, data, part);
        if (status == OK) hasher_add(&hasher, data, part);
    }
    *hash = hasher_end64(&hasher);
    free(data);
    return status;
}

// By size and content: copies and checkouts give a file another time.
static Status find_version(Finetune *f) {
    struct stat st;
    int file;
    int64_t size;
    uint64_t hash;
    snprintf(f->version, sizeof f->version, "a folder");
    if (stat(f->data, &st) == 0 && S_ISDIR(st.st_mode)) return OK;
    TRY(file_open_regular(f->data, &file, &size));
    Status status = hash_file(file, f->data, size, &hash);
    close(file);
    snprintf(f->version, sizeof f->version, "%" PRId64 " bytes, hash %016" PRIx64, size, hash);
    return status;
}

// An object of strings. Options that change no number of the result are not in it.
static void add_asked(const Finetune *f, Text *out) {
    static const char *const free_to_change[] = {
        "save",      "plain",      "workers",  "threads", "metrics",      "trace", "log_interval",
        "memory_gb", "bind_cores", "run_file", "ledger",  "lock_timeout", NULL};
    CommandWords words = {0};
    Text options = {0};
    options_words(f->options, FOR_FINETUNE, free_to_change, &words);
    words_print(&words, 0, &options);
    add_place("{", "model", f->model, out);
    add_place(",", "data", f->data, out);
    add_member(",", "version of the data", f->version, out);
    add_member(",", "options", text_string(&options), out);
    text_add(out, "\n  }");
    text_free(&options);
    words_free(&words);
}

static Status differs(const Finetune *f, const Json *was, const Json *now) {
    const char *a = json_string(was), *b = json_string(now);
    if (!strcmp(now->key, "version of the data"))
        return fail(
            ERR_CONFIG,
            "%s has changed since the fine-tuning in %s began (%s then, %s now): put back the file as it "
            "was to go on, or name another folder by --save",
            f->data, f->folder, a && *a ? a : "none", b);
    return fail(
        ERR_CONFIG,
        "%s holds a fine-tuning with another answer to '%s': %s there, %s now. Give the command that began "
        "it to go on, or name another folder by --save",
        f->folder, now->key, a && *a ? a : "none", b && *b ? b : "none");
}

static Status compare_asked(const Finetune *f, const Json *was) {
    Text text = {0};
    Json *now;
    add_asked(f, &text);
    Status status = json_parse(&now, text.data, text.size, "what is asked");
    for (size_t i = 0; status == OK && i < now->count; i++) {
        const Json *old = json_member(was, now->items[i].key);
        const char *a = json_string(old), *b = json_string(&now->items[i]);
        if (!a || strcmp(a, b) != 0) status = differs(f, old, &now->items[i]);
    }
    if (status == OK || now) json_free(now);
    text_free(&text);
    return status;
}

// ---- the file ---------------------------------------------------------------------------------------

static void add_words(const char *name, const CommandWords *words, Text *out) {
    text_add(out, ",\n  \"%s\": [", name);
    for (size_t i = 0; i < words->count; i++) {
        if (i) text_add(out, ", ");
        json_add_string(out, words->items[i], strlen(words->items[i]));
    }
    text_add(out, "]");
}

Status finetune_record_save(const Finetune *f) {
    Text text = {0};
    char path[4096];
    text_add(&text, "{\n  \"asked\": ");
    add_asked(f, &text);
    add_words("prepare", &f->prepare, &text);
    add_words("train", &f->train, &text);
    text_add(&text, ",\n  \"conversations\": %s,\n  \"held_out_tokens\": %" PRId64 ",\n  \"before\": ",
             f->conversations ? "true" : "false", f->scored);
    json_add_double(&text, f->before);
    text_add(&text, ",\n  \"after\": ");
    json_add_double(&text, f->after);
    text_add(&text, "\n}\n");
    record_path(f, path);
    Status status = file_write(path, text.data, text.size);
    text_free(&text);
    return status;
}

static void read_words(const Json *list, CommandWords *words) {
    for (size_t i = 0; list && i < list->count; i++)
        if (json_string(&list->items[i])) words_add(words, "%s", json_string(&list->items[i]));
}

// What is asked now may be what was wrong put right. What was made of the model of before goes, unless a run is
// training there. The data are encoded anew.
static Status forget(const Finetune *f) {
    char path[4096];
    int lock;
    finetune_checkpoints(f, path);
    TRY(checkpoint_lock(path, 0, NULL, &lock));
    snprintf(path, sizeof path, "%.3000s/base", f->folder);
    Status status = folder_remove(path);
    checkpoint_unlock(lock);
    return status;
}

static Status read_record(Finetune *f, const char *path) {
    char *text;
    size_t size;
    Json *root;
    TRY(file_read(path, MAX_RECORD, &text, &size));
    Status status = json_parse(&root, text, size, path);
    free(text);
    TRY(status);
    const Json *train = json_member(root, "train");
    bool planned = train && train->count;
    status = compare_asked(f, json_member(root, "asked"));
    bool differs = status == ERR_CONFIG;
    if (differs && finetune_newest_step(f) < 0) status = forget(f);
    if (status == OK && planned && !differs) {
        read_words(json_member(root, "prepare"), &f->prepare);
        read_words(train, &f->train);
        json_flag(json_member(root, "conversations"), &f->conversations);
        json_int(json_member(root, "held_out_tokens"), &f->scored);
        json_double(json_member(root, "before"), &f->before);
        json_double(json_member(root, "after"), &f->after);
    }
    json_free(root);
    return status;
}

static Status begin(Finetune *f) {
    char **names = NULL;
    int count = 0;
    TRY(folder_make(f->folder));
    TRY(folder_list(f->folder, &names, &count));
    Status status = OK;
    if (count)
        status =
            fail(ERR_CREATE,
                 "%s has files, such as %s, and no fine-tuning of this verb: name a new folder by --save",
                 f->folder, names[0]);
    free(names);
    return status == OK ? finetune_record_save(f) : status;
}

Status finetune_record_open(Finetune *f) {
    char path[4096];
    record_path(f, path);
    f->before = f->after = NAN;
    TRY(find_version(f));
    return file_exists(path) ? read_record(f, path) : begin(f);
}
