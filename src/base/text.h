// Text: a growing buffer, strict parsing of numbers, the nearest name for "did you mean", and reading and writing of
// whole files.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// A growing, always NUL-terminated buffer. Zero-initialise; text_free when done. Out of memory is a CHECK.
typedef struct {
    char *data; // NULL while empty
    size_t size, capacity;
} Text;

void text_add(Text *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void text_add_bytes(Text *text, const void *bytes, size_t size);
// Appends text of others as a terminal may show it: control characters, which are those below U+0020 and U+007F to
// U+009F, as \u001b. Other bytes, also those that are not UTF-8, stay.
void text_add_visible(Text *text, const char *string, size_t size);
const char *text_string(const Text *text); // "" while empty
void text_free(Text *text);

// Appends the shortest decimal that reads back as the same float.
void text_add_float(Text *text, float value);

// Whole-string parsers: false on anything else than one number in range (also on "", trailing characters,
// overflow). Integers take K, M, G, B suffixes as 10^3, 10^6, 10^9, 10^9.
bool parse_int(const char *string, int64_t *value);
bool parse_double(const char *string, double *value); // finite only

// Levenshtein distance, for "did you mean".
int text_distance(const char *a, const char *b);
// The candidate nearest to `name`, or NULL when none is within a third of its length (at least 2 edits).
const char *text_nearest(const char *name, const char *const *candidates, int num_candidates);
