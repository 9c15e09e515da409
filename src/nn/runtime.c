// Opens and closes the runtime of one rank: groups, device and arenas.
#include "nn/runtime.h"
#include "base/rank.h"
#include "nn/recipes.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void poll(void *world) { comm_poll(world); }
static void watch(void *world, double waited_s) { comm_watch(world, waited_s); }

// Opens an arena that an option asks for; where there is no memory the message ends with the advice.
static Status open_advised(Arena *arena, const char *name, Memory memory, size_t bytes, const char *advice) {
    char why[700];
    if (!bytes || arena_open(arena, name, memory, bytes) == OK) return OK;
    snprintf(why, sizeof why, "%s", fail_message());
    return fail(ERR_OS, "%s: %s", why, advice);
}

static Status open_shared(Runtime *r, size_t bytes) {
    return open_advised(
        &r->shared, "shared", comm_shared_memory(context_group(&r->context, ROLE_REPLICAS)), bytes,
        "with --no-share-parameters each rank keeps shards of the parameters in memory of its own");
}

static Status open_host(Runtime *r, size_t bytes) {
    return open_advised(&r->host_run, "host", device_host_memory(r->device), bytes,
                        "a smaller --optimizer-offload-fraction takes less of the host's memory; without "
                        "--optimizer-cpu-offload all optimizer state is on the device");
}

static Status open_arenas(Runtime *r, const RuntimeMemory *memory) {
    if (!memory) {
        arena_open_measuring(&r->run, "run");
        arena_open_measuring(&r->scratch, "scratch");
        arena_open_measuring(&r->shared, "shared");
        arena_open_measuring(&r->host_run, "host");
        return OK;
    }
    TRY(open_shared(r, memory->shared));
    TRY(open_host(r, memory->host));
    TRY(arena_open(&r->run, "run", device_memory(r->device), memory->run));
    return arena_open(&r->scratch, "scratch", device_memory(r->device), memory->scratch);
}

// Finds the GPU that most ranks share. Every rank gets the same answer.
static Status check_units(const DeviceUnit *units, int ranks, int most) {
    int shared = 0, first = 0;
    for (int r = 0; r < ranks; r++) {
        int same = 0;
        if (!*units[r].name) continue; // it computes on the CPU
        for (int other = 0; other < ranks; other++)
            same += !memcmp(units[other].id, units[r].id, sizeof units[r].id);
        if (same > shared) shared = same, first = r;
    }
    if (shared <= most) return OK;
    return fail(
        ERR_CONFIG,
        "%d ranks would share %s of rank %d's machine, and --ranks-per-gpu is %d: use as many ranks as there are "
        "GPUs (`trireme devices` lists them), or --ranks-per-gpu %d, which divides the GPU's memory and time",
        shared, units[first].name, first, most, shared);
}

// Checks that no more ranks share a GPU than may.   Collective over `world`.
static Status check_gpu(const Runtime *r, int ranks_per_gpu, Comm *world) {
    DeviceUnit mine = device_unit(r->device), *units = calloc((size_t)comm_size(world), sizeof *units);
    CHECK(units, "no memory for the names of %d GPUs", comm_size(world));
    comm_all_gather_host(world, &mine, units, sizeof mine);
    Status status = check_units(units, comm_size(world), ranks_per_gpu);
    free(units);
    return status;
}

static Status open_devices(Runtime *r, const RuntimeSpec *spec, DeviceOptions options) {
    DeviceOptions host = {.kind = spec->memory ? "cpu" : "null", .threads = spec->threads};
    TRY(device_open(&r->device, options));
    return spec->on_host ? device_open(&r->host, host) : OK;
}

Status runtime_open(Runtime *r, const RuntimeSpec *spec, Comm *world) {
    const RuntimeMemory *memory = spec->memory;
    *r = (Runtime){.world = world};
    DeviceOptions device = {.kind = memory ? spec->device : "null",
                            .stands_for = memory ? NULL : spec->device,
                            .threads = spec->threads,
                            .rank_here = comm_rank_here(world),
                            .attention = spec->mode.attention,
                            .any_order = spec->mode.any_order,
                            .algorithms = spec->algorithms,
                            .float8 = recipe_takes_8_bits(&spec->mode),
                            .workspace_bytes = memory ? memory->workspace : 0};
    // Every rank opens its device, or none: what follows is collective.
    TRY(comm_agree(world, open_devices(r, spec, device)));
    if (memory && spec->ranks_per_gpu) TRY(check_gpu(r, spec->ranks_per_gpu, world));
    if (r->host) device_on_launch(r->host, poll, world);
    device_on_launch(r->device, poll, world);
    device_on_wait(r->device, watch, world);
    TRY(comm_use_device(world, r->device));
    TRY(groups_open(&r->context.groups, world, spec->topology, spec->roles));
    r->context.device = r->device;
    r->context.stream = device_stream(r->device);
    r->context.scratch = &r->scratch;
    r->context.mode = spec->mode;
    return open_arenas(r, memory);
}

void runtime_close(Runtime *r) {
    arena_close(&r->host_run);
    arena_close(&r->shared);
    arena_close(&r->scratch);
    arena_close(&r->run);
    groups_close(&r->context.groups);
    if (r->world && r->device) comm_use_device(r->world, NULL);
    device_close(r->host);
    device_close(r->device);
    *r = (Runtime){0};
}

bool runtime_is_measuring(const Runtime *r) { return r->run.measuring; }

RuntimeMemory runtime_memory_used(const Runtime *r) {
    return (RuntimeMemory){.run = r->run.peak,
                           .scratch = r->scratch.peak,
                           .workspace = device_workspace_peak(r->device),
                           .shared = r->shared.peak,
                           .host = r->host_run.peak};
}

Status runtime_run_alone(int size, int rank, RankMain *rank_main, void *arg) {
    return comm_launch((CommOptions){.transport = "null", .ranks = size, .null_rank = rank, .timeout_s = 60},
                       rank_main, arg);
}
