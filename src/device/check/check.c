// The checking device: the CPU behind addresses that only the front can read, so that what a GPU would not
// forgive (host code that follows a device pointer, a host pointer passed as a tensor) fails here, on a
// laptop, with a name.
// The disguise is the idea of libCEED's memcheck backend (Brown et al., JOSS 2021).
#include "base/rank.h"
#include "device/backend.h"
#include "device/element.h"
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

// The live allocations, by their plain addresses.
typedef struct {
    char *start;
    size_t bytes;
} Allocation;

typedef struct {
    Allocation *allocations;
    int num_allocations, max_allocations;
} Guard;

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

static void *check_take(void *self, const char *name, size_t bytes, const char **why) {
    Memory host = memory_host();
    char *base = host.take(host.self, name, bytes + 2 * CANARY_BYTES, why);
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

static void check_begins(void *self, const char *name, void *data, size_t bytes) {
    (void)self, (void)name;
    if (bytes) memset(reveal(data), POISON, bytes);
}

static Status check_open(void **state, const DeviceOptions *options) {
    *state = calloc(1, sizeof(Guard));
    return *state ? cpu_backend.open(state, options) : fail(ERR_OS, "no memory for a device");
}

static void check_close(void *state) {
    Guard *guard = state;
    CHECK(!guard->num_allocations, "a device was closed before %d of its arenas", guard->num_allocations);
    free(guard->allocations);
    free(guard);
}

// ---- addresses --------------------------------------------------------------------------------------------

static void *check_reveal(const Guard *guard, const char *who, const char *what, void *data, size_t bytes) {
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

static void check_host(const char *who, const void *pointer) {
    CHECK(!disguised(pointer), "%s: a device pointer was given where host memory is wanted", who);
}

static void check_before(const Guard *guard, DeviceOp op, Tensor *tensors) {
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

static void check_after(const Guard *guard, DeviceOp op, const Tensor *tensors) {
    const OpRow *row = &op_rows[op];
    for (int i = 0; i < guard->num_allocations; i++) check_canaries(guard->allocations[i], row->name);
    for (int i = row->reads; i < row->reads + row->writes; i++)
        check_numbers(op, row->tensors[i], tensors[i]);
}

// ---- the backend ------------------------------------------------------------------------------------------

enum { MOST_ARGS = 512 };

static void check_run(const Exec *exec, DeviceOp op, const void *args) {
    _Alignas(16) char revealed[MOST_ARGS];
    CHECK(op_rows[op].args_bytes <= sizeof revealed, "%s has too many arguments", op_rows[op].name);
    memcpy(revealed, args, op_rows[op].args_bytes);
    check_before(exec->state, op, (Tensor *)revealed);
    Exec plain = *exec;
    plain.workspace = reveal(exec->workspace);
    cpu_backend.run(&plain, op, revealed);
    check_after(exec->state, op, (Tensor *)revealed);
}

static void check_copy(const Exec *exec, void *to, const void *from, size_t bytes) {
    to = check_reveal(exec->state, "device_copy", "tensor", to, bytes);
    memmove(to, check_reveal(exec->state, "device_copy", "tensor", (void *)(uintptr_t)from, bytes), bytes);
}

static void check_zero(const Exec *exec, void *x, size_t bytes) {
    memset(check_reveal(exec->state, "device_zero", "tensor", x, bytes), 0, bytes);
}

static void check_upload(const Exec *exec, void *to, const void *from, size_t bytes) {
    check_host("device_upload", from);
    memcpy(check_reveal(exec->state, "device_upload", "tensor", to, bytes), from, bytes);
}

static void check_download(const Exec *exec, void *to, const void *from, size_t bytes) {
    check_host("device_download", to);
    memcpy(to, check_reveal(exec->state, "device_download", "tensor", (void *)(uintptr_t)from, bytes), bytes);
}

static void *check_address(void *state, void *data) {
    return check_reveal(state, "device_address", "tensor", data, 0);
}

static void check_access(const Exec *exec, HostAccess *access) {
    access->address = check_reveal(exec->state, access->what, "tensor", access->data, access->bytes);
}

static size_t check_workspace_bytes(int threads, DeviceOp op, const void *args) {
    return cpu_backend.workspace_bytes(threads, op, args);
}

static Status check_environment(void) { return cpu_backend.check(); }

static const char *check_kernels(void) { return cpu_backend.kernels(); }

const Backend check_backend = {
    .name = "check",
    .run = check_run,
    .workspace_bytes = check_workspace_bytes,
    .check = check_environment,
    .kernels = check_kernels,
    .open = check_open,
    .close = check_close,
    .take = check_take,
    .give_back = check_give_back,
    .begins = check_begins,
    .copy = check_copy,
    .zero = check_zero,
    .upload = check_upload,
    .download = check_download,
    .access = check_access,
    .address = check_address,
};
