// One rank's world: from the group of all ranks to rank_main and back, its device, time limit and listener.
#include "comm/queue.h"
#include <stdio.h>

// Before the checking transport, which some of the ranks may not have asked for.
static Status compare_ranks(Group *group, const CommOptions *options) {
    if (!options->common) return OK;
    World world = {.options = options};
    comm_init(&world.comm, group, &world);
    rank_doing("comparing the options of all ranks");
    Status status = comm_compare(&world.comm, options->common);
    queue_destroy(&world);
    return status;
}

static Status run_rank(Group *group, int rank_here, const CommOptions *options, RankMain *rank_main,
                       void *arg) {
    World world = {.options = options, .rank_here = rank_here};
    comm_init(&world.comm, group, &world);
    Status status = rank_main(&world.comm, arg);
    // After an error operations may be in flight that others still complete into their requests: keep those.
    if (status == OK) CHECK(!world.num_open, "%d requests were never awaited", world.num_open);
    if (!world.first) queue_destroy(&world);
    return status;
}

Status world_run(Group *group, const CommOptions *options, RankMain *rank_main, void *arg) {
    int rank_here = group->rank_here;
    Status status = compare_ranks(group, options);
    if (status == OK && options->check) status = check_wrap(group, &group);
    if (status == OK) status = run_rank(group, rank_here, options, rank_main, arg);
    group->transport->close(group);
    return status;
}

_Noreturn void abort_after_error(Status status) {
    char who[64];
    rank_describe(rank_current(), who, sizeof who);
    fprintf(stderr, "trireme: error: %s%s%s (others were still at work: the job ends)\n", who,
            *who ? " " : "", fail_message());
    rank_abort_job((int)status);
}

void comm_use_device(Comm *world, Device *device) { world->world->device = device; }

void comm_set_timeout(Comm *world, double timeout_s, const char *reason) {
    world->world->timeout_s = timeout_s;
    world->world->timeout_reason = reason;
}

void comm_on_call(Comm *world, OnCall *hook, void *self) {
    world->world->listener = hook;
    world->world->listener_self = self;
}
