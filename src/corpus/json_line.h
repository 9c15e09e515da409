// One JSON object on one line: the strings of the keys that are wanted, the rest checked and skipped. It
// reads a line of text about as fast as memory gives it, where a parser that builds values is what limits.
//
// As strict as RFC 8259, with exceptions that corpora need: NaN and Infinity as Python writes them,
// bytes that are no UTF-8, and half a surrogate pair (it becomes U+FFFD). Of a repeated key the last one
// counts.
#pragma once
#include "base/text.h"

typedef struct {
    const char *const *keys;
    int num_keys;
    size_t *values; // [num_keys]: where the value of each begins in the line; 0: there is none
    Text scratch;   // of strings with escapes
} JsonLine;

// A place in a line. `error` says what is wrong there; NULL: nothing.
typedef struct {
    const char *text;
    size_t bytes, at;
    const char *error;
} JsonCursor;

void json_line_open(JsonLine *line, const char *const *keys, int num_keys);
void json_line_free(JsonLine *line);
// Checks the line that the cursor is at the start of, and finds the keys. False: the cursor tells why.
bool json_line_scan(JsonLine *line, JsonCursor *cursor);

// At a value of a line that has been scanned:
// the string there, unescaped (valid until the next), and the cursor behind it; false for another value.
bool json_line_string(JsonLine *line, JsonCursor *cursor, const char **string, size_t *bytes);
// Into a list: true where it begins, and then before each further element. False: no list, or its end.
bool json_line_begins_list(JsonCursor *cursor);
bool json_line_next_element(JsonCursor *cursor);
