// Finds added tokens in text before it is cut into pieces, as Hugging Face's library does: at the leftmost place
// the longest one.
#include "base/array.h"
#include "tokenizer/internal.h"
#include <stdlib.h>

void added_set_add(AddedSet *set, const char *text, size_t size, AddedToken token) {
    bool added;
    uint32_t i = bytes_map_add(&set->texts, text, size, &added);
    array_grow(&set->tokens, sizeof *set->tokens, (size_t)i + 1, &set->capacity);
    set->tokens[i] = token;
    set->starts[(unsigned char)text[0]] = true;
}

static int descending(const void *a, const void *b) {
    uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left < right) - (left > right);
}

void added_set_ready(AddedSet *set) {
    if (!set->texts.count) return;
    set->lengths = malloc(set->texts.count * sizeof *set->lengths);
    CHECK(set->lengths, "no memory for %u added tokens", set->texts.count);
    for (uint32_t i = 0; i < set->texts.count; i++) set->lengths[i] = set->texts.entries[i].bytes;
    qsort(set->lengths, set->texts.count, sizeof *set->lengths, descending);
    for (uint32_t i = 0; i < set->texts.count; i++)
        if (!i || set->lengths[i] != set->lengths[set->num_lengths - 1])
            set->lengths[set->num_lengths++] = set->lengths[i];
}

void added_set_free(AddedSet *set) {
    bytes_map_free(&set->texts);
    free(set->tokens);
    free(set->lengths);
}

static uint32_t longest_at(const AddedSet *set, const char *text, size_t left) {
    for (size_t i = 0; i < set->num_lengths; i++) {
        if (set->lengths[i] > left) continue;
        uint32_t found = bytes_map_find(&set->texts, text, set->lengths[i]);
        if (found != NOT_FOUND) return found;
    }
    return NOT_FOUND;
}

size_t added_set_at(const AddedSet *set, const char *text, size_t bytes, int32_t *id) {
    if (!bytes || !set->starts[(unsigned char)text[0]]) return 0;
    uint32_t i = longest_at(set, text, bytes);
    if (i == NOT_FOUND) return 0;
    *id = set->tokens[i].id;
    return set->texts.entries[i].bytes;
}

bool added_set_find(const AddedSet *set, const char *text, size_t bytes, size_t from, AddedMatch *match) {
    if (!set->texts.count) return false;
    for (size_t at = from; at < bytes; at++) {
        if (!set->starts[(unsigned char)text[at]]) continue;
        uint32_t i = longest_at(set, text + at, bytes - at);
        if (i == NOT_FOUND) continue;
        const AddedToken *token = &set->tokens[i];
        size_t end = at + set->texts.entries[i].bytes;
        match->id = token->id;
        match->start = at - (token->lstrip ? utf8_trailing_blanks(text + from, at - from) : 0);
        match->end = end + (token->rstrip ? utf8_leading_blanks(text + end, bytes - end) : 0);
        return true;
    }
    return false;
}
