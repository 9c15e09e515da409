// Reads how other libraries use a tokenizer: the beginning and end of a text, and the template of conversations.
// Source: transformers' PreTrainedTokenizerBase and LlamaTokenizer, and the tokenizers repository's post-processors.
#include "tokenizer/internal.h"
#include <stdlib.h>
#include <string.h>

static bool is_string(const Json *value, const char *string) {
    return json_string(value) && strcmp(json_string(value), string) == 0;
}

// ---- the post-processor of tokenizer.json ------------------------------------------------------------------

// {"SpecialToken": {"id": "<s>", ...}}
static bool is_token(const Tokenizer *t, const Json *piece, int id) {
    const char *name = json_string(json_member(json_member(piece, "SpecialToken"), "id"));
    return name && id >= 0 && !strcmp(name, tokenizer_spelling(t, id));
}

static void read_processor(const Tokenizer *t, const Json *processor, TokenizerUse *use) {
    const Json *parts = json_member(processor, "processors"), *single = json_member(processor, "single");
    if (parts && parts->type == JSON_ARRAY)
        for (size_t i = 0; i < parts->count; i++) read_processor(t, &parts->items[i], use);
    bool is_template = is_string(json_member(processor, "type"), "TemplateProcessing");
    if (!is_template || !single || single->type != JSON_ARRAY || !single->count) return;
    use->adds_bos = is_token(t, &single->items[0], tokenizer_bos(t));
    use->adds_eos = is_token(t, &single->items[single->count - 1], tokenizer_eod(t));
}

static Status read_json(const Tokenizer *t, TokenizerUse *use) {
    Json *root;
    if (t->kind != TOKENIZER_BPE || !t->file.size) return OK;
    TRY(json_parse(&root, t->file.data, t->file.size, "tokenizer.json"));
    read_processor(t, json_member(root, "post_processor"), use);
    json_free(root);
    return OK;
}

// ---- tokenizer_config.json ------------------------------------------------------------------------------------

// A string, or a list of {"name": "default", "template": "..."}.
static const char *find_template(const Json *value) {
    if (!value || value->type != JSON_ARRAY) return json_string(value);
    for (size_t i = 0; i < value->count; i++)
        if (is_string(json_member(&value->items[i], "name"), "default"))
            return json_string(json_member(&value->items[i], "template"));
    return NULL;
}

// The class of SentencePiece tokenizers adds the beginning of text unless the configuration says otherwise.
static bool begins_texts(const Tokenizer *t, const Json *config) {
    const char *class = json_string(json_member(config, "tokenizer_class"));
    return t->kind == TOKENIZER_SENTENCEPIECE && class && !strncmp(class, "LlamaTokenizer", 14);
}

static char *copy(const char *string) {
    char *made = string ? strdup(string) : NULL;
    CHECK(made || !string, "no memory for %zu bytes", string ? strlen(string) : 0);
    return made;
}

// A token is a string, or {"content": "..."}.
static char *find_token(const Json *config, const char *name) {
    const Json *token = json_member(config, name), *content = json_member(token, "content");
    return copy(json_string(content ? content : token));
}

static char *own_token(const Tokenizer *t, int id) { return id < 0 ? NULL : copy(tokenizer_spelling(t, id)); }

// {"32000": {"content": "<|end|>", "special": true}, ...}
static void read_added(const Tokenizer *t, const Json *decoder, TokenizerUse *use) {
    if (!decoder || decoder->type != JSON_OBJECT || !decoder->count) return;
    use->added = calloc(decoder->count, sizeof *use->added);
    CHECK(use->added, "no memory for %zu tokens", decoder->count);
    for (size_t i = 0; i < decoder->count; i++) {
        const Json *item = &decoder->items[i];
        const char *text = json_string(json_member(item, "content"));
        int64_t id;
        if (!parse_int(item->key, &id) || !text || id < tokenizer_vocab_size(t) || id >= MAX_VOCABULARY)
            continue;
        AddedWord *word = &use->added[use->num_added++];
        *word = (AddedWord){.id = (int)id, .text = copy(text)};
        (void)json_flag(json_member(item, "special"), &word->special);
    }
}

static Status read_config(const Tokenizer *t, TokenizerUse *use) {
    Json *config;
    if (!t->config.size) {
        use->bos_token = own_token(t, tokenizer_bos(t));
        use->eos_token = own_token(t, tokenizer_eod(t));
        return OK;
    }
    TRY(json_parse(&config, t->config.data, t->config.size, "tokenizer_config.json"));
    if (begins_texts(t, config)) use->adds_bos = true;
    (void)json_flag(json_member(config, "add_bos_token"), &use->adds_bos);
    (void)json_flag(json_member(config, "add_eos_token"), &use->adds_eos);
    use->chat_template = copy(find_template(json_member(config, "chat_template")));
    use->bos_token = find_token(config, "bos_token");
    use->eos_token = find_token(config, "eos_token");
    use->pad_token = find_token(config, "pad_token");
    use->unk_token = find_token(config, "unk_token");
    read_added(t, json_member(config, "added_tokens_decoder"), use);
    json_free(config);
    return OK;
}

Status tokenizer_use_read(TokenizerUse *use, const Tokenizer *t) {
    *use = (TokenizerUse){0};
    TRY(read_json(t, use));
    TRY(read_config(t, use));
    if (!use->chat_template && !t->template.size) return OK;
    use->template_file = t->template.size ? "chat_template.jinja" : "tokenizer_config.json";
    if (!t->template.size) return OK;
    // Since version 4.43 transformers writes the template to a file of its own, which overrides the other one.
    free(use->chat_template);
    use->chat_template = copy(t->template.data);
    return OK;
}

const Text *tokenizer_template(const Tokenizer *t) { return &t->template; }

void tokenizer_set_template(Tokenizer *t, const char *text, size_t size) {
    text_free(&t->template);
    text_add_bytes(&t->template, text, size);
}

void tokenizer_use_free(TokenizerUse *use) {
    char *const strings[] = {use->chat_template, use->bos_token, use->eos_token, use->pad_token,
                             use->unk_token};
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++) free(strings[i]);
    for (int i = 0; i < use->num_added; i++) free(use->added[i].text);
    free(use->added);
    *use = (TokenizerUse){0};
}
