#include "comm/queue.h"
#include "base/trace.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static CommRequest *take_from_pool(World *world) {
    size_t op_bytes = world->comm.group->transport->op_bytes;
    CommRequest *r = world->pool;
    if (!r) return comm_allocate(1, sizeof *r + op_bytes);
    world->pool = r->next;
    memset(r, 0, sizeof *r + op_bytes);
    return r;
}

static void append(World *world, CommRequest *r) {
    r->previous = world->last;
    if (world->last)
        world->last->next = r;
    else
        world->first = r;
    world->last = r;
}

static void unlink_request(World *world, CommRequest *r) {
    if (r->previous)
        r->previous->next = r->next;
    else
        world->first = r->next;
    if (r->next)
        r->next->previous = r->previous;
    else
        world->last = r->previous;
}

// A span that ends now, of an operation or of the wait for one.
static void trace_span(const CommRequest *r, const char *name, double start_s) {
    trace_add((TraceEvent){.start_s = start_s,
                           .end_s = clock_s(),
                           .name = name,
                           .group = r->group->name,
                           .bytes = (int64_t)r->call.bytes,
                           .chunk = -1,
                           .microbatch = -1,
                           .peer = is_message(&r->call) ? r->group->members[r->call.peer] : -1,
                           .row = TRACE_COMM});
}

static Progress advance(CommRequest *r) {
    Progress progress = r->group->transport->advance(r->group, &r->call, r->op);
    r->done = progress == DONE;
    if (r->done && r->posted_s > 0) trace_span(r, comm_op_name(r->call.op), r->posted_s);
    return progress;
}

// Each posted operation, as far as it goes without waiting; STUCK when none moved.
static Progress advance_all(World *world) {
    Progress moved = STUCK;
    for (CommRequest *r = world->first, *next; r; r = next) {
        next = r->next;
        Progress progress = advance(r);
        if (progress == DONE) unlink_request(world, r);
        if (progress != STUCK) moved = MOVED;
    }
    return moved;
}

CommRequest *queue_post(Comm *comm, Call call) {
    CommRequest *r = take_from_pool(comm->world);
    r->group = comm->group;
    r->call = call;
    r->posted_s = trace_on() && comm->group->size > 1 ? clock_s() : 0;
    comm->group->transport->start(comm->group, &r->call, r->op);
    append(comm->world, r);
    return r;
}

void queue_advance(World *world) { advance_all(world); }

bool queue_take(World *world, CommRequest **request) {
    CommRequest *r = *request;
    if (!r->done) return false;
    r->next = world->pool;
    world->pool = r;
    *request = NULL;
    return true;
}

// ---- the watchdog ---------------------------------------------------------------------------------

static void describe_call(const CommRequest *r, Text *text) {
    const Group *group = r->group;
    Text ranks = {0};
    group->transport->waits_for(r->group, &r->call, r->op, &ranks);
    text_add(text, " for rank%s in %s", text_string(&ranks), comm_op_name(r->call.op));
    if (is_message(&r->call)) text_add(text, " on channel %d", r->call.channel);
    text_add(text, " of %s", group->name);
    text_free(&ranks);
}

static double limit_s(const World *world) {
    return world->timeout_s > 0 ? world->timeout_s : world->options->timeout_s;
}

static _Noreturn void hang(World *world, CommRequest *r, double waited_s) {
    const Rank *me = rank_current();
    char who[64];
    rank_describe(me, who, sizeof who);
    Text text = {0};
    text_add(&text, "trireme: hang: %s%shas waited %.3g s%s%s", who, *who ? " " : "", waited_s,
             *me->doing ? " at " : "", me->doing);
    describe_call(r, &text);
    const char *reason = world->timeout_reason;
    text_add(&text, " (limit %.3g s%s%s; --distributed-timeout-minutes sets another)", limit_s(world),
             reason ? ": " : "", reason ? reason : "");
    fprintf(stderr, "%s\n", text_string(&text));
    text_free(&text);
    rank_dump_events(me);
    Group *group = world->comm.group;
    if (group->transport->report) group->transport->report(group);
    sleep(1); // the other ranks' watchdogs are about to speak as well
    rank_abort_job(ERR_HANG);
}

// Until r is done. While any operation moves, r may be waiting for that one: it is no hang.
static void watch(World *world, CommRequest *r) {
    double last = clock_s(), waited = 0;
    Group *group = world->comm.group;
    for (int turns = 0; !r->done;) {
        group->transport->pause(group, turns);
        bool moved = advance_all(world) == MOVED;
        double now = clock_s();
        // A process that was stopped finds a long gap here: it counts as one poll.
        double gap = now - last;
        waited = moved ? 0 : waited + (gap < POLL_S ? gap : POLL_S);
        turns = moved ? 0 : turns + 1;
        last = now;
        if (waited > limit_s(world)) hang(world, r, waited);
    }
}

void queue_wait(Comm *comm, CommRequest **request) {
    World *world = comm->world;
    CommRequest *r = *request;
    if (!r->done) {
        double start = clock_s();
        advance_all(world);
        watch(world, r);
        comm->counts[r->call.op].wait_s += clock_s() - start;
        if (r->posted_s > 0) trace_span(r, "wait", start);
    }
    queue_take(world, request);
}

void queue_destroy(World *world) {
    for (CommRequest *r = world->pool, *next; r; r = next) {
        next = r->next;
        free(r);
    }
    for (CommRequest *r = world->first, *next; r; r = next) {
        next = r->next;
        free(r);
    }
}
