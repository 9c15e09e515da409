// The verbs of the program: `trireme VERB [--option value]...`. Each is one function that reads its own
// options, does the work and returns the exit code; main.c finds the verb, answers `--help`, and prints the
// one error message.
#pragma once
#include "base/error.h"
#include "config/config.h"
#include <stdatomic.h>

typedef struct {
    const char *name;
    Verb verb; // whose options it takes
    Status (*run)(int argc, char **argv);
    const char *summary; // one line for people
} Command;

// argv[0] is the first argument after the verb. Messages for people go to stderr, results to stdout.
Status cmd_data(int argc, char **argv);
Status cmd_train(int argc, char **argv);
Status cmd_preprocess(int argc, char **argv);
Status cmd_tokenizer(int argc, char **argv);
Status cmd_schedule(int argc, char **argv);
Status cmd_memory(int argc, char **argv);
Status cmd_models(int argc, char **argv);
Status cmd_checkpoint(int argc, char **argv);
Status cmd_export(int argc, char **argv);
Status cmd_import(int argc, char **argv);
Status cmd_generate(int argc, char **argv);
Status cmd_evaluate(int argc, char **argv);

// From now on the first SIGINT or SIGTERM sets the flag that is returned, and asks for a clean end; the
// second one of the same kind ends the process as usual.
const atomic_int *stop_on_signals(void);
