// The memory that the ranks of a group of "peer" share, and that all of them may use until the last has left.
#pragma once
#include "comm/transport.h"
#include "device/peer.h"
#include <pthread.h>
#include <stdatomic.h>

// ENTER: its tensors may be used. REDUCE: it has its slice of the sums, where GPUs do not reach each other. WORK: it
// uses the others' tensors no more. LEAVE: it has seen all of that, and needs the slot no more.
typedef enum { STEP_ENTER, STEP_REDUCE, STEP_WORK, STEP_LEAVE, NUM_STEPS } PeerStep;

enum { PEER_SLOTS = 8 }; // collectives of a group that may be under way at once

// One rank's part of a collective. Others read it between ENTER and LEAVE.
typedef struct {
    const char *in;
    char *out;
    const Device *device;
    SharedEvent *after[STEP_LEAVE]; // recorded at the end of a step; NULL until the first use
    atomic_uint_fast64_t steps;     // that the rank has finished, in all uses of the slot
} PeerEntry;

// How often ranks have finished a step, in all uses of the slot.
typedef struct {
    atomic_uint_fast64_t arrived[NUM_STEPS];
} PeerSlot;

// One end of a message. It belongs to the rank that has posted it, which uses it again when it is free.
typedef struct PeerPost {
    struct PeerPost *next;    // among those whose other end is not posted
    struct PeerPost *of_rank; // the next one of the same rank
    void *data;
    const Device *device;
    size_t bytes;
    int from, to, channel;
    bool sends;
    SharedEvent *ready;  // the tensor may be used
    SharedEvent *copied; // recorded by the end that copies
    _Atomic(struct PeerPost *)
        copier; // of the end that was posted first: the other one, once it has put the copy on a stream
    atomic_bool free;
} PeerPost;

typedef struct {
    int size;
    atomic_int users;
    PeerSlot slots[PEER_SLOTS];
    PeerEntry *entries; // [PEER_SLOTS * size]
    pthread_mutex_t mutex;
    PeerPost *unmet;  // in the order of arrival; under the mutex
    PeerPost **posts; // [size] all of each rank
} PeerBoard;

PeerBoard *peer_board_create(int size);
// The last rank to leave destroys it.
void peer_board_leave(PeerBoard *board);

static inline PeerEntry *peer_entry(const PeerBoard *board, uint64_t use, int rank) {
    return &board->entries[use % PEER_SLOTS * (uint64_t)board->size + (uint64_t)rank];
}

// Returns whether a step of a use may begin: all ranks have finished the step before, ENTER's being the last one of the
// slot's use before.
bool peer_board_may_begin(const PeerBoard *board, uint64_t use, PeerStep step);
// Says that a rank has finished a step; returns whether it was the last one.
bool peer_board_arrive(PeerBoard *board, uint64_t use, PeerStep step, int rank);
// Returns whether a step that may not begin waits for this rank.
bool peer_board_waits_for(const PeerBoard *board, uint64_t use, PeerStep step, int rank);

// A free post of the rank, with its events.
PeerPost *peer_board_post(PeerBoard *board, int rank, Device *device);
// Returns the other end of a message, which is from now on the caller's; NULL: it is not posted yet, and will find
// `mine`.
PeerPost *peer_board_meet(PeerBoard *board, PeerPost *mine);
// An event of `device`, created if there is none. Ends the job when it cannot be had.
SharedEvent *peer_event(Device *device, SharedEvent **event);
