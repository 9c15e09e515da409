// The device transport "nccl": turns calls into operations of links, and sums in rank order.
#include "comm/nccl_group.h"
#include <stdlib.h>
#include <string.h>

enum { SMALL_BYTES = 256 << 10 }; // an all-reduce whose parts together are no larger is gathered whole

// One operation of a link within a collective, and the sum that follows it.
typedef enum {
    EXCHANGE,   // slices [at, at + count) of everybody's, to be added
    SWAP,       // slices, to `out`
    GATHER,     // slices, in place or from `in`
    GATHER_ALL, // everybody's elements [at, at + count), to be added by each rank
    BROADCAST,
    REDUCE, // NCCL's own sums
    REDUCE_SCATTER
} RoundKind;

typedef struct {
    RoundKind kind;
    size_t at, count; // elements
} Round;

// What an operation has come to.
typedef struct {
    NcclWay *way;
    int64_t number; // among the operations of the way, which are given to it in this order
    Stream *stream;
    StreamEvent after, end;
    int round;
    bool given; // to the link, which may not have put it on the stream yet
} NcclOp;

_Static_assert(sizeof(NcclOp) <= MAX_OP_BYTES, "room in a checked operation");

// ---- rounds -----------------------------------------------------------------------------------------------

static Tensor elements(const Call *call, const void *data, size_t at, size_t count) {
    char *first = (char *)(uintptr_t)data + at * call->element_bytes;
    return (Tensor){first, 1, (int64_t)count, call->dtype};
}

static bool adds_itself(const NcclGroup *g, const Call *call) {
    return g->deterministic || call->reduce != REDUCE_SUM;
}

// The elements of each rank's slice, which lie one after the other.
static size_t slice_of(const NcclGroup *g, const Call *call) {
    return call->op == COMM_ALL_REDUCE ? call->count / (size_t)g->head.size : call->count;
}

// The i-th part of `all` elements, of as many as a slot of the staging buffer holds. False: there are fewer.
static bool part_round(const NcclGroup *g, const Call *call, RoundKind kind, size_t all, int i,
                       Round *round) {
    size_t most = g->slot_bytes / call->element_bytes, at = (size_t)i * most;
    *round = (Round){kind, at, all - at < most ? all - at : most};
    return at < all;
}

static bool all_reduce_round(const NcclGroup *g, const Call *call, int i, Round *round) {
    size_t size = (size_t)g->head.size, slice = slice_of(g, call), rest = call->count % size;
    size_t most = g->slot_bytes / call->element_bytes;
    int exchanges = (int)((slice + most - 1) / most);
    *round = (Round){GATHER_ALL, 0, call->count};
    if (call->count * call->element_bytes * size <= SMALL_BYTES) return i == 0;
    if (i < exchanges) return part_round(g, call, EXCHANGE, slice, i, round);
    *round = (Round){GATHER, 0, slice};
    if (i == exchanges) return true;
    if (!part_round(g, call, GATHER_ALL, rest, i - exchanges - 1, round)) return false;
    round->at += slice * size;
    return true;
}

// The i-th round of a collective; false: there are fewer.
static bool round_of(const NcclGroup *g, const Call *call, int i, Round *round) {
    *round = (Round){BROADCAST, 0, call->count};
    if (!call->count) return false;
    switch (call->op) {
    case COMM_ALL_GATHER: round->kind = GATHER; return i == 0;
    case COMM_ALL_TO_ALL: round->kind = SWAP; return i == 0;
    case COMM_BROADCAST: return i == 0;
    case COMM_ALL_REDUCE:
        round->kind = REDUCE;
        return adds_itself(g, call) ? all_reduce_round(g, call, i, round) : i == 0;
    case COMM_REDUCE_SCATTER:
        round->kind = REDUCE_SCATTER;
        return adds_itself(g, call) ? part_round(g, call, EXCHANGE, call->count, i, round) : i == 0;
    default: CHECK(false, "nccl: %s of tensors", comm_op_name(call->op));
    }
}

// Where the elements of a rank's slice arrive.
static Tensor slot(const NcclGroup *g, const Call *call, const Round *round, int rank) {
    size_t number = (size_t)(rank < g->head.rank ? rank : rank - 1);
    return elements(call, g->staging + number * g->slot_bytes, 0, round->count);
}

static void exchange(const NcclGroup *g, const Call *call, const NcclOp *o, const Round *round) {
    size_t slice = slice_of(g, call);
    for (int i = 1; i < g->head.size; i++) { // not all to the same rank at a time
        int to = (g->head.rank + i) % g->head.size, from = (g->head.rank - i + g->head.size) % g->head.size;
        Tensor part = elements(call, call->in, (size_t)to * slice + round->at, round->count);
        link_send(o->way->link, o->stream, part, to);
        Tensor arrives = round->kind == SWAP ? elements(call, call->out, (size_t)from * slice, slice)
                                             : slot(g, call, round, from);
        link_receive(o->way->link, o->stream, arrives, from);
    }
}

// Copies the slice that a rank has for itself.
static void keep_own(const NcclGroup *g, const Call *call, const NcclOp *o) {
    size_t at = (size_t)g->head.rank * call->count;
    device_copy(g->device, o->stream, elements(call, call->out, at, call->count),
                elements(call, call->in, at, call->count));
}

static void gather(const NcclGroup *g, const Call *call, const NcclOp *o, const Round *round) {
    size_t size = (size_t)g->head.size, rank = (size_t)g->head.rank;
    Tensor all = elements(call, call->out, 0, size * round->count);
    Tensor mine = call->op == COMM_ALL_REDUCE ? elements(call, call->out, rank * round->count, round->count)
                                              : elements(call, call->in, 0, round->count);
    link_gather(o->way->link, o->stream, mine, all);
}

static void give_round(const NcclGroup *g, const Call *call, const NcclOp *o, const Round *round) {
    DeviceLink *link = o->way->link;
    Tensor in = elements(call, call->in, round->at, round->count),
           out = elements(call, call->out, round->at, round->count);
    size_t size = (size_t)g->head.size;
    if (round->kind == SWAP) keep_own(g, call, o);
    link_begin(link);
    switch (round->kind) {
    case SWAP:
    case EXCHANGE: exchange(g, call, o, round); break;
    case GATHER: gather(g, call, o, round); break;
    case GATHER_ALL:
        link_gather(link, o->stream, in, elements(call, g->staging, 0, size * round->count));
        break;
    case BROADCAST: link_broadcast(link, o->stream, out, call->peer); break;
    case REDUCE: link_all_reduce(link, o->stream, out, call->reduce); break;
    case REDUCE_SCATTER:
        link_reduce_scatter(link, o->stream, elements(call, call->in, 0, size * call->count), out);
        break;
    }
    link_end(link);
}

// ---- sums in rank order -----------------------------------------------------------------------------------

// Where a rank's elements of a round are, for the sum.
static const void *part_of(const NcclGroup *g, const Call *call, const Round *round, int rank) {
    if (round->kind == GATHER_ALL)
        return elements(call, g->staging, (size_t)rank * round->count, round->count).data;
    if (rank != g->head.rank) return slot(g, call, round, rank).data;
    return elements(call, call->in, (size_t)rank * slice_of(g, call) + round->at, round->count).data;
}

// Where the sum of the first ranks is until the others are added. It is not `out`, which holds this rank's part in
// calls in place. An exchange leaves the last slot free; of gathered parts the first is in every sum of the first
// ranks.
static void *partial_of(const NcclGroup *g, const Call *call, const Round *round) {
    size_t number = round->kind == EXCHANGE ? (size_t)g->head.size - 1 : 0;
    return elements(call, g->staging + number * g->slot_bytes, 0, round->count).data;
}

// More ranks than one sum can have are added in several. That needs sums that are not rounded in between.
static Status nccl_can_reduce(const Group *group, DType dtype, ReduceOp op) {
    const NcclGroup *g = (const NcclGroup *)group;
    bool rounds = g->deterministic && op == REDUCE_SUM && dtype_bytes(dtype) == dtype_bytes(BF16);
    if (group->size <= g->max_parts || (!rounds && op != REDUCE_TREE)) return OK;
    if (op == REDUCE_TREE)
        return fail(
            ERR_CONFIG,
            "--device-transport nccl adds in a tree over up to %d ranks, and group %s has %d: leave out "
            "--virtual-data-parallel",
            g->max_parts, group->name, group->size);
    return fail(ERR_CONFIG,
                "--device-transport nccl adds %s over up to %d ranks in rank order, and group %s has %d: "
                "--no-deterministic-mode leaves the order to NCCL",
                dtype_name(dtype), g->max_parts, group->name, group->size);
}

static void add_parts(const NcclGroup *g, const Call *call, const NcclOp *o, const Round *round) {
    size_t skip =
        call->op == COMM_ALL_REDUCE && round->kind == EXCHANGE ? (size_t)g->head.rank * slice_of(g, call) : 0;
    PeerReduce sum = {.num_out = 1, .count = round->count, .dtype = call->dtype, .op = call->reduce};
    Status status = nccl_can_reduce(&g->head, call->dtype, call->reduce);
    if (status != OK) abort_after_error(status);
    for (int r = 0; r < g->head.size; r++) {
        bool last = r + 1 == g->head.size;
        sum.in[sum.num_in++] = part_of(g, call, round, r);
        if (sum.num_in < g->max_parts && !last) continue;
        sum.out[0] = last ? elements(call, call->out, skip + round->at, round->count).data
                          : partial_of(g, call, round);
        device_reduce(g->device, o->stream, &sum);
        sum.in[0] = sum.out[0];
        sum.num_in = 1;
    }
}

// ---- operations -------------------------------------------------------------------------------------------

// Gives the next round, or the message, to the link. False: there is none left.
static bool give_next(NcclGroup *g, const Call *call, NcclOp *o) {
    Round round;
    if (!is_message(call)) {
        if (!round_of(g, call, o->round, &round)) return false;
        give_round(g, call, o, &round);
        return true;
    }
    if (o->round) return false;
    link_begin(o->way->link);
    if (call->op == COMM_SEND)
        link_send(o->way->link, o->stream, elements(call, call->in, 0, call->count), 1);
    else
        link_receive(o->way->link, o->stream, elements(call, call->out, 0, call->count), 0);
    link_end(o->way->link);
    return true;
}

static void follow_up(NcclGroup *g, const Call *call, NcclOp *o) {
    Round round;
    if (!is_message(call) && round_of(g, call, o->round, &round) &&
        (round.kind == EXCHANGE || round.kind == GATHER_ALL))
        add_parts(g, call, o, &round);
    o->round++;
}

// The rank that posts an operation later than others holds up nobody's host: only streams wait.
static void nccl_start(Group *group, const Call *call, void *op) {
    NcclGroup *g = (NcclGroup *)group;
    NcclOp *o = op;
    o->way = nccl_way(g, call);
    o->number = o->way->posted++;
    o->stream = call->blocking && !is_message(call) ? call->stream : o->way->stream;
    if (o->stream != call->stream) o->after = event_record(g->device, call->stream);
}

// The staging buffer is used again.
static void begin(NcclGroup *g, const Call *call, const NcclOp *o) {
    stream_wait(g->device, o->stream, o->after);
    if (!is_message(call)) stream_wait(g->device, o->stream, g->last);
}

static CallProgress nccl_advance(Group *group, const Call *call, void *op) {
    NcclGroup *g = (NcclGroup *)group;
    NcclOp *o = op;
    CallProgress progress = STUCK;
    if (o->way->given != o->number) return STUCK;
    if (!o->round && !o->given) begin(g, call, o);
    for (;; progress = MOVED) {
        if (o->given && !nccl_ready(o->way)) return progress;
        if (o->given) follow_up(g, call, o);
        o->given = give_next(g, call, o);
        if (!o->given) break;
    }
    o->end = event_record(g->device, o->stream);
    o->way->given++;
    if (!is_message(call)) g->last = o->end;
    return DONE;
}

static StreamEvent nccl_ends_at(Group *group, const Call *call, const void *op) {
    (void)group, (void)call;
    return ((const NcclOp *)op)->end;
}

static void nccl_waits_for(Group *group, const Call *call, const void *op, Text *ranks) {
    (void)op;
    for (int r = 0; r < group->size; r++)
        if (is_message(call) ? r == call->peer : r != group->rank) text_add(ranks, " %d", group->members[r]);
}

const Transport nccl_transport = {.op_bytes = sizeof(NcclOp),
                                  .close = nccl_close,
                                  .start = nccl_start,
                                  .advance = nccl_advance,
                                  .ends_at = nccl_ends_at,
                                  .waits_for = nccl_waits_for,
                                  .can_reduce = nccl_can_reduce,
                                  .open_channel = nccl_open_channel,
                                  .watch = nccl_watch};
