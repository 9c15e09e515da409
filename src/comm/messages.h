// Collectives made of messages between each two ranks, for processes that share no memory. Reductions keep the rank order:
//   small   everybody sends everything to everybody and adds for itself
//   large   everybody sends slice j to rank j, adds its own slice in rank order, and sends the sum to everybody: each rank
//           moves 2 (P-1)/P of the data, as a ring does, in two exchanges instead of 2 (P-1)
// All is posted with MPI_Isend and MPI_Irecv and advanced by MPI_Testsome, so it progresses in any poll and can be watched.
#pragma once
#include "comm/transport.h"
#include <mpi.h>

// What one collective in flight needs; kept for the next when it is done.
typedef struct Workspace {
    struct Workspace *next;
    MPI_Request *requests; // [2 * size]
    int *indices;          // [2 * size]
    int *peers;            // [2 * size] group ranks, -1: no request
    int num_requests;
    char *scratch; // received parts
    size_t scratch_bytes;
} Workspace;

typedef struct {
    MPI_Comm comm;
    const Group *group;
    bool deterministic; // false: MPI's own MPI_Iallreduce may do the sums
    unsigned num_calls;
    Workspace *idle;
    const char **parts; // [size]
} Messages;

typedef struct {
    Workspace *work;
    MPI_Request message; // of a send or receive
    int tag, step;
} MessagesOp;

void messages_open(Messages *messages, MPI_Comm comm, const Group *group, bool deterministic);
void messages_close(Messages *messages);
void messages_start(Messages *messages, const Call *call, MessagesOp *op);
Progress messages_advance(Messages *messages, const Call *call, MessagesOp *op);
void messages_waits_for(const Messages *messages, const Call *call, const MessagesOp *op, Text *ranks);
