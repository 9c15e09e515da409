// The posts of the ring, and the walk that proves them.
#include "layout/ring.h"
#include <stdlib.h>

static bool applies(const KeyRing *ring, RingOp op) {
    switch (op) {
    case RING_RECEIVE_KEYS:
    case RING_SEND_KEYS:
    case RING_WAIT_KEYS: return ring->turn + 1 < ring->ranks;
    case RING_ATTEND: return ring->turn < ring->ranks;
    case RING_WAIT_SUMS: return ring->backward && ring->turn > 0;
    case RING_ADD: return ring->backward && ring->turn > 0 && ring->turn < ring->ranks;
    default: return ring->backward && ring->turn < ring->ranks;
    }
}

bool ring_next(KeyRing *ring, RingPost *post) {
    for (; ring->turn <= ring->ranks; ring->turn++, ring->next = 0)
        while (ring->next < NUM_RING_OPS) {
            RingOp op = (RingOp)ring->next++;
            bool ahead = op == RING_RECEIVE_KEYS || op == RING_RECEIVE_SUMS;
            int turn = ring->turn + ahead;
            if (!applies(ring, op)) continue;
            *post = (RingPost){op, turn % 2, (2 * ring->ranks + ring->rank - turn) % ring->ranks};
            return true;
        }
    return false;
}

// ---- the walk -----------------------------------------------------------------------------------------------

// What a buffer holds: the keys of a block, or sums of its gradients of `count` ranks, the last of them `last`.
typedef struct {
    int block, count, last;
    bool sent, received; // posted, and not awaited yet
} Content;

// What one rank has of keys, or of sums: its buffers, how many sends and receives it has posted, and the last of them.
typedef struct {
    Content buffers[2];
    int sends, receives, send, receive;
} Traffic;

typedef struct {
    KeyRing ring;
    RingPost post;
    Traffic traffic[2]; // of keys, of sums
    int attended;
    bool over;
} Walker;

typedef struct {
    Walker *walkers;
    int ranks;
    bool backward;
} Walk;

static Status broken(const Walk *walk, int rank, const char *what) {
    const RingPost *post = &walk->walkers[rank].post;
    return fail(ERR_BUG, "ring of %d ranks: rank %d, operation %d on buffer %d for block %d: %s", walk->ranks,
                rank, post->op, post->buffer, post->block, what);
}

// Moves the content of a message whose two ends are posted.
static void deliver(const Walk *walk, int from, int kind) {
    const Traffic *sender = &walk->walkers[from].traffic[kind];
    Traffic *receiver = &walk->walkers[(from + 1) % walk->ranks].traffic[kind];
    if (sender->sends != receiver->receives) return;
    Content *to = &receiver->buffers[receiver->receive];
    const Content *what = &sender->buffers[sender->send];
    to->block = what->block, to->count = what->count, to->last = what->last;
}

static bool are_over(const Walk *walk, int rank, int kind) {
    int before = (rank + walk->ranks - 1) % walk->ranks, after = (rank + 1) % walk->ranks;
    const Traffic *mine = &walk->walkers[rank].traffic[kind];
    return walk->walkers[before].traffic[kind].sends >= mine->receives &&
           walk->walkers[after].traffic[kind].receives >= mine->sends;
}

static Status post_message(const Walk *walk, int rank, int kind, bool sends) {
    Walker *w = &walk->walkers[rank];
    Traffic *traffic = &w->traffic[kind];
    Content *buffer = &traffic->buffers[w->post.buffer];
    if (buffer->received || (!sends && buffer->sent)) return broken(walk, rank, "the buffer is in use");
    if (sends && buffer->block != w->post.block) return broken(walk, rank, "the buffer has another block");
    if (sends)
        buffer->sent = true, traffic->send = w->post.buffer, traffic->sends++;
    else
        buffer->received = true, traffic->receive = w->post.buffer, traffic->receives++;
    deliver(walk, sends ? rank : (rank + walk->ranks - 1) % walk->ranks, kind);
    return OK;
}

static void end_messages(Walker *w, int kind) {
    for (int i = 0; i < 2; i++)
        w->traffic[kind].buffers[i].sent = w->traffic[kind].buffers[i].received = false;
}

static Status attend(const Walk *walk, int rank) {
    Walker *w = &walk->walkers[rank];
    const Content *keys = &w->traffic[0].buffers[w->post.buffer];
    Content *sums = &w->traffic[1].buffers[0];
    if (keys->received || keys->block != w->post.block) return broken(walk, rank, "the keys are not there");
    if (keys->block != (rank + walk->ranks - w->attended) % walk->ranks)
        return broken(walk, rank, "it is not this block's turn");
    if (walk->backward && w->attended == 0) {
        if (sums->sent || sums->received) return broken(walk, rank, "the buffer of sums is in use");
        *sums = (Content){.block = rank, .count = 1, .last = rank};
    }
    w->attended++;
    return OK;
}

static Status add_share(const Walk *walk, int rank) {
    Walker *w = &walk->walkers[rank];
    Content *sums = &w->traffic[1].buffers[w->post.buffer];
    if (sums->sent || sums->received || sums->block != w->post.block)
        return broken(walk, rank, "the sums are not there");
    if (sums->last != (rank + walk->ranks - 1) % walk->ranks || sums->count != w->attended - 1)
        return broken(walk, rank, "the sums are added in another order");
    sums->last = rank, sums->count++;
    return OK;
}

// Does the rank's next operation, unless that waits; `moved` says whether it did.
static Status step(const Walk *walk, int rank, bool *moved) {
    Walker *w = &walk->walkers[rank];
    RingOp op = w->post.op;
    int kind = op == RING_WAIT_SUMS || op == RING_RECEIVE_SUMS || op == RING_SEND_SUMS;
    bool waits = op == RING_WAIT_KEYS || op == RING_WAIT_SUMS;
    if (w->over || (waits && !are_over(walk, rank, kind))) return OK;
    *moved = true;
    if (waits)
        end_messages(w, kind);
    else if (op == RING_ATTEND)
        TRY(attend(walk, rank));
    else if (op == RING_ADD)
        TRY(add_share(walk, rank));
    else
        TRY(post_message(walk, rank, kind, op == RING_SEND_KEYS || op == RING_SEND_SUMS));
    w->over = !ring_next(&w->ring, &w->post);
    return OK;
}

static Status check_end(const Walk *walk, int rank) {
    const Walker *w = &walk->walkers[rank];
    const Content *sums = &w->traffic[1].buffers[w->post.buffer];
    if (!w->over) return broken(walk, rank, "it waits for ever");
    if (w->attended != walk->ranks) return broken(walk, rank, "it has not attended to every block");
    if (walk->backward && (sums->block != rank || sums->count != walk->ranks))
        return broken(walk, rank, "the sums of its own block are not complete");
    for (int kind = 0; kind < 2; kind++)
        for (int i = 0; i < 2; i++)
            if (w->traffic[kind].buffers[i].sent || w->traffic[kind].buffers[i].received)
                return broken(walk, rank, "a message is not awaited");
    return OK;
}

static Status walk_through(const Walk *walk) {
    for (int rank = 0; rank < walk->ranks; rank++) {
        Walker *w = &walk->walkers[rank];
        *w = (Walker){.ring = {.ranks = walk->ranks, .rank = rank, .backward = walk->backward}};
        w->traffic[0].buffers[0].block = rank;
        w->over = !ring_next(&w->ring, &w->post);
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < walk->ranks; rank++) TRY(step(walk, rank, &moved));
    }
    for (int rank = 0; rank < walk->ranks; rank++) TRY(check_end(walk, rank));
    return OK;
}

Status ring_verify(int ranks, bool backward) {
    Walk walk = {calloc((size_t)ranks, sizeof *walk.walkers), ranks, backward};
    if (!walk.walkers) return fail(ERR_OS, "no memory for a ring of %d ranks", ranks);
    Status status = walk_through(&walk);
    free(walk.walkers);
    return status;
}
