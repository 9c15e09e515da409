// Starts, advances and awaits the operations that a rank has posted, and ends the job when a wait hangs.
#include "comm/queue.h"
#include "base/trace.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void comm_init(Comm *comm, Group *group, World *world) {
    *comm = (Comm){.group = group, .world = world};
    if (!group->transport->follows_addresses) return;
    for (CommOp op = 0; op < NUM_COMM_OPS; op++)
        snprintf(comm->names[op], sizeof comm->names[op], "%s of %s", comm_op_name(op), group->name);
}

// ---- requests -------------------------------------------------------------------------------------

static CommRequest *take_from_pool(World *world) {
    size_t op_bytes = world->comm.group->transport->op_bytes;
    CommRequest *r = world->pool;
    world->num_open++;
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

// Its tensors may be used again from here on.
static void release(World *world, CommRequest **request) {
    CommRequest *r = *request;
    host_adapter_close(&r->adapter);
    r->next = world->pool;
    world->pool = r;
    world->num_open--;
    *request = NULL;
}

// A span of the trace that ends now, of an operation or of the wait for one.
static void trace_span(const CommRequest *r, const char *name, double start_s) {
    const Group *group = r->comm->group;
    trace_add((TraceEvent){.start_s = start_s,
                           .end_s = clock_s(),
                           .name = name,
                           .group = group->name,
                           .bytes = (int64_t)r->call.bytes,
                           .chunk = -1,
                           .microbatch = -1,
                           .peer = is_message(&r->call) ? group->members[r->call.peer] : -1,
                           .row = TRACE_COMM});
}

// ---- starting and advancing -----------------------------------------------------------------------

// All ranks start the operations of a group in the same order: one whose stream is late holds up those after it.
static bool start(CommRequest *r) {
    Comm *comm = r->comm;
    if (r->number != comm->num_started || !host_adapter_ready(&r->adapter, 0)) return false;
    comm->num_started++;
    comm->world->num_unstarted--;
    r->started = true;
    host_adapter_reveal(&r->adapter, &r->call);
    comm->group->transport->start(comm->group, &r->call, r->op);
    return true;
}

static CallProgress advance(CommRequest *r) {
    bool starts = !r->started;
    if (starts && !start(r)) return STUCK;
    Group *group = r->comm->group;
    CallProgress progress = group->transport->advance(group, &r->call, r->op);
    r->done = progress == DONE;
    if (r->done && r->posted_s > 0) trace_span(r, comm_op_name(r->call.op), r->posted_s);
    return starts && progress == STUCK ? MOVED : progress;
}

// Each operation of the queue, as far as it goes without waiting; STUCK when none moved.
static CallProgress advance_all(World *world) {
    CallProgress moved = STUCK;
    for (CommRequest *r = world->first, *next; r; r = next) {
        next = r->next;
        CallProgress progress = advance(r);
        if (progress == DONE) unlink_request(world, r);
        if (progress != STUCK) moved = MOVED;
    }
    return moved;
}

CommRequest *queue_post(Comm *comm, Call call) {
    World *world = comm->world;
    Group *group = comm->group;
    CommRequest *r = take_from_pool(world);
    r->comm = comm;
    r->call = call;
    r->number = comm->num_posted++;
    r->posted_s = trace_on() && group->size > 1 ? clock_s() : 0;
    if (world->device && call.stream && group->transport->follows_addresses)
        host_adapter_open(&r->adapter, world->device, &r->call, group, comm->names[call.op]);
    world->num_unstarted++;
    start(r);
    if (!group->transport->wait) append(world, r);
    return r;
}

void queue_advance(World *world) { advance_all(world); }

bool queue_done(World *world, CommRequest **request) {
    CommRequest *r = *request;
    advance_all(world);
    if (r->comm->group->transport->wait && !r->done) advance(r);
    if (!r->done) return false;
    release(world, request);
    return true;
}

// ---- the watchdog ---------------------------------------------------------------------------------

static void describe_call(const CommRequest *r, Text *text) {
    Group *group = r->comm->group;
    Text ranks = {0};
    if (r->started) group->transport->waits_for(group, &r->call, r->op, &ranks);
    text_add(text, r->started ? " for rank%s in %s" : " for its device%s to reach %s", text_string(&ranks),
             comm_op_name(r->call.op));
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
    sleep(1); // the other ranks' watchdogs are about to print as well
    rank_abort_job(ERR_HANG);
}

// Gives up the core until something may have changed. No rank wakes this one when its own device gets on.
static void pause_until_change(World *world, int turns) {
    Group *group = world->comm.group;
    if (!world->num_unstarted) {
        group->transport->pause(group, turns);
        return;
    }
    const CommRequest *r = world->first;
    while (r->started) r = r->next;
    host_adapter_ready(&r->adapter, DEVICE_POLL_S);
}

// Returns when r is done. While any operation moves, r may be waiting for that one: it is no hang.
static void watch(World *world, CommRequest *r) {
    double last = clock_s(), waited = 0;
    for (int turns = 0; !r->done;) {
        pause_until_change(world, turns);
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

static void wait_on_host(Comm *comm, CommRequest *r) {
    World *world = comm->world;
    double start_s = clock_s();
    advance_all(world);
    watch(world, r);
    comm->counts[r->call.op].wait_s += clock_s() - start_s;
    if (r->posted_s > 0) trace_span(r, "wait", start_s);
}

void queue_wait(Comm *comm, Stream *stream, CommRequest **request) {
    CommRequest *r = *request;
    Group *group = r->comm->group;
    if (group->transport->wait)
        group->transport->wait(group, &r->call, r->op, stream);
    else if (!r->done)
        wait_on_host(comm, r);
    release(comm->world, request);
}

static void free_all(CommRequest *r) {
    for (CommRequest *next; r; r = next) {
        next = r->next;
        free(r);
    }
}

void queue_destroy(World *world) {
    free_all(world->pool);
    free_all(world->first);
}
