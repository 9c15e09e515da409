// Code that the transports share: memory, the head of a group, the names of operations.
#include "comm/transport.h"
#include <stdlib.h>

void *comm_allocate(size_t count, size_t bytes) {
    void *memory = calloc(count ? count : 1, bytes);
    CHECK(memory, "no memory for %zu times %zu bytes of a communication group", count, bytes);
    return memory;
}

void group_init(Group *group, const Transport *transport, const char *name, const Group *parent,
                const int *ranks, int num_ranks, int rank) {
    *group = (Group){.transport = transport, .name = name, .rank = parent ? -1 : rank, .size = num_ranks};
    group->rank_here = group->rank; // unless the transport knows of several machines
    group->members = comm_allocate((size_t)num_ranks, sizeof(int));
    for (int i = 0; i < num_ranks; i++) {
        group->members[i] = parent ? parent->members[ranks[i]] : i;
        if (parent && ranks[i] == parent->rank) group->rank = i;
    }
}

size_t slice_begin(size_t count, int parts, int i) {
    return count / (size_t)parts * (size_t)i + count % (size_t)parts * (size_t)i / (size_t)parts;
}

void check_message_size(const Group *group, int from, int to, int channel, size_t sent, size_t wanted) {
    CHECK(sent == wanted, "group %s: rank %d sends %zu bytes on channel %d to rank %d, which expects %zu",
          group->name, group->members[from], sent, channel, group->members[to], wanted);
}

static const char *const op_names[NUM_COMM_OPS] = {
    [COMM_ALL_REDUCE] = "all_reduce",
    [COMM_REDUCE_SCATTER] = "reduce_scatter",
    [COMM_ALL_GATHER] = "all_gather",
    [COMM_ALL_TO_ALL] = "all_to_all",
    [COMM_BROADCAST] = "broadcast",
    [COMM_BARRIER] = "barrier",
    [COMM_SEND] = "send",
    [COMM_RECV] = "recv",
};

const char *comm_op_name(CommOp op) { return op_names[op]; }
