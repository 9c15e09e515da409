// The tokens that a model's configuration names by number, of which any end token ends a text: read from config.json,
// generation_config.json and our manifest, and written back.
#include "base/file.h"
#include "checkpoint/manifest.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

// ---- reading ------------------------------------------------------------------------------------

static Status bad(const Json *value, const char *what, const char *name) {
    return fail(ERR_DATA, "%s: byte %" PRId64 ": \"%s\" is neither null nor the number of a token%s", what,
                value->offset, name, name[0] == 'e' ? ", nor a list of at most 32 of them" : "");
}

static bool read_id(const Json *value, int *id) {
    int64_t number;
    if (!json_int(value, &number) || number <= NO_TOKEN || number > INT_MAX) return false;
    *id = (int)number;
    return true;
}

static Status read_one(const Json *object, const char *what, const char *name, bool *says, int *id) {
    const Json *value = json_member(object, name);
    *says = value != NULL;
    *id = NO_TOKEN;
    if (!value || value->type == JSON_NULL || read_id(value, id)) return OK;
    return bad(value, what, name);
}

static Status read_ends(const Json *object, const char *what, ModelTokens *tokens) {
    const Json *value = json_member(object, "eos_token_id");
    tokens->says_ends = value != NULL;
    tokens->num_ends = 0;
    if (!value || value->type == JSON_NULL) return OK;
    bool list = value->type == JSON_ARRAY;
    size_t count = list ? value->count : 1;
    if (count > MAX_END_TOKENS) return bad(value, what, "eos_token_id");
    for (size_t i = 0; i < count; i++)
        if (!read_id(list ? &value->items[i] : value, &tokens->ends[i]))
            return bad(value, what, "eos_token_id");
    tokens->num_ends = (int)count;
    return OK;
}

Status tokens_read(const Json *object, const char *what, ModelTokens *tokens) {
    TRY(read_one(object, what, "bos_token_id", &tokens->says_begin, &tokens->begin));
    TRY(read_one(object, what, "pad_token_id", &tokens->says_pad, &tokens->pad));
    return read_ends(object, what, tokens);
}

// ---- writing ------------------------------------------------------------------------------------

static void write_id(int id, Text *out) {
    if (id == NO_TOKEN)
        text_add(out, "null");
    else
        text_add(out, "%d", id);
}

void tokens_write_ends(const int *ends, int count, Text *out) {
    if (count < 2) {
        write_id(count ? ends[0] : NO_TOKEN, out);
        return;
    }
    for (int i = 0; i < count; i++) text_add(out, "%s%d", i ? ", " : "[", ends[i]);
    text_add(out, "]");
}

bool tokens_said(const ModelTokens *tokens) {
    return tokens->says_begin || tokens->says_ends || tokens->says_pad;
}

void tokens_write(const ModelTokens *tokens, Text *out) {
    const char *comma = "";
    text_add(out, "{");
    if (tokens->says_begin) {
        text_add(out, "\"bos_token_id\": ");
        write_id(tokens->begin, out);
        comma = ", ";
    }
    if (tokens->says_ends) {
        text_add(out, "%s\"eos_token_id\": ", comma);
        tokens_write_ends(tokens->ends, tokens->num_ends, out);
        comma = ", ";
    }
    if (tokens->says_pad) {
        text_add(out, "%s\"pad_token_id\": ", comma);
        write_id(tokens->pad, out);
    }
    text_add(out, "}");
}

// ---- the tokens that end a text -----------------------------------------------------------------

static void add_end(int id, int vocabulary, TokenList *ends) {
    int32_t end = id;
    for (size_t i = 0; i < ends->count; i++)
        if (ends->ids[i] == end) return;
    if (id >= 0 && id < vocabulary) token_list_add(ends, &end, 1);
}

Status generation_config_read(const char *path, ModelTokens *tokens) {
    enum { MOST = 1 << 20 };
    char *text;
    size_t size;
    Json *root;
    TRY(file_read(path, MOST, &text, &size));
    Status status = json_parse(&root, text, size, path);
    free(text);
    TRY(status);
    status = tokens_read(root, path, tokens);
    json_free(root);
    return status;
}

Status model_source_ends(const ModelSource *source, const Tokenizer *tokenizer, TokenList *ends) {
    const CheckpointInfo *info = model_source_info(source);
    ModelTokens generation = {0};
    char path[PATH_ROOM];
    TRY(path_join(path, model_source_files_path(source), "generation_config.json"));
    if (file_exists(path)) TRY(generation_config_read(path, &generation));
    int vocabulary = info->shape.vocabulary;
    if (tokenizer) add_end(tokenizer_eod(tokenizer), vocabulary, ends);
    for (int i = 0; i < info->tokens.num_ends; i++) add_end(info->tokens.ends[i], vocabulary, ends);
    for (int i = 0; i < generation.num_ends; i++) add_end(generation.ends[i], vocabulary, ends);
    return OK;
}
