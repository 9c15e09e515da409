// The transport "null": one rank that behaves as if the other ranks were there. Every call is counted, moves nothing
// and is done at once.
#include "comm/transport.h"
#include <stdlib.h>

static const Transport null_transport;

static Status null_split(Group *parent, const char *name, const int *ranks, int num_ranks, Group **group) {
    *group = comm_allocate(1, sizeof **group);
    group_init(*group, &null_transport, name, parent, ranks, num_ranks, 0);
    return OK;
}

static void null_close(Group *group) {
    free(group->members);
    free(group);
}

static void null_start(Group *group, const Call *call, void *op) { (void)group, (void)call, (void)op; }

static CallProgress null_advance(Group *group, const Call *call, void *op) {
    (void)group, (void)call, (void)op;
    return DONE;
}

static StreamEvent null_ends_at(Group *group, const Call *call, const void *op) {
    (void)group, (void)call, (void)op;
    return (StreamEvent){0};
}

static void null_waits_for(Group *group, const Call *call, const void *op, Text *ranks) {
    (void)group, (void)call, (void)op, (void)ranks;
}

static void null_pause(Group *world, int turns) { (void)world, (void)turns; }

static const Transport null_transport = {.split = null_split,
                                         .close = null_close,
                                         .start = null_start,
                                         .advance = null_advance,
                                         .ends_at = null_ends_at,
                                         .waits_for = null_waits_for,
                                         .pause = null_pause};

Status null_launch(const CommOptions *options, RankMain *rank_main, void *arg) {
    CHECK(options->ranks > 0 && options->null_rank >= 0 && options->null_rank < options->ranks,
          "rank %d of %d", options->null_rank, options->ranks);
    Group *world = comm_allocate(1, sizeof *world);
    group_init(world, &null_transport, "world", NULL, NULL, options->ranks, options->null_rank);
    Rank *rank = comm_allocate(1, sizeof *rank);
    *rank = (Rank){.rank = options->null_rank, .size = options->ranks};
    Rank *caller = rank_current();
    rank_enter(rank);
    Status status = world_run(world, options, rank_main, arg);
    rank_enter(caller);
    if (status != OK) fail(status, "%s", rank->message);
    free(rank);
    return status;
}
