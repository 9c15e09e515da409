// What the ranks of a group share when all are on one node: two windows of memory. Blocking collectives
// go over a board that is small enough to stay in the cache. Operations that are started, and awaited
// later, are advanced by polls now and then: they go over a board with more room, and messages through
// rings, so that one poll can do much.
#pragma once
#include "comm/board.h"
#include "comm/rings.h"

typedef enum { STARTED, BLOCKING, NUM_WAYS } Way;

typedef struct {
    MPI_Win window;
    // [size] in each rank's part of the window, as this process sees them: the board's stages, and the rings.
    char **stages, **rings;
    Board board;
    bool open;
} NodeShare;

typedef struct {
    NodeShare shares[NUM_WAYS];
    Rings rings; // of what is STARTED
    // Free bytes of /dev/shm that a share would have needed and not found; 0: there is room for all.
    double wanted_bytes;
} Node;

// Collective over the group. A share stays closed on all ranks when some rank cannot have the memory.
void node_open(Node *node, MPI_Comm comm, const Group *group);
void node_close(Node *node); // collective; takes what was only zeroed
