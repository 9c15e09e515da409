// The checking transport, which wraps another one: before each collective the ranks of a group compare what they are
// about to do, on a second group of the same ranks, and the job ends with one message when they differ. Messages need
// no comparison: every transport compares the sizes of both ends.
#include "comm/transport.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int64_t number; // of the collective in its group
    int64_t count;
    int op, dtype, reduce, peer;
    int64_t element_bytes;
    char doing[48];
} Signature;

typedef struct {
    Group head;
    Group *calls, *signatures; // two groups of the same ranks
    int64_t num_calls, num_agreed;
} CheckGroup;

// The state of a call: first of the comparison, then of the call itself; both use `inner`.
typedef struct {
    Signature mine;
    Signature *all; // [size]; NULL: the comparison is over, or it is a message
    Call gather;
    _Alignas(max_align_t) unsigned char inner[MAX_OP_BYTES];
} CheckOp;

static const Transport check_transport, check_ordered_transport;

static CheckGroup *check_create(Group *calls, Group *signatures) {
    CheckGroup *g = comm_allocate(1, sizeof *g);
    g->head = *calls;
    g->head.transport = calls->transport->ends_at ? &check_ordered_transport : &check_transport;
    g->calls = calls;
    g->signatures = signatures;
    return g;
}

static Status check_split(Group *parent, const char *name, const int *ranks, int num_ranks, Group **group) {
    Group *inner = ((CheckGroup *)parent)->calls, *calls, *signatures;
    TRY(inner->transport->split(inner, name, ranks, num_ranks, &calls));
    TRY(inner->transport->split(inner, name, ranks, num_ranks, &signatures));
    *group = &check_create(calls, signatures)->head;
    return OK;
}

static void check_close(Group *group) {
    CheckGroup *g = (CheckGroup *)group;
    g->signatures->transport->close(g->signatures);
    g->calls->transport->close(g->calls);
    free(g);
}

// ---- the comparison -------------------------------------------------------------------------------

static bool same(const Signature *a, const Signature *b) {
    return a->number == b->number && a->count == b->count && a->op == b->op && a->dtype == b->dtype &&
           a->reduce == b->reduce && a->peer == b->peer && a->element_bytes == b->element_bytes;
}

static void describe(const Signature *s, Text *text) {
    static const char *const reduce_names[] = {
        [REDUCE_SUM] = "sum", [REDUCE_MAX] = "max", [REDUCE_TREE] = "sum in a tree"};
    bool reduces = s->op == COMM_ALL_REDUCE || s->op == COMM_REDUCE_SCATTER;
    text_add(text, "calls %s", comm_op_name((CommOp)s->op));
    if (s->op == COMM_BARRIER) return;
    if (reduces) text_add(text, " (%s)", reduce_names[s->reduce]);
    if (reduces)
        text_add(text, " of %" PRId64 " %s", s->count, dtype_name((DType)s->dtype));
    else
        text_add(text, " of %" PRId64 " elements of %" PRId64 " bytes", s->count, s->element_bytes);
    if (s->op == COMM_BROADCAST) text_add(text, " from rank %d", s->peer);
}

// All ranks come here at the same time; the first rank of the group prints.
static _Noreturn void disagree(const Group *group, const Signature *all, int other) {
    if (group->rank != 0) {
        sleep(2);
        rank_abort_job(ERR_BUG);
    }
    Text text = {0};
    text_add(&text, "trireme: bug: group %s: rank %d ", group->name, group->members[other]);
    describe(&all[other], &text);
    text_add(&text, " where rank %d ", group->members[0]);
    describe(&all[0], &text);
    text_add(&text, " (call %" PRId64 "; at %s / %s)", all[0].number,
             *all[other].doing ? all[other].doing : "?", *all[0].doing ? all[0].doing : "?");
    for (int i = other + 1, first = 1; i < group->size; i++) {
        if (same(&all[i], &all[0])) continue;
        text_add(&text, first ? "; others that differ: %d" : ", %d", group->members[i]);
        first = 0;
    }
    fprintf(stderr, "%s\n", text_string(&text));
    text_free(&text);
    rank_dump_events(rank_current());
    rank_abort_job(ERR_BUG);
}

static void compare(const Group *group, const Signature *all) {
    for (int i = 1; i < group->size; i++)
        if (!same(&all[i], &all[0])) disagree(group, all, i);
}

// ---- the transport --------------------------------------------------------------------------------

static void check_start(Group *group, const Call *call, void *op) {
    CheckGroup *g = (CheckGroup *)group;
    CheckOp *o = op;
    if (is_message(call)) {
        g->calls->transport->start(g->calls, call, o->inner);
        return;
    }
    bool reduces = call->op == COMM_ALL_REDUCE || call->op == COMM_REDUCE_SCATTER;
    o->mine = (Signature){.number = ++g->num_calls,
                          .count = (int64_t)call->count,
                          .op = (int)call->op,
                          .dtype = reduces ? (int)call->dtype : 0,
                          .reduce = (int)call->reduce,
                          .peer = call->peer,
                          .element_bytes = (int64_t)call->element_bytes};
    memcpy(o->mine.doing, rank_current()->doing, sizeof o->mine.doing);
    o->all = comm_allocate((size_t)group->size, sizeof *o->all);
    o->gather = (Call){.op = COMM_ALL_GATHER,
                       .in = &o->mine,
                       .out = o->all,
                       .count = 1,
                       .element_bytes = sizeof o->mine,
                       .blocking = call->blocking};
    g->signatures->transport->start(g->signatures, &o->gather, o->inner);
}

// Comparisons may end in another order than they started; the calls themselves start in the program's order.
static CallProgress advance_comparison(CheckGroup *g, const Call *call, CheckOp *o) {
    CallProgress progress = STUCK;
    if (o->gather.count) progress = g->signatures->transport->advance(g->signatures, &o->gather, o->inner);
    if (progress == DONE) {
        compare(&g->head, o->all);
        o->gather.count = 0;
    }
    if (o->gather.count || g->num_agreed + 1 != o->mine.number) return progress == DONE ? MOVED : progress;
    g->num_agreed++;
    free(o->all);
    o->all = NULL;
    memset(o->inner, 0, sizeof o->inner);
    g->calls->transport->start(g->calls, call, o->inner);
    return MOVED;
}

static CallProgress check_advance(Group *group, const Call *call, void *op) {
    CheckGroup *g = (CheckGroup *)group;
    CheckOp *o = op;
    if (o->all) {
        CallProgress progress = advance_comparison(g, call, o);
        if (o->all) return progress;
    }
    return g->calls->transport->advance(g->calls, call, o->inner);
}

static void check_waits_for(Group *group, const Call *call, const void *op, Text *ranks) {
    const CheckGroup *g = (const CheckGroup *)group;
    const CheckOp *o = op;
    if (o->all)
        g->signatures->transport->waits_for(g->signatures, &o->gather, o->inner, ranks);
    else
        g->calls->transport->waits_for(g->calls, call, o->inner, ranks);
}

static StreamEvent check_ends_at(Group *group, const Call *call, const void *op) {
    Group *inner = ((CheckGroup *)group)->calls;
    return inner->transport->ends_at(inner, call, ((const CheckOp *)op)->inner);
}

static void check_wake(Group *group) {
    Group *inner = ((CheckGroup *)group)->calls;
    if (inner->transport->wake) inner->transport->wake(inner);
}

static void check_pause(Group *world, int turns) {
    Group *inner = ((CheckGroup *)world)->calls;
    inner->transport->pause(inner, turns);
}

static void check_poll(Group *world) {
    Group *inner = ((CheckGroup *)world)->calls;
    if (inner->transport->poll) inner->transport->poll(inner);
}

static void check_report(Group *world) {
    Group *inner = ((CheckGroup *)world)->calls;
    if (inner->transport->report) inner->transport->report(inner);
}

static const Transport check_transport = {.op_bytes = sizeof(CheckOp),
                                          .follows_addresses = true,
                                          .split = check_split,
                                          .close = check_close,
                                          .start = check_start,
                                          .advance = check_advance,
                                          .waits_for = check_waits_for,
                                          .pause = check_pause,
                                          .poll = check_poll,
                                          .wake = check_wake,
                                          .report = check_report};

static Status check_open_channel(Group *group, int from, int to, int channel) {
    Group *inner = ((CheckGroup *)group)->calls;
    return inner->transport->open_channel ? inner->transport->open_channel(inner, from, to, channel) : OK;
}

static Status check_can_reduce(const Group *group, DType dtype, ReduceOp op) {
    const Group *inner = ((const CheckGroup *)group)->calls;
    return inner->transport->can_reduce ? inner->transport->can_reduce(inner, dtype, op) : OK;
}

static void check_watch(Group *group) {
    Group *inner = ((CheckGroup *)group)->calls;
    if (inner->transport->watch) inner->transport->watch(inner);
}

// Around a device transport, whose groups are never split.
static const Transport check_ordered_transport = {.op_bytes = sizeof(CheckOp),
                                                  .close = check_close,
                                                  .start = check_start,
                                                  .advance = check_advance,
                                                  .ends_at = check_ends_at,
                                                  .can_reduce = check_can_reduce,
                                                  .open_channel = check_open_channel,
                                                  .watch = check_watch,
                                                  .waits_for = check_waits_for};

// A second group of all ranks of `group`, for their signatures.
static Status open_signatures(Group *group, Group **signatures) {
    int *all = comm_allocate((size_t)group->size, sizeof *all);
    for (int i = 0; i < group->size; i++) all[i] = i;
    Status status = group->transport->split(group, group->name, all, group->size, signatures);
    free(all);
    return status;
}

Status check_wrap(Group *inner, Group **wrapped) {
    Group *signatures;
    if (!inner->transport->follows_addresses || inner->size == 1) {
        *wrapped = inner;
        return OK;
    }
    TRY(open_signatures(inner, &signatures));
    *wrapped = &check_create(inner, signatures)->head;
    return OK;
}

Status check_wrap_device(Group *host, Group *inner, Group **wrapped) {
    Group *signatures;
    TRY(open_signatures(((CheckGroup *)host)->calls, &signatures));
    *wrapped = &check_create(inner, signatures)->head;
    return OK;
}
