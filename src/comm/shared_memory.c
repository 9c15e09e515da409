// Memory that the ranks of a group share: one copy on their machine, which all of them read and write.
#include "comm/comm.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HEAD_BYTES = 4096 }; // before what the ranks use: a page

// At the begin of the memory.
typedef struct {
    atomic_int users; // of this process, where all ranks are threads of it; else 0: each unmaps its own view
} Head;

// What the first rank of the group tells the others.
typedef struct {
    long process;
    int file;   // of that process; -1: all ranks are threads of it
    void *base; // NULL: there is none, because of `error`
    int error;
} Offer;

static void *map(int file, size_t bytes) {
    int flags = file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
    if (base == MAP_FAILED) return NULL;
    madvise(base, bytes, MADV_HUGEPAGE); // a refusal does no harm
    return base;
}

static bool is_one_process(Comm *group) {
    long mine = getpid(), *all = calloc((size_t)comm_size(group), sizeof *all);
    CHECK(all, "no memory for %d processes", comm_size(group));
    comm_all_gather_host(group, &mine, all, sizeof mine);
    bool one = true;
    for (int i = 0; i < comm_size(group); i++) one &= all[i] == mine;
    free(all);
    return one;
}

static Offer make_offer(const Comm *group, bool one_process, size_t bytes) {
    Offer offer = {getpid(), -1, NULL, 0};
    if (!one_process) {
        offer.file = memfd_create("trireme", MFD_CLOEXEC);
        if (offer.file < 0 || ftruncate(offer.file, (off_t)bytes) != 0) {
            offer.error = errno;
            return offer;
        }
    }
    offer.base = map(offer.file, bytes);
    if (!offer.base) offer.error = errno;
    if (offer.base && one_process) atomic_init(&((Head *)offer.base)->users, comm_size(group));
    return offer;
}

// Maps what another process has offered.
static void *map_offer(const Offer *offer, size_t bytes) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", offer->process, offer->file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return NULL;
    void *base = map(file, bytes);
    int error = errno; // of the map, which close may change
    close(file);
    errno = error;
    return base;
}

static void *shared_take(void *self, const char *name, size_t bytes, const char **why) {
    Comm *group = self;
    (void)name;
    bool first = comm_rank(group) == 0, one_process = is_one_process(group);
    Offer offer = {.file = -1};
    if (first) offer = make_offer(group, one_process, HEAD_BYTES + bytes);
    int file = offer.file;
    comm_broadcast_host(group, &offer, sizeof offer, 0);
    void *base = offer.base;
    int error = offer.error;
    if (base && !first && !one_process) base = map_offer(&offer, HEAD_BYTES + bytes), error = errno;
    double missing = !base;
    comm_all_reduce_host(group, &missing, 1, REDUCE_MAX);
    if (first && !one_process && file >= 0) close(file);
    if (!(missing > 0)) return (char *)base + HEAD_BYTES;
    *why = base ? "another rank of the machine cannot share it" : strerror(error);
    if (base) munmap(base, HEAD_BYTES + bytes); // threads of one process all have it, or none does
    return NULL;
}

static void shared_give_back(void *self, void *base, size_t bytes) {
    (void)self;
    Head *head = (Head *)(void *)((char *)base - HEAD_BYTES);
    if (atomic_load(&head->users) && atomic_fetch_sub(&head->users, 1) > 1) return;
    munmap(head, HEAD_BYTES + bytes);
}

Memory comm_shared_memory(Comm *group) {
    return (Memory){.take = shared_take, .give_back = shared_give_back, .self = group};
}
