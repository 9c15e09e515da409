// Sends and receives messages through ring buffers in shared memory.
#include "comm/mpi/rings.h"
#include "comm/mpi/mail.h"
#include <string.h>

_Static_assert(NUM_RINGS * sizeof(Ring) <= RINGS_HEADER_BYTES, "room for the states");

enum { PIECE_BYTES = 64 << 10 }; // after so many bytes the other side may go on: both copy at the same time

static Ring *ring_of(const Rings *r, int rank, int ring) { return (Ring *)(void *)r->parts[rank] + ring; }

static char *bytes_of(const Rings *r, int rank, int ring) {
    return r->parts[rank] + RINGS_HEADER_BYTES + (size_t)ring * RING_BYTES;
}

// ---- sending ------------------------------------------------------------------------------------------

// Takes the first free ring: the same few pages are used again and again. -1: none is free.
static int take_ring(Rings *r, uint64_t bytes) {
    for (int i = 0; i < NUM_RINGS; i++) {
        Ring *ring = ring_of(r, r->group->rank, i);
        if (atomic_load_explicit(&ring->taken, memory_order_acquire) != r->sizes[i]) continue;
        atomic_store_explicit(&ring->written, 0, memory_order_relaxed);
        atomic_store_explicit(&ring->taken, 0, memory_order_relaxed);
        r->sizes[i] = bytes;
        return i;
    }
    return -1;
}

// Returns how many of `available` bytes can be copied at once, to or from position `at` of the message.
static size_t piece(uint64_t available, uint64_t at) {
    uint64_t to_end = RING_BYTES - at % RING_BYTES, n = available < to_end ? available : to_end;
    return n < PIECE_BYTES ? (size_t)n : PIECE_BYTES;
}

static CallProgress push(const Rings *r, const Call *call, RingsOp *op) {
    Ring *ring = ring_of(r, r->group->rank, op->envelope.ring);
    char *bytes = bytes_of(r, r->group->rank, op->envelope.ring);
    uint64_t before = op->moved, all = (uint64_t)op->envelope.bytes;
    while (op->moved < all) {
        uint64_t room = RING_BYTES - (op->moved - atomic_load_explicit(&ring->taken, memory_order_acquire));
        if (!room) break;
        size_t n = piece(room < all - op->moved ? room : all - op->moved, op->moved);
        memcpy(bytes + op->moved % RING_BYTES, (const char *)call->in + op->moved, n);
        op->moved += n;
        atomic_store_explicit(&ring->written, op->moved, memory_order_release);
    }
    return op->moved == all ? DONE : op->moved > before ? MOVED : STUCK;
}

static void start_send(Rings *r, const Call *call, RingsOp *op) {
    size_t bytes = call->count * call->element_bytes;
    op->envelope = (Envelope){(int64_t)bytes, take_ring(r, bytes), MAX_CHANNELS + r->next_tag};
    op->envelope_moves = mpi_send(r->comm, &op->envelope, sizeof op->envelope, call->peer, call->channel);
    if (op->envelope.ring >= 0) {
        push(r, call, op);
    } else {
        op->bytes_move = mpi_send(r->comm, call->in, bytes, call->peer, op->envelope.tag);
        r->next_tag = (r->next_tag + 1) % MAX_CHANNELS;
    }
}

static bool test(MPI_Request *request) {
    int done = 0;
    int rc = MPI_Test(request, &done, MPI_STATUS_IGNORE);
    CHECK(rc == MPI_SUCCESS, "MPI error %d in a message", rc);
    return done;
}

static CallProgress advance_send(const Rings *r, const Call *call, RingsOp *op) {
    CallProgress progress = op->envelope.ring >= 0 ? push(r, call, op) : test(&op->bytes_move) ? DONE : STUCK;
    return progress != DONE || test(&op->envelope_moves) ? progress : STUCK;
}

// ---- receiving ----------------------------------------------------------------------------------------

static CallProgress pull(const Rings *r, const Call *call, RingsOp *op) {
    Ring *ring = ring_of(r, call->peer, op->envelope.ring);
    const char *bytes = bytes_of(r, call->peer, op->envelope.ring);
    uint64_t before = op->moved, all = (uint64_t)op->envelope.bytes;
    while (op->moved < all) {
        uint64_t there = atomic_load_explicit(&ring->written, memory_order_acquire) - op->moved;
        if (!there) break;
        size_t n = piece(there, op->moved);
        memcpy((char *)call->out + op->moved, bytes + op->moved % RING_BYTES, n);
        op->moved += n;
        atomic_store_explicit(&ring->taken, op->moved, memory_order_release);
    }
    return op->moved == all ? DONE : op->moved > before ? MOVED : STUCK;
}

static void open_envelope(const Rings *r, const Call *call, RingsOp *op) {
    size_t wanted = call->count * call->element_bytes;
    check_message_size(r->group, call->peer, r->group->rank, call->channel, (size_t)op->envelope.bytes,
                       wanted);
    op->arrived = true;
    if (op->envelope.ring < 0)
        op->bytes_move = mpi_recv(r->comm, call->out, wanted, call->peer, op->envelope.tag);
}

static CallProgress advance_recv(const Rings *r, const Call *call, RingsOp *op) {
    bool opened = !op->arrived;
    if (!op->arrived && !test(&op->envelope_moves)) return STUCK;
    if (!op->arrived) open_envelope(r, call, op);
    CallProgress progress = op->envelope.ring >= 0 ? pull(r, call, op) : test(&op->bytes_move) ? DONE : STUCK;
    return progress == STUCK && opened ? MOVED : progress;
}

// ---- both ---------------------------------------------------------------------------------------------

void rings_start(Rings *r, const Call *call, RingsOp *op) {
    *op = (RingsOp){.envelope_moves = MPI_REQUEST_NULL, .bytes_move = MPI_REQUEST_NULL};
    if (call->op == COMM_SEND)
        start_send(r, call, op);
    else
        op->envelope_moves = mpi_recv(r->comm, &op->envelope, sizeof op->envelope, call->peer, call->channel);
}

CallProgress rings_advance(Rings *r, const Call *call, RingsOp *op) {
    return call->op == COMM_SEND ? advance_send(r, call, op) : advance_recv(r, call, op);
}
