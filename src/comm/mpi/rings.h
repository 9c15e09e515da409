// Messages between processes that share memory. The sender copies the bytes into a ring buffer in its part of a window,
// as far as there is room, without the receiver; the receiver copies them out when it polls.
//
// An envelope, an MPI message on the channel's tag, goes before the bytes: it names the ring, and keeps the messages
// of a channel in order, whatever the receiver has posted by then. When all rings are in use the bytes go as an MPI
// message of their own: no channel ever waits for another. Nothing blocks or allocates.
#pragma once
#include "comm/transport.h"
#include <mpi.h>
#include <stdatomic.h>

// Bytes of a ring's message so far. A ring is free when its last message was copied out completely.
typedef struct {
    _Alignas(64) _Atomic(uint64_t) written; // by the sender
    _Alignas(64) _Atomic(uint64_t) taken;   // by the receiver
} Ring;

// A rank's part of the window: the states of its rings on a page of their own, then their bytes.
enum {
    NUM_RINGS = 4,
    RING_BYTES = 2 << 20,
    RINGS_HEADER_BYTES = 4096,
    RINGS_BYTES = RINGS_HEADER_BYTES + NUM_RINGS * RING_BYTES,
};

typedef struct {
    MPI_Comm comm;
    const Group *group;
    char *const *parts;        // [size] each rank's part, as this rank sees it; the states are zeroed
    uint64_t sizes[NUM_RINGS]; // private: bytes of the last message in each ring of this rank
    int next_tag;
} Rings;

typedef struct {
    int64_t bytes;
    int32_t ring; // of the sender; -1: the bytes are an MPI message on `tag`
    int32_t tag;
} Envelope;

typedef struct {
    MPI_Request envelope_moves, bytes_move;
    Envelope envelope;
    uint64_t moved; // bytes copied into or out of the ring
    bool arrived;   // receiver: the envelope is here
} RingsOp;

void rings_start(Rings *rings, const Call *call, RingsOp *op); // messages only
CallProgress rings_advance(Rings *rings, const Call *call, RingsOp *op);
