// Describes a model's tokenizer in the metadata of a GGUF file, so that llama.cpp gives the same tokens.
#include "checkpoint/foreign/gguf_tokenizer.h"
#include <stdlib.h>
#include <string.h>

// Source: llama.cpp's convert_hf_to_gguf and the key list of its gguf package.

// ---- BPE ----------------------------------------------------------------------------------------------------

static const GgufCut cuts[] = {
#define PATTERN(name, whole, ...) {name, whole, (const char *const[]){__VA_ARGS__, NULL}},
#include "checkpoint/foreign/gguf_patterns.def"
#undef PATTERN
};

const GgufCut *gguf_cut(int i) { return i < (int)(sizeof cuts / sizeof *cuts) ? &cuts[i] : NULL; }

static bool cuts_so(const Tokenizer *t, const char *const *patterns) {
    int count = 0;
    for (; patterns[count]; count++)
        if (count == tokenizer_num_patterns(t) || strcmp(tokenizer_pattern(t, count), patterns[count]) != 0)
            return false;
    return count == tokenizer_num_patterns(t);
}

static const char *name_of(const Tokenizer *t, bool whole) {
    const GgufCut *cut;
    for (int i = 0; (cut = gguf_cut(i)); i++)
        if (cut->whole == whole && cuts_so(t, cut->patterns)) return cut->name;
    return NULL;
}

static Status describe_pieces(GgufMetadata *m, const Tokenizer *t) {
    bool whole = tokenizer_takes_whole(t);
    const char *name = name_of(t, whole), *other = name_of(t, !whole);
    if (!name && other && tokenizer_merges_suffice(t)) name = other;
    if (name) {
        gguf_set_string(m, "tokenizer.ggml.pre", name);
        return OK;
    }
    Text how = {0};
    for (int i = 0; i < tokenizer_num_patterns(t); i++)
        text_add(&how, "%s%.200s", i ? ", then " : "", tokenizer_pattern(t, i));
    Status status =
        fail(ERR_UNAVAILABLE, "llama.cpp has no name for how the tokenizer cuts text into pieces%s: %s",
             whole ? " and takes a piece that is a token whole" : "", how.data);
    text_free(&how);
    return status;
}

static void describe_merges(GgufMetadata *m, const Tokenizer *t) {
    Text merge = {0};
    gguf_begin_strings(m, "tokenizer.ggml.merges", (uint64_t)tokenizer_num_merges(t));
    for (int rank = 0; rank < tokenizer_num_merges(t); rank++) {
        if (merge.data) merge.size = 0;
        tokenizer_merge(t, rank, &merge);
        gguf_add_string(m, merge.data, merge.size);
    }
    text_free(&merge);
}

// ---- tokens -------------------------------------------------------------------------------------------------

// A token that tokenizer_config.json adds behind the vocabulary; NULL: there is none with this number.
static const AddedWord *added_word(const TokenizerUse *use, int id) {
    for (int i = 0; i < use->num_added; i++)
        if (use->added[i].id == id) return &use->added[i];
    return NULL;
}

// Rows of the table after the tokenizer's vocabulary have no text, unless a token was added there.
static void describe_tokens(GgufMetadata *m, const Tokenizer *t, const TokenizerUse *use, int vocabulary,
                            int32_t *types, float *scores) {
    gguf_begin_strings(m, "tokenizer.ggml.tokens", (uint64_t)vocabulary);
    for (int id = 0; id < vocabulary; id++) {
        char none[32];
        bool known = id < tokenizer_vocab_size(t);
        const AddedWord *added = known ? NULL : added_word(use, id);
        snprintf(none, sizeof none, "[PAD%d]", id);
        const char *spelling = known ? tokenizer_spelling(t, id) : added ? added->text : none;
        gguf_add_string(m, spelling, strlen(spelling));
        types[id] = known                     ? (int32_t)tokenizer_token_type(t, id)
                    : added && added->special ? TOKEN_CONTROL
                    : added                   ? TOKEN_USER_DEFINED
                                              : TOKEN_UNUSED;
        scores[id] = known ? tokenizer_score(t, id) : 0;
    }
    gguf_set_i32s(m, "tokenizer.ggml.token_type", types, (uint64_t)vocabulary);
    if (tokenizer_kind(t) == TOKENIZER_SENTENCEPIECE)
        gguf_set_f32s(m, "tokenizer.ggml.scores", scores, (uint64_t)vocabulary);
}

static void set_token(GgufMetadata *m, const char *key, int id) {
    if (id >= 0) gguf_set_u32(m, key, (uint32_t)id);
}

// The last of the other tokens that end a text, such as the end of a turn, and the one before it.
static Status describe_ends(GgufMetadata *m, const ModelSource *source, const Tokenizer *t) {
    static const char *const keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    TokenList ends = {0};
    Status status = model_source_ends(source, t, &ends);
    size_t left = ends.count, key = 0;
    while (status == OK && left > 0 && key < 2)
        if (ends.ids[--left] != tokenizer_eod(t)) set_token(m, keys[key++], ends.ids[left]);
    token_list_free(&ends);
    return status;
}

static void describe_begin(GgufMetadata *m, const ModelTokens *said, const Tokenizer *t) {
    int bos = tokenizer_bos(t);
    if (bos < 0 && said->says_begin && said->begin >= 0) bos = said->begin;
    set_token(m, "tokenizer.ggml.bos_token_id", bos >= 0 ? bos : tokenizer_eod(t));
}

static void describe_use(GgufMetadata *m, const TokenizerUse *use) {
    gguf_set_bool(m, "tokenizer.ggml.add_bos_token", use->adds_bos);
    gguf_set_bool(m, "tokenizer.ggml.add_eos_token", use->adds_eos);
    if (use->chat_template) gguf_set_string(m, "tokenizer.chat_template", use->chat_template);
}

// Writes how a SentencePiece model changes a text before cutting it. llama.cpp cuts in two ways: "llama" joins pieces
// by their scores, as its BPE does, "t5" finds the most likely pieces, as its unigram does. Of "llama" it does not know
// the last two keys, but trireme reads them.
static void describe_sentencepiece(GgufMetadata *m, const SentencePieceRules *rules) {
    gguf_set_bool(m, "tokenizer.ggml.add_space_prefix", rules->adds_blank);
    if (rules->unigram || rules->removes_blanks)
        gguf_set_bool(m, "tokenizer.ggml.remove_extra_whitespaces", rules->removes_blanks);
    if (rules->charsmap_bytes)
        gguf_set_u8s(m, "tokenizer.ggml.precompiled_charsmap", rules->charsmap, rules->charsmap_bytes);
}

static Status describe_special(GgufMetadata *m, const ModelSource *source, const Tokenizer *t) {
    const ModelTokens *said = &model_source_info(source)->tokens;
    describe_begin(m, said, t);
    set_token(m, "tokenizer.ggml.eos_token_id", tokenizer_eod(t));
    set_token(m, "tokenizer.ggml.unknown_token_id", tokenizer_unknown(t));
    if (said->says_pad) set_token(m, "tokenizer.ggml.padding_token_id", said->pad);
    return describe_ends(m, source, t);
}

static Status describe_vocabulary(GgufMetadata *m, const Tokenizer *t, const TokenizerUse *use,
                                  int vocabulary) {
    int32_t *types = malloc((size_t)vocabulary * (sizeof *types + sizeof(float)) + 1);
    if (!types) return fail(ERR_OS, "no memory for %d tokens", vocabulary);
    describe_tokens(m, t, use, vocabulary, types, (float *)(types + vocabulary));
    free(types);
    return OK;
}

static Status describe(GgufMetadata *m, const ModelSource *source, const Tokenizer *t,
                       const TokenizerUse *use) {
    int vocabulary = model_source_info(source)->shape.vocabulary;
    bool pieces = tokenizer_kind(t) == TOKENIZER_SENTENCEPIECE;
    SentencePieceRules rules = tokenizer_rules(t);
    if (tokenizer_vocab_size(t) > vocabulary)
        return fail(ERR_DATA, "the tokenizer has %d tokens, the model %d", tokenizer_vocab_size(t),
                    vocabulary);
    gguf_set_string(m, "tokenizer.ggml.model", !pieces ? "gpt2" : rules.unigram ? "t5" : "llama");
    TRY(describe_vocabulary(m, t, use, vocabulary));
    TRY(describe_special(m, source, t));
    describe_use(m, use);
    if (pieces) {
        describe_sentencepiece(m, &rules);
        return OK;
    }
    describe_merges(m, t);
    return describe_pieces(m, t);
}

Status gguf_describe_tokenizer(GgufMetadata *m, const ModelSource *source, const Tokenizer *t) {
    TokenizerUse use;
    Status status = tokenizer_use_read(&use, t);
    if (status == OK) status = describe(m, source, t, &use);
    tokenizer_use_free(&use);
    return status;
}
