// Communication between ranks: groups, collectives, messages on channels, agreement. Every wait has a time limit.
//
// A Comm is one rank's view of a group. Transports (comm_transports lists those that can be chosen by name):
//   threads       ranks are threads of this process (laptops, tests, sanitizers)
//   mpi           ranks are processes under mpirun or srun
//   mpi-messages  mpi without shared memory between the ranks of a node
//   tcp           ranks are processes that torchrun, srun or a script has numbered; messages over connections
//   null          one rank that behaves as if the others were there: calls are counted, nothing moves (planning)
// CommOptions.check puts the checking transport around any of them: before each collective the ranks of a group compare
// operation, shape and order.
//
// Order. Calls on tensors are stream-ordered: an operation starts when its stream has reached the call, and comm_wait
// makes a stream wait for it. Transports that run on the host block it in comm_wait until the data have arrived.
// Tensors of GPUs may have a transport of their own (comm/device_transport.h), whose operations run on streams: there
// the host waits at most until the other ranks' hosts have come to the same call. There is no progress thread:
// operations advance in comm_poll and in any wait.
//
// A group of one rank. Its collectives are at most a copy on the stream of the call, and the started ones return NULL.
// A wait for NULL orders nothing: the result is there for what that stream does later. Before another stream or the
// host uses it, the caller orders them by an event.
//
// Reductions add in rank order, or in a tree over the ranks, on every transport (device/reduce.h), so results have the
// same bits on all of them and in every run. A *channel* is (from, to, number), a FIFO. Sends and receives are started
// and awaited later: that is the model in which schedule_verify proves that a schedule cannot hang.
//
// Hangs. A rank that waits longer than the time limit (timeout_s, comm_set_timeout) without progress prints for which
// rank it waits, in which operation, at which instruction, and ends the job on every rank with ERR_HANG. Time in which
// the process was stopped does not count. (Where MPI itself blocks, in set-up and at the end, the message names the
// group and "the other ranks".)
#pragma once
#include "base/arena.h"
#include "base/launcher.h"
#include "base/rank.h"
#include "base/text.h"
#include "device/reduce.h"
#include <stdatomic.h>

typedef struct Comm Comm;
// A collective or message that was started and is awaited later. A NULL pointer means that nothing is left to wait for.
typedef struct CommRequest CommRequest;

typedef struct {
    const char *transport; // one of comm_transports()
    int ranks;             // threads, null: the number of ranks; mpi: 0, the launcher knows it
    int null_rank;         // null: the rank that this process is
    double timeout_s;      // the limit of every wait, until comm_set_timeout sets another
    bool check;            // use the checking transport
    // Names what carries tensors of a device between the ranks, as --device-transport does; NULL: "auto"
    const char *device_transport;
    bool deterministic; // false: the library of MPI, or NCCL, may add in an order of its own
    int threads;     // of each rank's computation; 0: one. Where they outnumber the cores, waits do not spin
    int cores;       // threads: the number of cores for all ranks; 0: those that this process may run on
    bool bind_cores; // each rank gets cores of its own, where there are enough (base/cores.h)
    // With bind_cores: the kind of device that ranks will open, so that each stays near its GPU; NULL: none
    const char *device;
    const char *sysfs; // where the system describes processors and GPUs; NULL: SYSFS
    // Lines that must be the same on all ranks, as for comm_compare; NULL: nothing is compared. They are compared
    // before rank_main runs and before any option of one rank has an effect.
    const char *common;
    // Optional: the number of a signal that asked to stop, 0 before. tcp: while ranks wait for each other at the start,
    // the job then ends with INTERRUPTED.
    const atomic_int *stopped;
} CommOptions;

// Runs `rank_main` once per rank (on N threads, or here as this process's rank) and returns the worst status. Sets the
// thread's current rank (base/rank.h) meanwhile and restores it afterwards. The message of the first failing rank
// becomes the caller's (mpi: only in process 0, so that it is printed once). After an error that all ranks share by
// comm_agree the job ends in order; a rank that returns an error of its own while others are still at work after 2 s
// ends the job with its message and status. mpi: can be called once in a process.
typedef Status RankMain(Comm *world, void *arg);
Status comm_launch(CommOptions options, RankMain *rank_main, void *arg);

typedef struct {
    const char *name;
    bool launched;   // its ranks are processes that a launcher has started; else threads of this process
    bool moves_data; // false: calls are counted only
    Status (*launch)(const CommOptions *options, RankMain *rank_main, void *arg);
} CommTransport;
const CommTransport *comm_transports(int *count);
// Returns the transport of the ranks that a launcher has started, or "threads" where none has.
const char *comm_transport_here(void);

int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
int comm_rank_here(const Comm *comm); // this rank's number among those of its machine
int comm_first_here(
    const Comm *comm); // the lowest rank of the world on this machine: a number for the machine
const char *comm_name(const Comm *comm);
// From now on the tensors of calls of this world, and of the groups that are opened from now on, are memory of `device`
// (NULL: plain memory; then the groups that were opened since are closed already). Chooses what carries them between
// the ranks: CommOptions.device_transport. Fails alike on all ranks: ERR_CONFIG or ERR_UNAVAILABLE where that cannot be
// used. With NULL it cannot fail.   Collective over `world`, but with NULL.
Status comm_use_device(Comm *world, Device *device);
// What carries tensors of the device between the ranks: "peer", "nccl", "staged". NULL: there is one rank, or no GPU.
const char *comm_device_transport(const Comm *world);

// Sets the time that this rank waits without progress before it ends the job. `reason` is for the message and says
// where the limit comes from; it must stay alive.
void comm_set_timeout(Comm *world, double timeout_s, const char *reason);

// Opens the group of the given ranks of `parent`, in that order. Collective over exactly those ranks. `name` ("tp",
// "dp") is for messages and must stay alive. Close it with comm_close, before its parent.
Status comm_split(Comm *parent, const char *name, const int *ranks, int num_ranks, Comm **group);
void comm_close(Comm *group);

// ---- collectives: the same call, with the same shape, in the same order on every rank of the group ---------

// Sums of BF16 and F16 are made in fp32, in the order of the ReduceOp, and rounded once. A function whose name ends in
// _start returns before the operation is done: its tensors must not be used until comm_wait. The others start and wait.

// Fails with ERR_CONFIG, and says what to do, where tensors of the device of this type cannot be reduced so over the
// group: to be called before the first step, as the reduction itself would end the job. Fails alike on all its ranks.
Status comm_can_reduce(const Comm *comm, DType dtype, ReduceOp op);
void comm_all_reduce(Comm *comm, Stream *stream, Tensor x, ReduceOp op); // in place; any type but I32
CommRequest *comm_all_reduce_start(Comm *comm, Stream *stream, Tensor x, ReduceOp op);
// in [n * count] -> out [count]: slice `rank` of the reduction. `out` is either that slice of `in`, and the rest of
// `in` is undefined afterwards, or lies outside `in` (CHECK), which then stays as it is.
void comm_reduce_scatter(Comm *comm, Stream *stream, Tensor in, Tensor out, ReduceOp op);
CommRequest *comm_reduce_scatter_start(Comm *comm, Stream *stream, Tensor in, Tensor out, ReduceOp op);
// in [count] -> out [n * count], in rank order. `in` is slice `rank` of `out`, or lies outside it (CHECK).
void comm_all_gather(Comm *comm, Stream *stream, Tensor in, Tensor out);
CommRequest *comm_all_gather_start(Comm *comm, Stream *stream, Tensor in, Tensor out);
// in [n * count] -> out [n * count]: slice r of `in` becomes slice `rank` of rank r's `out`. The two do not overlap
// (CHECK).
void comm_all_to_all(Comm *comm, Stream *stream, Tensor in, Tensor out);
CommRequest *comm_all_to_all_start(Comm *comm, Stream *stream, Tensor in, Tensor out);
void comm_broadcast(Comm *comm, Stream *stream, Tensor x, int root);
void comm_barrier(Comm *comm);

// The same for values on the host, for control flow and statistics; they block.
void comm_all_reduce_host(Comm *comm, double *values, int count, ReduceOp op);
void comm_broadcast_host(Comm *comm, void *bytes, size_t size, int root);
// `size` bytes of each rank -> out [ranks * size], in rank order.
void comm_all_gather_host(Comm *comm, const void *in, void *out, size_t size);
// Blocking messages between two different ranks, received in the order in which they were sent. Both ranks give the
// same size.
void comm_send_host(Comm *comm, const void *bytes, size_t size, int to);
void comm_recv_host(Comm *comm, void *bytes, size_t size, int from);
// The same for a text whose length the receiver does not know; what it had before is gone.
void comm_send_text(Comm *comm, const Text *text, int to);
void comm_recv_text(Comm *comm, Text *text, int from);
void comm_broadcast_text(Comm *comm, Text *text, int root);
// Start such a message and return; comm_done and comm_wait, without a stream, say that it is over. They do not mix
// with the blocking ones: a long message of files may be under way between them.
CommRequest *comm_send_host_start(Comm *comm, const void *bytes, size_t size, int to);
CommRequest *comm_recv_host_start(Comm *comm, void *bytes, size_t size, int from);
// Returns the worst status of any rank, on every rank. The message of the lowest failing rank, with its coordinates
// and the number of other ranks that failed, becomes every rank's fail_message. Not within a step.
Status comm_agree(Comm *comm, Status mine);
// Compares `lines`, each "NAME\tVALUE\n", with those of rank 0. Where a rank's lines differ, all ranks fail with
// ERR_CONFIG: the message names the first line that differs, both ranks and both values. Not within a step.
Status comm_compare(Comm *world, const char *lines);

// ---- memory of a machine ----------------------------------------------------------------------------------

// Memory that all ranks of a group read and write: one copy, plain memory of their processes, zeroed. The ranks must be
// on one machine (comm_first_here). `take` is collective over the group, with the same size on all its ranks, and fails
// alike on them. Who writes what others read orders that by a barrier. The group is used by `take` alone.
Memory comm_shared_memory(Comm *group);

// ---- messages ---------------------------------------------------------------------------------------------

// The messages from one rank to another with one number.
typedef struct {
    int from, to, number;
} CommChannel;
// Opens channels for messages on tensors of the device, before their first one: some device transports make what a
// channel needs together with its other end. All ranks give the same list; a channel may be in it twice.   Collective
// over `comm`.
Status comm_open_channels(Comm *comm, const CommChannel *channels, int count);
// Start a send or receive of x, which must not be used until comm_wait. Channels are numbers from 0 on.
CommRequest *comm_send(Comm *comm, Stream *stream, Tensor x, int to, int channel);
CommRequest *comm_recv(Comm *comm, Stream *stream, Tensor x, int from, int channel);
// Makes all later work of `stream` wait for the operation. Releases the request and sets it to NULL. For NULL returns
// at once and orders nothing ("A group of one rank", above). The host blocks as said above ("Order").
void comm_wait(Comm *comm, Stream *stream, CommRequest **request);
// Polls once; when the operation is over, releases the request, sets it to NULL and returns true. Then every stream and
// the host may use its tensors.
bool comm_done(Comm *comm, CommRequest **request);
// Advances all operations of the world that were started: it makes the copies and additions that need not wait for
// another rank. Costs one test of a pointer when there are none. The device calls it before every operation.
void comm_poll(Comm *comm);
// Ends the job with ERR_HANG, like a wait of comm, when the host has waited for its device too long because operations
// of comm do not end there. The device calls it while the host waits, with the seconds since that wait began.
void comm_watch(Comm *world, double waited_s);

// ---- counting ---------------------------------------------------------------------------------------------

typedef struct {
    int64_t calls;
    double bytes;  // of this rank's tensors
    double wait_s; // time that the host spent in waits and blocking calls
} CommCount;

typedef enum {
    COMM_ALL_REDUCE,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_ALL_TO_ALL,
    COMM_BROADCAST,
    COMM_BARRIER,
    COMM_SEND,
    COMM_RECV,
    NUM_COMM_OPS
} CommOp;

const char *comm_op_name(CommOp op);            // "all_reduce"
const CommCount *comm_counts(const Comm *comm); // [NUM_COMM_OPS] of this group since its start
// Sets an optional callback for every call of any group of this world, after it was counted. `bytes` is what the call
// adds to the count. `dtype` is the type of its tensors, F64 for reductions of host values, and undefined for other
// host data. NULL removes the callback.
typedef void OnCall(void *self, const Comm *group, CommOp op, DType dtype, size_t bytes);
void comm_on_call(Comm *world, OnCall *hook, void *self);
