// Builds, parses and compares text.
#include "base/text.h"
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void reserve(Text *text, size_t more) {
    size_t need = text->size + more + 1;
    CHECK(need > text->size, "text of %zu bytes overflows", text->size);
    if (need <= text->capacity) return;
    size_t capacity = text->capacity ? text->capacity : 128;
    while (capacity < need) capacity *= 2;
    char *grown = realloc(text->data, capacity);
    CHECK(grown, "no memory for %zu bytes of text", capacity);
    text->data = grown;
    text->capacity = capacity;
}

void text_add(Text *text, const char *fmt, ...) {
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    CHECK(length >= 0, "bad format %s", fmt);
    reserve(text, (size_t)length);
    vsnprintf(text->data + text->size, (size_t)length + 1, fmt, again);
    va_end(again);
    text->size += (size_t)length;
}

void text_add_bytes(Text *text, const void *bytes, size_t size) {
    reserve(text, size);
    if (size) memcpy(text->data + text->size, bytes, size);
    text->size += size;
    text->data[text->size] = 0;
}

// U+0080 to U+009F are C2 80 to C2 9F in UTF-8.
void text_add_visible(Text *text, const char *string, size_t size) {
    const unsigned char *c = (const unsigned char *)string;
    for (size_t i = 0; i < size; i++) {
        bool pair = c[i] == 0xc2 && i + 1 < size && c[i + 1] >= 0x80 && c[i + 1] < 0xa0;
        if (pair) i++;
        if (pair || c[i] < ' ' || c[i] == 0x7f)
            text_add(text, "\\u%04x", c[i]);
        else
            text_add_bytes(text, &string[i], 1);
    }
}

const char *text_string(const Text *text) { return text->data ? text->data : ""; }

void text_free(Text *text) {
    free(text->data);
    *text = (Text){0};
}

void text_add_float(Text *text, float value) {
    enum { ENOUGH_DIGITS = 9 };
    char shortest[32];
    for (int digits = 1; digits <= ENOUGH_DIGITS; digits++) {
        snprintf(shortest, sizeof shortest, "%.*g", digits, (double)value);
        if (strtof(shortest, NULL) == value) break;
    }
    text_add(text, "%s", shortest);
}

bool parse_int(const char *string, int64_t *value) {
    char *end;
    errno = 0;
    long long n = strtoll(string, &end, 10);
    if (errno || end == string || isspace((unsigned char)string[0])) return false;
    int64_t unit = *end == 'K' ? 1000 : *end == 'M' ? 1000000 : *end == 'G' || *end == 'B' ? 1000000000 : 1;
    if (unit > 1) end++;
    if (*end || n > INT64_MAX / unit || n < INT64_MIN / unit) return false;
    *value = (int64_t)n * unit;
    return true;
}

bool parse_double(const char *string, double *value) {
    char *end;
    errno = 0;
    double x = strtod(string, &end);
    if (end == string || *end || isspace((unsigned char)string[0]) || !isfinite(x)) return false;
    *value = x;
    return true;
}

static int min3(int a, int b, int c) {
    int m = a < b ? a : b;
    return m < c ? m : c;
}

int text_distance(const char *a, const char *b) {
    enum { LONGEST = 127 };
    int row[LONGEST + 1];
    int length_b = (int)strnlen(b, LONGEST);
    for (int j = 0; j <= length_b; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= length_b; j++) {
            int above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[length_b];
}

const char *text_nearest(const char *name, const char *const *candidates, int num_candidates) {
    int length = (int)strlen(name), best = length / 3 > 2 ? length / 3 : 2;
    const char *nearest = NULL;
    for (int i = 0; i < num_candidates; i++) {
        int d = text_distance(name, candidates[i]);
        if (d < best || (d == best && !nearest)) best = d, nearest = candidates[i];
    }
    return nearest;
}
