// What ranks say to each other: groups, collectives, messages on channels, agreement; every wait is watched.
//
// A Comm is a group seen from one rank. Transports:
//   threads  N ranks are threads of this process (laptop, tests, sanitizers)
//   mpi      N processes under mpirun or srun
//   null     one rank alone that pretends the others are there: nothing is sent, all is counted (to plan)
//   check    around one of them: before each call the ranks of the group compare operation, shape and order
// Reductions add in rank order on every transport, so results are bitwise the same on all of them and on
// every run. A *channel* is (from, to, number): a FIFO. Sends and receives are posts; they are awaited
// through their CommRequest. That is the model in which schedule_verify proves that a schedule cannot hang.
// After a time limit without progress (timeout_s, comm_set_timeout) a rank says who it waits for, in what, at which instruction, and ends the
// job on every rank with ERR_HANG. Time in which the process itself was stopped does not count. (Where MPI
// itself blocks, in set-up and at the end, the message names the group and "the other ranks".)
#pragma once
#include "base/launcher.h"
#include "base/rank.h"
#include "device/device.h"

typedef struct Comm Comm;
// A collective or message that was started and is awaited later. A NULL pointer means that nothing is left to wait for.
typedef struct CommRequest CommRequest;

typedef enum { REDUCE_SUM, REDUCE_MAX } ReduceOp;

typedef struct {
    const char *transport; // one of comm_transports()
    int ranks;             // threads, null: how many; mpi: the launcher knows (0)
    int null_rank;         // null: which of them this one plays
    double timeout_s;      // of every wait, until comm_set_timeout says otherwise
    bool check;            // wrap into the checking transport
    bool deterministic;    // false: the library may add in an order of its own
    int threads;           // that each rank computes with; 0: one. With more of them than cores nobody spins
    int cores;             // threads: that there are for all ranks; 0: those that this process may run on
    bool bind_cores;       // each rank gets cores of its own, where there are enough (base/cores.h)
    // What must be the same on all ranks, as comm_compare wants it; NULL: nothing is compared. This comes before
    // rank_main and before anything that depends on an option of one rank.
    const char *common;
} CommOptions;

// Runs `rank_main` once per rank (on N threads, or here as this process's rank) and returns the worst status.
// Each rank's Rank is entered before; afterwards the caller's is what it was. The first failing rank's
// message becomes the caller's (mpi: that of process 0 alone, so that printing it prints it once). An error
// that comm_agree made everybody's ends the job in order; a rank that returns one of its own while others are
// still at work after 2 s ends the job with its message and status. mpi: once in a process.
typedef Status RankMain(Comm *world, void *arg);
Status comm_launch(CommOptions options, RankMain *rank_main, void *arg);

typedef struct {
    const char *name;
    bool launched;   // its ranks are processes that a launcher has started; else threads of this process
    bool moves_data; // false: calls are counted only
    Status (*launch)(const CommOptions *options, RankMain *rank_main, void *arg);
} CommTransport;
const CommTransport *comm_transports(int *count);

int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
const char *comm_name(const Comm *comm);
// Tensors handed to this world, and to groups split from it later, live on `device` (NULL: plain memory).
void comm_use_device(Comm *world, Device *device);

// From now on this rank waits so long without progress before it ends the job. `reason` says where the limit
// comes from, for the message; it must stay alive.
void comm_set_timeout(Comm *world, double timeout_s, const char *reason);

// The group of the given ranks of `parent`, in that order; called by exactly those ranks. Collective over
// them. `name` ("tp", "dp") is for people and must stay alive. Closed with comm_close, before its parent.
Status comm_split(Comm *parent, const char *name, const int *ranks, int num_ranks, Comm **group);
void comm_close(Comm *group);

// ---- collectives: same call, same shape, same order on every rank of the group ---------------------------

// Sums of BF16 and F16 are made in fp32, in rank order, and rounded once. A name that ends in _start posts
// the operation: progress is made in comm_poll and in any wait, and its tensors must stay untouched until the
// wait.

void comm_all_reduce(Comm *comm, Stream *stream, Tensor x, ReduceOp op); // in place; any type but I32
CommRequest *comm_all_reduce_start(Comm *comm, Stream *stream, Tensor x, ReduceOp op);
// in [n * count] -> out [count]: slice `rank` of the sum. out may be that slice of in (CHECK: else apart from
// it); the rest of in is then undefined, else in is left as it was.
void comm_reduce_scatter(Comm *comm, Stream *stream, Tensor in, Tensor out);
CommRequest *comm_reduce_scatter_start(Comm *comm, Stream *stream, Tensor in, Tensor out);
// in [count] -> out [n * count], in rank order. in may be slice `rank` of out (CHECK: else apart from it).
void comm_all_gather(Comm *comm, Stream *stream, Tensor in, Tensor out);
CommRequest *comm_all_gather_start(Comm *comm, Stream *stream, Tensor in, Tensor out);
void comm_broadcast(Comm *comm, Stream *stream, Tensor x, int root);
void comm_barrier(Comm *comm);

// Host values, for control flow and statistics.
void comm_all_reduce_host(Comm *comm, double *values, int count, ReduceOp op);
void comm_broadcast_host(Comm *comm, void *bytes, size_t size, int root);
// `size` bytes of each rank -> out [ranks * size], in rank order.
void comm_all_gather_host(Comm *comm, const void *in, void *out, size_t size);
// Blocking messages between two different ranks, in their order: both sides give the same size.
void comm_send_host(Comm *comm, const void *bytes, size_t size, int to);
void comm_recv_host(Comm *comm, void *bytes, size_t size, int from);
// The worst status of any rank, on every rank. The message of the lowest failing rank, with its coordinates
// and the number of others that failed, becomes every rank's fail_message. Set-up only.
Status comm_agree(Comm *comm, Status mine);
// Compares `lines`, each "NAME\tVALUE\n", with those of rank 0. Where a rank's differ, all ranks fail with
// ERR_CONFIG: the message names the first line that differs, both ranks and both values. Set-up only.
Status comm_compare(Comm *world, const char *lines);

// ---- messages ---------------------------------------------------------------------------------------------

// x must stay untouched until the wait; received, it holds the message after it.
CommRequest *comm_send(Comm *comm, Stream *stream, Tensor x, int to, int channel);
CommRequest *comm_recv(Comm *comm, Stream *stream, Tensor x, int from, int channel);
void comm_wait(Comm *comm, Stream *stream, CommRequest **request); // sets it to NULL; NULL is done
bool comm_done(Comm *comm, CommRequest **request);                 // polls once; frees and NULLs when done
// Lets posted work of the whole world advance: one test of a pointer when nothing is posted, else the copies
// and additions that can be made without waiting for anybody. To be called a thousand times a second.
void comm_poll(Comm *comm);

// ---- counting ---------------------------------------------------------------------------------------------

typedef struct {
    int64_t calls;
    double bytes;  // of the tensors handed in on this rank
    double wait_s; // time spent in waits and blocking calls
} CommCount;

typedef enum {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_BARRIER,
    COMM_SEND,
    COMM_RECV,
    NUM_COMM_OPS
} CommOp;

const char *comm_op_name(CommOp op);            // "all_reduce"
const CommCount *comm_counts(const Comm *comm); // [NUM_COMM_OPS] of this group since its start
// Called for every call of any group of this world once it is counted: `bytes` is what it adds there, `dtype`
// that of its tensors (F64 of host values that are added up; of other host bytes it says nothing). NULL:
// nobody listens.
typedef void OnCall(void *self, const Comm *group, CommOp op, DType dtype, size_t bytes);
void comm_on_call(Comm *world, OnCall *hook, void *self);
