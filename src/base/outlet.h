// A stream whose writes never wait for the reader: a pager, a paused terminal or a pipe of metrics must not block a run
// or keep it from seeing signals.
//
// Text that a slow reader has not taken yet is kept in a buffer, up to a limit, and written before later text. When the
// buffer is full, new text is dropped until the buffer is empty again. Writes to regular files are ordinary writes.
#pragma once
#include "base/text.h"
#include <stdatomic.h>

typedef struct {
    int fd; // its own open file description, so that O_NONBLOCK changes no other process's; -1: closed
    Text pending;
    size_t dropping; // bytes dropped since the buffer was full; 0: text is accepted
    size_t lost;     // bytes dropped in all
    bool tells;      // writes a line where text was dropped, as people read this stream
    int error; // errno of the first write that failed; EPIPE: the reader has closed its end; 0: no write failed
} Outlet;

// Opens a stream to a file that is created or, with `append`, continued. If the file is a pipe without a reader, waits
// a minute for one, or until `*stopped` (optional) is not 0.
Status outlet_create(Outlet *outlet, const char *path, bool append, const atomic_int *stopped, FILE **stream);
// Replaces stdout or stderr by a stream that never waits, unless it is a regular file. `outlet` must outlive it.
void outlet_replace(Outlet *outlet, int fd, FILE **stream);
// Says whether the reader has closed its end.
bool outlet_is_unread(const Outlet *outlet);
// Writes the pending text; from now on writes wait for the reader.
void outlet_wait(Outlet *outlet);
// Waits a few seconds until the pending text is written.
void outlet_finish(Outlet *outlet);
// Finishes and closes the outlet. Returns false when text was lost. Call it after fclose of the stream.
bool outlet_close(Outlet *outlet);
