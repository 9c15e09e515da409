// Records when a rank did what: spans of time for `--trace`, in memory that is allocated before the first step.
//
// A Rank may have a Trace; without one, recording costs one test of a pointer. A Trace is a ring buffer: when it is
// full, the oldest events are overwritten and counted as lost. Recording neither allocates nor locks.
#pragma once
#include "base/rank.h"
#include <stddef.h>

// The rows that a rank gets in a drawing, one per stream of activity.
typedef enum { TRACE_PIPELINE, TRACE_COMM, TRACE_STEP, NUM_TRACE_ROWS } TraceRow;

typedef struct {
    double start_s, end_s;     // clock_s()
    const char *name;          // a literal: "F", "all_reduce", "wait", "optimizer"
    const char *group;         // of a collective or message, alive as long as the trace; NULL: none
    int64_t bytes;             // of a collective or message; 0: none
    int32_t chunk, microbatch; // of an instruction; -1: none
    int32_t peer;              // rank at the other end, in the job; -1: none
    TraceRow row;
} TraceEvent;

typedef struct Trace {
    TraceEvent *events; // [capacity], a ring
    uint64_t count;     // recorded so far; the last `capacity` of them are there
    size_t capacity;
} Trace;

// Gives the current rank, which has none, a trace of `capacity` > 0 events. Returns false when there is no memory.
bool trace_open(size_t capacity);
void trace_close(void);           // the rank stops recording; does nothing without a trace
bool trace_on(void);              // whether the current rank has a trace
void trace_add(TraceEvent event); // does nothing without a trace
// Adds an event of the row TRACE_STEP. `iteration`: its number, or -1.
void trace_add_phase(const char *name, double start_s, double end_s, int64_t iteration);

// Reading it back: rank_current()->trace.
uint64_t trace_lost(const Trace *trace); // events that the ring no longer has
// Event i of those that are there, i < count - trace_lost, in the order of trace_add.
const TraceEvent *trace_event(const Trace *trace, uint64_t i);
