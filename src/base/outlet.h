// A stream whose writes never wait for the reader: a log that is read by a pager, a terminal that was paused
// or a pipe of metrics must not hold up a run, nor make it deaf to signals.
//
// What the reader is too slow for is kept in memory, up to a limit, and written before the next text. Text beyond
// the limit is lost until all that was kept is written; then the stream goes on. Plain files are written as always.
#pragma once
#include "base/text.h"
#include <stdatomic.h>

typedef struct {
    int fd; // of an open file description of its own, so that O_NONBLOCK reaches nobody else; -1: closed
    Text pending;
    size_t dropping; // bytes lost since the limit was reached, while something is pending; 0: text is taken
    size_t lost;     // bytes lost in all
    bool tells;      // writes a line where text was lost: people read it
    int error;       // errno of the first write that failed: EPIPE when the reader has left; 0: none has
} Outlet;

// Makes a stream of a file that is created or, `append`, continued. A pipe that no process reads is awaited
// for a time, until `*stopped` is not 0 (NULL: no signal is looked at).
Status outlet_create(Outlet *outlet, const char *path, bool append, const atomic_int *stopped, FILE **stream);
// Replaces stdout or stderr by a stream that never waits, unless it is a file. `outlet` must stay alive.
void outlet_replace(Outlet *outlet, int fd, FILE **stream);
// Whether the reader has left.
bool outlet_is_unread(const Outlet *outlet);
// Writes what is pending, and from now on waits for the reader as usual.
void outlet_wait(Outlet *outlet);
// Waits a few seconds for what is pending.
void outlet_finish(Outlet *outlet);
// Does so and closes it; false when not everything was written. Call it after fclose.
bool outlet_close(Outlet *outlet);
