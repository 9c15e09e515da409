// The verbs of the program: `trireme VERB [--option value]...`. Each is one function that is given its
// options, does the work and returns the exit code; main.c finds the verb, reads the options, answers
// `--help`, and prints the one error message.
#pragma once
#include "base/error.h"
#include "config/config.h"
#include <stdatomic.h>

typedef struct {
    const char *name;
    Verb verb; // whose options it takes
    Status (*run)(Options *options);
    const char *summary; // one line for people
} Command;

// The options are parsed, not resolved. Messages for people go to stderr, results to stdout.
Status cmd_data(Options *options);
Status cmd_train(Options *options);
Status cmd_preprocess(Options *options);
Status cmd_tokenizer(Options *options);
Status cmd_schedule(Options *options);
Status cmd_bench(Options *options);
Status cmd_memory(Options *options);
Status cmd_plan(Options *options);
Status cmd_models(Options *options);
Status cmd_checkpoint(Options *options);
Status cmd_export(Options *options);
Status cmd_import(Options *options);
Status cmd_generate(Options *options);
Status cmd_evaluate(Options *options);

// Prints what the options have to say, once for all processes of a launched job.
void tell_notes(const Options *options);

// From now on the first SIGINT or SIGTERM sets the flag that is returned, and asks for a clean end; the
// second one of the same kind ends the process as usual.
const atomic_int *stop_on_signals(void);
