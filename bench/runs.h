// Runs of `trireme train` on mock data, as a user would start them, and how long their steps took. Each is a
// process of its own, so that no run finds the memory or the threads of the one before.
#pragma once
#include "base/error.h"
#include <stddef.h>

// What every run has; options with its words in them are refused by the program.
#define RUN_COMMON                                                                                           \
    "--mock-data --tokenizer-type NullTokenizer --seed 3 --lr 1e-4 --eval-iters 0 --plain --log-interval 1 "

enum { MAX_RUN_STEPS = 64 };

typedef struct {
    const char *trireme;  // path of the program
    const char *launcher; // "", or what stands before it: "mpirun -n 2 "
    const char *words;    // options beside RUN_COMMON
    const char *length;   // NULL: --train-iters with one step more than those that count
    int steps;            // that count; one before them warms up
} Run;

// `seconds` [steps] of each step, in their order.   ERR_OS when the program fails; ERR_DATA when its metrics
// tell of another number of steps.
Status run_steps(const Run *run, double *seconds);
// The first line that a shell command prints, cut to `size`.   ERR_OS when it fails or prints nothing.
Status run_line(const char *command, char *line, size_t size);
// A number of the JSON object that is that line.   ERR_DATA when there is none with this name.
Status run_number(const char *command, const char *name, double *number);
