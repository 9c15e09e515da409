// Collects the words of a command line, and prints them as a shell reads them.
#include "base/words.h"
#include "base/array.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static void take(CommandWords *words, char *word) {
    array_grow(&words->items, sizeof *words->items, words->count + 2, &words->capacity);
    words->items[words->count++] = word;
    words->items[words->count] = NULL;
}

void words_add(CommandWords *words, const char *fmt, ...) {
    char *word = NULL;
    va_list list;
    va_start(list, fmt);
    int size = vasprintf(&word, fmt, list);
    va_end(list);
    CHECK(size >= 0, "no memory for a word");
    take(words, word);
}

void words_join(CommandWords *words, const CommandWords *more) {
    for (size_t i = 0; i < more->count; i++) words_add(words, "%s", more->items[i]);
}

void words_split(CommandWords *words, const char *text) {
    for (size_t size; text += strspn(text, " "), size = strcspn(text, " "), size > 0; text += size)
        words_add(words, "%.*s", (int)size, text);
}

static void quote(const char *word, Text *out) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./,:@%";
    if (*word && !word[strspn(word, plain)]) {
        text_add(out, "%s", word);
        return;
    }
    text_add(out, "'");
    for (const char *c = word; *c; c++) text_add(out, *c == '\'' ? "'\\''" : "%c", *c);
    text_add(out, "'");
}

// A line begins with an option, so that its values stay beside it.
void words_print(const CommandWords *words, int columns, Text *out) {
    size_t line = 0;
    for (size_t i = 0; i < words->count; i++) {
        Text word = {0};
        quote(words->items[i], &word);
        bool full = columns && words->items[i][0] == '-' && line + word.size + 12 > (size_t)columns;
        if (i) text_add(out, full ? " \\\n    " : " ");
        line = full ? word.size + 4 : line + word.size + 1;
        text_add(out, "%s", text_string(&word));
        text_free(&word);
    }
}

void words_free(CommandWords *words) {
    for (size_t i = 0; i < words->count; i++) free(words->items[i]);
    free(words->items);
    *words = (CommandWords){0};
}
