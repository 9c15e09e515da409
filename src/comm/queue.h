// The operations that this rank has posted and that are not done: the one place that starts and advances them, waits,
// and watches that a wait does not last for ever.
#pragma once
#include "comm/host_adapter.h"

// A wait polls the device alone for so long before it advances the other operations.
#define DEVICE_POLL_S 1e-4

typedef struct World World;

struct Comm {
    Group *group;
    World *world;
    int64_t num_posted, num_started;
    CommCount counts[NUM_COMM_OPS];
    // "all_reduce of dp", for the messages of host_adapter.h; empty where the transport does not follow addresses.
    char names[NUM_COMM_OPS][40];
};

struct CommRequest {
    CommRequest *next, *previous; // in the queue, or `next` in the pool
    Comm *comm;
    Call call;
    HostAdapter adapter; // for a transport that follows addresses
    int64_t number;      // among those posted in its group, which start in this order
    double posted_s;     // clock_s() when the rank records a trace, else 0
    bool started, done;
    _Alignas(max_align_t) unsigned char op[]; // the transport's state
};

// One rank's view of the job.
struct World {
    Comm comm; // of all ranks
    const CommOptions *options;
    int rank_here;              // this rank's number among those of its machine
    double timeout_s;           // of comm_set_timeout; 0: it was not called
    const char *timeout_reason; // of this limit; NULL: it is the options'
    Device *device;             // NULL: tensors are in plain memory
    OnCall *listener;           // optional callback for every call
    void *listener_self;
    CommRequest *first, *last; // the queue, in the order in which they were posted
    int num_unstarted;         // of the queue
    int num_open;              // posted, and not released
    CommRequest *pool;
};

void comm_init(Comm *comm, Group *group, World *world);
// Posts an operation; it starts when its stream has reached it and those posted in the same group before have started.
CommRequest *queue_post(Comm *comm, Call call);
// Starts and advances each operation of the queue as far as it goes without waiting.
void queue_advance(World *world);
// Advances the queue and returns whether the request is done. If so, releases it and sets it to NULL.
bool queue_done(World *world, CommRequest **request);
// Makes `stream` wait for the operation. The host blocks only where the transport is not ordered; it then ends the job
// with ERR_HANG after timeout_s without progress.
void queue_wait(Comm *comm, Stream *stream, CommRequest **request);
void queue_destroy(World *world);
