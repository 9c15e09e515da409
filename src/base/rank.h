// The current rank: the rank of the calling thread, its coordinates on the grid, and its last events.
//
// A rank is a value, not a process: N ranks run as threads of one process or as MPI processes. Each thread enters its
// Rank once, at its start; messages of errors, logs and hang reports then name the rank, and no function needs it as a
// parameter. The pointer behind rank_current(), and the Rank of a thread that entered none, are the only thread-local
// variables of the program. They serve to report, never to compute.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { EVENTS_KEPT = 64 };

// One line of the flight recorder: a literal format with up to three integers, so that recording costs
// nanoseconds.
typedef struct {
    double at_s;        // clock_s()
    const char *format; // a string literal with up to three PRId64 conversions
    int64_t a, b, c;
} RankEvent;

typedef struct Rank {
    int rank, size; // in the whole job
    char place[40]; // its coordinates on the grid, "tp1 dp0 pp1"; empty until the grid is known
    char doing[48]; // the current instruction, "F3.1", or a phase, "loading data"
    uint64_t num_events;
    RankEvent events[EVENTS_KEPT];
    void (*abort_job)(struct Rank *, int status); // ends the job on all ranks; NULL: the process exits
    char message[1024];                           // of the last fail()
    double waited_s;         // how long it has waited for other ranks so far (comm/queue.c)
    int blamed;              // 1 + the rank of the job whose failure the message is about; 0: not known
    struct Trace *trace;     // what --trace records (trace.h), or NULL
    struct BeatWriter *beat; // its slot of the heartbeat page (beat.h), or NULL
} Rank;

// Makes `rank` the current rank of the calling thread; NULL: none. The Rank is borrowed until the thread enters another
// one or ends.
void rank_enter(Rank *rank);
// Returns the current rank, never NULL: a thread that entered none is rank 0 of 1.
Rank *rank_current(void);
// Records what the rank does now, for messages of errors and hang reports.
void rank_doing(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
// Records an event for rank_dump_events, over the oldest one when there is no room. The format is kept, not copied: a
// string literal that prints up to three integers, each as PRId64.
void rank_event(const char *literal_format, int64_t a, int64_t b, int64_t c);
// "[rank 3 tp1 dp0 pp1]" or "" in a job of one rank. Writes at most `size` bytes.
void rank_describe(const Rank *rank, char *text, int size);
// Prints the last events of the rank to stderr, oldest first.
void rank_dump_events(const Rank *rank);
// Records that the job ends because of `rank`, which may be this one; -1: it is not known which. A supervisor reads it
// from the heartbeat page and from run.json.
void rank_blame(int rank);
// Sets a callback that runs before a job is aborted, so that buffered messages are written. It is the only mutable
// global here: streams belong to the process, and any thread may abort.
void rank_before_abort(void (*hook)(void));
// Ends the whole job with `status` on every rank. Does not return.
_Noreturn void rank_abort_job(int status);

double clock_s(void);        // CLOCK_MONOTONIC, seconds
double clock_thread_s(void); // processor time of the calling thread, seconds
