// What comm/ leaves in a trace: each operation from its post to its end, each wait, and nothing of groups of
// a single rank or without a trace.
#include "base/trace.h"
#include "comm_values.h"
#include <unistd.h>

enum { RANKS = 3, BYTES = 4000 };

static int count_named(const Trace *trace, const char *name) {
    int n = 0;
    for (uint64_t i = 0; i < trace->count; i++) n += !strcmp(trace_event(trace, i)->name, name);
    return n;
}

static const TraceEvent *find(const Trace *trace, const char *name, int skip) {
    for (uint64_t i = 0; i < trace->count; i++) {
        const TraceEvent *e = trace_event(trace, i);
        if (!strcmp(e->name, name) && skip-- == 0) return e;
    }
    return NULL;
}

static void expect_event(const Trace *trace, const char *name, const char *group, int64_t bytes, int peer) {
    const TraceEvent *e = find(trace, name, 0);
    EXPECT(e, "no %s in the trace", name);
    if (!e) return;
    EXPECT(!strcmp(e->group, group) && e->bytes == bytes && e->peer == peer, "%s: %lld bytes in %s, peer %d",
           name, (long long)e->bytes, e->group, e->peer);
    EXPECT(e->row == TRACE_COMM && e->chunk == -1 && e->microbatch == -1, "%s: the row and place", name);
    EXPECT(e->start_s > 0 && e->start_s <= e->end_s && e->end_s <= clock_s(), "%s from %g to %g", name,
           e->start_s, e->end_s);
}

// Ranks 2 and 1, in this order, say something in a group of their own.
static void talk(Comm *pair) {
    Tensor x = tensor_new(BYTES / 4, F32);
    if (comm_rank(pair) == 0) {
        usleep(20000);
        CommRequest *sent = comm_send(pair, NULL, x, 1, 0);
        comm_wait(pair, NULL, &sent);
    } else {
        CommRequest *received = comm_recv(pair, NULL, x, 0, 0);
        comm_wait(pair, NULL, &received);
    }
    CommRequest *reduced_sum = comm_all_reduce_start(pair, NULL, x, REDUCE_SUM);
    comm_wait(pair, NULL, &reduced_sum);
    free(x.data);
}

static void talk_to_oneself(Comm *world) {
    Comm *alone = NULL;
    int rank = comm_rank(world);
    double value = rank;
    EXPECT_OK(comm_split(world, "alone", &rank, 1, &alone));
    comm_all_reduce_host(alone, &value, 1, REDUCE_SUM);
    comm_barrier(alone);
    EXPECT(value == rank && comm_counts(alone)[COMM_BARRIER].calls == 1, "it did not happen");
    comm_close(alone);
}

static Status traced(Comm *world, void *arg) {
    bool on = *(bool *)arg;
    if (on) EXPECT(trace_open(100), "no memory");
    Comm *pair = NULL;
    if (comm_rank(world) > 0) {
        EXPECT_OK(comm_split(world, "pair", (const int[]){2, 1}, 2, &pair));
        talk(pair);
        comm_close(pair);
    }
    talk_to_oneself(world);
    comm_barrier(world);
    const Trace *trace = rank_current()->trace;
    EXPECT(on == (trace != NULL), "a trace that nobody opened");
    if (!on) return OK;
    expect_event(trace, "barrier", "world", 0, -1);
    EXPECT(count_named(trace, "barrier") == 1, "%d barriers", count_named(trace, "barrier"));
    if (comm_rank(world) == 1) {
        expect_event(trace, "recv", "pair", BYTES, 2);
        expect_event(trace, "wait", "pair", BYTES, 2);
        const TraceEvent *wait = find(trace, "wait", 0);
        EXPECT(wait && wait->end_s - wait->start_s > 0.01, "a wait for a late sender");
    }
    if (comm_rank(world) == 2) expect_event(trace, "send", "pair", BYTES, 1);
    if (comm_rank(world) > 0) expect_event(trace, "all_reduce", "pair", BYTES, -1);
    EXPECT(count_named(trace, "all_reduce") == (comm_rank(world) > 0), "another all_reduce");
    trace_close();
    return OK;
}

static void launch(bool on) {
    CommOptions options = {.transport = "threads", .ranks = RANKS, .timeout_s = 60, .deterministic = true};
    EXPECT_OK(comm_launch(options, traced, &on));
}

static void on(void) { launch(true); }
static void off(void) { launch(false); }

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"on", on}, {"off", off}, {0}}, argc, argv);
}
