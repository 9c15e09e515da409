// Memory of the check device: addresses that the host may not touch, in front of memory that the device's threads use.
#include "base/rank.h"
#include "base/text.h"
#include "device/check/check.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CANARY_BYTES = ARENA_ALIGNMENT, CANARY = 0xCA, PAGE = 4096 };

// ---- host code that touches device memory -----------------------------------------------------------------

static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;
static CheckDevice *devices;    // for the handler alone
static struct sigaction before; // what handled SIGSEGV

static size_t seen_bytes(size_t bytes) { return (bytes / PAGE + 1) * PAGE; }

Region *memory_find(const CheckDevice *device, const void *address) {
    const char *at = address;
    for (Region *r = device->regions; r; r = r->next)
        if (at >= r->seen && at < r->seen + seen_bytes(r->bytes)) return r;
    return NULL;
}

static _Noreturn void name_access(const CheckDevice *device, const Region *region, const void *address) {
    const Rank *rank = rank_current();
    char who[64], where[256];
    size_t offset = (size_t)((const char *)address - region->seen);
    rank_describe(rank, who, sizeof who);
    if (region->freed)
        snprintf(where, sizeof where, "it was freed");
    else
        segment_describe(device, region, offset, where, sizeof where);
    fprintf(stderr, "trireme: %s%shost code touched device memory at byte %zu of the arena %s%s%s: %s\n", who,
            *who ? " " : "", offset, region->name, rank->doing[0] ? " while at " : "", rank->doing, where);
    rank_dump_events(rank);
    rank_abort_job(ERR_BUG);
}

// The thread that faults holds no lock of this file: it was in other code.
static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    pthread_mutex_lock(&devices_lock);
    for (const CheckDevice *d = devices; d; d = d->next) {
        const Region *region = memory_find(d, info->si_addr);
        if (region) {
            pthread_mutex_unlock(&devices_lock);
            name_access(d, region, info->si_addr);
        }
    }
    pthread_mutex_unlock(&devices_lock);
    sigaction(number, &before, NULL); // the access is made again, and that handler called
}

static void install_handler(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGSEGV, &action, &before);
}

Status memory_open(CheckDevice *device) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, install_handler);
    pthread_mutex_lock(&devices_lock);
    device->next = devices;
    devices = device;
    pthread_mutex_unlock(&devices_lock);
    return OK;
}

void memory_close(CheckDevice *device) {
    int live = 0;
    for (const Region *r = device->regions; r; r = r->next) live += !r->freed;
    CHECK(!live, "a device was closed before %d of its arenas", live);
    pthread_mutex_lock(&devices_lock);
    CheckDevice **link = &devices;
    while (*link != device) link = &(*link)->next;
    *link = device->next;
    pthread_mutex_unlock(&devices_lock);
    for (Region *r = device->regions, *next; r; r = next) {
        next = r->next;
        munmap(r->seen, seen_bytes(r->bytes));
        free(r->segments);
        free(r);
    }
}

// ---- allocation -------------------------------------------------------------------------------------------

void *memory_take(void *state, const char *name, size_t bytes, const char **why) {
    CheckDevice *device = state;
    Memory host = memory_host();
    Region *region = calloc(1, sizeof *region);
    Segment *segments = calloc(1, sizeof *segments);
    void *seen = mmap(NULL, seen_bytes(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *base = NULL;
    if (!region || !segments || seen == MAP_FAILED)
        *why = "no memory for the check device's own lists";
    else
        base = host.take(host.self, name, bytes + 2 * CANARY_BYTES, why);
    if (!base) {
        if (seen != MAP_FAILED) munmap(seen, seen_bytes(bytes));
        free(segments);
        free(region);
        return NULL;
    }
    segments[0].end = bytes;
    *region = (Region){.next = device->regions,
                       .seen = seen,
                       .plain = base + CANARY_BYTES,
                       .bytes = bytes,
                       .segments = segments,
                       .num_segments = 1,
                       .max_segments = 1};
    snprintf(region->name, sizeof region->name, "%s", name);
    memset(base, CANARY, CANARY_BYTES);
    memset(base + CANARY_BYTES + bytes, CANARY, CANARY_BYTES);
    device->regions = region;
    return region->seen;
}

// As on a GPU, memory is freed once everything under way is done.
void memory_give_back(void *state, void *address, size_t bytes) {
    CheckDevice *device = state;
    Memory host = memory_host();
    Region *region = memory_find(device, address);
    CHECK(region && !region->freed && region->seen == address && region->bytes == bytes,
          "memory at %p was given back twice, or never taken", address);
    device_queue_settle(device);
    memory_check_canaries(region, "arena_close");
    record_check_freeing(device, region);
    host.give_back(host.self, region->plain - CANARY_BYTES, bytes + 2 * CANARY_BYTES);
    region->freed = true;
}

// ---- addresses --------------------------------------------------------------------------------------------

static void check_canary(const Region *region, const char *canary, const char *who, const char *where) {
    for (int i = 0; i < CANARY_BYTES; i++)
        CHECK((unsigned char)canary[i] == CANARY,
              "%s: memory was overwritten %s of an arena, %s (canary byte %d)", who, where, region->name, i);
}

void memory_check_canaries(const Region *region, const char *who) {
    check_canary(region, region->plain - CANARY_BYTES, who, "before the start");
    check_canary(region, region->plain + region->bytes, who, "after the end");
}

void *memory_plain(const CheckDevice *device, const char *who, const char *what, const void *data,
                   size_t bytes, Region **region) {
    Region *r = *region = memory_find(device, data);
    CHECK(r, "%s: %s is a host pointer (%p) or that of another device, device memory is wanted", who, what,
          data);
    CHECK(!r->freed, "%s: %s lies in no live arena: %s was freed", who, what, r->name);
    size_t offset = (size_t)((const char *)data - r->seen);
    CHECK(offset <= r->bytes && bytes <= r->bytes - offset,
          "%s: %s of %zu bytes reaches beyond the end of its arena, %s", who, what, bytes, r->name);
    return r->plain + offset;
}

void memory_check_host(const CheckDevice *device, const char *who, const void *pointer) {
    CHECK(!memory_find(device, pointer), "%s: a device pointer was given where host memory is wanted", who);
}
