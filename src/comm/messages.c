// Messages and collectives made of messages between pairs: starts them, exchange by exchange, and tests them.
#include "comm/messages.h"
#include <stdlib.h>
#include <string.h>

enum {
    SMALL_BYTES = 4096,
    SCRATCH_BYTES = 2 << 20,            // the parts of one segment
    COLLECTIVE_TAGS = 2 * MAX_CHANNELS, // so many from here; and MPI promises tags up to 32767
};

// Values in Workspace.peers that are no rank: the message is done, or it waits for all other ranks.
enum { NO_RANK = -1, ALL_RANKS = -2 };

static void open_workspace(Workspace *w, size_t size) {
    w->mails = comm_allocate(2 * size, sizeof(Mail));
    w->peers = comm_allocate(2 * size, sizeof(int));
    w->scratch = comm_allocate(size > 1 ? SCRATCH_BYTES : 0, 1);
}

void messages_open(Messages *messages, MailTable table, const Group *group) {
    *messages = (Messages){.table = table, .group = group};
    messages->parts = comm_allocate((size_t)group->size, sizeof *messages->parts);
    for (int i = 0; i < MESSAGES_IN_FLIGHT; i++) open_workspace(&messages->works[i], (size_t)group->size);
}

void messages_close(Messages *messages) {
    for (int i = 0; i < MESSAGES_IN_FLIGHT; i++) {
        Workspace *w = &messages->works[i];
        if (w->busy) continue; // after an error: other ranks may still write to it
        free(w->mails);
        free(w->peers);
        free(w->scratch);
    }
    free(messages->parts);
}

// ---- the exchanges that collectives are made of -----------------------------------------------------------

typedef struct {
    Messages *m;
    const Call *call;
    MessagesOp *op;
} Step;

// Returns whether there are so few elements that every rank receives those of all ranks.
static bool is_small(const Messages *m, const Call *call) {
    size_t bytes = call->count * call->element_bytes;
    return bytes <= SMALL_BYTES && bytes * (size_t)m->group->size <= SCRATCH_BYTES;
}

// Elements of each rank in one segment. The slices of an all-reduce may differ by one element, which needs room.
static size_t segment_elements(const Messages *m, const Call *call) {
    size_t fit = call->count, size = (size_t)m->group->size;
    if (call->op == COMM_REDUCE_SCATTER) fit = SCRATCH_BYTES / call->element_bytes / size;
    if (call->op == COMM_ALL_REDUCE && !is_small(m, call)) fit = SCRATCH_BYTES / call->element_bytes - size;
    CHECK(fit > 0 || !call->count, "%d ranks are too many for %d bytes", m->group->size, SCRATCH_BYTES);
    return fit < call->count ? fit : call->count;
}

// Returns the first element of the part of the segment that `rank` reduces.
static size_t first_of(const Step *s, int rank) {
    if (s->call->op == COMM_REDUCE_SCATTER) return (size_t)rank * s->call->count + s->op->first;
    return s->op->first + slice_begin(s->op->length, s->m->group->size, rank);
}

static size_t elements_of(const Step *s, int rank) {
    if (s->call->op == COMM_REDUCE_SCATTER) return s->op->length;
    return first_of(s, rank + 1) - first_of(s, rank);
}

static void add_mail(const Step *s, Mail mail, int peer) {
    Workspace *w = s->op->work;
    w->peers[w->num_mails] = peer;
    w->mails[w->num_mails++] = mail;
}

// Segments of one collective share its tags: messages between two ranks do not overtake each other.
static int tag_of(const Step *s) {
    return COLLECTIVE_TAGS + (int)(s->op->number * 2 % (unsigned)COLLECTIVE_TAGS) + s->op->step;
}

static void send_to(const Step *s, int rank, const void *from, size_t elements) {
    const MailTable *table = &s->m->table;
    add_mail(s, table->send(table->self, from, elements * s->call->element_bytes, rank, tag_of(s)), rank);
}

static void recv_from(const Step *s, int rank, void *to, size_t elements) {
    const MailTable *table = &s->m->table;
    add_mail(s, table->recv(table->self, to, elements * s->call->element_bytes, rank, tag_of(s)), rank);
}

// Receives every rank's part of this rank's slice in the scratch, and sends theirs.
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

// Sends this rank's `mine` elements at `own` to every rank, and receives theirs in `out`, rank r's at element at(r).
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

// ---- one function per collective: starts the next exchange, or returns false when the segment is done -----

static bool all_reduce_step(const Step *s) {
    const Call *call = s->call;
    char *out = call->out;
    int me = s->m->group->rank;
    size_t first = first_of(s, me) * call->element_bytes, mine = elements_of(s, me);
    if (is_small(s->m, call)) {
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

// Leaves the sum to the table, which adds in an order of its choice.
static bool sum_by_table_step(const Step *s) {
    const Call *call = s->call;
    const MailTable *table = &s->m->table;
    char *out = (char *)call->out + s->op->first * call->element_bytes;
    if (s->op->step > 0) return false;
    add_mail(s, table->sum(table->self, out, s->op->length, call->dtype), ALL_RANKS);
    return true;
}

static bool reduce_scatter_step(const Step *s) {
    const Call *call = s->call;
    size_t element = call->element_bytes, mine = first_of(s, s->m->group->rank);
    if (s->op->step == 0)
        scatter(s);
    else
        reduce(s, (char *)call->out + s->op->first * element, (const char *)call->in + mine * element,
               s->op->length);
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

static bool all_to_all_step(const Step *s) {
    const Call *call = s->call;
    const Group *group = s->m->group;
    const char *in = call->in;
    char *out = call->out;
    size_t bytes = call->count * call->element_bytes, own = (size_t)group->rank * bytes;
    if (s->op->step > 0) return false;
    if (bytes) memcpy(out + own, in + own, bytes);
    for (int i = 1; i < group->size; i++) {
        int peer = (group->rank + i) % group->size;
        recv_from(s, peer, out + (size_t)peer * bytes, call->count);
    }
    for (int i = 1; i < group->size; i++) {
        int peer = (group->rank + i) % group->size;
        send_to(s, peer, in + (size_t)peer * bytes, call->count);
    }
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

// Rank 0 receives a message from every rank, then sends one to every rank.
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
    [COMM_ALL_GATHER] = all_gather_step, [COMM_ALL_TO_ALL] = all_to_all_step,
    [COMM_BROADCAST] = broadcast_step,   [COMM_BARRIER] = barrier_step,
};

// ---- the state machine ---------------------------------------------------------------------------------

// Sums only: MPI may lose a NaN in a maximum, and has no 16-bit floating point.
static bool left_to_table(const Messages *m, const Call *call) {
    return m->table.sum && call->op == COMM_ALL_REDUCE && call->reduce == REDUCE_SUM &&
           (call->dtype == F32 || call->dtype == F64);
}

static bool post_step(Messages *m, const Call *call, MessagesOp *op) {
    const Step s = {m, call, op};
    return left_to_table(m, call) ? sum_by_table_step(&s) : steps[call->op](&s);
}

static void post_segment(Messages *m, const Call *call, MessagesOp *op, size_t first) {
    size_t most = segment_elements(m, call), left = call->count - first;
    op->first = first;
    op->length = left < most ? left : most;
    op->step = 0;
    post_step(m, call, op);
}

static Workspace *idle_workspace(Messages *m) {
    for (int i = 0; i < MESSAGES_IN_FLIGHT; i++)
        if (!m->works[i].busy) return &m->works[i];
    return NULL;
}

// Collectives get their turns in the order of their start, the same on all ranks: the oldest one always advances.
static bool take_turn(Messages *m, const Call *call, MessagesOp *op) {
    Workspace *w = op->number == m->num_posted ? idle_workspace(m) : NULL;
    if (!w) return false;
    m->num_posted++;
    w->busy = true;
    op->work = w;
    post_segment(m, call, op, 0);
    return true;
}

void messages_start(Messages *m, const Call *call, MessagesOp *op) {
    const MailTable *table = &m->table;
    size_t bytes = call->count * call->element_bytes;
    op->message = MAIL_NONE;
    if (call->op == COMM_SEND)
        op->message = table->send(table->self, call->in, bytes, call->peer, call->channel);
    if (call->op == COMM_RECV)
        op->message = table->recv(table->self, call->out, bytes, call->peer, call->channel);
    if (is_message(call)) return;
    op->number = m->num_started++;
    op->moves = m->moves;
    take_turn(m, call, op);
}

static CallProgress advance_message(const Messages *m, const Call *call, MessagesOp *op) {
    size_t bytes, wanted = call->count * call->element_bytes;
    MailState state = m->table.test(m->table.self, &op->message, &bytes);
    CHECK(state != MAIL_TOO_LONG, "group %s: rank %d sends more than the %zu bytes expected on channel %d",
          m->group->name, m->group->members[call->peer], wanted, call->channel);
    if (state != MAIL_DONE) return state == MAIL_MOVED ? MOVED : STUCK;
    if (call->op == COMM_RECV)
        check_message_size(m->group, call->peer, m->group->rank, call->channel, bytes, wanted);
    return DONE;
}

// MOVED while the collectives ahead advance: a wait for them is not a hang.
static CallProgress wait_for_turn(const Messages *m, MessagesOp *op) {
    CallProgress progress = op->moves == m->moves ? STUCK : MOVED;
    op->moves = m->moves;
    return progress;
}

static CallProgress test_mails(const Messages *m, Workspace *w) {
    CallProgress progress = m->table.test_all(m->table.self, w->mails, w->num_mails);
    for (int i = 0; i < w->num_mails; i++)
        if (w->mails[i] == MAIL_NONE) w->peers[i] = NO_RANK;
    return progress;
}

// The next exchange of the segment, or the next segment; false when all is done.
static bool post_next(Messages *m, const Call *call, MessagesOp *op) {
    op->work->num_mails = 0;
    op->step++;
    if (post_step(m, call, op)) return true;
    if (op->first + op->length >= call->count) return false;
    post_segment(m, call, op, op->first + op->length);
    return true;
}

static CallProgress advance_collective(Messages *m, const Call *call, MessagesOp *op) {
    for (CallProgress progress = STUCK;; progress = MOVED) {
        CallProgress tested = test_mails(m, op->work);
        if (tested == STUCK) return progress;
        if (tested == DONE && !post_next(m, call, op)) return DONE;
    }
}

CallProgress messages_advance(Messages *m, const Call *call, MessagesOp *op) {
    if (is_message(call)) return advance_message(m, call, op);
    if (!op->work && !take_turn(m, call, op)) return wait_for_turn(m, op);
    CallProgress progress = advance_collective(m, call, op);
    m->moves += progress != STUCK;
    op->work->busy = progress != DONE;
    return progress;
}

static bool waits_for(const Workspace *w, int rank, int me) {
    for (int i = 0; w->busy && i < w->num_mails; i++)
        if (w->peers[i] == rank || (w->peers[i] == ALL_RANKS && rank != me)) return true;
    return false;
}

// A collective whose turn has not come waits for the ranks that the collectives ahead wait for.
void messages_waits_for(const Messages *m, const Call *call, const MessagesOp *op, Text *ranks) {
    const Group *group = m->group;
    for (int r = 0; r < group->size; r++) {
        bool waits = is_message(call) && r == call->peer;
        for (int i = 0; !is_message(call) && i < MESSAGES_IN_FLIGHT; i++)
            if (!op->work || op->work == &m->works[i]) waits |= waits_for(&m->works[i], r, group->rank);
        if (waits) text_add(ranks, " %d", group->members[r]);
    }
}
