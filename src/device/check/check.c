// The checking device: the CPU behind addresses that only the front can read, so that what a GPU would not
// forgive (host code that follows a device pointer, a host pointer passed as a tensor) fails here, on a
// laptop, with a name.
// The disguise is the idea of libCEED's memcheck backend (Brown et al., JOSS 2021).
#include "base/rank.h"
#include "device/element.h"
#include "device/front.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uintptr_t DISGUISE = (uintptr_t)1 << 62;
enum {
    CANARY_BYTES = ARENA_ALIGNMENT,
    CANARY = 0xCA,
    POISON = 0xFF
}; // POISON: NaN in every float type, -1 in I32

static char *reveal(const void *data) { return (char *)((uintptr_t)data & ~DISGUISE); }

static bool disguised(const void *data) { return (uintptr_t)data & DISGUISE; }

// ---- memory: [canary | the caller's bytes | canary] -------------------------------------------------------

static void remember(Guard *guard, Allocation allocation) {
    if (guard->num_allocations == guard->max_allocations) {
        int wanted = guard->max_allocations ? 2 * guard->max_allocations : 8;
        Allocation *grown = realloc(guard->allocations, (size_t)wanted * sizeof *grown);
        CHECK(grown, "no memory to remember %d allocations", wanted);
        guard->allocations = grown;
        guard->max_allocations = wanted;
    }
    guard->allocations[guard->num_allocations++] = allocation;
}

static void *check_take(void *self, size_t bytes) {
    Memory host = memory_host();
    char *base = host.take(host.self, bytes + 2 * CANARY_BYTES);
    if (!base) return NULL;
    memset(base, CANARY, CANARY_BYTES);
    memset(base + CANARY_BYTES, POISON, bytes);
    memset(base + CANARY_BYTES + bytes, CANARY, CANARY_BYTES);
    remember(self, (Allocation){base + CANARY_BYTES, bytes});
    return (void *)((uintptr_t)(base + CANARY_BYTES) | DISGUISE);
}

static void check_canary(const char *canary, const char *who, const char *where) {
    for (int i = 0; i < CANARY_BYTES; i++)
        CHECK((unsigned char)canary[i] == CANARY,
              "%s: memory was overwritten %s of an arena (canary byte %d)", who, where, i);
}

static void check_canaries(Allocation allocation, const char *who) {
    check_canary(allocation.start - CANARY_BYTES, who, "before the start");
    check_canary(allocation.start + allocation.bytes, who, "after the end");
}

static void check_give_back(void *self, void *base, size_t bytes) {
    Guard *guard = self;
    Memory host = memory_host();
    for (int i = 0; i < guard->num_allocations; i++) {
        Allocation allocation = guard->allocations[i];
        if (allocation.start != reveal(base)) continue;
        check_canaries(allocation, "arena_close");
        host.give_back(host.self, allocation.start - CANARY_BYTES, bytes + 2 * CANARY_BYTES);
        guard->allocations[i] = guard->allocations[--guard->num_allocations];
        return;
    }
    CHECK(false, "memory at %p was given back twice, or never taken", base);
}

Memory check_memory(Guard *guard) { return (Memory){check_take, check_give_back, guard}; }

bool check_owns(const Arena *arena) { return arena->memory.take == check_take; }

void check_poison(void *data, size_t bytes) {
    if (bytes) memset(reveal(data), POISON, bytes);
}

void check_close(Guard *guard) {
    CHECK(!guard->num_allocations, "a device was closed before %d of its arenas", guard->num_allocations);
    free(guard->allocations);
}

// ---- addresses --------------------------------------------------------------------------------------------

void *check_reveal(const Guard *guard, const char *who, const char *what, void *data, size_t bytes) {
    CHECK(disguised(data), "%s: %s is a host pointer (%p), device memory is wanted", who, what, data);
    char *address = reveal(data);
    for (int i = 0; i < guard->num_allocations; i++) {
        Allocation a = guard->allocations[i];
        if (address < a.start || address > a.start + a.bytes) continue;
        CHECK(bytes <= (size_t)(a.start + a.bytes - address),
              "%s: %s of %zu bytes reaches beyond the end of its arena", who, what, bytes);
        check_canaries(a, who);
        return address;
    }
    CHECK(false, "%s: %s lies in no live arena of this device", who, what);
    return NULL;
}

void check_host(const char *who, const void *pointer) {
    CHECK(!disguised(pointer), "%s: a device pointer was given where host memory is wanted", who);
}

void check_before(const Guard *guard, DeviceOp op, Tensor *tensors) {
    const OpRow *row = &op_rows[op];
    for (int i = 0; i < row->reads + row->writes; i++) {
        Tensor *x = &tensors[i];
        if (x->data) x->data = check_reveal(guard, row->name, row->tensors[i], x->data, tensor_bytes(*x));
    }
}

// ---- numbers ----------------------------------------------------------------------------------------------

// The largest of no logits, where a rank holds padding only, and the word for gradients that are not finite.
static bool may_be(DeviceOp op, double value) {
    return (op == OP_LOSS_MAX && value == -INFINITY) || (op == OP_ABS_MAX && value == INFINITY);
}

static _Noreturn void name_number(DeviceOp op, const char *tensor, Tensor x, int64_t i) {
    const Rank *rank = rank_current();
    char who[64];
    rank_describe(rank, who, sizeof who);
    fprintf(stderr, "trireme: %s%s%s wrote %g to %s[%lld, %lld] of [%lld, %lld]%s%s\n", who, *who ? " " : "",
            op_rows[op].name, load(x, i), tensor, (long long)(i / x.cols), (long long)(i % x.cols),
            (long long)x.rows, (long long)x.cols, rank->doing[0] ? " while at " : "", rank->doing);
    rank_dump_events(rank);
    rank_abort_job(ERR_NUMERIC);
}

static void check_numbers(DeviceOp op, const char *name, Tensor x) {
    if (!x.data || x.dtype == I32 || x.dtype == U16) return;
    int64_t count = tensor_count(x);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(load(x, i)) && !may_be(op, load(x, i))) name_number(op, name, x, i);
}

void check_after(const Guard *guard, DeviceOp op, const Tensor *tensors) {
    const OpRow *row = &op_rows[op];
    for (int i = 0; i < guard->num_allocations; i++) check_canaries(guard->allocations[i], row->name);
    for (int i = row->reads; i < row->reads + row->writes; i++)
        check_numbers(op, row->tensors[i], tensors[i]);
}
