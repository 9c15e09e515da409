// The verbs of the program: `trireme VERB [--option value]...`. Each is one function that is given its
// options, does the work and returns the exit code; main.c finds the verb, reads the options, answers
// `--help`, and prints the one error message.
#pragma once
#include "base/error.h"
#include "base/outlet.h"
#include "comm/comm.h"
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

// Lists program, options, environment and arithmetic of this process, for start_ranks. The options are parsed and
// not yet resolved: what follows from them does not hide what the user chose. All but those with MAY_DIFFER
// (options.def) must be the same on every rank.
void list_common(const Options *options, Text *out);
// Runs rank_main on every rank: the processes of a launcher, else --ranks threads of this one. All of them compare
// `common` first, and then whether this process was `prepared`, with fail_message when it was not: so that where one
// fails all end, and the reason is said once.
Status start_ranks(const Options *options, Status prepared, const Text *common, int threads,
                   RankMain *rank_main, void *arg);
// For a command line without valid options, in fail_message: tells the other processes, which may be waiting.
Status refuse_command_line(Verb verb, Status status);

// Signals that were ignored when the program was started, as HUP by nohup, are ignored again where a library has
// caught them since. To be called first in main.
void keep_ignored_signals(void);
// From now on the first INT, TERM, HUP, USR1, USR2 or XCPU asks for a clean end: what is returned becomes its
// number. A second INT, and a TERM that comes 5 s after the first or later, end the process as usual.
const atomic_int *stop_on_signals(void);
// Each of them ends the process again.
void do_not_stop_on_signals(void);

// Standard output and error of every verb: under a launcher they are written in whole lines.
void streams_open(void);
// From now on a reader that pauses holds nothing up, and one that leaves ends nothing: what is returned tells.
const Outlet *streams_do_not_wait(void);
void streams_wait(void);   // as usual again
size_t streams_lost(void); // bytes of standard output that its reader, which paused, did not get
