// The operations that this rank has posted and that are not done: the one place that starts and advances them, waits,
// and watches that a wait does not last for ever.
//
// A group has a lane for each transport that carries its calls. Of the host's lane an operation is done when the data
// are there; the host waits for that. Of a device transport's lane it is done when all its work is on streams; the
// operation then *runs* until its last event is reached. A stream waits for that, and the host only where it waits for
// the device.
#pragma once
#include "comm/device_transport.h"
#include "comm/host_adapter.h"

// A wait polls the device alone for so long before it advances the other operations.
#define DEVICE_POLL_S 1e-4

typedef struct World World;

// The calls of a group that one transport carries. All ranks start them in the same order.
typedef struct {
    Group *group; // NULL: there is no such transport
    int64_t num_posted, num_started;
} Lane;

struct Comm {
    Group *group; // the host's: ranks, name
    World *world;
    Lane host;   // all calls but those of `device`
    Lane device; // the calls on tensors of the device, where a device transport is in use
    CommCount counts[NUM_COMM_OPS];
    // "all_reduce of dp", for the messages of host_adapter.h; empty where the transport does not follow addresses.
    char names[NUM_COMM_OPS][40];
};

struct CommRequest {
    CommRequest *next, *previous; // in the queue; or `next` alone in the pool or among those that run
    Comm *comm;
    Lane *lane;
    Call call;
    HostAdapter adapter;                  // for a transport that follows addresses
    int64_t number;                       // among those posted in its lane, which start in this order
    double posted_s;                      // clock_s() when the rank records a trace, else 0
    char doing[sizeof((Rank *)0)->doing]; // where it was posted; of operations of a device transport
    StreamEvent end;                      // the same, once it is done: where it is over
    bool started, done;
    _Alignas(max_align_t) unsigned char op[]; // the transport's state
};

// One rank's view of the job.
struct World {
    Comm comm; // of all ranks
    const CommOptions *options;
    int rank_here, first_here;               // this rank's number on its machine; the lowest rank there
    double timeout_s;                        // of comm_set_timeout; 0: it was not called
    const char *timeout_reason;              // of this limit; NULL: it is the options'
    Device *device;                          // NULL: tensors are in plain memory
    const DeviceTransport *device_transport; // NULL: calls on its tensors go over the host's transport
    OnCall *listener;                        // optional callback for every call
    void *listener_self;
    CommRequest *first, *last; // the queue, in the order in which they were posted
    int num_unstarted;         // of the queue
    int num_open;              // posted, and not released
    CommRequest *pool;
    size_t op_bytes; // room for a transport's state in each request of the pool
    // Those that were released while they run, the oldest first, and when the host's present wait saw one of them end.
    CommRequest *first_running, *last_running;
    double waited_before_s;
};

void comm_init(Comm *comm, Group *group, World *world);
// Opens the lane of the world's device transport, if it has one; closes it.
Status comm_open_device(Comm *comm);
void comm_close_device(Comm *comm);
// Posts an operation; it starts when its stream has reached it and those posted in the same lane before have started.
CommRequest *queue_post(Comm *comm, Call call);
// Starts and advances each operation of the queue as far as it goes without waiting.
void queue_advance(World *world);
// Advances the queue and returns whether the request is done and over. If so, releases it and sets it to NULL.
bool queue_done(World *world, CommRequest **request);
// Makes `stream` wait for the operation. The host blocks until the operation is done; it ends the job with ERR_HANG
// after timeout_s without progress.
void queue_wait(Comm *comm, Stream *stream, CommRequest **request);
// Ends the job with ERR_HANG when operations run and none of them has ended during the last timeout_s of a wait of the
// host for its device, which has lasted `waited_s`.
void queue_watch(World *world, double waited_s);
// Reads what other ranks have sent, without a wait: while the host waits for something else. Ends the job where another
// rank has ended.
void queue_poll_ranks(const World *world);
// Waits until no operation of the group runs. Its device transport may then be closed.
void queue_drain(Comm *comm);
// From now on requests have room for a state of so many bytes. No request is open.
void queue_reserve(World *world, size_t op_bytes);
void queue_destroy(World *world);

// ---- the watchdog (watchdog.c) ----------------------------------------------------------------------------

// The time that a wait has lasted. Time in which the process was stopped does not count: whatever passes between two
// calls of wait_time_add counts as one poll at most.
typedef struct {
    double waited_s, last_s;
} WaitTime;
WaitTime wait_time_start(void);
double wait_time_add(WaitTime *time); // returns what it has added

// The time that a wait may last without progress.
double watchdog_limit_s(const World *world);
// Ends the job: the host has waited for `r`, or for its device, where `r` runs.
_Noreturn void watchdog_hang(World *world, const CommRequest *r, double waited_s);
