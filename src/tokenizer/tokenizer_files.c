// Opens and saves the files of a tokenizer: in a folder, beside a data set, or one file by itself.
#include "base/file.h"
#include "base/launcher.h"
#include "base/libraries.h"
#include "formats/hub_cache.h"
#include "tokenizer/internal.h"
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static Status join(char path[PATH_MAX], const char *start, const char *separator, const char *name) {
    if (snprintf(path, PATH_MAX, "%s%s%s", start, separator, name) >= PATH_MAX)
        return fail(ERR_CONFIG, "%s: the name is too long", start);
    return OK;
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// ---- Ends ---------------------------------------------------------------------------------------------

// Returns the first name that is a token.
static const char *const known_eods[] = {
    EOD_SPELLING,
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<\xef\xbd\x9c"
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
    "<|im_end|>",
    "<|eot_id|>",
    NULL,
};
static const char *const known_boses[] = {
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<s>",
    "<bos>",
    "<\xef\xbd\x9c"
    "begin\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
    NULL,
};

static int32_t find_known(const Bpe *bpe, const char *const *names) {
    for (; *names; names++) {
        int32_t id = bpe_find(bpe, *names, strlen(*names));
        if (id >= 0) return id;
    }
    return -1;
}

// Reads "eos_token": "</s>" or an object with "content". Leaves the id unchanged when there is neither.
static Status find_configured(const Bpe *bpe, const Json *config, const char *key, const char *path,
                              int32_t *id) {
    const Json *token = json_member(config, key);
    if (token && token->type == JSON_OBJECT) token = json_member(token, "content");
    const char *name = json_string(token);
    if (!name) return OK;
    *id = bpe_find(bpe, name, strlen(name));
    return *id >= 0
               ? OK
               : fail(ERR_DATA, "%s: the %s \"%.60s\" of the tokenizer_config.json beside it is no token",
                      path, key, name);
}

static Status read_config(Tokenizer *t, const char *path) {
    if (!t->config.size) return OK;
    Json *config;
    TRY(json_parse(&config, t->config.data, t->config.size, "tokenizer_config.json"));
    Status status = find_configured(&t->bpe, config, "eos_token", path, &t->eod);
    if (status == OK) status = find_configured(&t->bpe, config, "bos_token", path, &t->bos);
    json_free(config);
    return status;
}

Status tokenizer_find_ends(Tokenizer *t, const char *path) {
    t->eod = find_known(&t->bpe, known_eods);
    t->bos = find_known(&t->bpe, known_boses);
    TRY(read_config(t, path));
    if (t->eod >= 0) return OK;
    return fail(
        ERR_DATA,
        "%s: no token ends a text: there is no %s or the like, and no tokenizer_config.json beside it "
        "with an \"eos_token\"",
        path, EOD_SPELLING);
}

// ---- Reading ------------------------------------------------------------------------------------------

static Status read_into(Text *text, const char *path) {
    char *data;
    size_t size;
    TRY(file_read(path, MAX_TOKENIZER_BYTES, &data, &size));
    text_add_bytes(text, data, size);
    free(data);
    return OK;
}

static Status read_if_there(Text *text, const char *start, const char *name) {
    char path[PATH_MAX];
    TRY(join(path, start, "", name));
    return file_exists(path) ? read_into(text, path) : OK;
}

// Their paths are that of tokenizer.json or tokenizer.model with another name, or PREFIX.tokenizer_config.json for
// PREFIX.tokenizer.json.
static Status read_beside(Tokenizer *t, const char *path) {
    static const char *const endings[] = {"tokenizer.json", "tokenizer.model"};
    size_t length = strlen(path);
    for (int i = 0; i < 2; i++) {
        size_t size = strlen(endings[i]);
        char start[PATH_MAX];
        if (length < size || length >= PATH_MAX || strcmp(path + length - size, endings[i]) != 0) continue;
        snprintf(start, sizeof start, "%.*s", (int)(length - size), path);
        TRY(read_if_there(&t->config, start, "tokenizer_config.json"));
        return read_if_there(&t->template, start, "chat_template.jinja");
    }
    return OK;
}

static Status check_patterns(const Tokenizer *t, const char *path) {
    PieceScanner *scanner;
    Status status = piece_scanner_open(&scanner, (const char *const *)t->patterns, t->num_patterns);
    if (status != OK) return fail(status, "%s: %s", path, fail_message());
    piece_scanner_close(scanner);
    return OK;
}

static Status read_sentencepiece(Tokenizer *t, const char *path) {
    char message[SENTENCEPIECE_MESSAGE];
    if (!library_present(LIBRARY_SENTENCEPIECE)) return fail_without(LIBRARY_SENTENCEPIECE, path);
    t->kind = TOKENIZER_SENTENCEPIECE;
    t->sentencepiece = sentencepiece_open(t->file.data, t->file.size, message);
    if (!t->sentencepiece) return fail(ERR_DATA, "%s: SentencePiece: %s", path, message);
    sentencepiece_read_file(t);
    t->eod = sentencepiece_eos(t->sentencepiece);
    t->bos = sentencepiece_bos(t->sentencepiece);
    return t->eod >= 0 ? OK : fail(ERR_DATA, "%s: the SentencePiece model has no end token (eos_id)", path);
}

static Status read_ranks(Tokenizer *t, const char *path) {
    enum { GPT2_RANKS = 50256 };
    t->kind = TOKENIZER_BPE;
    TRY(bpe_load_ranks(&t->bpe, path, t->file.data, t->file.size));
    text_free(&t->file); // what is written is a tokenizer.json
    tokenizer_add_pattern(t, t->bpe.spellings.count == GPT2_RANKS + 1 ? gpt2_pattern : cl100k_pattern);
    return tokenizer_find_ends(t, path);
}

// A line of a file of ranks: base64, a blank, digits.
static bool is_rank_line(const char *text, size_t size) {
    size_t word = strcspn(text, " \r\n"), digits = word < size ? strspn(text + word + 1, "0123456789") : 0;
    return word >= 4 && word % 4 == 0 && digits && strcspn(text + word + 1 + digits, "\r\n") == 0;
}

// Reads what t->file holds, which its first bytes tell.
static Status read_content(Tokenizer *t, const char *path) {
    const char *text = text_string(&t->file);
    if (text[strspn(text, " \t\r\n")] == '{') {
        TRY(tokenizer_read_json(t, path));
        if (t->kind == TOKENIZER_NULL) return OK;
        TRY(check_patterns(t, path));
        return tokenizer_find_ends(t, path);
    }
    if (is_rank_line(text, t->file.size)) return read_ranks(t, path);
    if (text[0] == '\n') return read_sentencepiece(t, path); // the tag of a model's first field
    return fail(
        ERR_DATA,
        "%s: no tokenizer: a Hugging Face tokenizer.json, a SentencePiece model or a tiktoken file of "
        "ranks is expected",
        path);
}

static Status read_file(Tokenizer *t, const char *path) {
    TRY(read_into(&t->file, path));
    if (!is_rank_line(text_string(&t->file), t->file.size)) TRY(read_beside(t, path));
    return read_content(t, path);
}

static Status open_new(Tokenizer **tokenizer, TokenizerTexts *texts, const char *path) {
    Tokenizer *t = *tokenizer = calloc(1, sizeof *t);
    if (!t) {
        if (texts) tokenizer_texts_free(texts);
        return fail(ERR_OS, "no memory for a tokenizer");
    }
    t->bos = -1;
    if (texts) t->file = texts->file, t->config = texts->config, t->template = texts->template;
    Status status = texts ? read_content(t, path) : read_file(t, path);
    if (status == OK) return OK;
    tokenizer_close(t);
    *tokenizer = NULL;
    return status;
}

static Status open_file(Tokenizer **tokenizer, const char *path) { return open_new(tokenizer, NULL, path); }

Status tokenizer_open_texts(Tokenizer **tokenizer, TokenizerTexts *texts, const char *path) {
    return open_new(tokenizer, texts, path);
}

void tokenizer_texts_free(TokenizerTexts *texts) {
    text_free(&texts->file);
    text_free(&texts->config);
    text_free(&texts->template);
}

// Counts the added tokens of a tokenizer.json that a SentencePiece model of `size` tokens does not have.
static int tokens_beyond(const Text *json, int size, const char *path) {
    Json *root;
    int count = 0;
    if (json_parse(&root, text_string(json), json->size, path) != OK) return 0;
    const Json *added = json_member(root, "added_tokens");
    for (size_t i = 0; added && added->type == JSON_ARRAY && i < added->count; i++) {
        int64_t id;
        count += json_int(json_member(&added->items[i], "id"), &id) && id >= size;
    }
    json_free(root);
    return count;
}

static Status open_model_instead(Tokenizer **tokenizer, const char *json, const char *model) {
    Text text = {0}, why = {0};
    text_add(&why, "%s", fail_message());
    Status status = open_file(tokenizer, model);
    if (status == OK) status = read_into(&text, json);
    if (status == OK) {
        Tokenizer *t = *tokenizer;
        int missing = tokens_beyond(&text, tokenizer_vocab_size(t), json);
        text_add(&t->note, "the tokenizer is %s, since %s", model, text_string(&why));
        if (missing) text_add(&t->note, "; %d added tokens of tokenizer.json are not known to it", missing);
    }
    text_free(&text);
    text_free(&why);
    return status;
}

// The tokenizer.json that was converted from a SentencePiece model needs features that are not supported here.
// Opens the model itself where the folder has it.
static Status open_json(Tokenizer **tokenizer, const char *path, const char *start, const char *separator) {
    char model[PATH_MAX];
    Status status = open_file(tokenizer, path);
    if (status != ERR_UNAVAILABLE) return status;
    TRY(join(model, start, separator, "tokenizer.model"));
    return file_exists(model) ? open_model_instead(tokenizer, path, model) : status;
}

// Opens the first tokenizer that exists among START/NAME or START.NAME.
static Status open_there(Tokenizer **tokenizer, const char *start, const char *separator) {
    static const char *const names[] = {"tokenizer.json", "tokenizer.model"};
    char path[PATH_MAX], merges[PATH_MAX];
    *tokenizer = NULL;
    for (int i = 0; i < 2; i++) {
        TRY(join(path, start, separator, names[i]));
        if (file_exists(path))
            return i ? open_file(tokenizer, path) : open_json(tokenizer, path, start, separator);
    }
    TRY(join(path, start, separator, "vocab.json"));
    TRY(join(merges, start, separator, "merges.txt"));
    if (file_exists(path)) return tokenizer_open(tokenizer, path, merges);
    return fail(ERR_NO_INPUT, "no tokenizer: there is none of %s%stokenizer.json, %s%stokenizer.model and %s",
                start, separator, start, separator, path);
}

Status tokenizer_open_beside(Tokenizer **tokenizer, const char *prefix) {
    return open_there(tokenizer, prefix, is_folder(prefix) ? "/" : ".");
}

// ---- Paths that lead to none ----------------------------------------------------------------------------

// Writes the folder of a path, "." where it has none, and returns the name in it.
static const char *split_path(const char *path, char folder[PATH_MAX]) {
    const char *slash = strrchr(path, '/');
    snprintf(folder, PATH_MAX, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    return slash ? slash + 1 : path;
}

// Adds "; did you mean X?" where the folder of the path has a name that is near.
static void add_near_name(const char *path, Text *out) {
    char folder[PATH_MAX], **names;
    const char *name = split_path(path, folder);
    int count;
    if (folder_list(folder, &names, &count) != OK) return;
    const char *nearest = text_nearest(name, (const char *const *)names, count);
    if (nearest) text_add(out, "; did you mean %.*s%s?", (int)(name - path), path, nearest);
    free(names);
}

// Nothing is at the path.
static Status nothing_there(const char *path) {
    Text hint = {0};
    add_near_name(path, &hint);
    if (!hint.size) hub_add_advice(path, &hint);
    Status status = fail(ERR_NO_INPUT,
                         "no tokenizer at %s: there is no such file or folder, nor %s.tokenizer.json, "
                         "%s.tokenizer.model or %s.vocab.json of a data set%s",
                         path, path, path, path, text_string(&hint));
    text_free(&hint);
    return status;
}

// A file that is no tokenizer may lie beside one.
static Status wrong_file(Status status, const char *path) {
    char folder[PATH_MAX], right[PATH_MAX], why[600];
    split_path(path, folder);
    snprintf(why, sizeof why, "%s", fail_message());
    if (join(right, folder, "/", "tokenizer.json") != OK || !file_exists(right))
        return fail(status, "%s", why);
    return fail(status, "%s; did you mean the folder, %s?", why, folder);
}

Status tokenizer_open_path(Tokenizer **tokenizer, const char *path) {
    char room[4096];
    path = hub_model(path, room);
    if (!file_exists(path) || is_folder(path)) {
        Status status = tokenizer_open_beside(tokenizer, path);
        return status == ERR_NO_INPUT && !file_exists(path) ? nothing_there(path) : status;
    }
    Status status = open_file(tokenizer, path);
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    bool named_so = !strcmp(name, "tokenizer.json") || strstr(name, ".tokenizer.json");
    return status == ERR_DATA && !named_so ? wrong_file(status, path) : status;
}

void tokenizer_print_note(const Tokenizer *t) {
    if (t && t->note.size && launcher_rank() == 0) fprintf(stderr, "note: %s\n", text_string(&t->note));
}

// ---- Writing ------------------------------------------------------------------------------------------

static Status remove_stale(const char *start, const char *separator, const char *name) {
    char path[PATH_MAX];
    TRY(join(path, start, separator, name));
    if (unlink(path) == 0 || errno == ENOENT) return OK;
    return fail(create_status(), "%s: cannot remove the tokenizer of an earlier run: %s", path,
                strerror(errno));
}

static Status save_text(const Text *text, const char *start, const char *separator, const char *name) {
    char path[PATH_MAX];
    TRY(join(path, start, separator, name));
    return file_write(path, text->data, text->size);
}

static const char *file_name(const Tokenizer *t) {
    return t->kind == TOKENIZER_SENTENCEPIECE ? "tokenizer.model" : "tokenizer.json";
}

static Status save_model(const Tokenizer *t, const char *start, const char *separator) {
    if (t->file.size) return save_text(&t->file, start, separator, file_name(t));
    Text text = {0};
    tokenizer_write_json(t, &text);
    Status status = save_text(&text, start, separator, file_name(t));
    text_free(&text);
    return status;
}

static Status save_or_remove(const Text *text, const char *prefix, const char *name) {
    return text->size ? save_text(text, prefix, ".", name) : remove_stale(prefix, ".", name);
}

Status tokenizer_save(const Tokenizer *t, const char *prefix) {
    static const char *const others[] = {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"};
    for (int i = 0; i < 4; i++)
        if (strcmp(others[i], file_name(t))) TRY(remove_stale(prefix, ".", others[i]));
    TRY(save_or_remove(&t->config, prefix, "tokenizer_config.json"));
    TRY(save_or_remove(&t->template, prefix, "chat_template.jinja"));
    return save_model(t, prefix, ".");
}

static Status save_config(const Tokenizer *t, const char *folder) {
    if (t->config.size) return save_text(&t->config, folder, "/", "tokenizer_config.json");
    Text text = {0};
    tokenizer_write_config(t, &text);
    Status status = save_text(&text, folder, "/", "tokenizer_config.json");
    text_free(&text);
    return status;
}

// Writes GPT-2's own two files as well, for programs that read nothing else, where they describe the tokenizer fully.
static Status save_gpt2(const Tokenizer *t, const char *folder) {
    bool is_gpt2 = !t->file.size && !t->bpe.ignore_merges && strcmp(t->patterns[0], gpt2_pattern) == 0;
    if (!is_gpt2) return OK;
    char vocab[PATH_MAX], merges[PATH_MAX];
    TRY(join(vocab, folder, "/", "vocab.json"));
    TRY(join(merges, folder, "/", "merges.txt"));
    return bpe_save(&t->bpe, vocab, merges);
}

Status tokenizer_save_folder(const Tokenizer *t, const char *folder) {
    TRY(save_model(t, folder, "/"));
    if (t->kind != TOKENIZER_NULL) TRY(save_config(t, folder));
    if (t->template.size) TRY(save_text(&t->template, folder, "/", "chat_template.jinja"));
    return t->kind == TOKENIZER_BPE ? save_gpt2(t, folder) : OK;
}
