// What this rank has posted and not yet seen done: the one place that advances operations, waits and watches.
#pragma once
#include "comm/transport.h"

typedef struct World World;

struct Comm {
    Group *group;
    World *world;
    CommCount counts[NUM_COMM_OPS];
};

struct CommRequest {
    CommRequest *next, *previous; // in the queue, or `next` in the pool
    Group *group;
    Call call;
    double posted_s; // clock_s() when the rank records a trace, else 0
    bool done;
    _Alignas(max_align_t) unsigned char op[]; // the transport's state
};

// One rank's view of the job.
struct World {
    Comm comm; // of all ranks
    const CommOptions *options;
    double timeout_s;           // of comm_set_timeout; 0: it was not called
    const char *timeout_reason; // of this limit; NULL: it is the options'
    Device *device;
    OnCall *listener; // told of every call; may be NULL
    void *listener_self;
    CommRequest *first, *last; // in the order of their start
    CommRequest *pool;
};

CommRequest *queue_post(Comm *comm, Call call);
void queue_advance(World *world); // each posted operation, as far as it goes without waiting
// True, and the request is released and NULLed, when it is done.
bool queue_take(World *world, CommRequest **request);
// Until done, under the watchdog: ends the job with ERR_HANG after timeout_s without progress.
void queue_wait(Comm *comm, CommRequest **request);
void queue_destroy(World *world);
