// Jobs whose ranks are threads with a simulated GPU each, linked by the device transport "nccl", for its tests.
#pragma once
#include "comm/groups.h"
#include "comm_values.h"
#include "device/links.h"
#include <stdio.h>

enum { ARENA_BYTES = 32 << 20 };

// What a rank has.
typedef struct {
    Comm *world, *group, *second; // all of all ranks
    Device *device;
    Stream *stream;
    Arena arena;
} Node;

typedef void Law(Node *node);

static inline Tensor take(Node *n, DType dtype, int64_t count) {
    return tensor_take(&n->arena, "tensor", 1, count, dtype);
}

static inline Status on_rank(Comm *world, void *arg) {
    Node n = {.world = world};
    int ranks[8];
    for (int i = 0; i < comm_size(world); i++) ranks[i] = i;
    TRY(comm_agree(world, device_open(&n.device, (DeviceOptions){.kind = harness_device("cuda-sim"),
                                                                 .threads = 1,
                                                                 .rank_here = comm_rank(world)})));
    n.stream = device_stream(n.device);
    Status status = comm_use_device(world, n.device);
    if (status == OK) status = comm_split(world, "group", ranks, comm_size(world), &n.group);
    if (status == OK) status = comm_split(world, "second", ranks, comm_size(world), &n.second);
    if (status == OK) status = arena_open(&n.arena, "test", device_memory(n.device), ARENA_BYTES);
    if (status == OK) (*(Law **)arg)(&n);
    arena_close(&n.arena);
    comm_close(n.second);
    comm_close(n.group);
    comm_use_device(world, NULL);
    device_close(n.device);
    return status;
}

static double limit_s = 60; // of waits

static inline Status launch(int ranks, bool check, bool deterministic, Law *law) {
    CommOptions options = options_for("threads", ranks, check);
    char gpus[16];
    snprintf(gpus, sizeof gpus, "%d", ranks);
    if (!getenv("TRIREME_SIM_GPUS")) setenv("TRIREME_SIM_GPUS", gpus, 1);
    options.device_transport = "nccl";
    links_set_environment();
    options.timeout_s = limit_s;
    options.deterministic = deterministic;
    Status status = comm_launch(options, on_rank, &law);
    unsetenv("TRIREME_SIM_GPUS");
    return status;
}
