// The front of all communication: checks every call, counts it, tells the listener and posts it.
#include "comm/comm.h"
#include "comm/queue.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- groups ----------------------------------------------------------------------------------------

int comm_rank(const Comm *comm) { return comm->group->rank; }
int comm_rank_here(const Comm *comm) { return comm->world->rank_here; }
int comm_first_here(const Comm *comm) { return comm->world->first_here; }
int comm_size(const Comm *comm) { return comm->group->size; }
const char *comm_name(const Comm *comm) { return comm->group->name; }
const CommCount *comm_counts(const Comm *comm) { return comm->counts; }

Status comm_split(Comm *parent, const char *name, const int *ranks, int num_ranks, Comm **group) {
    bool present = false;
    CHECK(num_ranks > 0, "group %s of %d ranks", name, num_ranks);
    for (int i = 0; i < num_ranks; i++) {
        CHECK(ranks[i] >= 0 && ranks[i] < comm_size(parent), "group %s: rank %d of %d", name, ranks[i],
              comm_size(parent));
        present |= ranks[i] == comm_rank(parent);
    }
    CHECK(present, "group %s does not contain the rank %d that opens it", name, comm_rank(parent));
    Group *opened;
    TRY(parent->group->transport->split(parent->group, name, ranks, num_ranks, &opened));
    *group = comm_allocate(1, sizeof **group);
    comm_init(*group, opened, parent->world);
    Status status = comm_open_device(*group);
    if (status == OK) return OK;
    comm_close(*group);
    *group = NULL;
    return status;
}

void comm_close(Comm *group) {
    if (!group) return;
    comm_close_device(group);
    group->group->transport->close(group->group);
    free(group);
}

// ---- the front: what every call passes ------------------------------------------------------------------

// The format of each operation's event: elements, ranks or the other rank, number of the call or channel.
static const char *const op_events[NUM_COMM_OPS] = {
    [COMM_ALL_REDUCE] = "all_reduce of %" PRId64 " elements over %" PRId64 " ranks, call %" PRId64,
    [COMM_REDUCE_SCATTER] = "reduce_scatter to %" PRId64 " elements over %" PRId64 " ranks, call %" PRId64,
    [COMM_ALL_GATHER] = "all_gather of %" PRId64 " elements over %" PRId64 " ranks, call %" PRId64,
    [COMM_ALL_TO_ALL] = "all_to_all of %" PRId64 " elements for each of %" PRId64 " ranks, call %" PRId64,
    [COMM_BROADCAST] = "broadcast of %" PRId64 " elements over %" PRId64 " ranks, call %" PRId64,
    [COMM_BARRIER] = "barrier (%" PRId64 ") over %" PRId64 " ranks, call %" PRId64,
    [COMM_SEND] = "send of %" PRId64 " elements to rank %" PRId64 " on channel %" PRId64,
    [COMM_RECV] = "recv of %" PRId64 " elements from rank %" PRId64 " on channel %" PRId64,
};

// A collective of one rank: its result is its own part.
static void copy_alone(const Comm *comm, const Call *call) {
    size_t bytes = call->count * call->element_bytes;
    if (!bytes || call->in == call->out) return;
    int64_t count = (int64_t)call->count;
    Tensor in = {(void *)(uintptr_t)call->in, 1, count, call->dtype},
           out = {call->out, 1, count, call->dtype};
    if (call->stream && comm->world->device)
        device_copy(comm->world->device, call->stream, out, in);
    else if (comm->group->transport->follows_addresses)
        memcpy(call->out, call->in, bytes);
}

// NULL where nothing is left to wait for.
static CommRequest *post(Comm *comm, Call call) {
    CommCount *count = &comm->counts[call.op];
    count->calls++;
    count->bytes += (double)call.bytes;
    const World *world = comm->world;
    if (world->listener) world->listener(world->listener_self, comm, call.op, call.dtype, call.bytes);
    bool message = is_message(&call), alone = comm->group->size == 1;
    if (alone && !message) {
        copy_alone(comm, &call);
        return NULL;
    }
    if (!alone)
        rank_event(op_events[call.op], (int64_t)call.count,
                   message ? comm->group->members[call.peer] : comm->group->size,
                   message ? call.channel : count->calls);
    return queue_post(comm, call);
}

static void run(Comm *comm, Call call) {
    call.blocking = true;
    CommRequest *request = post(comm, call);
    comm_wait(comm, call.stream, &request);
}

static void check_rank(const Comm *comm, int rank) {
    CHECK(rank >= 0 && rank < comm_size(comm), "rank %d in group %s of %d", rank, comm_name(comm),
          comm_size(comm));
}

static void check_reducible(const Comm *comm, DType dtype, ReduceOp op) {
    CHECK(can_reduce(dtype), "%s cannot be reduced", dtype_name(dtype));
    CHECK(op == REDUCE_SUM || op == REDUCE_MAX || op == REDUCE_TREE, "no reduction %d", (int)op);
    CHECK(op != REDUCE_TREE || can_add_in_tree(comm_size(comm)), "a tree over %d ranks", comm_size(comm));
}

// A call on one tensor of each rank, all of the same shape; its addresses are not set.
static Call call_on(const Comm *comm, Stream *stream, CommOp op, Tensor x) {
    CHECK(x.rows >= 0 && x.cols >= 0 && (x.data || !tensor_count(x)), "a tensor without memory");
    CHECK(stream || !comm->world->device, "%s: a tensor of a device without a stream", comm_op_name(op));
    return (Call){.op = op,
                  .dtype = x.dtype,
                  .stream = stream,
                  .count = (size_t)tensor_count(x),
                  .element_bytes = dtype_bytes(x.dtype),
                  .bytes = tensor_bytes(x)};
}

// ---- collectives -----------------------------------------------------------------------------------

Status comm_can_reduce(const Comm *comm, DType dtype, ReduceOp op) {
    const Group *group = comm->device.group;
    return group && group->transport->can_reduce ? group->transport->can_reduce(group, dtype, op) : OK;
}

static Call all_reduce_call(const Comm *comm, Stream *stream, Tensor x, ReduceOp op) {
    check_reducible(comm, x.dtype, op);
    Call call = call_on(comm, stream, COMM_ALL_REDUCE, x);
    call.in = call.out = x.data;
    call.reduce = op;
    return call;
}

void comm_all_reduce(Comm *comm, Stream *stream, Tensor x, ReduceOp op) {
    run(comm, all_reduce_call(comm, stream, x, op));
}

CommRequest *comm_all_reduce_start(Comm *comm, Stream *stream, Tensor x, ReduceOp op) {
    return post(comm, all_reduce_call(comm, stream, x, op));
}

// A call whose `whole` holds a slice for every rank, of the shape of `part`.
static Call sliced_call(const Comm *comm, Stream *stream, CommOp op, Tensor whole, Tensor part) {
    Call call = call_on(comm, stream, op, part);
    CHECK(whole.dtype == part.dtype && tensor_count(whole) == tensor_count(part) * comm_size(comm),
          "%s: %" PRId64 " elements %s and %" PRId64 " %s over %d ranks", comm_op_name(op),
          tensor_count(whole), dtype_name(whole.dtype), tensor_count(part), dtype_name(part.dtype),
          comm_size(comm));
    call.bytes += tensor_bytes(whole);
    return call;
}

// CHECKs that a slice is this rank's slice of the whole, or lies outside it. Transports that follow no addresses are
// exempt: a planned run has no memory behind its tensors.
static void check_place(const Comm *comm, const Call *call, const void *whole, const void *part) {
    if (!comm->group->transport->follows_addresses) return;
    uintptr_t first = (uintptr_t)whole, at = (uintptr_t)part;
    size_t slice = call->count * call->element_bytes, size = (size_t)comm_size(comm);
    CHECK(!slice || at == first + slice * (size_t)comm_rank(comm) || at + slice <= first ||
              at >= first + slice * size,
          "%s of group %s: a slice overlaps the whole, and is not slice %d", comm_op_name(call->op),
          comm_name(comm), comm_rank(comm));
}

static Call reduce_scatter_call(const Comm *comm, Stream *stream, Tensor in, Tensor out, ReduceOp op) {
    check_reducible(comm, out.dtype, op);
    Call call = sliced_call(comm, stream, COMM_REDUCE_SCATTER, in, out);
    call.in = in.data;
    call.out = out.data;
    call.reduce = op;
    check_place(comm, &call, call.in, call.out);
    return call;
}

void comm_reduce_scatter(Comm *comm, Stream *stream, Tensor in, Tensor out, ReduceOp op) {
    run(comm, reduce_scatter_call(comm, stream, in, out, op));
}

CommRequest *comm_reduce_scatter_start(Comm *comm, Stream *stream, Tensor in, Tensor out, ReduceOp op) {
    return post(comm, reduce_scatter_call(comm, stream, in, out, op));
}

static Call all_gather_call(const Comm *comm, Stream *stream, Tensor in, Tensor out) {
    Call call = sliced_call(comm, stream, COMM_ALL_GATHER, out, in);
    call.in = in.data;
    call.out = out.data;
    check_place(comm, &call, call.out, call.in);
    return call;
}

void comm_all_gather(Comm *comm, Stream *stream, Tensor in, Tensor out) {
    run(comm, all_gather_call(comm, stream, in, out));
}

CommRequest *comm_all_gather_start(Comm *comm, Stream *stream, Tensor in, Tensor out) {
    return post(comm, all_gather_call(comm, stream, in, out));
}

// CHECKs that the tensors lie outside each other. The front of a planned run is exempt, as in check_place.
static void check_apart(const Comm *comm, Tensor in, Tensor out) {
    if (!comm->group->transport->follows_addresses) return;
    uintptr_t from = (uintptr_t)in.data, to = (uintptr_t)out.data, size = tensor_bytes(in);
    CHECK(!size || to + size <= from || to >= from + size, "all_to_all of group %s: in and out overlap",
          comm_name(comm));
}

static Call all_to_all_call(const Comm *comm, Stream *stream, Tensor in, Tensor out) {
    int64_t size = comm_size(comm), count = tensor_count(in);
    CHECK(count % size == 0, "all_to_all: %" PRId64 " elements over %" PRId64 " ranks", count, size);
    Tensor slice = {in.data, 1, count / size, in.dtype};
    Call call = sliced_call(comm, stream, COMM_ALL_TO_ALL, out, slice);
    call.bytes = tensor_bytes(in) + tensor_bytes(out);
    call.in = in.data;
    call.out = out.data;
    check_apart(comm, in, out);
    return call;
}

void comm_all_to_all(Comm *comm, Stream *stream, Tensor in, Tensor out) {
    run(comm, all_to_all_call(comm, stream, in, out));
}

CommRequest *comm_all_to_all_start(Comm *comm, Stream *stream, Tensor in, Tensor out) {
    return post(comm, all_to_all_call(comm, stream, in, out));
}

void comm_broadcast(Comm *comm, Stream *stream, Tensor x, int root) {
    check_rank(comm, root);
    Call call = call_on(comm, stream, COMM_BROADCAST, x);
    call.in = call.out = x.data;
    call.peer = root;
    run(comm, call);
}

void comm_barrier(Comm *comm) { run(comm, (Call){.op = COMM_BARRIER, .element_bytes = 1}); }

// ---- host values -----------------------------------------------------------------------------------

static Call host_call(CommOp op, size_t count, size_t element_bytes) {
    return (Call){.op = op, .count = count, .element_bytes = element_bytes, .bytes = count * element_bytes};
}

void comm_all_reduce_host(Comm *comm, double *values, int count, ReduceOp op) {
    CHECK(count >= 0, "%d values", count);
    check_reducible(comm, F64, op);
    Call call = host_call(COMM_ALL_REDUCE, (size_t)count, sizeof(double));
    call.in = call.out = values;
    call.dtype = F64;
    call.reduce = op;
    run(comm, call);
}

void comm_broadcast_host(Comm *comm, void *bytes, size_t size, int root) {
    check_rank(comm, root);
    Call call = host_call(COMM_BROADCAST, size, 1);
    call.in = call.out = bytes;
    call.peer = root;
    run(comm, call);
}

static Call host_message(const Comm *comm, CommOp op, size_t size, int peer, int channel) {
    check_rank(comm, peer);
    CHECK(peer != comm_rank(comm), "a rank that waits for itself");
    Call call = host_call(op, size, 1);
    call.peer = peer;
    call.channel = channel;
    return call;
}

void comm_send_host(Comm *comm, const void *bytes, size_t size, int to) {
    Call call = host_message(comm, COMM_SEND, size, to, HOST_CHANNEL);
    call.in = bytes;
    run(comm, call);
}

void comm_recv_host(Comm *comm, void *bytes, size_t size, int from) {
    Call call = host_message(comm, COMM_RECV, size, from, HOST_CHANNEL);
    call.out = bytes;
    run(comm, call);
}

CommRequest *comm_send_host_start(Comm *comm, const void *bytes, size_t size, int to) {
    Call call = host_message(comm, COMM_SEND, size, to, FILE_CHANNEL);
    call.in = bytes;
    return post(comm, call);
}

CommRequest *comm_recv_host_start(Comm *comm, void *bytes, size_t size, int from) {
    Call call = host_message(comm, COMM_RECV, size, from, FILE_CHANNEL);
    call.out = bytes;
    return post(comm, call);
}

void comm_all_gather_host(Comm *comm, const void *in, void *out, size_t size) {
    Call call = host_call(COMM_ALL_GATHER, size, 1);
    char *own = (char *)out + (size_t)comm_rank(comm) * size;
    memcpy(own, in, size); // also where nothing is sent
    call.in = own;
    call.out = out;
    run(comm, call);
}

// ---- messages ----------------------------------------------------------------------------------------

Status comm_open_channels(Comm *comm, const CommChannel *channels, int count) {
    Group *group = comm->device.group;
    Status status = OK;
    if (!group || !group->transport->open_channel) return OK;
    // In the order of the list on every rank: of those that are not open, both ends of the first one come to it.
    for (int i = 0; i < count; i++) {
        CommChannel c = channels[i];
        check_rank(comm, c.from);
        check_rank(comm, c.to);
        if (c.from == c.to || (c.from != comm_rank(comm) && c.to != comm_rank(comm))) continue;
        Status opened = group->transport->open_channel(group, c.from, c.to, c.number);
        if (status == OK) status = opened;
    }
    return comm_agree(comm, status);
}

static Call message_call(const Comm *comm, Stream *stream, CommOp op, Tensor x, int peer, int channel) {
    check_rank(comm, peer);
    CHECK(channel >= 0 && channel < FILE_CHANNEL, "channel %d", channel);
    Call call = call_on(comm, stream, op, x);
    call.peer = peer;
    call.channel = channel;
    return call;
}

CommRequest *comm_send(Comm *comm, Stream *stream, Tensor x, int to, int channel) {
    Call call = message_call(comm, stream, COMM_SEND, x, to, channel);
    call.in = x.data;
    return post(comm, call);
}

CommRequest *comm_recv(Comm *comm, Stream *stream, Tensor x, int from, int channel) {
    Call call = message_call(comm, stream, COMM_RECV, x, from, channel);
    call.out = x.data;
    return post(comm, call);
}

void comm_wait(Comm *comm, Stream *stream, CommRequest **request) {
    if (*request) queue_wait(comm, stream, request);
}

bool comm_done(Comm *comm, CommRequest **request) { return !*request || queue_done(comm->world, request); }

void comm_poll(Comm *comm) { queue_advance(comm->world); }

void comm_watch(Comm *world, double waited_s) { queue_watch(world->world, waited_s); }
