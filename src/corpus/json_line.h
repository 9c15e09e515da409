// Reads one JSON object on one line: finds the values of some keys and checks the rest without building values.
// It is about as fast as memory; a parser that builds values would limit the speed of preprocess.
//
// It is as strict as RFC 8259, with exceptions that corpora need: NaN and Infinity as Python writes them, bytes
// that are not UTF-8, and half a surrogate pair, which becomes U+FFFD. Of a repeated key the last one counts.
#pragma once
#include "base/text.h"

typedef struct {
    const char *const *keys;
    int num_keys;
    size_t *values; // [num_keys] where the value of each key begins in the line; 0: the key is absent
    Text scratch;   // holds strings with escapes
} JsonLine;

// A place in a line. `error` is the message of an error at this place, or NULL.
typedef struct {
    const char *text;
    size_t bytes, at;
    const char *error;
} JsonCursor;

void json_line_open(JsonLine *line, const char *const *keys, int num_keys);
void json_line_free(JsonLine *line);
// Checks the line at the cursor and finds the keys. Returns false for an invalid line; cursor->error says why.
bool json_line_scan(JsonLine *line, JsonCursor *cursor);

// The following functions take a cursor at a value of a line that has been scanned.
// Reads a string, unescaped, and moves the cursor behind it. The string is valid until the next call. Returns
// false when the value is not a string.
bool json_line_string(JsonLine *line, JsonCursor *cursor, const char **string, size_t *bytes);
// Enters a list: the first returns true at a list, the second before each further element and false at its end.
bool json_line_begins_list(JsonCursor *cursor);
bool json_line_next_element(JsonCursor *cursor);
