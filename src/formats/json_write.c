// Writes strings and numbers as JSON.
#include "formats/formats.h"
#include "formats/utf8.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void add_escape(Text *out, char c) {
    static const char BYTES[] = "\"\\\b\f\n\r\t", NAMES[] = "\"\\bfnrt";
    const char *byte = c ? strchr(BYTES, c) : NULL;
    if (byte)
        text_add_bytes(out, (char[]){'\\', NAMES[byte - BYTES]}, 2);
    else
        text_add(out, "\\u%04x", (unsigned)c);
}

static bool is_plain(char c) { return (unsigned char)c >= ' ' && c != '"' && c != '\\'; }

void json_add_string(Text *out, const char *string, size_t size) {
    const char *end = string + size;
    text_add_bytes(out, "\"", 1);
    while (string < end) {
        const char *start = string;
        size_t length = 0;
        while (string < end && is_plain(*string) && (length = utf8_length(string, (size_t)(end - string))))
            string += length;
        text_add_bytes(out, start, (size_t)(string - start));
        if (string == end) break;
        if (is_plain(*string))
            text_add_bytes(out, "\xef\xbf\xbd", 3); // U+FFFD
        else
            add_escape(out, *string);
        string++;
    }
    text_add_bytes(out, "\"", 1);
}

void json_add_double(Text *out, double value) {
    enum { ENOUGH_DIGITS = 17 }; // for any double
    char number[40] = "null";
    bool same = !isfinite(value);
    for (int digits = 1; !same && digits <= ENOUGH_DIGITS; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, value);
        same = strtod(number, NULL) == value;
    }
    text_add(out, "%s", number);
}
