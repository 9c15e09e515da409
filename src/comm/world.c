// One rank's world: from the group of all ranks to rank_main and back, its device, time limit and listener.
#include "base/beat.h"
#include "base/control_groups.h"
#include "comm/queue.h"
#include <stdio.h>
#include <string.h>

// ---- before the start -------------------------------------------------------------------------------------

const char *world_sysfs(const CommOptions *options) { return options->sysfs ? options->sysfs : SYSFS; }

RankCores world_cores(const CommOptions *options, int rank_here) {
    Cores allowed, near = {0};
    cores_allowed(&allowed);
    if (options->bind_cores && options->device)
        device_near(options->device, rank_here, world_sysfs(options), &near);
    return cores_of_rank(&allowed, &near);
}

bool world_has_time(int ranks, int threads) { return control_groups_processors("") / ranks >= threads; }

void world_gather(Group *group, const CommOptions *options, const void *mine, void *all, size_t bytes) {
    World world = {.options = options, .op_bytes = group->transport->op_bytes};
    comm_init(&world.comm, group, &world);
    rank_doing("dividing the cores of the machine");
    comm_all_gather_host(&world.comm, mine, all, bytes);
    queue_destroy(&world);
}

// Before the checking transport, which some of the ranks may not have asked for.
static Status compare_ranks(Group *group, const CommOptions *options) {
    if (!options->common) return OK;
    World world = {.options = options, .op_bytes = group->transport->op_bytes};
    comm_init(&world.comm, group, &world);
    rank_doing("comparing the options of all ranks");
    Status status = comm_compare(&world.comm, options->common);
    queue_destroy(&world);
    return status;
}

// ---- the run ----------------------------------------------------------------------------------------------

// `there` is the transport's own group, which knows the machines.
static Status run_rank(Group *group, Group there, const CommOptions *options, RankMain *rank_main,
                       void *arg) {
    World world = {.options = options,
                   .rank_here = there.rank_here,
                   .first_here = there.first_here,
                   .op_bytes = group->transport->op_bytes};
    comm_init(&world.comm, group, &world);
    Status status = rank_main(&world.comm, arg);
    // After an error operations may be in flight that others still complete into their requests: keep those.
    if (status == OK) CHECK(!world.num_open, "%d requests were never awaited", world.num_open);
    if (!world.first) queue_destroy(&world);
    return status;
}

Status world_run(Group *group, const CommOptions *options, RankMain *rank_main, void *arg) {
    Group there = *group;
    Rank *me = rank_current();
    if (!me->beat) me->beat = beat_join(me->rank, me->size);
    beat_phase(me->beat, BEAT_STARTING, -1);
    Status status = compare_ranks(group, options);
    if (status == OK && options->check) status = check_wrap(group, &group);
    if (status == OK) status = run_rank(group, there, options, rank_main, arg);
    group->transport->close(group);
    beat_leave(me->beat, (int)status);
    me->beat = NULL;
    return status;
}

_Noreturn void abort_after_error(Status status) {
    char who[64];
    rank_describe(rank_current(), who, sizeof who);
    fprintf(stderr, "trireme: error: %s%s%s (others were still at work: the job ends)\n", who,
            *who ? " " : "", fail_message());
    rank_abort_job((int)status);
}

// ---- the device -------------------------------------------------------------------------------------------

static Status open_device_group(Comm *comm, Group **group) {
    World *world = comm->world;
    TRY(world->device_transport->open(comm, world->device, group));
    if (!*group || !world->options->check) return OK;
    Group *inner = *group;
    return check_wrap_device(comm->group, inner, group);
}

Status comm_open_device(Comm *comm) {
    World *world = comm->world;
    if (!world->device_transport || !world->device_transport->open || comm_size(comm) == 1) return OK;
    TRY(open_device_group(comm, &comm->device.group));
    if (!comm->device.group) return OK;
    queue_reserve(world, comm->device.group->transport->op_bytes);
    // What it has taken to open the group is no communication of the run.
    memset(comm->counts, 0, sizeof comm->counts);
    return OK;
}

void comm_close_device(Comm *comm) {
    Group *group = comm->device.group;
    queue_drain(comm);
    if (group) group->transport->close(group);
    comm->device = (Lane){0};
}

Status comm_use_device(Comm *comm, Device *device) {
    World *world = comm->world;
    comm_close_device(comm);
    world->device_transport = NULL;
    world->device = device;
    if (!device) return OK;
    TRY(device_transport_choose(comm, device, world->options->device_transport, &world->device_transport));
    return comm_open_device(comm);
}

const char *comm_device_transport(const Comm *world) {
    const DeviceTransport *transport = world->world->device_transport;
    return transport ? transport->name : NULL;
}

// ---- limits and listeners -----------------------------------------------------------------------------------

void comm_set_timeout(Comm *world, double timeout_s, const char *reason) {
    world->world->timeout_s = timeout_s;
    world->world->timeout_reason = reason;
}

void comm_on_call(Comm *world, OnCall *hook, void *self) {
    world->world->listener = hook;
    world->world->listener_self = self;
}
