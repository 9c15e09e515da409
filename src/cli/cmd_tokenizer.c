// `trireme tokenizer`: trains and shows tokenizers, encodes and decodes text.
#include "base/file.h"
#include "cli/cli.h"
#include "corpus/corpus.h"
#include "formats/formats.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT_BYTES = 1 << 30 };

// ---- Opening and reading ------------------------------------------------------------------------------

static Status open_tokenizer(const Options *o, Tokenizer **tokenizer) {
    bool is_null = options_have_null_tokenizer(o);
    TRY(options_check_tokenizer(o));
    if (o->vocab_size != INT_UNSET && !is_null)
        return fail(ERR_CONFIG, "--vocab-size %d is for train and for the null tokenizer", o->vocab_size);
    if (is_null) return tokenizer_open_null(tokenizer, o->vocab_size);
    if (o->vocab_file) return tokenizer_open(tokenizer, o->vocab_file, o->merge_file);
    if (o->tokenizer_model) {
        TRY(tokenizer_open_path(tokenizer, o->tokenizer_model));
        tokenizer_print_note(*tokenizer);
        return OK;
    }
    return fail(
        ERR_USAGE,
        "no tokenizer is named: use --tokenizer-model with a file, a folder or the prefix of a data set");
}

static Status read_standard_input(Text *text) {
    static char buffer[1 << 16];
    size_t got;
    while ((got = fread(buffer, 1, sizeof buffer, stdin)) > 0) {
        if (text->size + got > MAX_TEXT_BYTES)
            return fail(ERR_DATA, "standard input: more than %d bytes", MAX_TEXT_BYTES);
        text_add_bytes(text, buffer, got);
    }
    return ferror(stdin) ? fail(ERR_IO, "standard input: %s", strerror(errno)) : OK;
}

static Status read_text(const char *name, Text *text) {
    text->size = 0;
    if (!strcmp(name, "-")) return read_standard_input(text);
    char *data;
    size_t size;
    TRY(file_read(name, MAX_TEXT_BYTES, &data, &size));
    text_add_bytes(text, data, size);
    free(data);
    return OK;
}

// Calls `take` with each FILE, or with standard input when there is none.
static Status for_each_file(const Options *o, const Tokenizer *t,
                            Status (*take)(const Tokenizer *t, const char *name, const Text *text)) {
    Text text = {0};
    Status status = OK;
    int count = o->positional.count > 1 ? o->positional.count : 2;
    for (int i = 1; status == OK && i < count; i++) {
        const char *name = i < o->positional.count ? o->positional.items[i] : "-";
        status = read_text(name, &text);
        if (status == OK) status = take(t, name, &text);
    }
    text_free(&text);
    return status;
}

// ---- train --------------------------------------------------------------------------------------------

static Status check_training(const Options *o) {
    if (o->positional.count > 1)
        return fail(ERR_USAGE, "'%s' belongs to no option; inputs are given by --input",
                    o->positional.items[1]);
    if (!o->input.count)
        return fail(ERR_USAGE, "tokenizer train needs --input: text files, folders or JSON lines");
    if (o->vocab_size == INT_UNSET)
        return fail(ERR_USAGE, "tokenizer train needs --vocab-size V, such as 32768");
    if (!o->output) return fail(ERR_USAGE, "tokenizer train needs --output FOLDER");
    if (o->tokenizer_model || o->vocab_file || o->merge_file)
        return fail(ERR_CONFIG,
                    "tokenizer train makes a new tokenizer: leave out --tokenizer-model or --vocab-file");
    if (file_exists(o->output))
        return fail(ERR_CREATE, "--output %s exists; an existing one is never replaced", o->output);
    return OK;
}

static Status run_train(const Options *o) {
    TRY(check_training(o));
    TrainingText text = {.inputs = o->input.items,
                         .num_inputs = o->input.count,
                         .json_keys = o->json_keys.items,
                         .num_json_keys = o->json_keys.count,
                         .max_bytes = o->max_bytes == INT_UNSET ? 0 : o->max_bytes,
                         .skip_bad_lines = o->skip_bad_lines,
                         .stopped = stop_on_signals()};
    Tokenizer *tokenizer;
    LeftOut left_out = {0};
    Status status = tokenizer_train_text(&tokenizer, text, o->vocab_size, &left_out);
    if (status == OK) status = folder_make(o->output);
    if (status == OK) status = tokenizer_save_folder(tokenizer, o->output);
    if (status == OK)
        printf("%s: %d tokens, %d merges\n", o->output, tokenizer_vocab_size(tokenizer),
               tokenizer_num_merges(tokenizer));
    if (left_out.bad_lines)
        printf("  left out %" PRId64 " bad lines\n%s", left_out.bad_lines, text_string(&left_out.which));
    text_free(&left_out.which);
    tokenizer_close(tokenizer);
    return status;
}

// ---- encode, decode -----------------------------------------------------------------------------------

// Encodes a file, which is one document, into one line of output.
static Status encode_file(const Tokenizer *t, const char *name, const Text *text) {
    TokenList ids = {0};
    Status status = tokenizer_encode(t, text_string(text), text->size, &ids);
    for (size_t i = 0; status == OK && i < ids.count; i++) printf(i ? " %" PRId32 : "%" PRId32, ids.ids[i]);
    if (status == OK) putchar('\n');
    token_list_free(&ids);
    return status == OK ? OK : fail(status, "%s: %s", name, fail_message());
}

static bool next_id(const char **at, int32_t *id) {
    char *end;
    errno = 0;
    long long value = strtoll(*at, &end, 10);
    if (end == *at || errno || value < 0 || value > INT32_MAX || (*end && !strchr(" \t\r\n", *end)))
        return false;
    *id = (int32_t)value;
    *at = end;
    return true;
}

// Decodes the tokens of all lines together, which makes it the inverse of encode for every text.
static Status decode_file(const Tokenizer *t, const char *name, const Text *text) {
    TokenList ids = {0};
    Text out = {0};
    Status status = OK;
    const char *at = text_string(text);
    for (at += strspn(at, " \t\r\n"); status == OK && *at; at += strspn(at, " \t\r\n")) {
        int32_t id;
        if (next_id(&at, &id))
            token_list_add(&ids, &id, 1);
        else
            status = fail(ERR_DATA, "byte %td: blank-separated ids are expected", at - text_string(text));
    }
    if (status == OK) status = tokenizer_decode(t, ids.ids, ids.count, &out);
    if (status == OK) fwrite(text_string(&out), 1, out.size, stdout);
    text_free(&out);
    token_list_free(&ids);
    return status == OK ? OK : fail(status, "%s: %s", name, fail_message());
}

// ---- inspect ------------------------------------------------------------------------------------------

static const char *kind_name(TokenizerKind kind) {
    static const char *const names[] = {"integers (null)", "byte-level BPE", "SentencePiece"};
    return names[kind];
}

static void print_token(const Tokenizer *t, const char *label, int id) {
    Text line = {0};
    const char *spelling = id < 0 ? "" : tokenizer_spelling(t, id);
    json_add_string(&line, spelling, strlen(spelling));
    if (id < 0)
        printf("%-20s none\n", label);
    else
        printf("%-20s %8d  %s\n", label, id, text_string(&line));
    text_free(&line);
}

static void print_specials(const Tokenizer *t) {
    enum { MAX_PRINTED = 300 };
    int count = 0;
    for (int id = 0; id < tokenizer_vocab_size(t); id++) {
        TokenType type = tokenizer_token_type(t, id);
        if (type != TOKEN_CONTROL && type != TOKEN_USER_DEFINED && type != TOKEN_UNKNOWN) continue;
        if (count++ < MAX_PRINTED) print_token(t, type == TOKEN_USER_DEFINED ? "added" : "special", id);
    }
    if (count > MAX_PRINTED) printf("... and %d more special and added tokens\n", count - MAX_PRINTED);
}

// Prints the longest tokens, tokens of equal length in the order of their ids.
static void print_longest(const Tokenizer *t) {
    enum { MAX_PRINTED = 10 };
    int longest[MAX_PRINTED], count = 0;
    for (int id = 0; id < tokenizer_vocab_size(t); id++) {
        if (tokenizer_token_type(t, id) != TOKEN_NORMAL) continue;
        size_t size = strlen(tokenizer_spelling(t, id));
        int at = count;
        for (; at && size > strlen(tokenizer_spelling(t, longest[at - 1])); at--)
            if (at < MAX_PRINTED) longest[at] = longest[at - 1];
        if (at < MAX_PRINTED) longest[at] = id;
        if (count < MAX_PRINTED) count++;
    }
    for (int i = 0; i < count; i++) print_token(t, "longest", longest[i]);
}

static Status run_inspect(const Tokenizer *t) {
    printf("%-20s %s\n", "kind", kind_name(tokenizer_kind(t)));
    printf("%-20s %8d\n", "tokens", tokenizer_vocab_size(t));
    if (tokenizer_kind(t) == TOKENIZER_NULL) return OK;
    if (tokenizer_kind(t) == TOKENIZER_BPE) printf("%-20s %8d\n", "merges", tokenizer_num_merges(t));
    for (int i = 0; i < tokenizer_num_patterns(t); i++)
        printf("%-20s %s\n", "pattern", tokenizer_pattern(t, i));
    print_token(t, "end of document", tokenizer_eod(t));
    print_token(t, "beginning of text", tokenizer_bos(t));
    print_specials(t);
    print_longest(t);
    return OK;
}

// ---- The verb -----------------------------------------------------------------------------------------

static Status run_with_tokenizer(const Options *o, const char *what) {
    bool inspect = !strcmp(what, "inspect");
    if (inspect && o->positional.count > 1)
        return fail(ERR_USAGE, "'%s': tokenizer inspect takes no file; --tokenizer-model names the tokenizer",
                    o->positional.items[1]);
    const char *for_train = o->output                                        ? "output"
                            : o->input.count                                 ? "input"
                            : o->max_bytes != INT_UNSET                      ? "max-bytes"
                            : o->skip_bad_lines                              ? "skip-bad-lines"
                            : options_origin(o, "json_keys") == FROM_DEFAULT ? NULL
                                                                             : "json-keys";
    if (for_train)
        return fail(ERR_USAGE, "--%s is for tokenizer train; %s reads FILE ... or standard input", for_train,
                    what);
    Tokenizer *t;
    TRY(open_tokenizer(o, &t));
    Status status =
        inspect ? run_inspect(t) : for_each_file(o, t, !strcmp(what, "encode") ? encode_file : decode_file);
    tokenizer_close(t);
    return status;
}

Status cmd_tokenizer(Options *o) {
    tell_notes(o);
    const char *what = o->positional.count ? o->positional.items[0] : NULL;
    if (what && !strcmp(what, "train")) return run_train(o);
    if (what && (!strcmp(what, "encode") || !strcmp(what, "decode") || !strcmp(what, "inspect")))
        return run_with_tokenizer(o, what);
    return options_no_word(FOR_TOKENIZER, what);
}
