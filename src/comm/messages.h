// Collectives made of messages between each two ranks, for processes that share no memory. Reductions keep
// the rank order:
//   small   everybody sends everything to everybody and adds for itself
//   large   segment by segment: everybody sends slice j to rank j, adds its own slice in rank order, and
//           sends the sum to everybody: each rank moves 2 (P-1)/P of the data, as in a ring, in two exchanges
//           instead of 2 (P-1)
// All is posted with MPI_Isend and MPI_Irecv and advanced by MPI_Testsome, so it progresses in any poll and
// can be watched.
#pragma once
#include "comm/transport.h"
#include <mpi.h>

enum { MESSAGES_IN_FLIGHT = 2 };

// What one collective in flight needs. A group has a fixed number of them, so a step allocates nothing:
// collectives get one in the order of their start and go through its scratch segment by segment; those behind
// them wait their turn.
typedef struct {
    bool busy;
    int num_requests;
    MPI_Request *requests; // [2 * size]
    int *indices;          // [2 * size]
    int *peers;            // [2 * size] the group rank that a request waits for; NOBODY, EVERYBODY
    char *scratch;         // received parts
} Workspace;

typedef struct {
    MPI_Comm comm;
    const Group *group;
    bool deterministic;               // false: MPI's own MPI_Iallreduce may do the sums
    unsigned num_started, num_posted; // collectives; those that have been given a workspace
    unsigned moves;                   // of any collective: one that waits its turn waits for these
    const char **parts;               // [size]
    Workspace works[MESSAGES_IN_FLIGHT];
} Messages;

typedef struct {
    MPI_Request message;  // of a send or receive; all below is of a collective
    Workspace *work;      // NULL: its turn has not come
    unsigned number;      // among those that were started
    unsigned moves;       // of all, when last seen while waiting
    int step;             // exchanges of the segment that are done
    size_t first, length; // the segment that is on its way, in elements per rank
} MessagesOp;

// A request for bytes of any number. Tags: those below MAX_CHANNELS are the channels', as many more the
// rings', the rest the collectives'.
MPI_Request messages_send(MPI_Comm comm, const void *from, size_t bytes, int to, int tag);
MPI_Request messages_recv(MPI_Comm comm, void *to, size_t bytes, int from, int tag);

void messages_open(Messages *messages, MPI_Comm comm, const Group *group, bool deterministic);
void messages_close(Messages *messages);
void messages_start(Messages *messages, const Call *call, MessagesOp *op);
CallProgress messages_advance(Messages *messages, const Call *call, MessagesOp *op);
void messages_waits_for(const Messages *messages, const Call *call, const MessagesOp *op, Text *ranks);
