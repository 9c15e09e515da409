// One live line on a terminal (unless `plain`), else a plain line every few seconds: what, how far, how fast.
// NULL stream: silent.
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct {
    FILE *out;
    bool terminal;
    const char *what, *unit;
    double unit_size; // of what is counted, 1e6 for bytes shown as MB
    int64_t total;
    double start_s, next_s;
} Progress;

Progress progress_start(FILE *out, bool plain, const char *what, int64_t total, const char *unit,
                        double unit_size);
void progress_update(Progress *progress, int64_t done); // cheap; prints when it is time
void progress_line(Progress *progress, int64_t done);   // prints now, unless there is a live line
void progress_end(Progress *progress, int64_t done);    // the last state and a line end, on a terminal
