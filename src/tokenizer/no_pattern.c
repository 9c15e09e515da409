// Patterns without PCRE2: GPT-2's, as far as pieces.c needs none of its matches. It needs one where the next character
// is not ASCII.
#include "base/libraries.h"
#include "tokenizer/pattern.h"
#include "tokenizer/pieces.h"
#include <stdlib.h>
#include <string.h>

Status pattern_open(Pattern **pattern, const char *text) {
    *pattern = NULL;
    return strcmp(text, gpt2_pattern) ? fail_without(LIBRARY_PCRE2, "this tokenizer's pattern") : OK;
}

void pattern_close(Pattern *pattern) { (void)pattern; }

int pattern_find(const Pattern *pattern, const char *text, size_t bytes, size_t from, size_t *start,
                 size_t *end) {
    (void)pattern, (void)text;
    *start = from;
    *end = bytes;
    return -1;
}

int pattern_find_group(const Pattern *pattern, const char *text, size_t bytes, size_t from, size_t *start,
                       size_t *end, size_t *next) {
    *next = bytes;
    return pattern_find(pattern, text, bytes, from, start, end);
}

Status pattern_fail(int error) {
    (void)error;
    return fail_without(LIBRARY_PCRE2, "a text that is not ASCII alone");
}
