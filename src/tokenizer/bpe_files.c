// Reads and writes the files of a BPE: GPT-2's vocab.json (an object from spelling to id) and merges.txt (one
// "left right" per line in rank order), and tiktoken's ranks. Everything in them is checked before it is used.
#include "base/file.h"
#include "tokenizer/bpe.h"
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE_BYTES = 256 << 20, MAX_TOKENS = 1 << 24 };

// ---- Vocabularies -------------------------------------------------------------------------------------

Status bpe_put_slot(TokenSlot *slots, size_t num_slots, int64_t id, TokenSlot token, const char *path) {
    if (id < 0 || (uint64_t)id >= num_slots)
        return fail(ERR_DATA,
                    "%s: token \"%.40s\": id %" PRId64
                    ", but the ids of %zu tokens are 0 to %zu (no gap, none twice)",
                    path, token.spelling, id, num_slots, num_slots - 1);
    if (slots[id].spelling)
        return fail(ERR_DATA, "%s: tokens \"%.40s\" and \"%.40s\" have the same id %" PRId64, path,
                    slots[id].spelling, token.spelling, id);
    if (!token.size) return fail(ERR_DATA, "%s: token %" PRId64 " is empty", path, id);
    if (memchr(token.spelling, '\0', token.size))
        return fail(ERR_DATA, "%s: token %" PRId64 " contains a NUL", path, id);
    slots[id] = token;
    return OK;
}

Status bpe_put_vocabulary(TokenSlot *slots, size_t num_slots, const Json *vocabulary, const char *path) {
    for (size_t i = 0; i < vocabulary->count; i++) {
        const Json *item = &vocabulary->items[i];
        int64_t id;
        if (!json_int(item, &id))
            return fail(ERR_DATA, "%s: byte %" PRId64 ": token \"%.40s\": its id is not an integer", path,
                        item->offset, item->key);
        TRY(bpe_put_slot(slots, num_slots, id, (TokenSlot){item->key, item->key_size, false}, path));
    }
    return OK;
}

static Status find_bytes(Bpe *bpe, const char *path) {
    for (int b = 0; b < 256; b++) {
        char spelling[2];
        size_t size = bpe_spell_byte((unsigned char)b, spelling);
        bpe->byte_ids[b] = bpe_find(bpe, spelling, size);
        if (bpe->byte_ids[b] < 0)
            return fail(ERR_DATA,
                        "%s: no token for byte %d (\"%.*s\"): is it a byte-level vocabulary, as GPT-2's?",
                        path, b, (int)size, spelling);
    }
    return OK;
}

Status bpe_take_slots(Bpe *bpe, const TokenSlot *slots, size_t num_slots, const char *path) {
    size_t count = num_slots;
    while (count && !slots[count - 1].spelling) count--;
    for (size_t i = 0; i < count; i++) {
        const TokenSlot *s = &slots[i];
        if (!s->spelling)
            return fail(ERR_DATA, "%s: no token has id %zu, but one has %zu", path, i, count - 1);
        if (!(s->literal ? bpe_add_literal : bpe_add_token)(bpe, s->spelling, s->size))
            return fail(ERR_DATA, "%s: token %zu, \"%.40s\", has a second id", path, i, s->spelling);
    }
    return find_bytes(bpe, path);
}

static Status take_vocabulary(Bpe *bpe, const char *path, const Json *object) {
    if (object->type != JSON_OBJECT)
        return fail(ERR_DATA, "%s: a JSON object from token to id is expected", path);
    if (object->count < 1 || object->count > MAX_TOKENS)
        return fail(ERR_DATA, "%s: %zu tokens; 257 to %d are allowed", path, object->count, MAX_TOKENS);
    TokenSlot *slots = calloc(object->count, sizeof *slots);
    if (!slots) return fail(ERR_OS, "%s: no memory for %zu tokens", path, object->count);
    Status status = bpe_put_vocabulary(slots, object->count, object, path);
    if (status == OK) status = bpe_take_slots(bpe, slots, object->count, path);
    free(slots);
    TRY(status);
    return bpe_find(bpe, EOD_SPELLING, strlen(EOD_SPELLING)) < 0
               ? fail(ERR_DATA, "%s: no token %s", path, EOD_SPELLING)
               : OK;
}

static Status parse_vocabulary(Bpe *bpe, const char *path, const char *text, size_t size) {
    Json *object;
    TRY(json_parse(&object, text, size, path));
    Status status = take_vocabulary(bpe, path, object);
    json_free(object);
    return status;
}

// ---- Merges -------------------------------------------------------------------------------------------

Status bpe_take_merge(Bpe *bpe, const char *path, int64_t line, const char *left, size_t left_size,
                      const char *right, size_t right_size) {
    Text joined = {0};
    text_add_bytes(&joined, left, left_size);
    text_add_bytes(&joined, right, right_size);
    int32_t l = bpe_find(bpe, left, left_size), r = bpe_find(bpe, right, right_size),
            result = bpe_find(bpe, joined.data, joined.size);
    text_free(&joined);
    if (l < 0 || r < 0 || result < 0)
        return fail(ERR_DATA,
                    "%s:%" PRId64 ": \"%.*s %.*s\": %s not in the vocabulary: do merges and vocabulary "
                    "belong together?",
                    path, line, (int)(left_size < 40 ? left_size : 40), left,
                    (int)(right_size < 40 ? right_size : 40), right,
                    l < 0   ? "the left token is"
                    : r < 0 ? "the right token is"
                            : "the joined token is");
    if (!bpe_add_merge(bpe, l, r, result))
        return fail(ERR_DATA, "%s:%" PRId64 ": the same pair occurs before", path, line);
    return OK;
}

Status bpe_split_merge(Bpe *bpe, const char *path, int64_t line, const char *text, size_t size) {
    const char *blank = memchr(text, ' ', size);
    size_t left = blank ? (size_t)(blank - text) : 0, right = blank ? size - left - 1 : 0;
    if (!left || !right || memchr(blank + 1, ' ', right))
        return fail(ERR_DATA, "%s:%" PRId64 ": two tokens with one blank between them are expected", path,
                    line);
    return bpe_take_merge(bpe, path, line, text, left, blank + 1, right);
}

// The next line without its end. Returns false after the last; an empty last line does not count.
static bool next_line(const char **at, const char *end, const char **line, size_t *size) {
    if (*at == end) return false;
    const char *stop = memchr(*at, '\n', (size_t)(end - *at));
    *line = *at;
    *size = (size_t)((stop ? stop : end) - *at);
    *at += *size + (stop != NULL);
    if (*size && (*line)[*size - 1] == '\r') --*size;
    return true;
}

// Skips empty lines, and a first line that begins with "#version".
static Status parse_merges(Bpe *bpe, const char *path, const char *text, size_t size) {
    const char *end = text + size, *line;
    size_t length;
    for (int64_t number = 1; next_line(&text, end, &line, &length); number++) {
        bool header = number == 1 && length >= 8 && memcmp(line, "#version", 8) == 0;
        if (length && !header) TRY(bpe_split_merge(bpe, path, number, line, length));
    }
    return OK;
}

Status bpe_load(Bpe *bpe, const char *vocab_file, const char *merge_file) {
    char *text;
    size_t size;
    bpe->in_passes = true;
    TRY(file_read(vocab_file, MAX_FILE_BYTES, &text, &size));
    Status status = parse_vocabulary(bpe, vocab_file, text, size);
    free(text);
    TRY(status);
    TRY(file_read(merge_file, MAX_FILE_BYTES, &text, &size));
    status = parse_merges(bpe, merge_file, text, size);
    free(text);
    return status;
}

// ---- tiktoken's ranks ---------------------------------------------------------------------------------

static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// Decodes base64 of RFC 4648, with padding. Returns false for anything else and for an empty text.
static bool decode_base64(Text *out, const char *text, size_t size) {
    size_t padding = 0;
    while (padding < 2 && padding < size && text[size - 1 - padding] == '=') padding++;
    if (!size || size % 4 || size == padding) return false;
    for (size_t at = 0; at < size; at += 4) {
        size_t digits = at + 4 == size ? 4 - padding : 4;
        uint32_t word = 0;
        for (size_t i = 0; i < 4; i++) {
            int digit = i < digits ? base64_digit(text[at + i]) : 0;
            if (digit < 0) return false;
            word = word << 6 | (uint32_t)digit;
        }
        char bytes[3] = {(char)(word >> 16), (char)(word >> 8), (char)word};
        text_add_bytes(out, bytes, digits - 1);
    }
    return true;
}

static Status take_rank(Bpe *bpe, const char *path, int64_t number, const char *line, size_t size,
                        Text *bytes) {
    const char *blank = memchr(line, ' ', size);
    char rank[24] = {0};
    int64_t value;
    bytes->size = 0;
    size_t digits = blank ? size - (size_t)(blank - line) - 1 : 0;
    if (digits && digits < sizeof rank) memcpy(rank, blank + 1, digits);
    if (!blank || !parse_int(rank, &value) || !decode_base64(bytes, line, (size_t)(blank - line)))
        return fail(ERR_DATA, "%s:%" PRId64 ": a token in base64, a blank and its rank are expected", path,
                    number);
    if (value != bpe->spellings.count)
        return fail(ERR_DATA, "%s:%" PRId64 ": rank %s where %u is expected", path, number, rank,
                    bpe->spellings.count);
    Text spelling = {0};
    bpe_spell(&spelling, bytes->data, bytes->size);
    bool added = bpe_add_token(bpe, spelling.data, spelling.size);
    text_free(&spelling);
    return added ? OK : fail(ERR_DATA, "%s:%" PRId64 ": the same token occurs before", path, number);
}

// Single bytes may stand anywhere in the file, so merges are derived after all tokens have been read.
static Status take_ranks(Bpe *bpe, const char *path, const char *text, size_t size, Text *bytes) {
    const char *end = text + size, *line;
    size_t length;
    for (int64_t number = 1; next_line(&text, end, &line, &length); number++)
        if (length) TRY(take_rank(bpe, path, number, line, length, bytes));
    return find_bytes(bpe, path);
}

// Merges a token's bytes as far as the tokens before it allow. Two parts that remain are its merge.
static void derive_merges(Bpe *bpe) {
    BpeScratch scratch = {0};
    TokenList parts = {0};
    for (uint32_t id = 0; id < bpe->spellings.count; id++) {
        size_t size = bpe->starts[id + 1] - bpe->starts[id];
        parts.count = 0;
        bpe_encode_piece(bpe, &scratch, bpe->bytes.data + bpe->starts[id], size, &parts);
        if (parts.count == 2) bpe_add_merge(bpe, parts.ids[0], parts.ids[1], (int32_t)id);
    }
    token_list_free(&parts);
    bpe_scratch_free(&scratch);
}

Status bpe_load_ranks(Bpe *bpe, const char *path, const char *text, size_t size) {
    Text bytes = {0};
    Status status = take_ranks(bpe, path, text, size, &bytes);
    text_free(&bytes);
    TRY(status);
    derive_merges(bpe);
    bpe->ignore_merges = true; // tiktoken looks a piece up before it merges
    if (!bpe_add_literal(bpe, EOD_SPELLING, strlen(EOD_SPELLING)))
        return fail(ERR_DATA, "%s: it has a token %s among its ranks", path, EOD_SPELLING);
    return OK;
}

// ---- Writing ------------------------------------------------------------------------------------------

// One token per line.
static Status save_vocabulary(const Bpe *bpe, const char *path) {
    Text text = {0};
    for (uint32_t i = 0; i < bpe->spellings.count; i++) {
        size_t size;
        const char *spelling = bytes_map_at(&bpe->spellings, i, &size);
        text_add(&text, "%s", i ? ",\n" : "{");
        json_add_string(&text, spelling, size);
        text_add(&text, ": %u", i);
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
        bpe_write_merge(bpe, i, &text);
        text_add(&text, "\n");
    }
    Status status = file_write(path, text.data, text.size);
    text_free(&text);
    return status;
}

Status bpe_save(const Bpe *bpe, const char *vocab_file, const char *merge_file) {
    TRY(save_vocabulary(bpe, vocab_file));
    return save_merges(bpe, merge_file);
}
