// Collectives made of messages between pairs of ranks (mail.h), for processes that share no memory. Reductions keep the
// rank order:
//   small   every rank sends all its elements to every rank, and each adds for itself
//   large   segment by segment: every rank sends slice j to rank j, adds its own slice in rank order, and sends the sum
//           to every rank. Each rank moves 2 (P-1)/P of the data, as in a ring, in two exchanges instead of 2 (P-1)
// All messages are started and then tested, so they advance in any poll and the time limit of waits holds for them.
#pragma once
#include "comm/mail.h"

enum { MESSAGES_IN_FLIGHT = 2 };

// The buffers of a collective under way. A group has a fixed number of workspaces, so that a step allocates
// nothing: collectives get one in the order of their start, and those that find none wait for their turn.
typedef struct {
    bool busy;
    int num_mails;
    Mail *mails;   // [2 * size]
    int *peers;    // [2 * size] the group rank that a message waits for; NO_RANK, ALL_RANKS
    char *scratch; // received parts
} Workspace;

typedef struct {
    MailTable table;
    const Group *group;
    unsigned num_started, num_posted; // collectives; those of them that have got a workspace
    unsigned moves;                   // how often any collective has advanced
    const char **parts;               // [size]
    Workspace works[MESSAGES_IN_FLIGHT];
} Messages;

typedef struct {
    Mail message;         // of a send or receive; the members below belong to a collective
    Workspace *work;      // NULL: its turn has not come
    unsigned number;      // among the collectives that were started
    unsigned moves;       // Messages.moves when this one last looked
    int step;             // exchanges of the segment that are done
    size_t first, length; // the segment that is under way, in elements of each rank
} MessagesOp;

// Tags below MAX_CHANNELS belong to the channels, as many more to rings (rings.h), the rest to collectives.
void messages_open(Messages *messages, MailTable table, const Group *group);
void messages_close(Messages *messages);
void messages_start(Messages *messages, const Call *call, MessagesOp *op);
CallProgress messages_advance(Messages *messages, const Call *call, MessagesOp *op);
void messages_waits_for(const Messages *messages, const Call *call, const MessagesOp *op, Text *ranks);
