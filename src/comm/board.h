// A blackboard: collectives of ranks that see one memory, as threads do, and processes of one node through a
// shared window.
//
// A collective is three phases; a rank may begin one when all ranks of the group finished the one before:
//   ENTER   say where my elements are (direct), or copy them to my stage in the shared memory (staged)
//   REDUCE  add my slice of everybody's elements, in rank order; of an all-reduce hand the sums out: into
//           everybody's memory (direct), or to my stage (staged)
//   LEAVE   copy the others' results that are not there yet
// A slot counts the arrivals of one chunk and is used again when all have left it. Direct calls are one
// chunk. Staged calls go through the slots in chunks that stay in the L2 cache, as many at a time as
// there are slots: that much a rank can do in one poll, without the others. After board_open nothing
// blocks or allocates. With last_does_all a rank's own part is to enter: the last one that does takes all
// ranks through REDUCE and LEAVE, and the others are done when it has.
#pragma once
#include "comm/transport.h"
#include <stdatomic.h>

enum { PHASE_ENTER, PHASE_REDUCE, PHASE_LEAVE, NUM_PHASES };

typedef struct {
    // Over all uses: use number u is complete at (u + 1) * size. With last_does_all nobody counts REDUCE.
    _Alignas(64) _Atomic(uint64_t) arrived[NUM_PHASES];
} Slot;

typedef struct {
    // Direct: this rank's elements. Others write to `out`, in an all-reduce or where the last one does all.
    const char *in;
    char *out;
    _Atomic(uint64_t) phases; // how many of its own this rank has finished over all uses: for hang reports
} Entry;

typedef struct {
    int rank, size, num_slots;
    Slot *slots;    // shared [num_slots], zeroed before the first use
    Entry *entries; // shared [num_slots * size], zeroed
    // [size] each rank's stage, num_slots * stage_bytes, as this rank sees it; NULL: direct.
    char *const *stages;
    size_t stage_bytes;
    void (*ring)(void *self); // a phase is complete: others may be asleep; or NULL
    // Direct: the last rank to enter does what is left for all, and each of the others sleeps once. For
    // cores with two ranks or more each: what one rank leaves undone another would do in the same time.
    bool last_does_all;
    void *self;
    const char **parts; // private from here on
    uint64_t next_use;
} Board;

typedef struct {
    uint64_t first, chunks;    // its chunks' numbers over all chunks of the board: [first, first + chunks)
    uint64_t done[NUM_PHASES]; // how many of them this rank has taken through a phase
} BoardOp;

void board_open(Board *board); // everything above `parts` is set
void board_close(Board *board);
// Collectives only; in the same order on every rank.
void board_start(Board *board, const Call *call, BoardOp *op);
Progress board_advance(Board *board, const Call *call, BoardOp *op);
bool board_waits_for(const Board *board, const BoardOp *op, int rank);
