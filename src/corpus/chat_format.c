// Opens the chat template of a model, or a built-in one, and checks that it suits the tokenizer.
#include "corpus/chat_format.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CONFIG_BYTES = 64 << 20 };

// The file `name` in the folder of a tokenizer; its text is NULL where there is none.
static Status read_beside(const char *folder, const char *name, Text *path, char **text, size_t *size) {
    struct stat st;
    *text = NULL;
    path->size = 0;
    text_add(path, "%s/%s", folder, name);
    if (!folder || stat(folder, &st) || !S_ISDIR(st.st_mode) || !file_exists(path->data)) return OK;
    return file_read(path->data, MAX_CONFIG_BYTES, text, size);
}

// ---- where the template comes from ------------------------------------------------------------------------

static Status check_markers(const ChatFormat *f, const ChatTemplate *named) {
    for (const char *at = named->markers; *at;) {
        size_t size = strcspn(at, " ");
        TokenList ids = {0};
        Status status = tokenizer_encode(f->tokenizer, at, size, &ids);
        size_t count = ids.count;
        token_list_free(&ids);
        TRY(status);
        if (count != 1)
            return fail(
                ERR_CONFIG,
                "--chat-template %s: the vocabulary has no token %.*s, which this template writes: name a "
                "template that suits the tokenizer, such as alpaca, or add the token to both tokenizer and model",
                named->name, (int)size, at);
        at += size + (at[size] == ' ');
    }
    return OK;
}

static Status no_such_template(const char *named) {
    Text names = {0};
    chat_template_names(&names);
    fail(ERR_NO_INPUT,
         "--chat-template %s: there is no such file, and no template of this name; built in are %s", named,
         text_string(&names));
    text_free(&names);
    return ERR_NO_INPUT;
}

static Status open_named(ChatFormat *f, const char *named) {
    const ChatTemplate *built_in = chat_template_named(named);
    char *text;
    size_t size;
    if (built_in) {
        TRY(jinja_parse(&f->template, built_in->source, strlen(built_in->source), named));
        template_without_marks(built_in->source, strlen(built_in->source), &f->carried);
        return check_markers(f, built_in);
    }
    if (!file_exists(named)) return no_such_template(named);
    TRY(file_read(named, JINJA_MAX_SOURCE_BYTES, &text, &size));
    Status status = jinja_parse(&f->template, text, size, named);
    if (status == OK) template_without_marks(text, size, &f->carried);
    free(text);
    return status;
}

static Status open_own(ChatFormat *f, const char *folder, Text *path) {
    if (!f->use.chat_template)
        return fail(
            ERR_CONFIG,
            "%s: this tokenizer has no chat template, neither chat_template.jinja nor in tokenizer_config.json: "
            "name one, such as --chat-template chatml",
            folder);
    bool member = strcmp(f->use.template_file, "chat_template.jinja") != 0;
    path->size = 0;
    text_add(path, "%s/%s%s", folder, f->use.template_file, member ? ", chat_template" : "");
    return jinja_parse(&f->template, f->use.chat_template, strlen(f->use.chat_template), path->data);
}

// ---- checks of the vocabulary ---------------------------------------------------------------------------------

// The model's vocabulary may be larger than the tokenizer's, but not smaller.
static Status check_vocabulary(const ChatFormat *f, const char *folder, Text *path) {
    char *text;
    size_t size;
    Json *config;
    int64_t vocabulary;
    TRY(read_beside(folder, "config.json", path, &text, &size));
    if (!text) return OK;
    Status status = json_parse(&config, text, size, path->data);
    free(text);
    TRY(status);
    bool smaller = json_int(json_member(config, "vocab_size"), &vocabulary) &&
                   vocabulary < tokenizer_vocab_size(f->tokenizer);
    json_free(config);
    if (!smaller) return OK;
    return fail(
        ERR_DATA,
        "%s: the model's vocab_size is %lld, but the tokenizer has %d tokens: it is another model's, or tokens "
        "were added to it without the model's table being resized",
        path->data, (long long)vocabulary, tokenizer_vocab_size(f->tokenizer));
}

// Where a SentencePiece model is read in place of tokenizer.json, tokens that were added beside it are not known.
static Status check_added(const ChatFormat *f, const char *folder, Text *path) {
    char *text, *end;
    size_t size;
    Json *config;
    if (tokenizer_kind(f->tokenizer) != TOKENIZER_SENTENCEPIECE) return OK;
    TRY(read_beside(folder, "tokenizer_config.json", path, &text, &size));
    if (!text) return OK;
    Status status = json_parse(&config, text, size, path->data);
    free(text);
    TRY(status);
    const Json *added = json_member(config, "added_tokens_decoder");
    for (size_t i = 0; added && i < added->count && status == OK; i++) {
        const char *key = added->items[i].key ? added->items[i].key : "";
        long id = strtol(key, &end, 10);
        const char *content = json_string(json_member(&added->items[i], "content"));
        if (*key && !*end && id >= tokenizer_vocab_size(f->tokenizer))
            status = fail(
                ERR_UNAVAILABLE,
                "%s: the token %s is added to tokenizer.model, which is read without it: that is not supported",
                path->data, content ? content : key);
    }
    json_free(config);
    return status;
}

// Whether the tokenizer makes other tokens of the spelling of this one.
static Status is_characters(const Tokenizer *t, int token, bool *characters) {
    TokenList ids = {0};
    if (token < 0) return OK;
    const char *spelling = tokenizer_spelling(t, token);
    Status status = tokenizer_encode(t, spelling, strlen(spelling), &ids);
    if (ids.count != 1 || ids.ids[0] != token) *characters = true;
    token_list_free(&ids);
    return status;
}

Status chat_format_open(ChatFormat *f, const Tokenizer *tokenizer, const char *folder, const char *named) {
    const char *epoch = getenv("SOURCE_DATE_EPOCH");
    int64_t now;
    Text path = {0};
    *f = (ChatFormat){.tokenizer = tokenizer, .now = time(NULL)};
    if (epoch && parse_int(epoch, &now)) f->now = (time_t)now;
    Status status = tokenizer_use_read(&f->use, tokenizer);
    if (status == OK) status = named ? open_named(f, named) : open_own(f, folder, &path);
    if (status == OK) status = check_vocabulary(f, folder, &path);
    if (status == OK) status = check_added(f, folder, &path);
    if (status == OK) status = is_characters(tokenizer, tokenizer_bos(tokenizer), &f->splits);
    if (status == OK) status = is_characters(tokenizer, tokenizer_eod(tokenizer), &f->splits);
    if (status == OK) status = chat_find_marked(f);
    if (status == OK) status = chat_find_parts(f);
    text_free(&path);
    if (status != OK) chat_format_close(f);
    return status;
}

void chat_format_close(ChatFormat *f) {
    jinja_free(f->template);
    jinja_free(f->marked);
    text_free(&f->carried);
    tokenizer_use_free(&f->use);
    *f = (ChatFormat){0};
}
