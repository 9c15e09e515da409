// The verbs of the program: `trireme VERB [--option value]...`. Each is one function that takes its options, does the
// work and returns the exit code. main.c finds the verb, reads the options, prints `--help` and the error message.
#pragma once
#include "base/error.h"
#include "base/outlet.h"
#include "comm/comm.h"
#include "config/config.h"
#include <stdatomic.h>

enum { MAX_USUAL_WORKERS = 64 }; // threads of verbs that read texts, where --workers is not given

typedef struct {
    const char *name;
    Verb verb; // it takes the options of this verb
    Status (*run)(Options *options);
    const char *summary; // one line for people
} Command;

// The options are parsed and not resolved. Messages go to stderr, results to stdout.
Status cmd_data(Options *options);
Status cmd_train(Options *options);
Status cmd_supervise(Options *options);
Status cmd_preprocess(Options *options);
Status cmd_prepare_chat(Options *options);
Status cmd_tokenizer(Options *options);
Status cmd_schedule(Options *options);
Status cmd_bench(Options *options);
Status cmd_devices(Options *options);
Status cmd_memory(Options *options);
Status cmd_selftest(Options *options);
Status cmd_verify_machine(Options *options);
Status cmd_plan(Options *options);
Status cmd_goodput(Options *options);
Status cmd_watch(Options *options);
Status cmd_report(Options *options);
Status cmd_models(Options *options);
Status cmd_checkpoint(Options *options);
Status cmd_export(Options *options);
Status cmd_import(Options *options);
Status cmd_generate(Options *options);
Status cmd_evaluate(Options *options);
Status cmd_finetune(Options *options);

// Prints what this program is: version, commit and build, devices, transports, libraries. version.c
Status print_version(void);

// Prints the notes of the options, once for all processes of a launched job.
void tell_notes(const Options *options);

// Fails with ERR_CREATE where the data set of --output-prefix, its name ending in `part`, is there, unless --overwrite
// says that it may be replaced. cmd_preprocess.c
Status check_new_data_set(const Options *options, const char *part);

// Where NCCL may link the ranks, sets what it needs to find in the environment. Before anything asks for the GPUs.
void prepare_links(const Options *options);
// Lists program, options, environment and arithmetic of this process, for start_ranks. The options must not be resolved
// yet, so that derived values do not hide what the user chose. Every rank must have the same list; options with
// MAY_DIFFER (options.def) are not in it.
void list_common(const Options *options, Text *out);
// Runs rank_main on every rank: the processes of a launcher, else --ranks threads of this process. First all ranks
// compare `common`, then `prepared`, the status of what this process has done before (with fail_message when it
// failed). Where one has failed all end, and the reason is printed once. `threads` are those of threads_per_rank; a
// rank that is bound may have fewer cores (cores_limit). `stopped` (NULL: there is none) ends the wait
// for processes that have not come.
Status start_ranks(const Options *options, Status prepared, const Text *common, int threads,
                   const atomic_int *stopped, RankMain *rank_main, void *arg);
// For a command line without valid options: sends fail_message to the other processes, which may be waiting.
Status refuse_command_line(Verb verb, Status status);

// Ignores the signals again that were ignored when the program was started, such as HUP by nohup: a library may have
// caught them. To be called first in main.
void keep_ignored_signals(void);
// From now on the first INT, TERM, HUP, USR1, USR2 or XCPU requests a clean end: it sets the returned integer to its
// number. A second INT, and a TERM that comes 5 s after the first or later, end the process at once.
const atomic_int *stop_on_signals(void);
// From now on these signals end the process at once again.
void do_not_stop_on_signals(void);

// Opens standard output and error of every verb. Under a launcher they are written in whole lines.
void streams_open(void);
// From now on writes never wait for a reader that pauses, and a reader that leaves does not end the process: the
// returned Outlet has the state.
const Outlet *streams_do_not_wait(void);
void streams_wait(void);   // writes wait for the reader again
size_t streams_lost(void); // bytes of standard output that were dropped while its reader paused
