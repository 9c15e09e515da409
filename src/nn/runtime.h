// The runtime of one rank: the groups, the device and the memory that a model runs on. Training, inference and tests
// open one and give its Context to layers and pipeline.
//
// Memory is measured first: the same work runs once on the null device and the null transport, where arenas only
// count. A runtime with the memory that was measured then allocates exactly that.
#pragma once
#include "nn/stage.h"

// The memory of a rank in bytes.
typedef struct {
    size_t run;       // of the arena for everything that lives as long as the runtime
    size_t scratch;   // of the arena for one instruction
    size_t workspace; // of the device's operations
    size_t shared;    // of the arena that this rank shares with its replicas: of all of them together
    size_t host;      // of the arena in the host's memory
} RuntimeMemory;

typedef struct {
    Topology topology;
    unsigned roles;         // whose groups are opened: 1 << ROLE_TENSOR | ..., or ALL_ROLES
    const char *device;     // kind
    int threads;            // of the device's operations
    int ranks_per_gpu;      // so many ranks at most may share a GPU; 0: any number
    const char *algorithms; // a file for the device's matrix products (device/algorithms.h), or NULL
    ModelMode mode;
    bool on_host;                // the host computes, too, in memory beside the device's
    const RuntimeMemory *memory; // NULL: measure
} RuntimeSpec;

// Zeros: not open.
typedef struct {
    Comm *world;
    Device *device;
    Arena run, scratch;
    Arena shared;    // one copy for all replicas of a machine (comm_shared_memory), where the memory has any
    Device *host;    // the processors, with on_host; NULL without
    Arena host_run;  // as `run`, in device_host_memory
    Context context; // points into the runtime, which must not move
} Runtime;

// Opens groups, device and arenas, and makes the device's operations drive communication.   Collective over `world`.
// The caller closes the runtime when this fails, too; it may then fail on one rank alone.
Status runtime_open(Runtime *runtime, const RuntimeSpec *spec, Comm *world);
void runtime_close(Runtime *runtime);
bool runtime_is_measuring(const Runtime *runtime);
RuntimeMemory runtime_memory_used(const Runtime *runtime); // the most so far
// Runs `rank_main` as one of `size` ranks without the others, on the null transport: for work that is measured.
Status runtime_run_alone(int size, int rank, RankMain *rank_main, void *arg);
