// GPT-2's two files: vocab.json, an object from spelling to id, and merges.txt, one "left right" per line in
// rank order. Both come from outside: nothing in them is believed before it is checked.
#include "data/bpe.h"
#include <errno.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 256 << 20, MAX_TOKENS = 1 << 24 };

// ---- vocab.json ---------------------------------------------------------------------------------------

// The spellings by id, borrowed from the object: exactly 0 ... n-1, each once.
static Status order_by_id(const char *path, struct json_object *object, const char **spellings, int count) {
    struct json_object_iterator at = json_object_iter_begin(object), end = json_object_iter_end(object);
    for (; !json_object_iter_equal(&at, &end); json_object_iter_next(&at)) {
        const char *spelling = json_object_iter_peek_name(&at);
        struct json_object *value = json_object_iter_peek_value(&at);
        if (!json_object_is_type(value, json_type_int))
            return fail(ERR_DATA, "%s: token \"%.40s\": its id is not an integer", path, spelling);
        int64_t id = json_object_get_int64(value);
        if (id < 0 || id >= count)
            return fail(
                ERR_DATA,
                "%s: token \"%.40s\": id %lld, but the ids of %d tokens are 0 to %d (no gap, no key twice)",
                path, spelling, (long long)id, count, count - 1);
        if (spellings[id])
            return fail(ERR_DATA, "%s: tokens \"%.40s\" and \"%.40s\" have the same id %lld", path,
                        spellings[id], spelling, (long long)id);
        if (!*spelling) return fail(ERR_DATA, "%s: token %lld is empty", path, (long long)id);
        spellings[id] = spelling;
    }
    return OK;
}

static Status find_required_tokens(Bpe *bpe, const char *path) {
    for (int b = 0; b < 256; b++) {
        char spelling[2];
        size_t size = bpe_spell_byte((unsigned char)b, spelling);
        bpe->byte_ids[b] = bpe_find(bpe, spelling, size);
        if (bpe->byte_ids[b] < 0)
            return fail(ERR_DATA,
                        "%s: no token for byte %d (\"%.*s\"): is it a byte-level vocabulary, as GPT-2's?",
                        path, b, (int)size, spelling);
    }
    bpe->eod = bpe_find(bpe, EOD_SPELLING, strlen(EOD_SPELLING));
    return bpe->eod < 0 ? fail(ERR_DATA, "%s: no token %s", path, EOD_SPELLING) : OK;
}

static Status take_vocabulary(Bpe *bpe, const char *path, struct json_object *object) {
    if (!json_object_is_type(object, json_type_object))
        return fail(ERR_DATA, "%s: a JSON object from token to id is expected", path);
    int count = json_object_object_length(object);
    if (count < 1 || count > MAX_TOKENS)
        return fail(ERR_DATA, "%s: %d tokens; 257 to %d are allowed", path, count, MAX_TOKENS);
    const char **spellings = calloc((size_t)count, sizeof *spellings);
    if (!spellings) return fail(ERR_OS, "%s: no memory for %d tokens", path, count);
    Status status = order_by_id(path, object, spellings, count);
    for (int i = 0; status == OK && i < count; i++) bpe_add_token(bpe, spellings[i], strlen(spellings[i]));
    free(spellings);
    TRY(status);
    return find_required_tokens(bpe, path);
}

static Status parse_vocabulary(Bpe *bpe, const char *path, const char *text, size_t size) {
    struct json_tokener *tokener = json_tokener_new_ex(4);
    if (!tokener) return fail(ERR_OS, "%s: no memory to parse it", path);
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    struct json_object *object = json_tokener_parse_ex(tokener, text, (int)size);
    enum json_tokener_error error = json_tokener_get_error(tokener);
    Status status = OK;
    if (error != json_tokener_success)
        status = fail(ERR_DATA, "%s: byte %zu: not valid JSON: %s", path, json_tokener_get_parse_end(tokener),
                      error == json_tokener_continue ? "it ends too early" : json_tokener_error_desc(error));
    else
        status = take_vocabulary(bpe, path, object);
    json_object_put(object);
    json_tokener_free(tokener);
    return status;
}

// ---- merges.txt ---------------------------------------------------------------------------------------

static Status take_merge(Bpe *bpe, const char *path, int line, const char *text, size_t size) {
    const char *blank = memchr(text, ' ', size);
    size_t left = blank ? (size_t)(blank - text) : 0, right = blank ? size - left - 1 : 0;
    if (!left || !right || memchr(blank + 1, ' ', right))
        return fail(ERR_DATA, "%s:%d: two tokens with one blank between them are expected", path, line);
    char *joined = malloc(left + right);
    if (!joined) return fail(ERR_OS, "%s:%d: no memory for %zu bytes", path, line, left + right);
    memcpy(joined, text, left);
    memcpy(joined + left, blank + 1, right);
    int32_t l = bpe_find(bpe, text, left), r = bpe_find(bpe, blank + 1, right),
            result = bpe_find(bpe, joined, left + right);
    free(joined);
    if (l < 0 || r < 0 || result < 0)
        return fail(ERR_DATA, "%s:%d: \"%.*s\": %s not in the vocabulary: do the two files belong together?",
                    path, line, (int)(size < 80 ? size : 80), text,
                    l < 0   ? "the left token is"
                    : r < 0 ? "the right token is"
                            : "the joined token is");
    if (!bpe_add_merge(bpe, l, r, result))
        return fail(ERR_DATA, "%s:%d: the same pair occurs before", path, line);
    return OK;
}

// A first line that begins with "#version" is skipped, and so are empty lines.
static Status parse_merges(Bpe *bpe, const char *path, const char *text, size_t size) {
    const char *end = text + size;
    for (int line = 1; text < end; line++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((stop ? stop : end) - text);
        const char *start = text;
        text += length + (stop != NULL);
        if (length && start[length - 1] == '\r') length--;
        bool header = line == 1 && length >= 8 && memcmp(start, "#version", 8) == 0;
        if (length && !header) TRY(take_merge(bpe, path, line, start, length));
    }
    return OK;
}

Status bpe_load(Bpe *bpe, const char *vocab_file, const char *merge_file) {
    char *text;
    size_t size;
    TRY(file_read(vocab_file, MAX_FILE_BYTES, &text, &size));
    Status status = parse_vocabulary(bpe, vocab_file, text, size);
    free(text);
    TRY(status);
    TRY(file_read(merge_file, MAX_FILE_BYTES, &text, &size));
    status = parse_merges(bpe, merge_file, text, size);
    free(text);
    return status;
}

// ---- Writing ------------------------------------------------------------------------------------------

// JSON as json-c quotes it, one token per line.
static Status save_vocabulary(const Bpe *bpe, const char *path) {
    Text text = {0};
    for (uint32_t i = 0; i < bpe->spellings.count; i++) {
        size_t size;
        const char *spelling = bytes_map_at(&bpe->spellings, i, &size);
        struct json_object *string = json_object_new_string_len(spelling, (int)size);
        CHECK(string, "no memory for a token of %zu bytes", size);
        int flags = JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE;
        text_add(&text, "%s%s: %u", i ? ",\n" : "{", json_object_to_json_string_ext(string, flags), i);
        json_object_put(string);
    }
    text_add(&text, "}\n");
    Status status = file_write(path, text.data, text.size);
    text_free(&text);
    return status;
}

static Status save_merges(const Bpe *bpe, const char *path) {
    Text text = {0};
    text_add(&text, "#version: 0.2\n");
    for (uint32_t i = 0; i < bpe->pairs.count; i++) {
        size_t left, right;
        const char *l = bytes_map_at(&bpe->spellings, (uint32_t)bpe->merges[i].left, &left);
        const char *r = bytes_map_at(&bpe->spellings, (uint32_t)bpe->merges[i].right, &right);
        text_add(&text, "%.*s %.*s\n", (int)left, l, (int)right, r);
    }
    Status status = file_write(path, text.data, text.size);
    text_free(&text);
    return status;
}

Status bpe_save(const Bpe *bpe, const char *vocab_file, const char *merge_file) {
    TRY(save_vocabulary(bpe, vocab_file));
    return save_merges(bpe, merge_file);
}
