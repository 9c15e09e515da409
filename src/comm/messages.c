#include "comm/messages.h"
#include "comm/reduce.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    SMALL_BYTES = 4096,
    COLLECTIVE_TAGS = MAX_CHANNELS, // channels are the tags below; MPI promises tags up to 32767
};

#define MPI_DO(call)                                                                                         \
    do {                                                                                                     \
        int rc_ = (call);                                                                                    \
        CHECK(rc_ == MPI_SUCCESS, "MPI error %d in " #call, rc_);                                            \
    } while (0)

void messages_open(Messages *messages, MPI_Comm comm, const Group *group, bool deterministic) {
    *messages = (Messages){.comm = comm, .group = group, .deterministic = deterministic};
    messages->parts = comm_allocate((size_t)group->size, sizeof *messages->parts);
}

void messages_close(Messages *messages) {
    for (Workspace *w = messages->idle, *next; w; w = next) {
        next = w->next;
        free(w->requests);
        free(w->indices);
        free(w->peers);
        free(w->scratch);
        free(w);
    }
    free(messages->parts);
}

// ---- posting ------------------------------------------------------------------------------------------

// A count and type for so many bytes: MPI counts are int, so longer messages are one element of a type of their own.
static MPI_Datatype bytes_as(size_t bytes, int *count) {
    enum { UNIT = 1 << 20 };
    *count = (int)bytes;
    if (bytes <= INT_MAX) return MPI_BYTE;
    MPI_Datatype unit, whole;
    int lengths[2] = {(int)(bytes / UNIT), (int)(bytes % UNIT)};
    MPI_Aint at[2] = {0, (MPI_Aint)(bytes - bytes % UNIT)};
    MPI_DO(MPI_Type_contiguous(UNIT, MPI_BYTE, &unit));
    MPI_DO(MPI_Type_create_struct(2, lengths, at, (MPI_Datatype[]){unit, MPI_BYTE}, &whole));
    MPI_DO(MPI_Type_commit(&whole));
    MPI_DO(MPI_Type_free(&unit));
    *count = 1;
    return whole;
}

static MPI_Request post_send(const Messages *m, const void *from, size_t bytes, int to, int tag) {
    int count;
    MPI_Request request;
    MPI_Datatype type = bytes_as(bytes, &count);
    MPI_DO(MPI_Isend(from, count, type, to, tag, m->comm, &request));
    if (type != MPI_BYTE) MPI_DO(MPI_Type_free(&type)); // lives on until the message is sent
    return request;
}

static MPI_Request post_recv(const Messages *m, void *to, size_t bytes, int from, int tag) {
    int count;
    MPI_Request request;
    MPI_Datatype type = bytes_as(bytes, &count);
    MPI_DO(MPI_Irecv(to, count, type, from, tag, m->comm, &request));
    if (type != MPI_BYTE) MPI_DO(MPI_Type_free(&type));
    return request;
}

// ---- workspaces -----------------------------------------------------------------------------------------

static Workspace *take_workspace(Messages *m, size_t scratch_bytes) {
    Workspace *w = m->idle;
    size_t twice = 2 * (size_t)m->group->size;
    if (w) {
        m->idle = w->next;
    } else {
        w = comm_allocate(1, sizeof *w);
        w->requests = comm_allocate(twice, sizeof *w->requests);
        w->indices = comm_allocate(twice, sizeof *w->indices);
        w->peers = comm_allocate(twice, sizeof *w->peers);
    }
    if (w->scratch_bytes < scratch_bytes) {
        free(w->scratch);
        w->scratch = comm_allocate(scratch_bytes, 1);
        w->scratch_bytes = scratch_bytes;
    }
    w->num_requests = 0;
    return w;
}

static void give_back(Messages *m, Workspace *w) {
    w->next = m->idle;
    m->idle = w;
}

static void add_request(Workspace *w, MPI_Request request, int peer) {
    w->peers[w->num_requests] = peer;
    w->requests[w->num_requests++] = request;
}

// ---- the exchanges that collectives are made of -----------------------------------------------------------

typedef struct {
    Messages *m;
    const Call *call;
    MessagesOp *op;
} Step;

static bool is_small(const Call *call) { return call->count * call->element_bytes <= SMALL_BYTES; }

// The slice of the call that `rank` reduces, in elements.
static size_t first_of(const Step *s, int rank) {
    const Call *call = s->call;
    return call->op == COMM_REDUCE_SCATTER ? (size_t)rank * call->count
                                           : slice_begin(call->count, s->m->group->size, rank);
}

static size_t elements_of(const Step *s, int rank) { return first_of(s, rank + 1) - first_of(s, rank); }

static void send_to(const Step *s, int rank, const void *from, size_t elements) {
    add_request(s->op->work,
                post_send(s->m, from, elements * s->call->element_bytes, rank, s->op->tag + s->op->step),
                rank);
}

static void recv_from(const Step *s, int rank, void *to, size_t elements) {
    add_request(s->op->work,
                post_recv(s->m, to, elements * s->call->element_bytes, rank, s->op->tag + s->op->step), rank);
}

// Every rank's part of my slice comes to my scratch.
static void scatter(const Step *s) {
    const Group *group = s->m->group;
    size_t element = s->call->element_bytes, mine = elements_of(s, group->rank);
    for (int i = 1; i < group->size; i++) {
        int peer = (group->rank + i) % group->size;
        recv_from(s, peer, s->op->work->scratch + (size_t)peer * mine * element, mine);
    }
    for (int i = 1; i < group->size; i++) {
        int peer = (group->rank + i) % group->size;
        send_to(s, peer, (const char *)s->call->in + first_of(s, peer) * element, elements_of(s, peer));
    }
}

static void reduce(const Step *s, char *out, const char *own, size_t elements) {
    const Group *group = s->m->group;
    size_t bytes = elements * s->call->element_bytes;
    for (int r = 0; r < group->size; r++)
        s->m->parts[r] = r == group->rank ? own : s->op->work->scratch + (size_t)r * bytes;
    reduce_in_order(out, s->m->parts, group->size, elements, s->call->dtype, s->call->reduce);
}

// Everybody's `mine` elements, which I have at `own`, go to everybody's `out`, rank r's to element at(r).
static void gather(const Step *s, const char *own, size_t mine, size_t (*at)(const Step *, int), char *out) {
    const Group *group = s->m->group;
    size_t element = s->call->element_bytes;
    for (int i = 1; i < group->size; i++) {
        int peer = (group->rank + i) % group->size;
        recv_from(s, peer, out + at(s, peer) * element, at(s, peer + 1) - at(s, peer));
    }
    for (int i = 1; i < group->size; i++) send_to(s, (group->rank + i) % group->size, own, mine);
}

static size_t whole(const Step *s, int rank) { return (size_t)rank * s->call->count; }

// ---- one function per collective: posts the next exchange, or returns false when all is done -----------------

static bool all_reduce_step(const Step *s) {
    const Call *call = s->call;
    char *out = call->out;
    int me = s->m->group->rank;
    size_t first = first_of(s, me) * call->element_bytes, mine = elements_of(s, me);
    if (is_small(call)) {
        if (s->op->step == 0)
            gather(s, call->in, call->count, whole, s->op->work->scratch);
        else
            reduce(s, out, call->in, call->count);
        return s->op->step == 0;
    }
    if (s->op->step == 0) scatter(s);
    if (s->op->step == 1) {
        reduce(s, out + first, out + first, mine);
        gather(s, out + first, mine, first_of, out);
    }
    return s->op->step < 2;
}

static bool reduce_scatter_step(const Step *s) {
    const Call *call = s->call;
    if (s->op->step == 0)
        scatter(s);
    else
        reduce(s, call->out, (const char *)call->in + first_of(s, s->m->group->rank) * call->element_bytes,
               call->count);
    return s->op->step == 0;
}

static bool all_gather_step(const Step *s) {
    const Call *call = s->call;
    if (s->op->step > 0) return false;
    char *own = (char *)call->out + whole(s, s->m->group->rank) * call->element_bytes;
    if (own != call->in && call->count) memcpy(own, call->in, call->count * call->element_bytes);
    gather(s, own, call->count, whole, call->out);
    return true;
}

static bool broadcast_step(const Step *s) {
    const Call *call = s->call;
    const Group *group = s->m->group;
    if (s->op->step > 0) return false;
    if (group->rank != call->peer) recv_from(s, call->peer, call->out, call->count);
    for (int r = 0; group->rank == call->peer && r < group->size; r++)
        if (r != group->rank) send_to(s, r, call->in, call->count);
    return true;
}

// Rank 0 hears from all, then tells all.
static bool barrier_step(const Step *s) {
    const Group *group = s->m->group;
    bool up = s->op->step == 0;
    if (s->op->step > 1) return false;
    for (int r = 1; r < group->size; r++) {
        int peer = group->rank ? 0 : r;
        if (group->rank && group->rank != r) continue;
        if (up == (group->rank == 0))
            recv_from(s, peer, NULL, 0);
        else
            send_to(s, peer, NULL, 0);
    }
    return true;
}

static bool (*const steps[])(const Step *) = {
    [COMM_ALL_REDUCE] = all_reduce_step, [COMM_REDUCE_SCATTER] = reduce_scatter_step,
    [COMM_ALL_GATHER] = all_gather_step, [COMM_BROADCAST] = broadcast_step,
    [COMM_BARRIER] = barrier_step,
};

// ---- the state machine ---------------------------------------------------------------------------------

static bool is_message(const Call *call) { return call->op == COMM_SEND || call->op == COMM_RECV; }

static size_t scratch_bytes(const Messages *m, const Call *call) {
    size_t size = (size_t)m->group->size, element = call->element_bytes;
    if (call->op == COMM_REDUCE_SCATTER || (call->op == COMM_ALL_REDUCE && is_small(call)))
        return size * call->count * element;
    return call->op == COMM_ALL_REDUCE ? (call->count + size * size) * element : 0;
}

// MPI's own sum, in an order of its choice; it may not keep NaN in a maximum, so it only sums.
static bool left_to_mpi(const Messages *m, const Call *call) {
    return !m->deterministic && call->op == COMM_ALL_REDUCE && call->reduce == REDUCE_SUM &&
           call->count <= INT_MAX;
}

void messages_start(Messages *m, const Call *call, MessagesOp *op) {
    size_t bytes = call->count * call->element_bytes;
    op->message = MPI_REQUEST_NULL;
    if (call->op == COMM_SEND) op->message = post_send(m, call->in, bytes, call->peer, call->channel);
    if (call->op == COMM_RECV) op->message = post_recv(m, call->out, bytes, call->peer, call->channel);
    if (is_message(call)) return;
    op->tag = COLLECTIVE_TAGS + (int)(m->num_calls++ * 2 % (unsigned)COLLECTIVE_TAGS);
    op->work = take_workspace(m, left_to_mpi(m, call) ? 0 : scratch_bytes(m, call));
    if (!left_to_mpi(m, call)) {
        steps[call->op](&(Step){m, call, op});
        return;
    }
    MPI_Request request;
    MPI_DO(MPI_Iallreduce(MPI_IN_PLACE, call->out, (int)call->count,
                          call->dtype == F64 ? MPI_DOUBLE : MPI_FLOAT, MPI_SUM, m->comm, &request));
    add_request(op->work, request, m->group->rank);
}

static Progress advance_message(const Messages *m, const Call *call, MessagesOp *op) {
    int done;
    MPI_Status status;
    int rc = MPI_Test(&op->message, &done, &status);
    CHECK(rc == MPI_SUCCESS,
          "group %s: rank %d sends more than the %zu bytes expected on channel %d (MPI error %d)",
          m->group->name, m->group->members[call->peer], call->count * call->element_bytes, call->channel,
          rc);
    if (!done) return STUCK;
    MPI_Count bytes = 0;
    if (call->op == COMM_RECV) MPI_DO(MPI_Get_elements_x(&status, MPI_BYTE, &bytes));
    CHECK(call->op == COMM_SEND || (size_t)bytes == call->count * call->element_bytes,
          "group %s: rank %d sends %lld bytes on channel %d to rank %d, which expects %zu", m->group->name,
          m->group->members[call->peer], (long long)bytes, call->channel, m->group->members[m->group->rank],
          call->count * call->element_bytes);
    return DONE;
}

Progress messages_advance(Messages *m, const Call *call, MessagesOp *op) {
    if (is_message(call)) return advance_message(m, call, op);
    Workspace *w = op->work;
    Progress progress = STUCK;
    for (;;) {
        int done = 0;
        MPI_DO(MPI_Testsome(w->num_requests, w->requests, &done, w->indices, MPI_STATUSES_IGNORE));
        if (done > 0) progress = MOVED;
        bool all = done == MPI_UNDEFINED; // no request is left
        for (int i = 0; !all && i < done; i++) w->peers[w->indices[i]] = -1;
        if (!all && done == 0) return progress;
        if (!all) continue;
        w->num_requests = 0;
        op->step++;
        if (left_to_mpi(m, call) || !steps[call->op](&(Step){m, call, op})) break;
    }
    give_back(m, w);
    return DONE;
}

void messages_waits_for(const Messages *m, const Call *call, const MessagesOp *op, Text *ranks) {
    const Group *group = m->group;
    if (is_message(call)) {
        text_add(ranks, " %d", group->members[call->peer]);
        return;
    }
    for (int r = 0; r < group->size; r++)
        for (int i = 0; i < op->work->num_requests; i++) {
            if (op->work->peers[i] != r) continue;
            text_add(ranks, " %d", group->members[r]);
            break;
        }
}
