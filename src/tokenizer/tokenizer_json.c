// Reads Hugging Face's tokenizer.json where it describes byte-level BPE. A feature that is not supported is
// refused by name: a tokenizer that ignores it would silently give wrong ids.
// Source: the tokenizers repository, the serialisation of Tokenizer.
#include "tokenizer/internal.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static bool is_null(const Json *value) { return !value || value->type == JSON_NULL; }

static bool is_string(const Json *value, const char *string) {
    return json_string(value) && strcmp(json_string(value), string) == 0;
}

// Reads an optional boolean.
static bool flag_or(const Json *object, const char *name, bool otherwise) {
    bool value;
    return json_flag(json_member(object, name), &value) ? value : otherwise;
}

static Status unsupported(const char *path, const Json *where, const char *what, const Json *value) {
    const char *name = json_string(value);
    return fail(ERR_UNAVAILABLE, "%s: byte %" PRId64 ": %s%s%s is not supported", path,
                where ? where->offset : 0, what, name ? " " : "", name ? name : "");
}

static Status malformed(const char *path, const Json *where, const char *expected) {
    return fail(ERR_DATA, "%s: byte %" PRId64 ": %s is expected", path, where ? where->offset : 0, expected);
}

// ---- Normalizer and pre-tokenizer ---------------------------------------------------------------------

// Text is not normalised: NFC leaves almost all text as it is, and other text still encodes without loss.
static Status read_normalizer(const Json *normalizer, const char *path) {
    const Json *type = json_member(normalizer, "type"), *parts = json_member(normalizer, "normalizers");
    if (is_null(normalizer) || is_string(type, "NFC")) return OK;
    if (!is_string(type, "Sequence") || !parts || parts->type != JSON_ARRAY)
        return unsupported(path, normalizer, "normalizer", type);
    for (size_t i = 0; i < parts->count; i++) TRY(read_normalizer(&parts->items[i], path));
    return OK;
}

static Status add_pattern(Tokenizer *t, const Json *where, const char *pattern, const char *path) {
    if (t->num_patterns == MAX_PATTERNS) return unsupported(path, where, "a ninth splitting pattern", NULL);
    tokenizer_add_pattern(t, pattern);
    return OK;
}

// Reads {"Regex": "..."}, or {"String": "..."}, which matches literally.
static Status read_split(Tokenizer *t, const Json *split, const char *path) {
    const Json *pattern = json_member(split, "pattern"), *behavior = json_member(split, "behavior");
    if (!is_string(behavior, "Isolated")) return unsupported(path, split, "Split with behavior", behavior);
    const char *regex = json_string(json_member(pattern, "Regex"));
    if (regex) return add_pattern(t, split, regex, path);
    const char *string = json_string(json_member(pattern, "String"));
    if (!string || !*string) return malformed(path, split, "a pattern, \"Regex\" or \"String\",");
    Text quoted = {0};
    for (; *string; string++) {
        bool plain = (*string & 0x80) || (*string >= '0' && *string <= '9') ||
                     ((*string | 32) >= 'a' && (*string | 32) <= 'z');
        text_add(&quoted, "%s%c", plain ? "" : "\\", *string);
    }
    Status status = add_pattern(t, split, quoted.data, path);
    text_free(&quoted);
    return status;
}

static Status read_byte_level(Tokenizer *t, const Json *byte_level, const char *path) {
    t->add_prefix_space = flag_or(byte_level, "add_prefix_space", true);
    if (t->add_prefix_space && t->num_patterns)
        return unsupported(path, byte_level, "add_prefix_space behind another pre_tokenizer", NULL);
    return flag_or(byte_level, "use_regex", true) ? add_pattern(t, byte_level, gpt2_pattern, path) : OK;
}

// `ended`: ByteLevel has been read; it must be the last one.
static Status read_pre_tokenizer(Tokenizer *t, const Json *pre, bool *ended, const char *path) {
    const Json *type = json_member(pre, "type"), *parts = json_member(pre, "pretokenizers");
    if (is_string(type, "Sequence") && parts && parts->type == JSON_ARRAY) {
        for (size_t i = 0; i < parts->count; i++) TRY(read_pre_tokenizer(t, &parts->items[i], ended, path));
        return OK;
    }
    if (*ended) return unsupported(path, pre, "behind ByteLevel, pre_tokenizer", type);
    *ended = is_string(type, "ByteLevel");
    if (*ended) return read_byte_level(t, pre, path);
    if (is_string(type, "Split")) return read_split(t, pre, path);
    if (is_string(type, "Digits"))
        return add_pattern(t, pre, flag_or(pre, "individual_digits", false) ? "\\p{N}" : "\\p{N}+", path);
    return unsupported(path, pre, "pre_tokenizer", type);
}

static Status read_cutting(Tokenizer *t, const Json *root, const char *path) {
    const Json *pre = json_member(root, "pre_tokenizer");
    bool byte_level = false;
    TRY(read_normalizer(json_member(root, "normalizer"), path));
    if (!is_null(pre)) TRY(read_pre_tokenizer(t, pre, &byte_level, path));
    if (!byte_level)
        return fail(ERR_UNAVAILABLE, "%s: no pre_tokenizer ByteLevel: only byte-level BPE is supported",
                    path);
    if (!t->num_patterns) tokenizer_add_pattern(t, "(?s).+");
    return OK;
}

// ---- Vocabulary and added tokens ----------------------------------------------------------------------

static Status put_added(TokenSlot *slots, size_t num_slots, const Json *added, const char *path) {
    const Json *content = json_member(added, "content");
    int64_t id;
    if (!json_int(json_member(added, "id"), &id) || !json_string(content))
        return malformed(path, added, "an added token with \"id\" and \"content\"");
    if (flag_or(added, "single_word", false))
        return unsupported(path, added, "single_word of token", content);
    TokenSlot token = {content->string, content->size, true};
    bool known = id >= 0 && (uint64_t)id < num_slots && slots[id].spelling &&
                 strcmp(slots[id].spelling, content->string) == 0;
    if (known) slots[id].spelling = NULL;
    return bpe_put_slot(slots, num_slots, id, token, path);
}

static void take_added(Tokenizer *t, const Json *added) {
    int64_t id = 0;
    json_int(json_member(added, "id"), &id);
    const Json *content = json_member(added, "content");
    bool special = flag_or(added, "special", false), normalized = flag_or(added, "normalized", !special);
    t->types[id] = special ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
    added_set_add(
        &t->added[normalized], content->string, content->size,
        (AddedToken){(int32_t)id, flag_or(added, "lstrip", false), flag_or(added, "rstrip", false)});
}

static Status take_tokens(Tokenizer *t, TokenSlot *slots, size_t num_slots, const Json *vocabulary,
                          const Json *added, const char *path) {
    size_t num_added = is_null(added) ? 0 : added->count;
    TRY(bpe_put_vocabulary(slots, num_slots, vocabulary, path));
    for (size_t i = 0; i < num_added; i++) TRY(put_added(slots, num_slots, &added->items[i], path));
    TRY(bpe_take_slots(&t->bpe, slots, num_slots, path));
    t->types = malloc(t->bpe.spellings.count * sizeof *t->types);
    if (!t->types) return fail(ERR_OS, "%s: no memory for %u tokens", path, t->bpe.spellings.count);
    for (uint32_t i = 0; i < t->bpe.spellings.count; i++) t->types[i] = TOKEN_NORMAL;
    for (size_t i = 0; i < num_added; i++) take_added(t, &added->items[i]);
    for (int i = 0; i < ADDED_SETS; i++) added_set_ready(&t->added[i]);
    return OK;
}

static Status read_tokens(Tokenizer *t, const Json *root, const Json *model, const char *path) {
    const Json *vocabulary = json_member(model, "vocab"), *added = json_member(root, "added_tokens");
    if (!vocabulary || vocabulary->type != JSON_OBJECT || !vocabulary->count)
        return malformed(path, model, "a model with \"vocab\", an object from token to id,");
    if (!is_null(added) && added->type != JSON_ARRAY)
        return malformed(path, added, "\"added_tokens\", a list,");
    size_t num_slots = vocabulary->count + (is_null(added) ? 0 : added->count);
    if (num_slots > MAX_VOCABULARY)
        return fail(ERR_DATA, "%s: %zu tokens; %d are allowed", path, num_slots, MAX_VOCABULARY);
    TokenSlot *slots = calloc(num_slots, sizeof *slots);
    if (!slots) return fail(ERR_OS, "%s: no memory for %zu tokens", path, num_slots);
    Status status = take_tokens(t, slots, num_slots, vocabulary, added, path);
    free(slots);
    return status;
}

// ---- Merges -------------------------------------------------------------------------------------------

// Reads "a b", or ["a", "b"] of version 0.20 of the library and later.
static Status read_merge(Bpe *bpe, const Json *merge, int64_t number, const char *label) {
    if (json_string(merge)) return bpe_split_merge(bpe, label, number, merge->string, merge->size);
    bool pair = merge->type == JSON_ARRAY && merge->count == 2;
    const Json *left = pair ? &merge->items[0] : NULL, *right = pair ? &merge->items[1] : NULL;
    if (!json_string(left) || !json_string(right))
        return fail(ERR_DATA, "%s:%" PRId64 ": two tokens are expected, \"a b\" or [\"a\", \"b\"]", label,
                    number);
    return bpe_take_merge(bpe, label, number, left->string, left->size, right->string, right->size);
}

static Status read_merges(Bpe *bpe, const Json *model, const char *path) {
    const Json *merges = json_member(model, "merges");
    char label[PATH_MAX + 16];
    snprintf(label, sizeof label, "%s: merges", path);
    if (!merges || merges->type != JSON_ARRAY)
        return malformed(path, model, "a model with \"merges\", a list,");
    for (size_t i = 0; i < merges->count; i++) TRY(read_merge(bpe, &merges->items[i], (int64_t)i + 1, label));
    return OK;
}

// ---- The whole ----------------------------------------------------------------------------------------

// Refuses features that change merging and that no byte-level vocabulary has.
static Status check_model(const Json *model, const char *path) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (int i = 0; i < 2; i++) {
        const Json *affix = json_member(model, affixes[i]);
        if (!is_null(affix) && !is_string(affix, "")) return unsupported(path, affix, affixes[i], affix);
    }
    double dropout = 0;
    json_double(json_member(model, "dropout"), &dropout);
    if (dropout != 0) return unsupported(path, model, "dropout", NULL);
    return flag_or(model, "byte_fallback", false) ? unsupported(path, model, "byte_fallback", NULL) : OK;
}

static Status read_null(Tokenizer *t, const Json *model, const char *path) {
    int64_t size;
    if (!json_int(json_member(model, "size"), &size) || size < 1 || size >= INT_MAX)
        return malformed(path, model, "a null tokenizer with \"size\"");
    t->kind = TOKENIZER_NULL;
    t->null_size = t->eod = (int)size;
    return OK;
}

static Status read_root(Tokenizer *t, const Json *root, const char *path) {
    const Json *model = json_member(root, "model"), *type = json_member(model, "type");
    if (!model || model->type != JSON_OBJECT)
        return fail(ERR_DATA,
                    "%s: no \"model\": it is no tokenizer.json (a vocab.json is opened with --vocab-file and "
                    "--merge-file, or as the folder that holds both)",
                    path);
    if (is_string(type, "Null")) return read_null(t, model, path);
    if (!is_null(type) && !is_string(type, "BPE")) return unsupported(path, model, "model", type);
    t->kind = TOKENIZER_BPE;
    TRY(check_model(model, path));
    t->bpe.ignore_merges = flag_or(model, "ignore_merges", false);
    TRY(read_cutting(t, root, path));
    TRY(read_tokens(t, root, model, path));
    return read_merges(&t->bpe, model, path);
}

Status tokenizer_read_json(Tokenizer *t, const char *path) {
    Json *root;
    TRY(json_parse(&root, t->file.data, t->file.size, path));
    Status status = read_root(t, root, path);
    json_free(root);
    return status;
}
