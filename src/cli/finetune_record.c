// Keeps what a fine-tuning was asked for and what it has decided, so that the same command goes on with the same
// numbers on a machine that may have less memory by then.
#include "base/file.h"
#include "cli/finetune.h"
#include "formats/formats.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_RECORD = 4 << 20 };

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

// A file of another size or time may hold other data.
static void add_version(const char *path, Text *out) {
    struct stat st;
    char version[64] = "a folder";
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        snprintf(version, sizeof version, "%lld bytes of %lld.%09ld", (long long)st.st_size,
                 (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
    add_member(",", "version of the data", version, out);
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
    add_version(f->data, out);
    add_member(",", "options", text_string(&options), out);
    text_add(out, "\n  }");
    text_free(&options);
    words_free(&words);
}

static Status differs(const Finetune *f, const Json *was, const Json *now) {
    const char *a = json_string(was), *b = json_string(now);
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

static Status read_record(Finetune *f, const char *path) {
    char *text;
    size_t size;
    Json *root;
    TRY(file_read(path, MAX_RECORD, &text, &size));
    Status status = json_parse(&root, text, size, path);
    free(text);
    TRY(status);
    const Json *train = json_member(root, "train");
    bool planned =
        train && train->count; // else it was refused, and what is asked now may be what was wrong put right
    status = planned ? compare_asked(f, json_member(root, "asked")) : OK;
    if (status == OK && planned) {
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
    return file_exists(path) ? read_record(f, path) : begin(f);
}
