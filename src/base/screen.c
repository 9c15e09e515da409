// Draws a block of lines on a terminal, again and again in the same place.
#include "base/screen.h"
#include "base/rank.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

Screen screen_open(FILE *file, int descriptor, bool plain) {
    const char *term = getenv("TERM");
    bool draws = !plain && isatty(descriptor) && term && *term && strcmp(term, "dumb") != 0;
    return (Screen){.file = draws ? file : NULL, .descriptor = descriptor};
}

static int of_environment(const char *name, int otherwise) {
    const char *text = getenv(name);
    int value = text ? atoi(text) : 0;
    return value > 0 && value < 10000 ? value : otherwise;
}

int screen_columns(int descriptor) {
    struct winsize size;
    if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return of_environment("COLUMNS", 80);
}

static int rows_of(int descriptor) {
    struct winsize size;
    if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_row > 0) return size.ws_row;
    return of_environment("LINES", 24);
}

bool screen_knows_unicode(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return strcasestr(value, "UTF-8") || strcasestr(value, "UTF8");
    }
    return false;
}

// ---- characters -----------------------------------------------------------------------------------------

static bool begins_character(char byte) { return ((unsigned char)byte & 0xc0) != 0x80; }

// Characters of UTF-8, each of one column.
static int width_of(const char *text, size_t size) {
    int width = 0;
    for (size_t i = 0; i < size; i++) width += begins_character(text[i]);
    return width;
}

// The bytes of the first `columns` characters.
static size_t bytes_of(const char *text, size_t size, int columns) {
    size_t i = 0;
    for (; i < size; i++)
        if (begins_character(text[i]) && columns-- == 0) break;
    return i;
}

// ---- the block ------------------------------------------------------------------------------------------

// A terminal that became narrower has broken the lines.
static int rows_taken(const Screen *s, int columns) {
    int rows = 0;
    for (int i = 0; i < s->num_lines; i++) rows += s->widths[i] ? (s->widths[i] + columns - 1) / columns : 1;
    return rows;
}

static void erase(Screen *s) {
    if (!s->num_lines) return;
    int rows = rows_taken(s, screen_columns(s->descriptor)), most = rows_of(s->descriptor) - 1;
    if (rows > most) rows = most; // the rest has scrolled away
    if (rows > 0) fprintf(s->file, "\r\033[%dA\033[J", rows);
    s->num_lines = 0;
}

void screen_draw(Screen *s, const char *text) {
    if (!s->file) return;
    int columns = screen_columns(s->descriptor), most = rows_of(s->descriptor) - 1;
    erase(s);
    while (*text && s->num_lines < most && s->num_lines < SCREEN_MAX_LINES) {
        size_t size = strcspn(text, "\n"), shown = bytes_of(text, size, columns - 1);
        fprintf(s->file, "%.*s\n", (int)shown, text);
        s->widths[s->num_lines++] = width_of(text, shown);
        text += size + (text[size] == '\n');
    }
    fflush(s->file);
    s->drawn_s = clock_s();
}

void screen_clear(Screen *s) {
    if (!s->file || !s->num_lines) return;
    erase(s);
    fflush(s->file);
}

// ---- what a block is made of ----------------------------------------------------------------------------

void screen_flow(const char *const fields[], int count, int columns, int lines, Text *out) {
    int used = 0, line = 1;
    for (int i = 0; i < count; i++) {
        int width = width_of(fields[i], strlen(fields[i]));
        if (!width) continue;
        bool fits = !used || used + 2 + width <= columns;
        if (!fits && line == lines) continue; // a shorter one may fit
        text_add(out, "%s%s", !used ? "" : fits ? "  " : "\n", fields[i]);
        line += !fits;
        used = fits && used ? used + 2 + width : width;
    }
    if (used) text_add(out, "\n");
}

void screen_curve(const double *values, int count, bool unicode, Text *out) {
    static const char *const blocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static const char *const marks[] = {"_", ".", ",", "-", "~", "=", "+", "^"};
    double least = INFINITY, most = -INFINITY;
    for (int i = 0; i < count; i++) {
        if (!isfinite(values[i])) continue;
        least = fmin(least, values[i]);
        most = fmax(most, values[i]);
    }
    for (int i = 0; i < count; i++) {
        bool there = isfinite(values[i]);
        int level = there && most > least ? (int)(7.999 * (values[i] - least) / (most - least)) : 0;
        text_add(out, "%s", !there ? " " : unicode ? blocks[level] : marks[level]);
    }
}
