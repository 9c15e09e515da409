// Strings of templates as Python has them: characters of UTF-8, blanks of Unicode, escapes.
#include "formats/utf8.h"
#include "template/internal.h"
#include <string.h>

size_t jinja_character(const char *text, size_t size) {
    size_t length = utf8_length(text, size);
    return length ? length : 1;
}

static uint32_t code_at(const char *text, size_t length) {
    const unsigned char *c = (const unsigned char *)text;
    if (length == 1) return c[0];
    uint32_t code = c[0] & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) code = code << 6 | (c[i] & 63);
    return code;
}

// Blanks as str.isspace() has them.
static bool is_blank(uint32_t code) {
    if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13) || (code >= 28 && code <= 31);
    return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
           code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

size_t jinja_blank(const char *text, size_t size) {
    if (!size) return 0;
    size_t length = jinja_character(text, size);
    return is_blank(code_at(text, length)) ? length : 0;
}

size_t jinja_line(const char *text, size_t size, size_t *line_end) {
    *line_end = 0;
    for (size_t at = 0, length; at < size; at += length) {
        length = jinja_character(text + at, size - at);
        uint32_t code = code_at(text + at, length);
        bool ends = (code >= 10 && code <= 13) || (code >= 28 && code <= 30) || code == 0x85 ||
                    code == 0x2028 || code == 0x2029;
        if (!ends) continue;
        *line_end = length + (code == '\r' && at + 1 < size && text[at + 1] == '\n');
        return at;
    }
    return size;
}

static bool contains(const JinjaValue *set, const char *character, size_t length) {
    return memmem(set->string, set->size, character, length) != NULL;
}

static bool strips(const char *character, size_t length, const JinjaValue *set) {
    return set ? contains(set, character, length) : is_blank(code_at(character, length));
}

size_t jinja_leading(const JinjaValue *s, const JinjaValue *set) {
    size_t at = 0;
    for (size_t length; at < s->size; at += length) {
        length = jinja_character(s->string + at, s->size - at);
        if (!strips(s->string + at, length, set)) break;
    }
    return at;
}

size_t jinja_trailing(const JinjaValue *s, const JinjaValue *set) {
    size_t end = s->size;
    while (end) {
        size_t start = end - 1;
        while (start && end - start < 4 && ((unsigned char)s->string[start] & 0xc0) == 0x80) start--;
        if (!strips(s->string + start, end - start, set)) break;
        end = start;
    }
    return s->size - end;
}

// ---- escapes ------------------------------------------------------------------------------------------------

static int digit(char c, int base) {
    int value = c >= '0' && c <= '9'                     ? c - '0'
                : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10
                                                         : 16;
    return value < base ? value : -1;
}

static size_t put_code(char *out, uint32_t code) {
    static const unsigned char LEAD[] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t size = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = size - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 63));
    out[0] = (char)(LEAD[size] | code);
    return size;
}

// Reads the digits of an escape: exactly `count` of base 16, or up to three of base 8. Returns how many; 0: none.
static size_t read_code(const char *text, size_t size, size_t count, int base, uint32_t *code) {
    size_t at = 0;
    *code = 0;
    for (; at < count && at < size && digit(text[at], base) >= 0; at++)
        *code = *code * (uint32_t)base + (uint32_t)digit(text[at], base);
    return base == 16 && at < count ? 0 : at;
}

// One escape behind its backslash. Returns the bytes read; 0: it is not known.
static size_t escape(const char *text, size_t size, char *out, size_t *written) {
    static const char NAMES[] = "\\'\"abfnrtv", BYTES[] = "\\'\"\a\b\f\n\r\t\v";
    const char *name = *text ? strchr(NAMES, *text) : NULL;
    uint32_t code = 0;
    size_t read = 0;
    if (name) {
        *out = BYTES[name - NAMES];
        *written = 1;
        return 1;
    }
    if (*text == '\n') {
        *written = 0;
        return 1;
    }
    if (digit(*text, 8) >= 0) {
        read = read_code(text, size, 3, 8, &code);
    } else if (strchr("xuU", *text) && *text) {
        read = read_code(text + 1, size - 1, *text == 'x' ? 2 : *text == 'u' ? 4 : 8, 16, &code);
        read += read != 0;
    } else if (*text != 'N') { // Python leaves what it does not know as it is
        out[0] = '\\';
        out[1] = *text;
        *written = 2;
        return 1;
    }
    if (!read || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
    *written = put_code(out, code);
    return read;
}

bool jinja_unescape(JinjaPool *pool, const char *text, size_t size, JinjaValue *out) {
    char *string = jinja_pool_take(pool, 2 * size + 4); // an escape of two characters may take four bytes
    size_t count = 0;
    for (size_t at = 0; at < size;) {
        if (text[at] != '\\') {
            string[count++] = text[at++];
            continue;
        }
        size_t written = 0,
               read = at + 1 < size ? escape(text + at + 1, size - at - 1, string + count, &written) : 0;
        if (!read) return false;
        at += 1 + read;
        count += written;
    }
    *out = jinja_string(string, count);
    return true;
}
