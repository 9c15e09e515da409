// A transport is a table of functions that move bytes between the ranks of a group and never block.
//
// The front (comm.c) checks and counts calls; the queue (queue.c) starts them, waits and watches. A transport whose
// work is done by the host starts a Call and is then asked to advance it until it is done: every operation, blocking
// or not, is one small state machine, and there is one place where a rank waits. A transport whose work is done by
// streams of the device ("ordered": it has `ends_at`) is asked to advance a Call until all its work is on streams.
#pragma once
#include "base/cores.h"
#include "base/text.h"
#include "comm/comm.h"

// One operation. Elements of each rank and where they are:
//   all_reduce, broadcast  in = out [count]        send  in [count]
//   reduce_scatter         in [size * count]       recv  out [count]
//                          out [count]             barrier  nothing
//   all_gather             in [count], out [size * count]
//   all_to_all             in and out [size * count]
typedef struct {
    CommOp op;
    ReduceOp reduce;
    DType dtype; // of the tensors; undefined for host data that are not reduced
    // The operation starts when this stream has reached it. NULL: at once, the data are the host's.
    Stream *stream;
    // From the start on host addresses, where the transport follows addresses; else addresses of device memory.
    const void *in;
    void *out;
    size_t count, element_bytes;
    size_t bytes;  // of all tensors of this rank, for counts and traces
    int peer;      // rank in the group: root, from, to
    int channel;   // of a message
    bool blocking; // the caller waits for it at once
} Call;

// Returns whether the call is a send or a receive; all other operations are collectives.
static inline bool is_message(const Call *call) { return call->op == COMM_SEND || call->op == COMM_RECV; }

// How many slices of `count` elements `in` and `out` have in a group of so many ranks.
static inline int slices_in(const Call *call, int size) {
    return call->op == COMM_REDUCE_SCATTER || call->op == COMM_ALL_TO_ALL ? size : 1;
}
static inline int slices_out(const Call *call, int size) {
    return call->op == COMM_ALL_GATHER || call->op == COMM_ALL_TO_ALL ? size : 1;
}

typedef enum { STUCK, MOVED, DONE } CallProgress;

typedef struct Transport Transport;

// The first member of every transport's own type of group.
typedef struct {
    const Transport *transport;
    const char *name;
    int rank, size;
    int rank_here;    // of the world: this rank's number among those of its machine
    int first_here;   // of the world: the lowest rank of its machine
    bool one_process; // all ranks are threads of this process
    bool polled;      // operations make progress without other ranks, none of which wakes this one
    int *members;     // [size] ranks in the world
} Group;

struct Transport {
    size_t op_bytes;        // state of one operation, zeroed before start
    bool follows_addresses; // host code reads and writes the tensors
    Status (*split)(Group *parent, const char *name, const int *ranks, int num_ranks, Group **group);
    void (*close)(Group *group);
    void (*start)(Group *group, const Call *call, void *op);
    CallProgress (*advance)(Group *group, const Call *call, void *op); // not called again after DONE
    // Optional callback of an ordered transport: the event at which an operation is over that `advance` has called
    // DONE. Its stream belongs to this rank; {0}: it is over already.
    StreamEvent (*ends_at)(Group *group, const Call *call, const void *op);
    // Adds the world ranks that the operation waits for, " 1 2"; not called after DONE.
    void (*waits_for)(Group *group, const Call *call, const void *op, Text *ranks);
    // Gives up the core until something may have changed, at most POLL_S; `turns`: calls since the last progress.
    void (*pause)(Group *world, int turns);
    // Optional callback: reads what other ranks have sent, without a wait. Called now and then while the host waits for
    // something else; ends the job where another rank has ended.
    void (*poll)(Group *world);
    // Optional callback: fails with what to do where the group cannot reduce tensors of a type so.
    Status (*can_reduce)(const Group *group, DType dtype, ReduceOp op);
    // Optional callback: opens what a channel needs for messages on tensors.   Collective over its two ends. Once it
    // has failed, so do all later calls, at both of their ends.
    Status (*open_channel)(Group *group, int from, int to, int channel);
    // Optional callback of an ordered transport, called now and then while the host waits for its device: ends the job
    // where operations of the group can no longer end.
    void (*watch)(Group *group);
    // Optional callback where the ranks are threads of one process: wakes the other ranks of the group that pause.
    void (*wake)(Group *group);
    // Optional callback: prints what the other ranks are doing, where this rank can know it.
    void (*report)(Group *world);
};

enum {
    MAX_OP_BYTES = 256,
    MAX_CHANNELS = 1 << 13,
    HOST_CHANNEL = MAX_CHANNELS - 1,
    FILE_CHANNEL = MAX_CHANNELS - 2
};
#define POLL_S 0.1

// Fills the first member of a new group: ranks[i] of `parent`; without a parent the world of `num_ranks` ranks,
// in which this one has the number `rank`.
void group_init(Group *group, const Transport *transport, const char *name, const Group *parent,
                const int *ranks, int num_ranks, int rank);
void *comm_allocate(size_t count, size_t bytes); // zeroed; a CHECK fails without memory
// Slice i of `count` elements cut into `parts` nearly equal slices is [slice_begin(i), slice_begin(i + 1)).
size_t slice_begin(size_t count, int parts, int i);
// CHECKs that both ends of a message have the same size. Ranks are those of the group.
void check_message_size(const Group *group, int from, int to, int channel, size_t sent, size_t wanted);

// Runs rank_main on the group of all ranks, for the rank of the calling thread. Wraps the group into the checking
// transport if options ask for it, and closes it.
Status world_run(Group *world, const CommOptions *options, RankMain *rank_main, void *arg);
// Describes the processors of the rank with this number among those of its machine, for cores_divide.
RankCores world_cores(const CommOptions *options, int rank_here);
const char *world_sysfs(const CommOptions *options);
// Whether this many ranks of a machine may all compute at once, by the quota of their control groups. A rank that waits
// and keeps its core would spend what the others need.
bool world_has_time(int ranks, int threads);
// `bytes` of each rank -> all [ranks * bytes], before world_run.   Collective over `world`.
void world_gather(Group *world, const CommOptions *options, const void *mine, void *all, size_t bytes);
// After a rank's error the others have this long to leave as well; then abort_after_error prints why and ends the job.
#define LEAVE_GRACE_S 2.0
_Noreturn void abort_after_error(Status status);

Status threads_launch(const CommOptions *options, RankMain *rank_main, void *arg);
Status mpi_launch(const CommOptions *options, RankMain *rank_main, void *arg);
Status tcp_launch(const CommOptions *options, RankMain *rank_main, void *arg);
Status null_launch(const CommOptions *options, RankMain *rank_main, void *arg);
// The checking group around `inner`, which it owns from then on. A group whose calls cannot disagree is returned as
// it is.
Status check_wrap(Group *inner, Group **wrapped);
// The same around the group of a device transport; the ranks compare their calls by way of `host`, the checking group
// of the same ranks.
Status check_wrap_device(Group *host, Group *inner, Group **wrapped);
