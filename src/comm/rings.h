// Messages between processes that share memory, so that a sender needs nobody: the bytes leave into a ring in
// the sender's part of a window, as far as there is room, and the receiver takes them out whenever it polls.
//
// An envelope goes before them as an MPI message on the channel's tag: it says which ring, and it keeps a
// channel's messages in their order, whatever the receiver has posted by then. When all rings are taken the
// bytes are an MPI message of their own: so no channel ever waits for another. Nothing blocks or allocates.
#pragma once
#include "comm/transport.h"
#include <mpi.h>
#include <stdatomic.h>

// How far a ring's message is. A ring is free when all of its last message has been taken.
typedef struct {
    _Alignas(64) _Atomic(uint64_t) written; // by the sender
    _Alignas(64) _Atomic(uint64_t) taken;   // by the receiver
} Ring;

// A rank's part: its rings' states on a page of their own, then their bytes.
enum {
    NUM_RINGS = 4,
    RING_BYTES = 2 << 20,
    RINGS_HEADER_BYTES = 4096,
    RINGS_BYTES = RINGS_HEADER_BYTES + NUM_RINGS * RING_BYTES,
};

typedef struct {
    MPI_Comm comm;
    const Group *group;
    char *const *parts;        // [size] each rank's, as this rank sees them; zeroed states
    uint64_t sizes[NUM_RINGS]; // private: the last message in each of this rank's
    int next_tag;
} Rings;

typedef struct {
    int64_t bytes;
    int32_t ring; // of the sender's; -1: a message of its own on `tag`
    int32_t tag;
} Envelope;

typedef struct {
    MPI_Request envelope_moves, bytes_move;
    Envelope envelope;
    uint64_t moved; // bytes, into or out of the ring
    bool arrived;   // the envelope; receiver
} RingsOp;

void rings_start(Rings *rings, const Call *call, RingsOp *op); // messages only
CallProgress rings_advance(Rings *rings, const Call *call, RingsOp *op);
