// Tests that a trace keeps the last events of each rank.
#include "base/trace.h"
#include "harness.h"
#include <pthread.h>
#include <stdint.h>
#include <string.h>

static TraceEvent numbered(int64_t i) {
    return (TraceEvent){.start_s = (double)i, .end_s = (double)i + 0.5, .name = "F", .bytes = i};
}

// Whatever its capacity, a trace has the last events, in their order, and knows how many it lost.
static void keeps_the_end(void) {
    for (size_t capacity = 1; capacity <= 5; capacity++) {
        EXPECT(trace_open(capacity), "no memory for %zu events", capacity);
        for (int64_t recorded = 0; recorded <= 12; recorded++) {
            const Trace *trace = rank_current()->trace;
            int64_t lost = recorded > (int64_t)capacity ? recorded - (int64_t)capacity : 0;
            EXPECT((int64_t)trace->count == recorded && (int64_t)trace_lost(trace) == lost,
                   "%lld of %lld lost, expected %lld", (long long)trace_lost(trace), (long long)trace->count,
                   (long long)lost);
            for (int64_t i = 0; i < recorded - lost; i++)
                EXPECT(trace_event(trace, (uint64_t)i)->bytes == lost + i, "event %lld is %lld", (long long)i,
                       (long long)trace_event(trace, (uint64_t)i)->bytes);
            trace_add(numbered(recorded));
        }
        trace_close();
    }
}

static void keeps_what_was_said(void) {
    TraceEvent event = {.start_s = 1.25,
                        .end_s = 2.5,
                        .name = "send",
                        .group = "pp",
                        .bytes = INT64_C(1) << 40,
                        .chunk = 1,
                        .microbatch = 77,
                        .peer = 3,
                        .row = TRACE_COMM};
    EXPECT(trace_open(2), "no memory");
    trace_add(event);
    TraceEvent kept = *trace_event(rank_current()->trace, 0);
    EXPECT(kept.start_s == 1.25 && kept.end_s == 2.5 && kept.bytes == event.bytes, "%g to %g, %lld bytes",
           kept.start_s, kept.end_s, (long long)kept.bytes);
    EXPECT(!strcmp(kept.name, "send") && !strcmp(kept.group, "pp"), "%s of %s", kept.name, kept.group);
    EXPECT(kept.chunk == 1 && kept.microbatch == 77 && kept.peer == 3 && kept.row == TRACE_COMM,
           "its numbers");
    trace_close();
}

static void off(void) {
    EXPECT(!trace_on(), "on before it was opened");
    trace_add(numbered(1));
    trace_close();
    EXPECT(trace_open(3) && trace_on(), "not on");
    trace_close();
    EXPECT(!trace_on() && !rank_current()->trace, "on after it was closed");
    EXPECT(!trace_open(SIZE_MAX / 2) && !trace_on(), "more memory than there is");
}

enum { THREADS = 4, EVENTS = 1000 };

static void *record(void *arg) {
    Rank rank = {.rank = *(int *)arg, .size = THREADS};
    rank_enter(&rank);
    if (rank.rank % 2 == 0) EXPECT(trace_open(EVENTS), "no memory");
    for (int i = 0; i < EVENTS; i++) trace_add(numbered(rank.rank));
    EXPECT(trace_on() == (rank.rank % 2 == 0), "rank %d", rank.rank);
    for (uint64_t i = 0; trace_on() && i < EVENTS; i++)
        EXPECT(trace_event(rank.trace, i)->bytes == rank.rank, "another thread's event");
    trace_close();
    rank_enter(NULL);
    return NULL;
}

// Each rank has its own.
static void by_rank(void) {
    pthread_t threads[THREADS];
    int ranks[THREADS];
    for (int i = 0; i < THREADS; i++) {
        ranks[i] = i;
        EXPECT(!pthread_create(&threads[i], NULL, record, &ranks[i]), "no thread");
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    EXPECT(!trace_on(), "the ranks' traces are not the caller's");
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"keeps_the_end", keeps_the_end},
                                      {"keeps_what_was_said", keeps_what_was_said},
                                      {"off", off},
                                      {"by_rank", by_rank},
                                      {0}},
                       argc, argv);
}
