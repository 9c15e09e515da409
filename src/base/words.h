// A growing list of words: a command line that is put together.
#pragma once
#include "base/text.h"

// The words are owned. `items` ends with NULL, as argv does. Zero-initialise it; words_free when done. Out of memory is
// a CHECK.
typedef struct {
    char **items;
    size_t count, capacity;
} CommandWords;

void words_add(CommandWords *words, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void words_join(CommandWords *words, const CommandWords *more); // appends copies
// Appends each part of `text` between blanks as a word.
void words_split(CommandWords *words, const char *text);
// Appends the words as a shell reads them: quoted where that is needed, in lines of about `columns` characters that end
// with a backslash; 0: one line.
void words_print(const CommandWords *words, int columns, Text *out);
void words_free(CommandWords *words);
