// How the processes of a job find each other: rank 0 listens at an address that all know, every other rank connects and
// tells of itself, and rank 0 tells all of all. The connections to rank 0 stay, for star.h.
//
// Whoever connects is a stranger until it has said what a rank of this job says: the numbers of the job and of a rank
// that has not come. Others are refused and do not hold the meeting up. This finds mistakes and not attacks: whoever
// knows these numbers can take part, so the network between the machines is to be trusted.
#pragma once
#include "comm/sockets.h"
#include <stdatomic.h>

// Of one rank, as the others need to know it.
typedef struct {
    Address address; // where it listens for the others; its IP is all zero: that of rank 0
    uint64_t host;   // the same on all ranks of a machine
} Attendee;

enum { SECRET_BYTES = 16 };

typedef struct {
    int rank, size;
    char host[256]; // of rank 0
    uint16_t port;
    uint64_t job;              // a number of the job, where its launcher has one, else 0
    double timeout_s;          // for all ranks to come
    int max_guests;            // those that have connected to rank 0 and not introduced themselves; 0: 256
    const atomic_int *stopped; // optional: the number of a signal that asked to stop, 0 before
} MeetingPlan;

typedef struct {
    int *links;          // [size] connections: of rank 0 to every other rank, else to rank 0 alone; -1: none
    Attendee *attendees; // [size]
    int listener;        // where this rank's own address is
    unsigned char secret[SECRET_BYTES]; // drawn by rank 0: who knows it is a rank of this job
} Meeting;

// Fails with ERR_UNAVAILABLE or ERR_CONFIG and says which rank, which address, and what to do; with INTERRUPTED where
// `stopped` is set before all ranks are there.
Status meeting_hold(Meeting *meeting, const MeetingPlan *plan);
// Takes what was only zeroed.
void meeting_close(Meeting *meeting, int size);
