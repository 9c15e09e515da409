// Starts, advances and awaits the operations that a rank has posted, and watches its waits.
#include "comm/queue.h"
#include "base/beat.h"
#include "base/trace.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

void comm_init(Comm *comm, Group *group, World *world) {
    *comm = (Comm){.group = group, .world = world, .host = {.group = group}};
    if (!group->transport->follows_addresses) return;
    for (CommOp op = 0; op < NUM_COMM_OPS; op++)
        snprintf(comm->names[op], sizeof comm->names[op], "%s of %s", comm_op_name(op), group->name);
}

// ---- requests -------------------------------------------------------------------------------------

static CommRequest *take_from_pool(World *world) {
    CommRequest *r = world->pool;
    world->num_open++;
    if (!r) return comm_allocate(1, sizeof *r + world->op_bytes);
    world->pool = r->next;
    memset(r, 0, sizeof *r + world->op_bytes);
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

static void to_pool(World *world, CommRequest *r) {
    r->next = world->pool;
    world->pool = r;
}

// Removes those that run no longer from the front of their list, and returns whether there were any.
static bool forget_ended(World *world) {
    bool any = false;
    for (CommRequest *r; (r = world->first_running) && event_done(world->device, r->end); any = true) {
        world->first_running = r->next;
        to_pool(world, r);
    }
    return any;
}

static void append_running(World *world, CommRequest *r) {
    forget_ended(world);
    r->next = NULL;
    *(world->first_running ? &world->last_running->next : &world->first_running) = r;
    world->last_running = r;
}

// Its tensors may be used again from here on, by a stream that waits for its end.
static void release(World *world, CommRequest **request) {
    CommRequest *r = *request;
    host_adapter_close(&r->adapter);
    if (r->end.number)
        append_running(world, r);
    else
        to_pool(world, r);
    world->num_open--;
    *request = NULL;
}

// A span of the trace that ends now, of an operation or of the wait for one.
static void trace_span(const CommRequest *r, const char *name, double start_s) {
    const Group *group = r->lane->group;
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
    Lane *lane = r->lane;
    if (r->number != lane->num_started || !host_adapter_ready(&r->adapter, 0)) return false;
    lane->num_started++;
    r->comm->world->num_unstarted--;
    r->started = true;
    host_adapter_reveal(&r->adapter, &r->call);
    lane->group->transport->start(lane->group, &r->call, r->op);
    return true;
}

static CallProgress advance(CommRequest *r) {
    bool starts = !r->started;
    if (starts && !start(r)) return STUCK;
    Group *group = r->lane->group;
    CallProgress progress = group->transport->advance(group, &r->call, r->op);
    r->done = progress == DONE;
    if (r->done && group->transport->ends_at) r->end = group->transport->ends_at(group, &r->call, r->op);
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

// An ordered transport may have nothing to wait for: its operation is then done when it is posted.
static void begin(World *world, CommRequest *r) {
    if (!r->lane->group->transport->ends_at) {
        start(r);
        append(world, r);
        return;
    }
    memcpy(r->doing, rank_current()->doing, sizeof r->doing);
    if (advance(r) != DONE) append(world, r);
}

CommRequest *queue_post(Comm *comm, Call call) {
    World *world = comm->world;
    bool of_device = call.stream && comm->device.group;
    CommRequest *r = take_from_pool(world);
    r->comm = comm;
    r->lane = of_device ? &comm->device : &comm->host;
    r->call = call;
    r->number = r->lane->num_posted++;
    Group *group = r->lane->group;
    r->posted_s = trace_on() && group->size > 1 ? clock_s() : 0;
    if (world->device && call.stream && group->transport->follows_addresses)
        host_adapter_open(&r->adapter, world->device, &r->call, group, comm->names[call.op]);
    world->num_unstarted++;
    begin(world, r);
    return r;
}

void queue_advance(World *world) { advance_all(world); }

bool queue_done(World *world, CommRequest **request) {
    CommRequest *r = *request;
    advance_all(world);
    if (!r->done || (r->end.number && !event_done(world->device, r->end))) return false;
    release(world, request);
    return true;
}

// ---- waiting ---------------------------------------------------------------------------------------

void queue_poll_ranks(const World *world) {
    Group *group = world->comm.group;
    if (group->transport->poll) group->transport->poll(group);
}

// Gives up the core until something may have changed. No rank wakes this one when its own device makes progress, or
// what is polled does.
static void pause_until_change(World *world, int turns) {
    Group *group = world->comm.group;
    const CommRequest *unstarted = NULL, *polled = NULL;
    for (const CommRequest *r = world->first; r; r = r->next) {
        if (!r->started && !unstarted) unstarted = r;
        if (r->lane->group->polled) polled = r;
    }
    if (unstarted || polled) queue_poll_ranks(world);
    if (unstarted)
        host_adapter_ready(&unstarted->adapter, DEVICE_POLL_S);
    else if (polled)
        nanosleep(&(struct timespec){.tv_nsec = (long)(DEVICE_POLL_S * 1e9)}, NULL);
    else
        group->transport->pause(group, turns);
}

// Tells a supervisor for whom the rank waits.
static void tell_wait(const CommRequest *r) {
    Group *group = r->lane->group;
    Text ranks = {0};
    if (r->started) group->transport->waits_for(group, &r->call, r->op, &ranks);
    beat_wait(rank_current()->beat, comm_op_name(r->call.op), group->name, text_string(&ranks));
    text_free(&ranks);
}

// A heartbeat of a rank that waits; now and then with the ranks that it waits for. Returns when that was last.
static double give_sign(const CommRequest *r, double now, double told) {
    if (r->done || now - told < 0.05) {
        beat_turn(rank_current()->beat);
        return told;
    }
    tell_wait(r);
    return now;
}

// Returns when r is done. While any operation moves, r may be waiting for that one: it is no hang.
static void watch(World *world, CommRequest *r) {
    WaitTime time = wait_time_start();
    double told = time.last_s;
    BeatWriter *beats = rank_current()->beat;
    for (int turns = 0; !r->done;) {
        pause_until_change(world, turns);
        bool moved = advance_all(world) == MOVED;
        rank_current()->waited_s += wait_time_add(&time);
        if (moved) time.waited_s = 0;
        turns = moved ? 0 : turns + 1;
        if (beats) told = give_sign(r, time.last_s, told);
        if (time.waited_s > watchdog_limit_s(world)) watchdog_hang(world, r, time.waited_s);
    }
    beat_resume(beats);
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
    World *world = comm->world;
    CommRequest *r = *request;
    if (!r->done) wait_on_host(comm, r);
    if (r->end.number) stream_wait(world->device, stream, r->end);
    release(world, request);
}

// ---- operations that run ------------------------------------------------------------------------------

// Asks the group of each of them once where several follow each other.
static void watch_groups(const World *world) {
    const Group *asked = NULL;
    for (const CommRequest *r = world->first_running; r; r = r->next) {
        Group *group = r->lane->group;
        if (group != asked && group->transport->watch) group->transport->watch(group);
        asked = group;
    }
}

void queue_watch(World *world, double waited_s) {
    watch_groups(world);
    queue_poll_ranks(world);
    bool moved = forget_ended(world) || waited_s < world->waited_before_s;
    if (moved || !world->first_running) world->waited_before_s = waited_s;
    double since_s = waited_s - world->waited_before_s;
    if (since_s > watchdog_limit_s(world)) watchdog_hang(world, world->first_running, since_s);
}

// Removes those of the group that run no longer from anywhere in the list. Returns one that runs, or NULL.
static const CommRequest *forget_ended_of(const Comm *comm) {
    World *world = comm->world;
    const CommRequest *runs = NULL;
    CommRequest *last = NULL;
    for (CommRequest **at = &world->first_running, *r; (r = *at);) {
        bool mine = r->comm == comm, over = mine && event_done(world->device, r->end);
        if (mine && !over) runs = r;
        if (over) {
            *at = r->next;
            to_pool(world, r);
        } else {
            last = r;
            at = &r->next;
        }
    }
    world->last_running = last;
    return runs;
}

void queue_drain(Comm *comm) {
    for (const CommRequest *r; (r = forget_ended_of(comm));) event_wait(comm->world->device, r->end);
}

static void free_all(CommRequest *r) {
    for (CommRequest *next; r; r = next) {
        next = r->next;
        free(r);
    }
}

void queue_reserve(World *world, size_t op_bytes) {
    CHECK(!world->num_open && !world->first_running, "operations are under way");
    if (op_bytes <= world->op_bytes) return;
    free_all(world->pool);
    world->pool = NULL;
    world->op_bytes = op_bytes;
}

void queue_destroy(World *world) {
    free_all(world->pool);
    free_all(world->first);
}
