// Records the times of events in a ring buffer of each rank.
#include "base/trace.h"
#include "base/error.h"
#include <stdlib.h>
#include <string.h>

bool trace_open(size_t capacity) {
    Rank *rank = rank_current();
    CHECK(!rank->trace && capacity > 0, "a trace of %zu events", capacity);
    if (capacity > PTRDIFF_MAX / sizeof(TraceEvent)) return false;
    Trace *trace = calloc(1, sizeof *trace);
    TraceEvent *events = calloc(capacity, sizeof *events);
    if (!trace || !events) {
        free(trace);
        free(events);
        return false;
    }
    // Zeroed memory need not be there yet: the first write to each page would be paid for within a step.
    for (size_t i = 0; i < capacity; i++) events[i].peer = -1;
    *trace = (Trace){.events = events, .capacity = capacity};
    rank->trace = trace;
    return true;
}

void trace_close(void) {
    Rank *rank = rank_current();
    if (!rank->trace) return;
    free(rank->trace->events);
    free(rank->trace);
    rank->trace = NULL;
}

bool trace_on(void) { return rank_current()->trace; }

void trace_add(TraceEvent event) {
    Trace *trace = rank_current()->trace;
    if (trace) trace->events[trace->count++ % trace->capacity] = event;
}

void trace_add_phase(const char *name, double start_s, double end_s, int64_t iteration) {
    trace_add((TraceEvent){.start_s = start_s,
                           .end_s = end_s,
                           .name = name,
                           .chunk = -1,
                           .microbatch = (int32_t)iteration,
                           .peer = -1,
                           .row = TRACE_STEP});
}

uint64_t trace_lost(const Trace *trace) {
    return trace->count > trace->capacity ? trace->count - trace->capacity : 0;
}

const TraceEvent *trace_event(const Trace *trace, uint64_t i) {
    CHECK(i < trace->count - trace_lost(trace), "event %llu of %llu", (unsigned long long)i,
          (unsigned long long)trace->count);
    return &trace->events[(trace_lost(trace) + i) % trace->capacity];
}
