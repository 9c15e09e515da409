// One live line on a terminal (unless `plain`), else a plain line each second: what, how far, how fast, how
// long still. NULL stream: silent.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *out;
    bool terminal;
    const char *what, *unit;
    double unit_size; // of what is counted, 1e6 for bytes shown as MB
    double start_s, next_s;
} Progress;

// How much is done: a count, and its share of the total, NAN when the total is unknown.
typedef struct {
    int64_t count;
    double share;
} Done;

Progress progress_start(FILE *out, bool plain, const char *what, const char *unit, double unit_size);
void progress_update(Progress *progress, Done done); // cheap; prints when it is time
void progress_line(Progress *progress, Done done);   // prints now, unless there is a live line
void progress_end(Progress *progress, Done done);    // the last state and a line end, on a terminal
