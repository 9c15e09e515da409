// A backend is a folder device/NAME/ with one table, NAME_backend, and one row in DEVICE_KINDS below; or a module that
// is loaded when it is wanted, with a row in DEVICE_MODULES (device/module.h).
//
// The front (device.c, launch.c) calls it. It has already checked shapes and found the workspace, and it counts. A
// backend gives the operations, and of the callbacks those that it needs; for the others the front uses the host's
// (backend.c): memory of the process, and operations that are done when they return.
//
// An address of device memory means something to its backend alone. Everything that takes an Exec is stream-ordered: it
// may return before it is done, as long as what its stream does later comes after it.
#pragma once
#include "base/pci.h"
#include "device/links.h"
#include "device/op_table.h"
#include "device/peer.h"
#include "device/survey.h"

//  Backends of the program, and the names of their kinds; the first one is proposed where nothing else is known.
#define DEVICE_KINDS(X)                                                                                      \
    X(cpu)                                                                                                   \
    X(reference)                                                                                             \
    X(check)                                                                                                 \
    X(null)

// An Exec says where an operation runs: on which device and stream, with how many threads and with which scratch
// memory.
typedef struct {
    void *state; // the device's, as `open` has made it
    void *queue; // the stream's, as `stream_open` has made it
    int threads;
    void *workspace; // at least what workspace_bytes said for this call
    size_t workspace_bytes;
} Exec;

// Who is told while the host waits for the device (device_on_wait).
typedef struct {
    void (*hook)(void *self, double waited_s); // may be NULL
    void *self;
} DeviceWait;

// The length of a wait of the host, in which a time when the process was stopped is short.
typedef struct {
    double waited_s, last_s; // clock_s(); 0: it begins
} WaitClock;
// Counts the time since the last call, and calls the hook, if there is one.
void wait_clock_turn(WaitClock *clock, const DeviceWait *wait);

// What devices of one process do with each other's memory (device/peer.h). `other`, `to_state` and `from_state` are the
// states of devices of this kind, and an event may be that of another device.
typedef struct {
    bool (*reach)(void *state, const void *other);
    Status (*event_open)(void *state, void **event);
    void (*event_close)(void *event);
    void (*event_record)(const Exec *exec, void *event);
    void (*event_wait)(const Exec *exec, void *event);
    void (*copy)(const Exec *exec, void *to, const void *to_state, const void *from, const void *from_state,
                 size_t bytes);
    void (*reduce)(const Exec *exec, const PeerReduce *args);
} PeerBackend;

// Operations of links, in a table of their own. See links.h for what they do.
typedef enum {
    LINK_SEND,
    LINK_RECEIVE,
    LINK_GATHER,
    LINK_BROADCAST,
    LINK_ALL_REDUCE,
    LINK_REDUCE_SCATTER
} LinkOp;

typedef struct {
    LinkOp op;
    const void *in;
    void *out;
    size_t count; // of each rank's part
    DType dtype;
    ReduceOp reduce;
    int peer; // of a message; the root
} LinkCall;

// `state` is the device's, `link` what `open` has made.
typedef struct {
    Status (*check)(void *state);
    Status (*version)(void *state, char version[32]);
    Status (*new_id)(void *state, LinkId *id);
    Status (*open)(void *state, const LinkSpec *spec, void **link);
    Status (*ready)(void *link, bool *ready);
    void (*close)(void *link);
    void (*destroy)(void *link, bool aborts);
    void (*begin)(void *link);
    void (*end)(void *link);
    void (*run)(void *link, const Exec *exec, const LinkCall *call);
} LinkBackend;

typedef struct {
    const char *name;
    bool counts_only; // operations, copies and waits are counted and not made
    bool is_fused;    // it makes FUSED_OPS, too
    // The operations: one function each, or one for all of them.
#define X(NAME, function, Args, reads, writes) void (*function)(const Exec *exec, const Args *args);
    DEVICE_OPS(X)
#undef X
    void (*run)(const Exec *exec, DeviceOp op, const void *args);

    // ---- all below: optional callbacks ----

    // Makes products of one type that do not depend on each other (matmul_each), with the workspace of the one that
    // needs most. NULL: the front makes them one after the other.
    void (*matmuls)(const Exec *exec, const Matmul *calls, int count);

    // Workspace of one call, in bytes; `args` is the operation's argument struct. NULL: none ever.
    size_t (*workspace_bytes)(const DeviceOptions *options, DeviceOp op, const void *args);
    // The tokens of which the loss head makes logits at once (see device_head_tokens). NULL: as the cpu backend does.
    int64_t (*head_tokens)(int64_t hidden, int64_t vocabulary);
    // Checks the environment variables that limit its kernels; fails with ERR_CONFIG and the name of the variable.
    Status (*check)(void);
    // Returns the name of the kernels that this process takes, for messages. NULL: there is no choice.
    const char *(*kernels)(void);
    // Names what it computes with, for device_arithmetic. NULL: as the cpu backend does.
    void (*arithmetic)(Text *out);
    // Decides who computes attention, as device_choose_attention. NULL: there is no choice.
    AttentionKernels (*choose_attention)(const DeviceOptions *options);
    // Says what computes attention on this machine, for messages. NULL: there is no choice.
    void (*attention)(const DeviceOptions *options, Text *out);
    // Sets what there is of GPUs and libraries (device/survey.h), also where `check` fails; the survey is zeros before.
    void (*survey)(DeviceSurvey *survey, bool tries);

    // Tables of algorithms of matrix products (device/algorithms.h): appends the lines that say for what a table is,
    // appends the fastest algorithm's row for a product, takes the table `text` of `file`. NULL: the kind chooses none.
    void (*algorithms_about)(void *state, Text *table);
    Status (*algorithms_time)(const Exec *exec, const JoinedProduct *product, Text *table);
    Status (*algorithms_take)(void *state, const char *file, const char *text);

    // Makes what calls of this kind need, as device_prepare (device/prepare.h). NULL: nothing.
    Status (*prepare)(void *state, DeviceOp op, const void *args);

    // Called by the rank's thread; `*state` is NULL before. `close` comes after all memory and all streams are freed.
    Status (*open)(void **state, const DeviceOptions *options);
    void (*close)(void *state);
    // Names the GPU that the device computes on. NULL: the CPU.
    void (*unit)(void *state, DeviceUnit *unit);
    // Names the GPU that a rank with this number among those of its machine takes, as base/pci.h does, without opening
    // anything. False: there is none. NULL: the CPU.
    bool (*pci)(int rank_here, char id[PCI_ID_BYTES]);
    // The functions of Memory (base/arena.h), with the state as `self`.
    void *(*take)(void *state, const char *name, size_t bytes, const char **why);
    void (*give_back)(void *state, void *base, size_t bytes);
    void (*begins)(void *state, const char *name, void *address, size_t bytes);
    // The same for memory of the host, as device_host_memory. NULL: plain memory of the process.
    void *(*host_take)(void *state, const char *name, size_t bytes, const char **why);
    void (*host_give_back)(void *state, void *base, size_t bytes);

    Status (*stream_open)(void *state, const char *name, void **queue);       // `name` stays alive
    void (*stream_close)(void *state, void *queue);                           // waits for what is under way
    void (*copy)(const Exec *exec, void *to, const void *from, size_t bytes); // they may overlap
    void (*zero)(const Exec *exec, void *x, size_t bytes);
    // From host memory, which the caller may change at once; to host memory, which the caller reads after a wait.
    void (*upload)(const Exec *exec, void *to, const void *from, size_t bytes);
    void (*download)(const Exec *exec, void *to, const void *from, size_t bytes);
    // From memory of host_take, which the caller leaves alone until a wait. NULL: as `upload`.
    void (*upload_async)(const Exec *exec, void *to, const void *from, size_t bytes);
    // To memory of host_take, which the caller reads after a wait. NULL: as `download`.
    void (*download_async)(const Exec *exec, void *to, const void *from, size_t bytes);

    // An event is a number that grows along its stream; 0 lies behind every stream. `exec` is the event's stream.
    int64_t (*event_record)(const Exec *exec);
    // Blocks the host until the stream has reached the event, at most `seconds`. Returns whether it has.
    bool (*event_wait)(const Exec *exec, int64_t event, double seconds);
    void (*stream_wait)(const Exec *exec, const Exec *of, int64_t event);
    // Waits of the backend's own, in any of its functions, call `wait` meanwhile, which stays where it is.
    void (*on_wait)(void *state, const DeviceWait *wait);
    // Two clocks where the stream is now: wall-clock time, and time of work (see DeviceMark).
    void (*mark)(const Exec *exec, DeviceMark *mark);
    void (*mark_read)(void *state, DeviceMark *mark);

    // Host code uses [data, data + bytes) from where the stream is now (`access` is set but for its number and its
    // address) until access_end. Its address is asked for once the stream has got there. A backend that first copies
    // the bytes to where the host can use them moves `since` behind that copy.
    void (*access)(const Exec *exec, HostAccess *access);
    void *(*access_address)(void *state, const HostAccess *access);
    void (*access_end)(void *state, const HostAccess *access);
    // The address that host code may follow for device memory, at once.
    void *(*address)(void *state, void *data, size_t bytes);

    const PeerBackend *peers; // NULL: the memory of such a device is for itself and the host
    const LinkBackend *links; // NULL: its ranks cannot be linked
} Backend;

#define X(name) extern const Backend name##_backend;
DEVICE_KINDS(X)
#undef X

// The callbacks of a backend that are NULL become the host's.
void backend_complete(Backend *backend);
// Calls the function of a backend.
void backend_run(const Backend *backend, const Exec *exec, DeviceOp op, const void *args);
