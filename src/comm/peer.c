// The device transport "peer": puts collectives and messages between the GPUs of one process on their streams.
//
// A collective is a number of steps. In each a rank puts work on its stream and records an event; its next step waits,
// on the host, until all ranks have come so far, and on its stream for their events. A sum is one kernel for each rank,
// which reads its slice of everybody's elements in rank order and writes the result to everybody. Where GPUs do not
// reach each other, slices are copied to a staging buffer first, and sums are copied on: the same bits. Of the two ends
// of a message the one that is posted second copies it, on a stream of that channel.
#include "comm/peer_board.h"
#include "comm/queue.h"
#include <stdlib.h>

enum { STAGED_BYTES = 1 << 20 }; // of each other rank, where GPUs do not reach each other

// A stream for the messages of one channel.
typedef struct PeerChannel {
    struct PeerChannel *next;
    int peer, number;
    bool sends;
    Stream *stream;
} PeerChannel;

typedef struct {
    Group head;
    Group *host; // of the same ranks
    Device *device;
    PeerBoard *board;
    uint64_t next_use;
    Stream *stream; // of collectives that do not run on the caller's; NULL until the first
    PeerChannel *channels;
    char *staging; // STAGED_BYTES for each other rank; NULL: all GPUs reach each other
} PeerGroup;

typedef struct {
    // Of a collective.
    uint64_t use;
    PeerStep step; // the next one
    Stream *stream;
    PeerPost *post; // of a message
    StreamEvent end;
} PeerOp;

_Static_assert(sizeof(PeerOp) <= MAX_OP_BYTES, "room in a checked operation");

static Stream *open_stream(PeerGroup *g) {
    Stream *stream;
    Status status = device_side_stream_open(g->device, g->head.name, &stream);
    if (status != OK) abort_after_error(status);
    return stream;
}

// ---- collectives ------------------------------------------------------------------------------------------

static PeerEntry *entry_of(const PeerGroup *g, const PeerOp *o, int rank) {
    return peer_entry(g->board, o->use, rank);
}

// The stream of the operation waits until the ranks have finished the step; this rank's own streams may be two.
static void follow(const PeerGroup *g, const Call *call, const PeerOp *o, PeerStep step) {
    for (int r = 0; r < g->head.size; r++)
        if (r != g->head.rank || (step == STEP_ENTER && o->stream != call->stream))
            shared_event_wait(g->device, o->stream, entry_of(g, o, r)->after[step]);
}

static void record(const PeerGroup *g, const PeerOp *o, Stream *stream, PeerStep step) {
    SharedEvent **event = &entry_of(g, o, g->head.rank)->after[step];
    shared_event_record(g->device, stream, peer_event(g->device, event));
}

// The elements that a rank sums: [first, returned value). Slices begin at multiples of 64 elements, which are aligned
// where the tensor is.
static size_t slice_of(const PeerGroup *g, const Call *call, int rank, size_t *first) {
    const size_t unit = 64, units = (call->count + unit - 1) / unit;
    size_t begin = slice_begin(units, g->head.size, rank) * unit;
    size_t end = slice_begin(units, g->head.size, rank + 1) * unit;
    *first = begin < call->count ? begin : call->count;
    return end < call->count ? end : call->count;
}

static PeerReduce reduction(const Call *call, size_t count, int ranks) {
    return (PeerReduce){
        .num_in = ranks, .num_out = 1, .count = count, .dtype = call->dtype, .op = call->reduce};
}

// Sums `count` elements from element `at` of everybody's `in` on, to the same place of everybody's `out`; or to the
// beginning of this rank's `out` alone.
static void sum_in_place(const PeerGroup *g, const Call *call, const PeerOp *o, size_t at, size_t count,
                         bool to_all) {
    PeerReduce sum = reduction(call, count, g->head.size);
    sum.out[0] = call->out;
    for (int r = 0; r < g->head.size; r++) {
        const PeerEntry *e = entry_of(g, o, r);
        sum.in[r] = e->in + at * call->element_bytes;
        if (to_all) sum.out[r] = e->out + at * call->element_bytes;
    }
    if (to_all) sum.num_out = g->head.size;
    device_reduce(g->device, o->stream, &sum);
}

static void copy_from(const PeerGroup *g, const PeerOp *o, void *to, int rank, const void *from,
                      size_t bytes) {
    device_copy_between(g->device, o->stream, to, g->device, from, entry_of(g, o, rank)->device, bytes);
}

// Sums the same elements by way of the staging buffer, to `out`.
static void sum_staged(const PeerGroup *g, const Call *call, const PeerOp *o, size_t at, size_t count,
                       char *out) {
    const size_t most = STAGED_BYTES / call->element_bytes;
    for (size_t done = 0, n; done < count; done += n) {
        n = count - done < most ? count - done : most;
        PeerReduce sum = reduction(call, n, g->head.size);
        char *room = g->staging;
        for (int r = 0; r < g->head.size; r++) {
            const char *from = entry_of(g, o, r)->in + (at + done) * call->element_bytes;
            sum.in[r] = r == g->head.rank ? from : room;
            if (r == g->head.rank) continue;
            copy_from(g, o, room, r, from, n * call->element_bytes);
            room += STAGED_BYTES;
        }
        sum.out[0] = out + done * call->element_bytes;
        device_reduce(g->device, o->stream, &sum);
    }
}

static void scatter_sums(const PeerGroup *g, const Call *call, const PeerOp *o) {
    size_t at = (size_t)g->head.rank * call->count;
    if (g->staging)
        sum_staged(g, call, o, at, call->count, call->out);
    else
        sum_in_place(g, call, o, at, call->count, false);
}

// Everybody's elements, or of everybody's slices the one that is for this rank.
static void gather(const PeerGroup *g, const Call *call, const PeerOp *o) {
    size_t bytes = call->count * call->element_bytes;
    size_t skip = slices_in(call, g->head.size) > 1 ? (size_t)g->head.rank * bytes : 0;
    for (int i = 0; i < g->head.size; i++) {
        int r = (g->head.rank + i) % g->head.size; // not all from the same one at a time
        const char *from = entry_of(g, o, r)->in + skip;
        char *to = (char *)call->out + (size_t)r * bytes;
        if (to != from) copy_from(g, o, to, r, from, bytes);
    }
}

// The other ranks' slices of an all-reduce whose sums every rank has in its own memory.
static void gather_sums(const PeerGroup *g, const Call *call, const PeerOp *o) {
    for (int r = 0; r < g->head.size; r++) {
        size_t first, end = slice_of(g, call, r, &first), skip = first * call->element_bytes;
        if (r != g->head.rank)
            copy_from(g, o, (char *)call->out + skip, r, entry_of(g, o, r)->out + skip,
                      (end - first) * call->element_bytes);
    }
}

// An all-reduce between GPUs that do not reach each other: all others work in one step.
static bool has_reduce_step(const PeerGroup *g, const Call *call) {
    return g->staging && call->op == COMM_ALL_REDUCE;
}

static void enter(PeerGroup *g, const Call *call, PeerOp *o) {
    PeerEntry *mine = entry_of(g, o, g->head.rank);
    mine->in = call->in, mine->out = call->out, mine->device = g->device;
    bool on_caller = call->blocking && !g->staging; // the staging buffer is the one stream's
    if (!on_caller && !g->stream) g->stream = open_stream(g);
    o->stream = on_caller ? call->stream : g->stream;
    record(g, o, call->stream, STEP_ENTER);
}

static void reduce(PeerGroup *g, const Call *call, PeerOp *o) {
    size_t first, end = slice_of(g, call, g->head.rank, &first);
    follow(g, call, o, STEP_ENTER);
    sum_staged(g, call, o, first, end - first, (char *)call->out + first * call->element_bytes);
    record(g, o, o->stream, STEP_REDUCE);
}

static void work(PeerGroup *g, const Call *call, PeerOp *o) {
    size_t first, end;
    follow(g, call, o, has_reduce_step(g, call) ? STEP_REDUCE : STEP_ENTER);
    switch (call->op) {
    case COMM_ALL_REDUCE:
        end = slice_of(g, call, g->head.rank, &first);
        if (g->staging)
            gather_sums(g, call, o);
        else
            sum_in_place(g, call, o, first, end - first, true);
        break;
    case COMM_REDUCE_SCATTER: scatter_sums(g, call, o); break;
    case COMM_ALL_GATHER:
    case COMM_ALL_TO_ALL: gather(g, call, o); break;
    case COMM_BROADCAST:
        if (call->peer != g->head.rank)
            copy_from(g, o, call->out, call->peer, entry_of(g, o, call->peer)->in,
                      call->count * call->element_bytes);
        break;
    default: CHECK(false, "peer: %s of tensors", comm_op_name(call->op));
    }
    record(g, o, o->stream, STEP_WORK);
}

static void leave(PeerGroup *g, const Call *call, PeerOp *o) {
    follow(g, call, o, STEP_WORK);
    o->end = event_record(g->device, o->stream);
}

static void (*const steps[NUM_STEPS])(PeerGroup *g, const Call *call, PeerOp *o) = {enter, reduce, work,
                                                                                    leave};

static CallProgress advance_collective(PeerGroup *g, const Call *call, PeerOp *o) {
    CallProgress progress = STUCK;
    int rank = g->head.rank;
    for (; o->step < NUM_STEPS && peer_board_may_begin(g->board, o->use, o->step); progress = MOVED) {
        steps[o->step](g, call, o);
        bool wakes = peer_board_arrive(g->board, o->use, o->step++, rank);
        // Where there are no sums to hand on, that step is finished with the one before.
        if (o->step == STEP_REDUCE && !has_reduce_step(g, call))
            wakes = peer_board_arrive(g->board, o->use, o->step++, rank);
        if (wakes) g->host->transport->wake(g->host);
    }
    return o->step == NUM_STEPS ? DONE : progress;
}

// ---- messages ---------------------------------------------------------------------------------------------

static Stream *channel_stream(PeerGroup *g, const Call *call) {
    bool sends = call->op == COMM_SEND;
    PeerChannel *c = g->channels;
    while (c && (c->peer != call->peer || c->number != call->channel || c->sends != sends)) c = c->next;
    if (c) return c->stream;
    c = comm_allocate(1, sizeof *c);
    *c = (PeerChannel){g->channels, call->peer, call->channel, sends, open_stream(g)};
    g->channels = c;
    return c->stream;
}

// The end that was posted first learns of it, and uses the event of the one that copies.
static void copy_message(PeerGroup *g, const Call *call, PeerOp *o, PeerPost *other) {
    PeerPost *mine = o->post, *send = mine->sends ? mine : other, *recv = mine->sends ? other : mine;
    check_message_size(&g->head, mine->from, mine->to, mine->channel, send->bytes, recv->bytes);
    Stream *stream = channel_stream(g, call);
    shared_event_wait(g->device, stream, mine->ready);
    shared_event_wait(g->device, stream, other->ready);
    device_copy_between(g->device, stream, recv->data, recv->device, send->data, send->device, send->bytes);
    shared_event_record(g->device, stream, mine->copied);
    o->end = event_record(g->device, stream);
    atomic_store(&other->copier, mine);
    g->host->transport->wake(g->host);
}

static void post_message(PeerGroup *g, const Call *call, PeerOp *o) {
    bool sends = call->op == COMM_SEND;
    PeerPost *mine = o->post = peer_board_post(g->board, g->head.rank, g->device);
    mine->data = sends ? (void *)(uintptr_t)call->in : call->out;
    mine->device = g->device;
    mine->bytes = call->count * call->element_bytes;
    mine->from = sends ? g->head.rank : call->peer;
    mine->to = sends ? call->peer : g->head.rank;
    mine->channel = call->channel;
    mine->sends = sends;
    shared_event_record(g->device, call->stream, mine->ready);
    PeerPost *other = peer_board_meet(g->board, mine);
    if (other) copy_message(g, call, o, other);
}

static CallProgress advance_message(PeerGroup *g, const Call *call, PeerOp *o) {
    if (o->end.number) return DONE;
    PeerPost *copier = atomic_load(&o->post->copier);
    if (!copier) return STUCK;
    Stream *stream = channel_stream(g, call);
    shared_event_wait(g->device, stream, copier->copied);
    o->end = event_record(g->device, stream);
    atomic_store(&copier->free, true);
    atomic_store(&o->post->free, true);
    return DONE;
}

// ---- the transport ----------------------------------------------------------------------------------------

static void peer_start(Group *group, const Call *call, void *op) {
    PeerGroup *g = (PeerGroup *)group;
    PeerOp *o = op;
    if (is_message(call))
        post_message(g, call, o);
    else
        o->use = g->next_use++;
}

static CallProgress peer_advance(Group *group, const Call *call, void *op) {
    PeerGroup *g = (PeerGroup *)group;
    return is_message(call) ? advance_message(g, call, op) : advance_collective(g, call, op);
}

static StreamEvent peer_ends_at(Group *group, const Call *call, const void *op) {
    (void)group, (void)call;
    return ((const PeerOp *)op)->end;
}

static void peer_waits_for(Group *group, const Call *call, const void *op, Text *ranks) {
    const PeerGroup *g = (const PeerGroup *)group;
    const PeerOp *o = op;
    for (int r = 0; r < group->size; r++)
        if (is_message(call) ? r == call->peer : peer_board_waits_for(g->board, o->use, o->step, r))
            text_add(ranks, " %d", group->members[r]);
}

static void peer_close(Group *group) {
    PeerGroup *g = (PeerGroup *)group;
    for (PeerChannel *c = g->channels, *next; c; c = next) {
        next = c->next;
        device_stream_close(g->device, c->stream);
        free(c);
    }
    device_stream_close(g->device, g->stream);
    if (g->staging) {
        Memory memory = device_memory(g->device);
        memory.give_back(memory.self, g->staging, peer_staging_bytes(g->head.size));
    }
    peer_board_leave(g->board);
    free(g);
}

static const Transport peer_transport = {.op_bytes = sizeof(PeerOp),
                                         .close = peer_close,
                                         .start = peer_start,
                                         .advance = peer_advance,
                                         .ends_at = peer_ends_at,
                                         .waits_for = peer_waits_for};

// ---- opening ----------------------------------------------------------------------------------------------

Status peer_check(Comm *world, Device *device) {
    if (!device_has_peers(device))
        return fail(
            ERR_CONFIG,
            "--device-transport peer is for GPUs, and this device computes on the CPU: leave it at auto");
    if (!world->group->one_process)
        return fail(
            ERR_CONFIG,
            "--device-transport peer is for ranks that are threads of one process: start them with --ranks N "
            "and without mpirun or srun, or leave it at auto");
    if (comm_size(world) > MAX_PEERS)
        return fail(ERR_CONFIG,
                    "--device-transport peer is for up to %d ranks, and there are %d: leave it at auto",
                    MAX_PEERS, comm_size(world));
    return OK;
}

// Returns on all ranks whether every GPU reaches every other one. Devices are open on all ranks meanwhile.
static bool all_reach(Comm *comm, Device *device) {
    const Device *devices[MAX_PEERS];
    double misses = 0;
    comm_all_gather_host(comm, &device, devices, sizeof device);
    for (int r = 0; r < comm_size(comm); r++) misses += !device_reach(device, devices[r]);
    comm_all_reduce_host(comm, &misses, 1, REDUCE_MAX);
    return misses == 0;
}

size_t peer_staging_bytes(int ranks) { return (size_t)(ranks - 1) * STAGED_BYTES; }

static Status take_staging(PeerGroup *g) {
    Memory memory = device_memory(g->device);
    const char *why = "";
    size_t bytes = peer_staging_bytes(g->head.size);
    g->staging = memory.take(memory.self, "staging", bytes, &why);
    return g->staging
               ? OK
               : fail(ERR_OS, "no memory for messages of group %s: %zu bytes (%s)", g->head.name, bytes, why);
}

Status peer_open(Comm *comm, Device *device, Group **group) {
    PeerGroup *g = comm_allocate(1, sizeof *g);
    g->head = *comm->group;
    g->head.transport = &peer_transport;
    g->host = comm->group;
    g->device = device;
    if (g->head.rank == 0) g->board = peer_board_create(g->head.size);
    comm_broadcast_host(comm, &g->board, sizeof g->board, 0);
    Status status = all_reach(comm, device) ? OK : take_staging(g);
    status = comm_agree(comm, status);
    if (status == OK)
        *group = &g->head;
    else
        peer_close(&g->head);
    return status;
}
