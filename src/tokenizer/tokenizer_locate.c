// Finds where in a text each of its tokens lies, for what marks parts of the text.
#include "tokenizer/internal.h"
#include <stdlib.h>
#include <string.h>

typedef struct {
    const Tokenizer *tokenizer;
    const char *text;
    size_t size, at;
    Text bytes; // of one token
} Walk;

// A token that is recognised as a whole, with the blanks that belong to it.
static bool pass_added(Walk *w, int32_t id) {
    for (int i = 0; i < ADDED_SETS; i++) {
        AddedMatch match;
        if (!added_set_find(&w->tokenizer->added[i], w->text, w->size, w->at, &match)) continue;
        if (match.id != id || match.start != w->at) continue;
        w->at = match.end;
        return true;
    }
    return false;
}

static bool pass_bytes(Walk *w, const char *bytes, size_t size) {
    if (w->size - w->at < size || memcmp(w->text + w->at, bytes, size) != 0) return false;
    w->at += size;
    return true;
}

// The bytes of a piece of SentencePiece: U+2581 is a blank, <0x0A> a byte.
static void spell_piece(Walk *w, int32_t id) {
    static const char BLANK[] = "\xe2\x96\x81";
    const char *spelling = tokenizer_spelling(w->tokenizer, id);
    w->bytes.size = 0;
    if (tokenizer_token_type(w->tokenizer, id) == TOKEN_BYTE) {
        char byte = (char)strtol(spelling + 3, NULL, 16);
        text_add_bytes(&w->bytes, &byte, 1);
        return;
    }
    for (size_t step; *spelling; spelling += step) {
        bool blank = !strncmp(spelling, BLANK, 3);
        step = blank ? 3 : 1;
        text_add_bytes(&w->bytes, blank ? " " : spelling, 1);
    }
}

// Moves behind one token. A blank that the tokenizer put before a text takes no bytes of it.
static Status pass_token(Walk *w, int32_t id, bool *found) {
    *found = w->tokenizer->kind == TOKENIZER_BPE && pass_added(w, id);
    if (*found) return OK;
    w->bytes.size = 0;
    if (w->tokenizer->kind == TOKENIZER_SENTENCEPIECE)
        spell_piece(w, id);
    else
        TRY(tokenizer_decode(w->tokenizer, &id, 1, &w->bytes));
    *found = w->bytes.size && pass_bytes(w, w->bytes.data, w->bytes.size);
    if (!*found && w->bytes.size && w->bytes.data[0] == ' ')
        *found = pass_bytes(w, w->bytes.data + 1, w->bytes.size - 1);
    return OK;
}

static Status pass_all(Walk *w, const int32_t *ids, size_t count, size_t *ends) {
    for (size_t i = 0; i < count; i++) {
        bool found;
        TRY(pass_token(w, ids[i], &found));
        if (!found)
            return fail(
                ERR_UNAVAILABLE,
                "token %zu (%d) is not the text at byte %zu: the tokenizer changes text before it cuts it, so "
                "parts of it cannot be marked",
                i, ids[i], w->at);
        ends[i] = w->at;
    }
    return OK;
}

Status tokenizer_locate(const Tokenizer *tokenizer, const char *text, size_t size, const int32_t *ids,
                        size_t count, size_t *ends) {
    if (tokenizer->kind == TOKENIZER_NULL)
        return fail(ERR_UNAVAILABLE, "the null tokenizer's tokens have no place in a text");
    Walk walk = {.tokenizer = tokenizer, .text = text, .size = size};
    Status status = pass_all(&walk, ids, count, ends);
    text_free(&walk.bytes);
    return status;
}
