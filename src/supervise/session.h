// One start of the run, from its first process to its last. Internal to supervise/.
#pragma once
#include "supervise/supervise.h"

// What somebody has asked the supervisor to do, by signals.
typedef struct {
    int signal;     // the first: the run saves and ends; 0: none
    bool at_once;   // a second INT: it is killed
    double asked_s; // clock_s() of the first
} StopRequest;

// Whether the run is to end so that it can start on a larger grid.
typedef bool MayGrow(void *self);
// A process that is none of the run's own has ended.
typedef void Reaped(void *self, pid_t pid, int wait_status);

typedef struct {
    const char *ledger, *run_file;
    const char *save; // whose disk may be full
    BeatPage page;
    int start;   // number of this start
    int signals; // signalfd of CHLD and of requests
    double factor, setup_s, grace_s, grow_s;
    MayGrow *may_grow; // NULL: it never is
    Reaped *reaped;
    void *self;
    StopRequest stop;
    // Of the present start.
    const char *hosts; // its part of --hosts, in the order of its ranks; "": without
    pid_t child;
    bool child_ended, grows;
    int64_t ledger_bytes; // of the ledger when it began
    int wait_status;
    RankView *views; // [num_views]
    int num_views;
    bool is_process; // the ranks are threads of the child
} Session;

// Runs `argv` until nothing of it is left, and says how it ended.
void session_run(Session *session, char **argv, StartEnding *ending);
// Waits for `seconds`, or for a request to stop.
void session_wait(Session *session, double seconds);
