// What a transport is: a table of typed functions that move bytes between ranks of a group and never block.
//
// The front (comm.c) validates and counts, the queue (queue.c) waits and watches; a transport starts a Call
// and is then asked to advance it until it is done. So every operation, blocking or not, is one small state
// machine, and there is one place where a rank can wait.
#pragma once
#include "base/text.h"
#include "comm/comm.h"

// One operation. Elements per rank and where they are:
//   all_reduce, broadcast  in = out [count]        send  in [count]
//   reduce_scatter         in [size * count]       recv  out [count]
//                          out [count]             barrier  nothing
//   all_gather             in [count], out [size * count]
typedef struct {
    CommOp op;
    ReduceOp reduce;
    DType dtype; // of a reduction
    const void *in;
    void *out;
    size_t count, element_bytes;
    size_t bytes;  // of all tensors handed in, for counts and traces
    int peer;      // rank in the group: root, from, to
    int channel;   // of a message
    bool blocking; // the caller waits for it at once
} Call;

// A send or a receive; all else is a collective.
static inline bool is_message(const Call *call) { return call->op == COMM_SEND || call->op == COMM_RECV; }

typedef enum { STUCK, MOVED, DONE } Progress;

typedef struct Transport Transport;

// The head of every transport's own group.
typedef struct {
    const Transport *transport;
    const char *name;
    int rank, size;
    int *members; // [size] ranks in the world
} Group;

struct Transport {
    size_t op_bytes; // state of one operation, zeroed before start
    bool moves_data; // false: addresses are never followed
    Status (*split)(Group *parent, const char *name, const int *ranks, int num_ranks, Group **group);
    void (*close)(Group *group);
    void (*start)(Group *group, const Call *call, void *op);
    Progress (*advance)(Group *group, const Call *call, void *op); // not called again after DONE
    // Adds the world ranks that the operation waits for, " 1 2".
    void (*waits_for)(Group *group, const Call *call, const void *op, Text *ranks);
    // Lets others run until something may have changed, at most POLL_S; `turns`: calls since progress.
    void (*pause)(Group *world, int turns);
    void (*report)(Group *world); // prints what the other ranks are doing, where that can be known; or NULL
};

enum { MAX_OP_BYTES = 256, MAX_CHANNELS = 1 << 13, HOST_CHANNEL = MAX_CHANNELS - 1 };
#define POLL_S 0.1

// Fills the head of a new group from its parent (NULL: the world, of ranks 0..num_ranks-1; `rank` is ours).
void group_init(Group *group, const Transport *transport, const char *name, const Group *parent,
                const int *ranks, int num_ranks, int rank);
void *comm_allocate(size_t count, size_t bytes); // zeroed; CHECKs

// Runs rank_main on a world as the calling thread's rank; wraps it for checking if asked. Closes `world`.
Status world_run(Group *world, const CommOptions *options, RankMain *rank_main, void *arg);
// After a rank's error: how long the others get to leave too before the job ends, and the line that says so.
#define LEAVE_GRACE_S 2.0
_Noreturn void abort_after_error(Status status);

Status threads_launch(const CommOptions *options, RankMain *rank_main, void *arg);
Status mpi_launch(const CommOptions *options, RankMain *rank_main, void *arg);
Status null_launch(const CommOptions *options, RankMain *rank_main, void *arg);
// The checking group around `inner`, which it takes over. Where nothing can disagree it is `inner` itself.
Status check_wrap(Group *inner, Group **wrapped);
