// A block of lines that is kept up to date at the bottom of a terminal, under the lines that scroll.
//
// Where the stream is no terminal, or TERM is dumb or unset, nothing is drawn. The cursor stays at the start of the
// line below the block, so that what others print begins on a line of its own.
#pragma once
#include "base/text.h"
#include <stdbool.h>
#include <stdio.h>

enum { SCREEN_MAX_LINES = 256 };

typedef struct {
    FILE *file; // NULL: nothing is drawn
    int descriptor;
    int num_lines, widths[SCREEN_MAX_LINES]; // of the block that is visible; 0: there is none
    double drawn_s;                          // when, by clock_s
} Screen;

// `descriptor`: of `file`. `plain`: nothing is drawn.
Screen screen_open(FILE *file, int descriptor, bool plain);
int screen_columns(int descriptor); // of a terminal, else of COLUMNS, else 80
bool screen_knows_unicode(void);    // by the environment
// Draws the lines of `text` in place of the block before. Lines are cut at the width of the terminal, and the block at
// its height.
void screen_draw(Screen *screen, const char *text);
void screen_clear(Screen *screen); // before other lines
// Adds fields side by side to lines of at most `columns` characters, until `lines` are full; a field is not broken.
// Empty fields are left out.
void screen_flow(const char *const fields[], int count, int columns, int lines, Text *out);
// Adds a curve: one character for each value, between the smallest and the largest. NaN: a blank.
void screen_curve(const double *values, int count, bool unicode, Text *out);
