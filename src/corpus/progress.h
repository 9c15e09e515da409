// Prints progress: what is done, how far, how fast, and the time that is left. On a terminal (unless `plain`) one
// line is kept up to date, otherwise a line is printed each second. Without a stream nothing is printed.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *out;
    bool terminal;
    const char *what, *unit;
    double unit_size; // counts per unit: 1e6 for bytes shown as MB
    double start_s, next_s;
} ProgressLine;

// Work done so far: a count, and its share of the total; NAN: the total is unknown.
typedef struct {
    int64_t count;
    double share;
} Done;

ProgressLine progress_start(FILE *out, bool plain, const char *what, const char *unit, double unit_size);
void progress_update(ProgressLine *progress, Done done); // cheap; prints when the time has come
void progress_line(ProgressLine *progress, Done done); // prints a line now, unless a line is kept up to date
void progress_end(ProgressLine *progress, Done done);  // on a terminal: prints the last state and a line end
