// Opens and closes the runtime of one rank: groups, device and arenas.
#include "nn/runtime.h"

static void poll(void *world) { comm_poll(world); }

static Status open_arenas(Runtime *r, const RuntimeMemory *memory) {
    if (!memory) {
        arena_open_measuring(&r->run, "run");
        arena_open_measuring(&r->scratch, "scratch");
        return OK;
    }
    TRY(arena_open(&r->run, "run", device_memory(r->device), memory->run));
    return arena_open(&r->scratch, "scratch", device_memory(r->device), memory->scratch);
}

Status runtime_open(Runtime *r, const RuntimeSpec *spec, Comm *world) {
    const RuntimeMemory *memory = spec->memory;
    *r = (Runtime){.world = world};
    TRY(grid_check(spec->topology.grid));
    // The groups come first: opening them is collective, and what follows can fail on one rank alone.
    TRY(groups_open(&r->context.groups, world, spec->topology, spec->roles));
    DeviceOptions device = {.kind = memory ? spec->device : "null",
                            .stands_for = memory ? NULL : spec->device,
                            .threads = spec->threads,
                            .rank_here = comm_rank_here(world),
                            .workspace_bytes = memory ? memory->workspace : 0};
    TRY(device_open(&r->device, device));
    comm_use_device(world, r->device);
    device_on_launch(r->device, poll, world);
    r->context.device = r->device;
    r->context.stream = device_stream(r->device);
    r->context.scratch = &r->scratch;
    r->context.mode = spec->mode;
    return open_arenas(r, memory);
}

void runtime_close(Runtime *r) {
    arena_close(&r->scratch);
    arena_close(&r->run);
    groups_close(&r->context.groups);
    if (r->world) comm_use_device(r->world, NULL);
    device_close(r->device);
    *r = (Runtime){0};
}

bool runtime_is_measuring(const Runtime *r) { return r->run.measuring; }

RuntimeMemory runtime_memory_used(const Runtime *r) {
    return (RuntimeMemory){r->run.peak, r->scratch.peak, device_workspace_peak(r->device)};
}

Status runtime_run_alone(int size, int rank, RankMain *rank_main, void *arg) {
    return comm_launch((CommOptions){.transport = "null", .ranks = size, .null_rank = rank, .timeout_s = 60},
                       rank_main, arg);
}
