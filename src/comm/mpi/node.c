// Opens and closes the windows of memory that the ranks of a node share.
#include "comm/mpi/node.h"
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

enum { PAGE = 4096 };

// Two buffers of 256 KiB fit into a second-level cache. The more slots a started operation has, the fewer polls it
// needs.
static const struct {
    int slots;
    size_t staging_bytes, rings_bytes;
} sizes[NUM_WAYS] = {[STARTED] = {16, 256 << 10, RINGS_BYTES}, [BLOCKING] = {2, 256 << 10, 0}};

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

// A part of a window need not begin on a page. Processes map whole pages, so all of them find the same next one.
static char *next_page(char *address) { return address + (PAGE - (uintptr_t)address % PAGE) % PAGE; }

// Every rank's part holds slots and entries (only rank 0's are used), its staging buffer, its rings.
static size_t header_bytes(Way way, int size) {
    return whole_pages((size_t)sizes[way].slots * (sizeof(ShmSlot) + (size_t)size * sizeof(ShmEntry)));
}

static size_t staging_bytes(Way way) { return (size_t)sizes[way].slots * sizes[way].staging_bytes; }

// The memory is allocated when it is first written, too late to do without it: so there must be plenty.
enum { TIMES_FREE = 4 };

static bool enough(size_t bytes) {
    struct statvfs fs;
    return statvfs("/dev/shm", &fs) != 0 || fs.f_bavail * fs.f_frsize / TIMES_FREE > bytes;
}

static bool all_agree(MPI_Comm comm, bool mine) {
    int all = mine;
    MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, comm);
    return all;
}

static bool open_window(MPI_Win *window, MPI_Comm comm, size_t part) {
    MPI_Info info;
    char *mine = NULL;
    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", "true");
    int rc = MPI_Win_allocate_shared((MPI_Aint)part, 1, info, comm, &mine, window);
    MPI_Info_free(&info);
    return all_agree(comm, rc == MPI_SUCCESS);
}

static char *part_of(MPI_Win window, int rank) {
    MPI_Aint size;
    int unit;
    char *address;
    MPI_Win_shared_query(window, rank, &size, &unit, &address);
    return next_page(address);
}

static void open_share(Node *node, Way way, MPI_Comm comm, const Group *group) {
    NodeShare *s = &node->shares[way];
    size_t header = header_bytes(way, group->size), staging = staging_bytes(way), count = (size_t)group->size;
    size_t part = header + staging + sizes[way].rings_bytes + PAGE;
    if (!all_agree(comm, enough(part * count))) {
        node->wanted_bytes = (double)TIMES_FREE * (double)part * (double)count;
        return;
    }
    s->open = open_window(&s->window, comm, part);
    if (!s->open) return;
    s->staging = comm_allocate(count, sizeof *s->staging);
    s->rings = comm_allocate(count, sizeof *s->rings);
    for (int r = 0; r < group->size; r++) {
        s->staging[r] = part_of(s->window, r) + header;
        s->rings[r] = s->staging[r] + staging;
    }
    char *first = s->staging[0] - header;
    if (group->rank == 0) memset(first, 0, header);
    if (sizes[way].rings_bytes) memset(s->rings[group->rank], 0, RINGS_HEADER_BYTES);
    s->collectives =
        (ShmCollective){.rank = group->rank,
                        .size = group->size,
                        .num_slots = sizes[way].slots,
                        .slots = (ShmSlot *)(void *)first,
                        .entries = (ShmEntry *)(void *)(first + (size_t)sizes[way].slots * sizeof(ShmSlot)),
                        .staging = s->staging,
                        .staging_bytes = sizes[way].staging_bytes};
    shm_collective_open(&s->collectives);
    MPI_Barrier(comm); // no rank uses a header before it is zeroed
}

void node_open(Node *node, MPI_Comm comm, const Group *group) {
    for (Way way = 0; way < NUM_WAYS; way++) open_share(node, way, comm, group);
    node->rings = (Rings){.comm = comm, .group = group, .parts = node->shares[STARTED].rings};
}

void node_close(Node *node) {
    for (Way way = 0; way < NUM_WAYS; way++) {
        NodeShare *s = &node->shares[way];
        if (!s->open) continue;
        shm_collective_close(&s->collectives);
        MPI_Win_free(&s->window);
        free(s->staging);
        free(s->rings);
    }
}
