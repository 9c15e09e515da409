// The lines that a run writes to the ledger (base/ledger.h): when it was ready, what each stretch of its time went
// into, how it ended. Rank 0 alone writes; on other ranks, and without a ledger, the functions do nothing.
//
// A line is about the time since the line before it of the same run. Steps are added up: they have a line before a
// save, an evaluation and the end, with a log line, and once a second; after 1,000 s once in a thousandth of the run's
// time, and from 10,000 s on every 10 s. So the ledger costs less than 0.1 % of a step, and a run that is killed has
// lost the record of little. docs/goodput.md lists the lines.
#pragma once
#include "train/train.h"

typedef struct {
    const char *path;        // NULL: nothing is written
    double start_s;          // of the program
    double opened_s, line_s; // when the run opened the ledger; when it wrote its last line
    int64_t from, to;        // iterations before and after the steps since that line
    double training_s, waiting_s, checks_s, saving_s; // what they took
    bool stepped;                                     // the first step has ended
    bool warned; // a line could not be written, and a warning has said so
} Spans;

// Begins with the line "opening". The file is --ledger, else the environment's TRIREME_LEDGER, else there is none.
// `start_s` is when the program began. Fails where the file cannot be written; later lines that cannot be written only
// cause one warning.
Status spans_open(Spans *spans, const Options *options, double start_s);
void spans_ready(Spans *spans); // the ranks are connected, the memory is taken
void spans_loaded(Spans *spans, int64_t iteration, const char *from); // "disk", "memory", "nothing"
void spans_step(Spans *spans, int64_t iteration, double seconds);     // one step has ended
void spans_wait(Spans *spans, double seconds);   // for the batches of a step, on this rank and on others
void spans_check(Spans *spans, double seconds);  // of replicas, audits, and the checksum of the parameters
void spans_saving(Spans *spans, double seconds); // for a part of a save under way, at the start of a step
void spans_log_line(Spans *spans);               // a log line has been printed
void spans_flush(Spans *spans);                  // before anything that has a line of its own
// The steps have waited so long for a save `to` "disk" or "memory". Call spans_flush before it begins.
void spans_save(Spans *spans, int64_t iteration, double stall_s, const char *to);
void spans_evaluation(Spans *spans, int64_t iteration, double seconds); // the same for an evaluation
// The run has gone back to the checkpoint of iteration `to`. Call spans_flush before it begins.
void spans_rewind(Spans *spans, int64_t from, int64_t to, double seconds);
void spans_end(Spans *spans, int64_t iteration, Status status, int signal);
