// Memory that the ranks of a group share when all of them are on one node: two windows. Blocking collectives use
// staging buffers that are small enough to stay in the cache. Operations that are started and awaited later are
// advanced by a poll now and then: they use larger staging buffers, and messages use ring buffers, so that one
// poll can do much.
#pragma once
#include "comm/mpi/rings.h"
#include "comm/shm_collective.h"

typedef enum { STARTED, BLOCKING, NUM_WAYS } Way;

typedef struct {
    MPI_Win window;
    // [size] Each rank's staging buffer and rings in the window, as this process sees them.
    char **staging, **rings;
    ShmCollective collectives;
    bool open;
} NodeShare;

typedef struct {
    NodeShare shares[NUM_WAYS];
    Rings rings; // of what is STARTED
    // Free bytes of /dev/shm that a share needed and did not find; 0: there was room for all.
    double wanted_bytes;
} Node;

// Collective over the group. A share stays closed on all ranks when one of them cannot get the memory.
void node_open(Node *node, MPI_Comm comm, const Group *group);
void node_close(Node *node); // collective; takes what was only zeroed
