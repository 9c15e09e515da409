// Scans a line of JSON for the strings of some keys.
#include "corpus/json_line.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

static bool wrong(JsonCursor *c, const char *error) {
    if (!c->error) c->error = error;
    return false;
}

static bool too_early(JsonCursor *c) { return wrong(c, "not valid JSON: the line ends too early"); }

// The next character; -1 at the end.
static int peek(const JsonCursor *c) { return c->at < c->bytes ? (unsigned char)c->text[c->at] : -1; }

static int skip_space(JsonCursor *c) {
    while (c->at < c->bytes && strchr(" \t\r\n", c->text[c->at]) && c->text[c->at]) c->at++;
    return peek(c);
}

static bool expect(JsonCursor *c, char wanted, const char *error) {
    int found = skip_space(c);
    if (found < 0) return too_early(c);
    if (found != wanted) return wrong(c, error);
    c->at++;
    return true;
}

// ---- Strings ----------------------------------------------------------------------------------------------

static uint64_t bytes_equal_to_zero(uint64_t word) {
    return (word - 0x0101010101010101U) & ~word & 0x8080808080808080U;
}

// Skips eight characters at a time up to the next quote, backslash or control character. It misses none; where a
// borrow stops it too early the loop below continues.
static void skip_plain(JsonCursor *c) {
    for (uint64_t eight; c->bytes - c->at >= 8; c->at += 8) {
        memcpy(&eight, c->text + c->at, 8);
        uint64_t quote = bytes_equal_to_zero(eight ^ 0x2222222222222222U);
        uint64_t backslash = bytes_equal_to_zero(eight ^ 0x5c5c5c5c5c5c5c5cU);
        uint64_t control = (eight - 0x2020202020202020U) & ~eight & 0x8080808080808080U;
        if (quote | backslash | control) break;
    }
    for (; c->at < c->bytes; c->at++) {
        unsigned char byte = (unsigned char)c->text[c->at];
        if (byte == '"' || byte == '\\' || byte < 0x20) return;
    }
}

static int hex_digit(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Reads four hex digits and moves the cursor behind them.
static bool read_code(JsonCursor *c, unsigned *code) {
    *code = 0;
    for (int i = 0; i < 4; i++, c->at++) {
        int next = peek(c), digit = hex_digit(next);
        if (next < 0) return too_early(c);
        if (digit < 0) return wrong(c, "four hexadecimal digits are expected after \\u");
        *code = *code << 4 | (unsigned)digit;
    }
    return true;
}

// Skips an escape whose backslash has been read.
static bool skip_escape(JsonCursor *c) {
    unsigned code;
    int kind = peek(c);
    if (kind < 0) return too_early(c);
    if (!kind || !strchr("\"\\/bfnrtu", kind))
        return wrong(c, "this is not an escape of JSON, such as \\n or \\u00e9");
    c->at++;
    return kind != 'u' || read_code(c, &code);
}

static bool skip_string(JsonCursor *c) {
    for (c->at++;;) {
        skip_plain(c);
        int stop = peek(c);
        if (stop < 0) return too_early(c);
        if (stop < 0x20)
            return wrong(c, "a control character in a string; in JSON it has to be an escape such as \\n");
        c->at++;
        if (stop == '"') return true;
        if (!skip_escape(c)) return false;
    }
}

static void add_utf8(Text *out, unsigned code) {
    char utf8[4];
    size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = size - 1; i > 0; i--, code >>= 6) utf8[i] = (char)(0x80 | (code & 63));
    utf8[0] = (char)(lead[size] | code);
    text_add_bytes(out, utf8, size);
}

// Adds the character of an escape whose \u has been read. A surrogate pair is one character; half a pair becomes
// U+FFFD.
static void add_code(JsonCursor *c, Text *out) {
    unsigned code, low;
    read_code(c, &code);
    JsonCursor after = *c;
    bool pair = code >= 0xd800 && code < 0xdc00 && c->bytes - c->at >= 6 && c->text[c->at] == '\\' &&
                c->text[c->at + 1] == 'u';
    after.at += 2;
    if (pair && read_code(&after, &low) && low >= 0xdc00 && low < 0xe000) {
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        *c = after;
    }
    add_utf8(out, code >= 0xd800 && code < 0xe000 ? 0xfffd : code);
}

static void add_escape(JsonCursor *c, Text *out) {
    static const char kinds[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char kind = c->text[c->at++];
    if (kind == 'u')
        add_code(c, out);
    else
        text_add_bytes(out, &meanings[strchr(kinds, kind) - kinds], 1);
}

bool json_line_string(JsonLine *line, JsonCursor *c, const char **string, size_t *bytes) {
    if (peek(c) != '"') return false;
    size_t start = ++c->at;
    skip_plain(c);
    *string = c->text + start;
    *bytes = c->at - start;
    if (c->text[c->at++] == '"') return true;
    line->scratch.size = 0;
    text_add_bytes(&line->scratch, *string, *bytes);
    for (bool escape = true; escape; escape = c->text[c->at++] == '\\') {
        add_escape(c, &line->scratch);
        start = c->at;
        skip_plain(c);
        text_add_bytes(&line->scratch, c->text + start, c->at - start);
    }
    *string = line->scratch.data;
    *bytes = line->scratch.size;
    return true;
}

bool json_line_begins_list(JsonCursor *c) {
    if (peek(c) != '[') return false;
    c->at++;
    if (skip_space(c) != ']') return true;
    c->at++;
    return false;
}

bool json_line_next_element(JsonCursor *c) {
    bool more = skip_space(c) == ',';
    c->at++;
    skip_space(c);
    return more;
}

// ---- Any value --------------------------------------------------------------------------------------------

static bool skip_value(JsonCursor *c, int depth);

static bool skip_digits(JsonCursor *c) {
    if (peek(c) < 0) return too_early(c);
    if (peek(c) < '0' || peek(c) > '9') return wrong(c, "a digit is expected");
    while (peek(c) >= '0' && peek(c) <= '9') c->at++;
    return true;
}

static bool skip_word(JsonCursor *c, const char *word) {
    for (; *word; word++, c->at++) {
        if (peek(c) < 0) return too_early(c);
        if (peek(c) != *word) return wrong(c, "a value is expected");
    }
    return true;
}

static bool skip_number(JsonCursor *c) {
    if (peek(c) == '-') c->at++;
    if (peek(c) == 'I') return skip_word(c, "Infinity");
    bool zero = peek(c) == '0';
    size_t start = c->at;
    if (!skip_digits(c)) return false;
    if (zero && c->at - start > 1) return wrong(c, "a number begins with 0");
    if (peek(c) == '.' && (c->at++, !skip_digits(c))) return false;
    if ((peek(c) | 0x20) != 'e') return true;
    c->at++;
    if (peek(c) == '+' || peek(c) == '-') c->at++;
    return skip_digits(c);
}

static bool skip_list(JsonCursor *c, int depth) {
    c->at++;
    if (skip_space(c) == ']') {
        c->at++;
        return true;
    }
    do
        if (!skip_value(c, depth)) return false;
    while (skip_space(c) == ',' && c->at++ < c->bytes);
    return expect(c, ']', "',' or ']' is expected");
}

// Walks through the members of the object at the cursor and calls a function for each key.
static bool skip_object(JsonCursor *c, int depth, JsonLine *line);

static bool skip_value(JsonCursor *c, int depth) {
    int first = skip_space(c);
    if (depth == MAX_DEPTH) return wrong(c, "values are nested deeper than 64");
    switch (first) {
    case -1: return too_early(c);
    case '"': return skip_string(c);
    case '{': return skip_object(c, depth + 1, NULL);
    case '[': return skip_list(c, depth + 1);
    case 't': return skip_word(c, "true");
    case 'f': return skip_word(c, "false");
    case 'n': return skip_word(c, "null");
    case 'N': return skip_word(c, "NaN");
    default:
        return first == '-' || first == 'I' || (first >= '0' && first <= '9')
                   ? skip_number(c)
                   : wrong(c, "a value is expected");
    }
}

// ---- The object of a line ---------------------------------------------------------------------------------

static void note_value(JsonLine *line, JsonCursor key, size_t value) {
    const char *name;
    size_t size;
    json_line_string(line, &key, &name, &size);
    for (int k = 0; k < line->num_keys; k++)
        if (strlen(line->keys[k]) == size && !memcmp(line->keys[k], name, size)) line->values[k] = value;
}

static bool skip_member(JsonCursor *c, int depth, JsonLine *line) {
    int first = skip_space(c);
    if (first < 0) return too_early(c);
    if (first != '"') return wrong(c, "a key is expected");
    JsonCursor key = *c;
    if (!skip_string(c) || !expect(c, ':', "':' is expected")) return false;
    skip_space(c);
    if (line) note_value(line, key, c->at);
    return skip_value(c, depth);
}

static bool skip_object(JsonCursor *c, int depth, JsonLine *line) {
    c->at++;
    if (skip_space(c) == '}') {
        c->at++;
        return true;
    }
    do
        if (!skip_member(c, depth, line)) return false;
    while (skip_space(c) == ',' && c->at++ < c->bytes);
    return expect(c, '}', "',' or '}' is expected");
}

bool json_line_scan(JsonLine *line, JsonCursor *c) {
    memset(line->values, 0, (size_t)line->num_keys * sizeof *line->values);
    int first = skip_space(c);
    if (first != '{') return skip_value(c, 0) && wrong(c, "a JSON object is expected");
    if (!skip_object(c, 0, line)) return false;
    return skip_space(c) < 0 || wrong(c, "not valid JSON: something follows the object");
}

void json_line_open(JsonLine *line, const char *const *keys, int num_keys) {
    *line = (JsonLine){.keys = keys, .num_keys = num_keys};
    line->values = calloc((size_t)num_keys + 1, sizeof *line->values);
    CHECK(line->values, "no memory for %d keys", num_keys);
}

void json_line_free(JsonLine *line) {
    text_free(&line->scratch);
    free(line->values);
    *line = (JsonLine){0};
}
