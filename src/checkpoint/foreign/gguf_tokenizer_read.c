// Makes the tokenizer that a GGUF file describes: the files from which it would be opened, a tokenizer.json or a
// SentencePiece model, are written in memory and read as any others are, with all their checks.
#include "checkpoint/foreign/gguf_tokenizer.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Source: the key list of llama.cpp's gguf package, and the tables of its llama-vocab.

enum { MOST_TOKENS = 1 << 24 };
#define ADVICE "give --tokenizer-model, the folder or file of the model's tokenizer"

typedef struct {
    const Gguf *file;
    const GgufPair *tokens, *types, *scores, *merges;
    size_t count; // of tokens, without those that only fill the table
} Vocabulary;

// ---- what the keys say --------------------------------------------------------------------------------------

static Status find_list(const Vocabulary *v, const char *key, GgufValueType type, bool of_tokens,
                        const GgufPair **out) {
    const GgufPair *pair = *out = gguf_find(v->file, key);
    bool fits = pair && pair->is_array && pair->type == type;
    if (fits && (!of_tokens || pair->count == v->tokens->count)) return OK;
    return fail(ERR_DATA, "%s: %s is not a list of %s%s", v->file->path, key,
                type == GGUF_STRING ? "texts" : "numbers", of_tokens ? ", one for each token" : "");
}

static TokenType type_of(const Vocabulary *v, size_t id) {
    int32_t type;
    memcpy(&type, v->types->data + id * sizeof type, sizeof type);
    return type >= TOKEN_NORMAL && type <= TOKEN_BYTE ? (TokenType)type : TOKEN_NORMAL;
}

// Rows of the table behind the vocabulary.
static bool fills_table(const Vocabulary *v, size_t id) {
    char name[32];
    int size = snprintf(name, sizeof name, "[PAD%zu]", id);
    GgufString token = v->tokens->text[id];
    return type_of(v, id) == TOKEN_UNUSED && token.size == (size_t)size &&
           !memcmp(token.data, name, token.size);
}

static Status find_vocabulary(Vocabulary *v) {
    TRY(find_list(v, "tokenizer.ggml.tokens", GGUF_STRING, false, &v->tokens));
    TRY(find_list(v, "tokenizer.ggml.token_type", GGUF_I32, true, &v->types));
    v->count = (size_t)v->tokens->count;
    if (v->count > MOST_TOKENS)
        return fail(ERR_DATA, "%s: %zu tokens; %d are allowed", v->file->path, v->count, MOST_TOKENS);
    while (v->count && fills_table(v, v->count - 1)) v->count--;
    return OK;
}

// The text of a token that a key names; NULL: it names none.
static const GgufString *named(const Vocabulary *v, const char *key) {
    int64_t id;
    bool there = gguf_int(gguf_find(v->file, key), &id) && id >= 0 && (uint64_t)id < v->count;
    return there ? &v->tokens->text[id] : NULL;
}

static bool flag(const Vocabulary *v, const char *key, bool otherwise) {
    const GgufPair *pair = gguf_find(v->file, key);
    return pair && !pair->is_array && pair->type == GGUF_BOOL ? *pair->data != 0 : otherwise;
}

// ---- byte-level BPE: a tokenizer.json -----------------------------------------------------------------------

static Status find_cut(const Gguf *file, const GgufCut **out) {
    const GgufPair *pre = gguf_find(file, "tokenizer.ggml.pre");
    const GgufCut *cut;
    for (int i = 0; (cut = gguf_cut(i)); i++)
        if (gguf_string_is(pre, cut->name)) return *out = cut, OK;
    bool is_text = pre && !pre->is_array && pre->type == GGUF_STRING;
    GgufString found = is_text ? pre->text[0] : (GgufString){"nothing", 7};
    Text known = {0};
    for (int i = 0; (cut = gguf_cut(i)); i++)
        if (!i || strcmp(cut->name, gguf_cut(i - 1)->name) != 0)
            text_add(&known, "%s%s", i ? ", " : "", cut->name);
    Status status =
        fail(ERR_UNAVAILABLE,
             "%s: how its tokenizer cuts text (tokenizer.ggml.pre) is \"%.*s\"; known: %s: " ADVICE,
             file->path, (int)(found.size < 40 ? found.size : 40), found.data, text_string(&known));
    text_free(&known);
    return status;
}

static void add_string(Text *out, GgufString string) { json_add_string(out, string.data, string.size); }

static void add_added(Text *out, const Vocabulary *v) {
    text_add(out, "\"added_tokens\": [");
    bool first = true;
    for (size_t id = 0; id < v->count; id++) {
        TokenType type = type_of(v, id);
        if (type != TOKEN_CONTROL && type != TOKEN_USER_DEFINED) continue;
        text_add(out, "%s\n{\"id\": %zu, \"content\": ", first ? "" : ",", id);
        add_string(out, v->tokens->text[id]);
        text_add(out,
                 ", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                 "\"special\": %s}",
                 type == TOKEN_CONTROL ? "true" : "false");
        first = false;
    }
    text_add(out, "],\n");
}

static void add_cutting(Text *out, const GgufCut *cut) {
    text_add(out,
             "\"normalizer\": null,\n\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [\n");
    for (int i = 0; cut->patterns[i]; i++) {
        text_add(out, "{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
        json_add_string(out, cut->patterns[i], strlen(cut->patterns[i]));
        text_add(out, "}, \"behavior\": \"Isolated\", \"invert\": false},\n");
    }
    text_add(out, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                  "\"use_regex\": false}]},\n\"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                  "false, \"trim_offsets\": true, \"use_regex\": true},\n");
}

static void add_special(Text *out, const Vocabulary *v, const char *key, const char *before,
                        const char *after) {
    text_add(out, "%s{\"SpecialToken\": {\"id\": ", before);
    add_string(out, *named(v, key));
    text_add(out, ", \"type_id\": 0}}%s", after);
}

static void add_ids(Text *out, const Vocabulary *v, const char *key, bool first) {
    int64_t id = 0;
    gguf_int(gguf_find(v->file, key), &id);
    text_add(out, "%s", first ? "" : ", ");
    add_string(out, *named(v, key));
    text_add(out, ": {\"id\": ");
    add_string(out, *named(v, key));
    text_add(out, ", \"ids\": [%" PRId64 "], \"tokens\": [", id);
    add_string(out, *named(v, key));
    text_add(out, "]}");
}

static const char bos_key[] = "tokenizer.ggml.bos_token_id", eos_key[] = "tokenizer.ggml.eos_token_id";

// Adds the post-processor: which tokens begin and end a text.
static void add_processor(Text *out, const Vocabulary *v, bool begins, bool ends) {
    if (!begins && !ends) {
        text_add(out, "\"post_processor\": null,\n");
        return;
    }
    text_add(out, "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [");
    if (begins) add_special(out, v, bos_key, "", ", ");
    text_add(out, "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}");
    if (ends) add_special(out, v, eos_key, ", ", "");
    text_add(out, "],\n\"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": {\"id\": "
                  "\"B\", \"type_id\": 1}}], \"special_tokens\": {");
    if (begins) add_ids(out, v, bos_key, true);
    if (ends) add_ids(out, v, eos_key, !begins);
    text_add(out, "}},\n");
}

static void add_model(Text *out, const Vocabulary *v, bool whole) {
    text_add(out,
             "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
             "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
             "\"byte_fallback\": false, \"ignore_merges\": %s,\n\"vocab\": {",
             whole ? "true" : "false");
    for (size_t id = 0; id < v->count; id++) {
        text_add(out, "%s\n", id ? "," : "");
        add_string(out, v->tokens->text[id]);
        text_add(out, ": %zu", id);
    }
    text_add(out, "},\n\"merges\": [");
    for (uint64_t i = 0; i < v->merges->count; i++) {
        text_add(out, "%s\n", i ? "," : "");
        add_string(out, v->merges->text[i]);
    }
    text_add(out, "]}}\n");
}

static Status write_json(Vocabulary *v, bool begins, bool ends, Text *out) {
    const GgufCut *cut = NULL;
    TRY(find_cut(v->file, &cut));
    TRY(find_list(v, "tokenizer.ggml.merges", GGUF_STRING, false, &v->merges));
    text_add(out, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n");
    add_added(out, v);
    add_cutting(out, cut);
    add_processor(out, v, begins, ends);
    add_model(out, v, cut->whole);
    return OK;
}

// ---- SentencePiece: its model -------------------------------------------------------------------------------

// Source: sentencepiece_model.proto, and the encoding of protocol buffers.

static void add_varint(Text *out, uint64_t value) {
    for (; value > 127; value >>= 7) text_add_bytes(out, &(char){(char)(value | 128)}, 1);
    text_add_bytes(out, &(char){(char)value}, 1);
}

static void add_number(Text *out, unsigned field, uint64_t value) {
    add_varint(out, field << 3);
    add_varint(out, value);
}

static void add_bytes(Text *out, unsigned field, const char *data, size_t size) {
    enum { BYTES = 2 };
    add_varint(out, field << 3 | BYTES);
    add_varint(out, size);
    text_add_bytes(out, data, size);
}

static void add_message(Text *out, unsigned field, Text *message) {
    add_bytes(out, field, text_string(message), message->size);
    text_free(message);
}

static void add_piece(Text *out, const Vocabulary *v, size_t id) {
    enum { PIECE = 1, SCORE_TAG = 2 << 3 | 5, TYPE = 3 };
    Text piece = {0};
    add_bytes(&piece, PIECE, v->tokens->text[id].data, v->tokens->text[id].size);
    add_varint(&piece, SCORE_TAG);
    text_add_bytes(&piece, v->scores->data + id * sizeof(float), sizeof(float));
    add_number(&piece, TYPE, (uint64_t)type_of(v, id));
    add_message(out, 1, &piece);
}

// How pieces are found, and the names of those that its library asks for.
static void add_trainer(Text *out, const Vocabulary *v, bool unigram) {
    enum { MODEL_TYPE = 3, UNIGRAM = 1, BPE = 2, BYTE_FALLBACK = 35 };
    static const struct {
        const char *key;
        unsigned field;
    } names[] = {{"tokenizer.ggml.unknown_token_id", 45},
                 {bos_key, 46},
                 {eos_key, 47},
                 {"tokenizer.ggml.padding_token_id", 48}};
    Text trainer = {0};
    bool has_bytes = false;
    for (size_t id = 0; id < v->count; id++) has_bytes = has_bytes || type_of(v, id) == TOKEN_BYTE;
    add_number(&trainer, MODEL_TYPE, unigram ? UNIGRAM : BPE);
    if (has_bytes) add_number(&trainer, BYTE_FALLBACK, 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const GgufString *name = named(v, names[i].key);
        if (name) add_bytes(&trainer, names[i].field, name->data, name->size);
    }
    add_message(out, 2, &trainer);
}

static void add_normalizer(Text *out, const Vocabulary *v) {
    enum { NAME = 1, CHARSMAP = 2, ADD_DUMMY_PREFIX = 3, REMOVE_EXTRA_WHITESPACES = 4 };
    Text normalizer = {0};
    const GgufPair *map = gguf_find(v->file, "tokenizer.ggml.precompiled_charsmap");
    bool mapped = map && map->is_array && (map->type == GGUF_U8 || map->type == GGUF_I8);
    const char *name = mapped ? "user_defined" : "identity";
    add_bytes(&normalizer, NAME, name, strlen(name));
    if (mapped) add_bytes(&normalizer, CHARSMAP, map->data, (size_t)map->count);
    add_number(&normalizer, ADD_DUMMY_PREFIX, flag(v, "tokenizer.ggml.add_space_prefix", true));
    add_number(&normalizer, REMOVE_EXTRA_WHITESPACES,
               flag(v, "tokenizer.ggml.remove_extra_whitespaces", false));
    add_message(out, 3, &normalizer);
}

static Status write_pieces(Vocabulary *v, bool unigram, Text *out) {
    TRY(find_list(v, "tokenizer.ggml.scores", GGUF_FLOAT32, true, &v->scores));
    for (size_t id = 0; id < v->count; id++) add_piece(out, v, id);
    add_trainer(out, v, unigram);
    add_normalizer(out, v);
    return OK;
}

// ---- all of it ----------------------------------------------------------------------------------------------

static void write_config(const Vocabulary *v, bool pieces, bool begins, bool ends, Text *out) {
    static const struct {
        const char *key, *name;
    } names[] = {{bos_key, "bos_token"},
                 {eos_key, "eos_token"},
                 {"tokenizer.ggml.unknown_token_id", "unk_token"},
                 {"tokenizer.ggml.padding_token_id", "pad_token"}};
    text_add(out,
             "{\n  \"tokenizer_class\": \"%s\",\n  \"clean_up_tokenization_spaces\": false,\n  "
             "\"add_bos_token\": %s,\n  \"add_eos_token\": %s",
             pieces ? "LlamaTokenizer" : "PreTrainedTokenizerFast", begins ? "true" : "false",
             ends ? "true" : "false");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const GgufString *token = named(v, names[i].key);
        if (!token) continue;
        text_add(out, ",\n  \"%s\": ", names[i].name);
        add_string(out, *token);
    }
    text_add(out, "\n}\n");
}

static Status write_all(Vocabulary *v, TokenizerTexts *texts) {
    const GgufPair *model = gguf_find(v->file, "tokenizer.ggml.model");
    bool bpe = gguf_string_is(model, "gpt2"), unigram = gguf_string_is(model, "t5");
    if (!model || gguf_string_is(model, "none"))
        return fail(ERR_NO_INPUT, "%s has no tokenizer: " ADVICE, v->file->path);
    if (!bpe && !unigram && !gguf_string_is(model, "llama"))
        return fail(ERR_UNAVAILABLE,
                    "%s: a tokenizer of another kind (tokenizer.ggml.model) than gpt2, llama and t5: " ADVICE,
                    v->file->path);
    TRY(find_vocabulary(v));
    bool by_default = !bpe || gguf_string_is(gguf_find(v->file, "tokenizer.ggml.pre"), "llama-bpe");
    bool begins = flag(v, "tokenizer.ggml.add_bos_token", by_default) && named(v, bos_key);
    bool ends = flag(v, "tokenizer.ggml.add_eos_token", unigram) && named(v, eos_key);
    write_config(v, !bpe, begins, ends, &texts->config);
    const GgufPair *template = gguf_find(v->file, "tokenizer.chat_template");
    if (template && !template->is_array && template->type == GGUF_STRING)
        text_add_bytes(&texts->template, template->text[0].data, template->text[0].size);
    return bpe ? write_json(v, begins, ends, &texts->file) : write_pieces(v, unigram, &texts->file);
}

Status gguf_read_tokenizer(const Gguf *file, Tokenizer **tokenizer) {
    Vocabulary v = {.file = file};
    TokenizerTexts texts = {0};
    *tokenizer = NULL;
    Status status = write_all(&v, &texts);
    if (status == OK) return tokenizer_open_texts(tokenizer, &texts, file->path);
    tokenizer_texts_free(&texts);
    return status;
}
