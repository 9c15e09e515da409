// The CUDA device that waits for every operation and looks at what it did: see checked.h.
#include "device/cuda/checked.h"
#include "base/rank.h"
#include "device/element.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 512, MOST_ALLOCATIONS = 256, GUARD = 0xA5, NOT_A_NUMBER = 0xFF };

// An allocation: what the caller got lies between two guards.
typedef struct {
    const char *name;
    char *memory;
    size_t bytes;
} Guarded;

struct CudaChecks {
    Guarded all[MOST_ALLOCATIONS];
    int count;
    unsigned long long *found; // on the GPU
    // Pinned: what came back of it, and both guards of each allocation.
    unsigned long long *result;
    char *guards;
};

// ---- opening and closing ----------------------------------------------------------------------------------

Status checks_open(CudaDevice *d) {
    CudaChecks *c = d->checks = calloc(1, sizeof *c);
    if (!c) return fail(ERR_OS, "no memory for the checks of a device");
    TRY(CUDA_STATUS(d, cudaMalloc((void **)&c->found, sizeof *c->found)));
    TRY(CUDA_STATUS(d, cudaMallocHost((void **)&c->result, sizeof *c->result)));
    return CUDA_STATUS(d, cudaMallocHost((void **)&c->guards, 2 * (size_t)MOST_ALLOCATIONS * GUARD_BYTES));
}

void checks_close(CudaDevice *d) {
    CudaChecks *c = d->checks;
    if (!c) return;
    CUDA(d, cudaFreeHost(c->guards));
    CUDA(d, cudaFreeHost(c->result));
    CUDA(d, cudaFree(c->found));
    free(c);
}

Status checked_open(void **state, const DeviceOptions *options) {
    TRY(cuda_open(state, options));
    Status status = checks_open(*state);
    if (status != OK) cuda_close(*state);
    return status;
}

// ---- what is wrong ----------------------------------------------------------------------------------------

static _Noreturn void end_job(Status status) {
    const Rank *rank = rank_current();
    rank_dump_events(rank);
    rank_abort_job((int)status);
}

// Prints who it was, and where: "trireme: rank 0: matmul" and what follows.
static void begin_message(const char *what) {
    char who[64];
    rank_describe(rank_current(), who, sizeof who);
    fprintf(stderr, "trireme: %s%s%s", who, *who ? " " : "", what);
}

static void end_message(void) {
    const char *doing = rank_current()->doing;
    fprintf(stderr, "%s%s\n", *doing ? " while at " : "", doing);
}

static void wait_for(const CudaQueue *q, const char *what) {
    cuda_check(q->device, what, cudaStreamSynchronize(q->stream));
}

static const char *broken_guard(const char *guard) {
    for (int i = 0; i < GUARD_BYTES; i++)
        if ((unsigned char)guard[i] != GUARD) return guard + i;
    return NULL;
}

// `at`: bytes behind the allocation's end, or before its begin.
static _Noreturn void name_overrun(const Guarded *g, const char *what, int at, bool before) {
    begin_message(what);
    fprintf(stderr, " or what ran beside it wrote %d bytes %s the memory '%s' of %zu bytes", at,
            before ? "before" : "beyond", g->name, g->bytes);
    end_message();
    end_job(ERR_BUG);
}

static void check_guards(const CudaQueue *q, const char *what) {
    CudaChecks *c = q->device->checks;
    for (int i = 0; i < c->count; i++) {
        const Guarded *g = &c->all[i];
        char *to = c->guards + 2 * (size_t)i * GUARD_BYTES;
        CUDA(q->device,
             cudaMemcpyAsync(to, g->memory - GUARD_BYTES, GUARD_BYTES, cudaMemcpyDeviceToHost, q->stream));
        CUDA(q->device, cudaMemcpyAsync(to + GUARD_BYTES, g->memory + g->bytes, GUARD_BYTES,
                                        cudaMemcpyDeviceToHost, q->stream));
    }
    wait_for(q, what);
    for (int i = 0; i < c->count; i++) {
        const char *first = c->guards + 2 * (size_t)i * GUARD_BYTES, *second = first + GUARD_BYTES, *broken;
        if ((broken = broken_guard(first))) name_overrun(&c->all[i], what, (int)(second - broken), true);
        if ((broken = broken_guard(second)))
            name_overrun(&c->all[i], what, (int)(broken - second) + 1, false);
    }
}

static double element_of(const CudaQueue *q, const char *what, Tensor x, int64_t i) {
    double room = 0;
    const size_t bytes = dtype_bytes(x.dtype);
    CUDA(q->device, cudaMemcpyAsync(q->device->checks->result, (const char *)x.data + (size_t)i * bytes,
                                    bytes, cudaMemcpyDeviceToHost, q->stream));
    wait_for(q, what);
    memcpy(&room, q->device->checks->result, bytes);
    return load((Tensor){&room, 1, 1, x.dtype}, 0);
}

static _Noreturn void name_number(const CudaQueue *q, DeviceOp op, int tensor, Tensor x, int64_t i) {
    const OpRow *row = &op_rows[op];
    double value = element_of(q, row->name, x, i);
    begin_message(row->name);
    fprintf(stderr, " wrote %g to %s[%lld, %lld] of [%lld, %lld]", value, row->tensors[tensor],
            (long long)(i / x.cols), (long long)(i % x.cols), (long long)x.rows, (long long)x.cols);
    end_message();
    end_job(ERR_NUMERIC);
}

// The largest of no logits, where a rank holds padding only, and the word for gradients that are not finite.
static float allowed(DeviceOp op) {
    return op == OP_LOSS_MAX ? -INFINITY : op == OP_ABS_MAX || op == OP_SUM_SQUARES ? INFINITY : 0;
}

static void check_tensor(const CudaQueue *q, DeviceOp op, int tensor, Tensor x) {
    CudaChecks *c = q->device->checks;
    CUDA(q->device, cudaMemsetAsync(c->found, 0, sizeof *c->found, q->stream));
    check_numbers(q->stream, x, allowed(op), c->found);
    CUDA(q->device,
         cudaMemcpyAsync(c->result, c->found, sizeof *c->result, cudaMemcpyDeviceToHost, q->stream));
    wait_for(q, op_rows[op].name);
    if (*c->result) name_number(q, op, tensor, x, (int64_t) ~*c->result);
}

// ---- memory -----------------------------------------------------------------------------------------------

void *checked_take(void *state, const char *name, size_t bytes, const char **why) {
    CudaDevice *d = state;
    CudaChecks *c = d->checks;
    CudaQueue *q = d->queues;
    CHECK(c->count < MOST_ALLOCATIONS, "more than %d allocations", MOST_ALLOCATIONS);
    char *memory = cuda_take(state, name, bytes + 2 * (size_t)GUARD_BYTES, why);
    if (!memory) return NULL;
    CUDA(d, cudaMemsetAsync(memory, GUARD, GUARD_BYTES, q->stream));
    CUDA(d, cudaMemsetAsync(memory + GUARD_BYTES, NOT_A_NUMBER, bytes, q->stream));
    CUDA(d, cudaMemsetAsync(memory + GUARD_BYTES + bytes, GUARD, GUARD_BYTES, q->stream));
    wait_for(q, "cudaMemsetAsync");
    c->all[c->count++] = (Guarded){name, memory + GUARD_BYTES, bytes};
    return memory + GUARD_BYTES;
}

// By then streams may be closed: what was written beyond since the last operation does not show.
void checked_give_back(void *state, void *memory, size_t bytes) {
    CudaDevice *d = state;
    CudaChecks *c = d->checks;
    int i = 0;
    while (i < c->count && c->all[i].memory != memory) i++;
    CHECK(i < c->count, "memory that was never taken");
    c->all[i] = c->all[--c->count];
    cuda_give_back(state, (char *)memory - GUARD_BYTES, bytes);
}

void checked_begins(void *state, const char *name, void *address, size_t bytes) {
    CudaDevice *d = state;
    CudaQueue *q = d->queues;
    if (!bytes) return;
    CUDA(d, cudaMemsetAsync(address, NOT_A_NUMBER, bytes, q->stream));
    wait_for(q, name);
}

// ---- operations and copies --------------------------------------------------------------------------------

void checked_run(const Exec *exec, DeviceOp op, const void *args) {
    const CudaQueue *q = exec->queue;
    const OpRow *row = &op_rows[op];
    const Tensor *tensors = args;
    cuda_run(exec, op, args);
    wait_for(q, row->name);
    for (int i = row->reads; i < row->reads + row->writes; i++)
        if (tensors[i].data && tensor_count(tensors[i])) check_tensor(q, op, i, tensors[i]);
    check_guards(q, row->name);
}

static void look(const Exec *exec, const char *what) {
    wait_for(exec->queue, what);
    check_guards(exec->queue, what);
}

void checked_copy(const Exec *exec, void *to, const void *from, size_t bytes) {
    cuda_copy(exec, to, from, bytes);
    look(exec, "device_copy");
}

void checked_zero(const Exec *exec, void *x, size_t bytes) {
    cuda_zero(exec, x, bytes);
    look(exec, "device_zero");
}

void checked_upload(const Exec *exec, void *to, const void *from, size_t bytes) {
    cuda_upload(exec, to, from, bytes);
    look(exec, "device_upload");
}

void checked_download(const Exec *exec, void *to, const void *from, size_t bytes) {
    cuda_download(exec, to, from, bytes);
    look(exec, "device_download");
}
