// Collectives of ranks that see the same memory: threads of one process, and processes of one node through a
// shared window.
//
// A collective has three phases; a rank may begin one when all ranks of the group have finished the phase before:
//   ENTER   publishes where this rank's elements are (direct), or copies them to its staging buffer in the
//           shared memory (staged)
//   REDUCE  adds this rank's slice of all ranks' elements, in rank order; an all-reduce then copies the sums
//           into every rank's memory (direct), or to this rank's staging buffer (staged)
//   LEAVE   copies the results of the other ranks that this rank does not have yet
// A slot counts the ranks that have finished each phase of one chunk; it is reused when all ranks have left it.
// A direct collective is one chunk. A staged one is cut into chunks that stay in the L2 cache, and as many of
// them as there are slots may be under way: that much a rank can do in one poll without the others. After
// shm_collective_open nothing blocks or allocates. With last_does_all a rank only enters: the last rank that
// enters runs REDUCE and LEAVE for all ranks, and the others are done when it has finished.
#pragma once
#include "comm/transport.h"
#include <stdatomic.h>

enum { PHASE_ENTER, PHASE_REDUCE, PHASE_LEAVE, NUM_PHASES };

typedef struct {
    // Counts over all uses: use number u is complete at (u + 1) * size. With last_does_all REDUCE is not counted.
    _Alignas(64) _Atomic(uint64_t) arrived[NUM_PHASES];
} ShmSlot;

typedef struct {
    // Direct only: this rank's elements. Other ranks write to `out` in an all-reduce and with last_does_all.
    const char *in;
    char *out;
    _Atomic(uint64_t) phases; // that this rank has finished over all uses; read by hang reports
} ShmEntry;

typedef struct {
    int rank, size, num_slots;
    ShmSlot *slots;    // shared [num_slots], zeroed before the first use
    ShmEntry *entries; // shared [num_slots * size], zeroed
    // [size] each rank's staging buffer of num_slots * staging_bytes, as this rank sees it; NULL: direct.
    char *const *staging;
    size_t staging_bytes;
    void (*wake)(void *self); // optional callback: a phase is complete, and ranks that wait for it may sleep
    // Direct only: the last rank that enters finishes the collective for all, and each of the others sleeps
    // once. This is for machines where two ranks or more share a core: sharing the work would save no time.
    bool last_does_all;
    void *self;
    // Private:
    const char **parts; // [size]
    uint64_t next_use;
} ShmCollective;

typedef struct {
    uint64_t first, chunks;    // it has the chunks [first, first + chunks) of all that the group ever had
    uint64_t done[NUM_PHASES]; // the number of its chunks for which this rank has finished each phase
} ShmOp;

// The caller has set every member above "Private".
void shm_collective_open(ShmCollective *shm);
void shm_collective_close(ShmCollective *shm);
// Starts a collective (not a message). All ranks start the same ones in the same order.
void shm_collective_start(ShmCollective *shm, const Call *call, ShmOp *op);
CallProgress shm_collective_advance(ShmCollective *shm, const Call *call, ShmOp *op);
// Returns whether this rank's collective waits for `rank`.
bool shm_collective_waits_for(const ShmCollective *shm, const ShmOp *op, int rank);
