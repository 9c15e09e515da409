// A regular expression by which a tokenizer cuts text, or that is sought in an answer, run by PCRE2. A build without it
// (no_pattern.c) has GPT-2's alone, which pieces.c applies to ASCII by itself.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

typedef struct Pattern Pattern; // of one thread

// Fails with ERR_DATA and PCRE2's message when `text` is no regular expression, with ERR_UNAVAILABLE where the build
// has none.
Status pattern_open(Pattern **pattern, const char *text);
void pattern_close(Pattern *pattern); // takes NULL
// Finds the first match in valid UTF-8 that begins at byte `from` or later. Without one [start, end) is the rest of the
// text. Returns 0, or an error for pattern_fail, also with the rest.
int pattern_find(const Pattern *pattern, const char *text, size_t bytes, size_t from, size_t *start,
                 size_t *end);
// Finds the first match that begins at byte `from` or later, and sets [start, end) to its first group that is not
// empty, or to all of it where the pattern has no groups. Where all groups are empty, so is [start, end). The next
// match is to be sought from *next. Returns 1, 0 where there is no match, or an error for pattern_fail.
int pattern_find_group(const Pattern *pattern, const char *text, size_t bytes, size_t from, size_t *start,
                       size_t *end, size_t *next);
Status pattern_fail(int error);
