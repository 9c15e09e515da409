// The ring of context-parallel ranks: what each of them posts, and when, while the keys and values of every rank go
// round. In a backward the sums of their gradients go round with them, one turn behind, and home at the end.
//
// In turn i a rank attends to the block of rank - i, while the next one comes. Everything that moves has two buffers:
// one is worked on or sent, the other received. Sums add up in the order of the ring, from the block's own rank on.
// Source: Liu 2023 (Ring Attention).
#pragma once
#include "base/error.h"
#include <stdbool.h>

typedef enum {
    RING_RECEIVE_KEYS, // post the receive of a block from the rank before
    RING_SEND_KEYS,    // post the send of a block to the rank after
    RING_ATTEND,    // compute attention to the block; in a backward also this rank's share of its gradients
    RING_WAIT_SUMS, // wait for the receive and the send of sums that were posted last
    RING_ADD,       // add this rank's share to the sums
    RING_RECEIVE_SUMS,
    RING_SEND_SUMS,
    RING_WAIT_KEYS,
    NUM_RING_OPS
} RingOp;

typedef struct {
    RingOp op;
    int buffer; // 0 or 1, of keys or of sums
    int block;  // whose it is
} RingPost;

// A rank's place in the ring. Begins as {ranks, rank, backward}.
typedef struct {
    int ranks, rank;
    bool backward;
    int turn, next; // the next op to look at
} KeyRing;

// Writes what the rank does next, or returns false at the end. With the last post of a backward the sums of the rank's
// own block are complete in its buffer.
bool ring_next(KeyRing *ring, RingPost *post);

// Proves for a ring of `ranks` ranks, 2 or more: no rank waits for ever, even where a send is over only when its
// receive is posted; no buffer is written while it is sent or received; every rank attends to every block once; and
// the sums of a block come home complete, added in the order of the ring. ERR_BUG says what is wrong, ERR_OS that
// memory is missing.
Status ring_verify(int ranks, bool backward);
