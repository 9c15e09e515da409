// The backend of the check device: launches operations and copies into queues, and what their entries do later.
// Device addresses are disguised so that they differ from host addresses: an idea of libCEED's memcheck backend (Brown
// et al., JOSS 2021).
#include "device/check/check.h"
#include "base/rank.h"
#include "device/element.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xFF }; // NaN in every float type, -1 in I32

// ---- life -------------------------------------------------------------------------------------------------

static Status check_open(void **state, const DeviceOptions *options) {
    void *none = NULL;
    TRY(cpu_backend.open(&none, options));
    CheckDevice *d = *state = calloc(1, sizeof *d);
    if (!d) return fail(ERR_OS, "no memory for a device");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&d->moved, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&d->lock, NULL);
    d->rank = rank_current();
    d->threads = options->threads;
    return memory_open(d);
}

static void check_close(void *state) {
    CheckDevice *d = state;
    memory_close(d);
    for (int i = 0; i < MAX_STREAMS; i++) free(d->queues[i].entries);
    pthread_cond_destroy(&d->moved);
    pthread_mutex_destroy(&d->lock);
    free(d->accesses);
    free(d->marks);
    free(d);
}

static Status check_environment(void) {
    int64_t seed;
    TRY(device_queue_seed(&seed));
    return cpu_backend.check();
}

static const char *check_kernels(void) { return cpu_backend.kernels(); }

static size_t check_workspace_bytes(const DeviceOptions *options, DeviceOp op, const void *args) {
    return cpu_backend.workspace_bytes(options, op, args);
}

// ---- launching --------------------------------------------------------------------------------------------

// An optional tensor that is absent, and one without elements, has no memory.
static bool is_used(Tensor x) { return x.data && tensor_bytes(x); }

// Records the use of a tensor by the operation that is to be launched. Its address becomes the plain one.
static void use_tensor(const Exec *exec, QueueEntry *e, const void *args, int i) {
    const OpRow *row = &op_rows[e->op];
    Queue *q = exec->queue;
    Tensor *x = &((Tensor *)e->args)[i];
    Use use = device_queue_use(q, row->name, row->tensors[i]);
    bool writes = i >= row->reads, reads = !writes || op_updates(e->op, args, i);
    Region *region;
    void *plain;
    int64_t kept = writes ? op_kept_rows(e->op, args, i) : 0;
    Tensor first = tensor_rows(*x, 0, kept), rest = tensor_rows(*x, kept, x->rows - kept);
    if (kept)
        record_use(exec->state, &use, &q->clock, first.data, tensor_bytes(first), true, false, NULL, NULL);
    bool fresh = record_use(exec->state, &use, &q->clock, rest.data, tensor_bytes(rest), reads, writes,
                            &region, &plain);
    if (fresh && !kept) e->fresh |= 1u << i;
    x->data = (char *)plain - tensor_bytes(first);
    e->regions[i] = region;
}

// Tensors that are read come first, so that one that is read and written in place is looked at as it was.
static void check_run(const Exec *exec, DeviceOp op, const void *args) {
    const OpRow *row = &op_rows[op];
    Queue *q = exec->queue;
    QueueEntry *e = device_queue_next(q, ENTRY_OP, row->name);
    e->op = op;
    e->exec = (Exec){.threads = exec->threads, .workspace_bytes = exec->workspace_bytes};
    Region *workspace;
    if (exec->workspace)
        e->exec.workspace = memory_plain(exec->state, row->name, "workspace", exec->workspace, 0, &workspace);
    CHECK(row->args_bytes <= sizeof e->args, "%s has %zu bytes of arguments", row->name, row->args_bytes);
    memcpy(e->args, args, row->args_bytes);
    for (int i = 0; i < row->reads + row->writes; i++)
        if (is_used(((const Tensor *)args)[i])) use_tensor(exec, e, args, i);
    device_queue_launch(q);
}

// One side of a copy.
static void *copied(const Exec *exec, QueueEntry *e, int side, void *data, size_t bytes) {
    Queue *q = exec->queue;
    void *plain;
    Region *region;
    Use use = device_queue_use(q, e->name, NULL);
    record_use(exec->state, &use, &q->clock, data, bytes, !side, side, &region, &plain);
    e->regions[side] = region;
    return plain;
}

static void check_copy(const Exec *exec, void *to, const void *from, size_t bytes) {
    QueueEntry *e = device_queue_next(exec->queue, ENTRY_COPY, "device_copy");
    e->bytes = bytes;
    e->from = copied(exec, e, 0, (void *)(uintptr_t)from, bytes);
    e->to = copied(exec, e, 1, to, bytes);
    device_queue_launch(exec->queue);
}

static void check_zero(const Exec *exec, void *x, size_t bytes) {
    QueueEntry *e = device_queue_next(exec->queue, ENTRY_ZERO, "device_zero");
    e->bytes = bytes;
    e->to = copied(exec, e, 1, x, bytes);
    device_queue_launch(exec->queue);
}

static void check_upload(const Exec *exec, void *to, const void *from, size_t bytes) {
    memory_check_host(exec->state, "device_upload", from);
    QueueEntry *e = device_queue_next(exec->queue, ENTRY_UPLOAD, "device_upload");
    e->bytes = bytes;
    e->to = copied(exec, e, 1, to, bytes);
    e->from = malloc(bytes);
    CHECK(e->from, "no memory for an upload of %zu bytes", bytes);
    memcpy(e->from, from, bytes);
    device_queue_launch(exec->queue);
}

static void check_download(const Exec *exec, void *to, const void *from, size_t bytes) {
    memory_check_host(exec->state, "device_download", to);
    QueueEntry *e = device_queue_next(exec->queue, ENTRY_DOWNLOAD, "device_download");
    e->bytes = bytes;
    e->to = to;
    e->from = copied(exec, e, 0, (void *)(uintptr_t)from, bytes);
    device_queue_launch(exec->queue);
}

// ---- host code that follows addresses ---------------------------------------------------------------------

// An access by the host is recorded at its start, as a use that is over. Until access_end the list of open accesses
// guards its bytes.
static void check_access(const Exec *exec, HostAccess *access) {
    Queue *q = exec->queue;
    CheckDevice *d = exec->state;
    Use use = device_queue_use(q, access->what, NULL);
    StreamClock clock = q->clock;
    clock_join(&clock, &d->host);
    clock.at[q->index] = q->launched;
    use.stream = HOST, use.number = 0;
    record_access(d, &use, &clock, access);
}

static void check_access_end(void *state, const HostAccess *access) { record_access_end(state, access); }

static void *check_access_address(void *state, const HostAccess *access) {
    record_check_host(state, access->what, access->data, access->bytes);
    return access->address;
}

// Host code may read and write there until the next launch.
static void *check_address(void *state, void *data, size_t bytes) {
    CheckDevice *d = state;
    Region *region;
    void *plain;
    Use use = {.what = "device_address", .stream = HOST};
    doing_now(use.doing);
    record_use(d, &use, &d->host, data, bytes, false, true, &region, &plain);
    memory_check_canaries(region, use.what);
    return plain;
}

// ---- running ----------------------------------------------------------------------------------------------

// The largest of no logits, where a rank holds padding only, and the word for gradients that are not finite.
static bool may_be(DeviceOp op, double value) {
    return (op == OP_LOSS_MAX && value == -INFINITY) ||
           ((op == OP_ABS_MAX || op == OP_SUM_SQUARES) && value == INFINITY);
}

static _Noreturn void name_number(const QueueEntry *e, const char *tensor, Tensor x, int64_t i) {
    const Rank *rank = rank_current();
    char who[64];
    rank_describe(rank, who, sizeof who);
    fprintf(stderr, "trireme: %s%s%s wrote %g to %s[%lld, %lld] of [%lld, %lld]%s%s\n", who, *who ? " " : "",
            e->name, load(x, i), tensor, (long long)(i / x.cols), (long long)(i % x.cols), (long long)x.rows,
            (long long)x.cols, *e->doing ? " while at " : "", e->doing);
    rank_dump_events(rank);
    rank_abort_job(ERR_NUMERIC);
}

static void check_numbers(const QueueEntry *e, const char *name, Tensor x) {
    if (!x.data || x.dtype == I32 || x.dtype == U16) return;
    int64_t count = tensor_count(x);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(load(x, i)) && !may_be(e->op, load(x, i))) name_number(e, name, x, i);
}

// Elements of a new tensor that the operation has not written are found, because they are not finite.
static void run_op(const QueueEntry *e) {
    const OpRow *row = &op_rows[e->op];
    const Tensor *tensors = (const Tensor *)e->args;
    for (int i = row->reads; i < row->reads + row->writes; i++)
        if (e->fresh & 1u << i) memset(tensors[i].data, POISON, tensor_bytes(tensors[i]));
    backend_run(&cpu_backend, &e->exec, e->op, e->args);
    for (int i = row->reads; i < row->reads + row->writes; i++) check_numbers(e, row->tensors[i], tensors[i]);
}

void entry_run(QueueEntry *e) {
    switch (e->kind) {
    case ENTRY_OP: run_op(e); break;
    case ENTRY_COPY: memmove(e->to, e->from, e->bytes); break;
    case ENTRY_ZERO: memset(e->to, 0, e->bytes); break;
    case ENTRY_DOWNLOAD: memcpy(e->to, e->from, e->bytes); break;
    case ENTRY_UPLOAD:
        memcpy(e->to, e->from, e->bytes);
        free(e->from);
        break;
    case ENTRY_WAIT:
    case ENTRY_MARK: break;
    }
    for (int i = 0; i < MAX_TENSORS; i++)
        if (e->regions[i]) memory_check_canaries(e->regions[i], e->name);
}

const Backend check_backend = {
    .name = "check",
    .run = check_run,
    .workspace_bytes = check_workspace_bytes,
    .check = check_environment,
    .kernels = check_kernels,
    .open = check_open,
    .close = check_close,
    .take = memory_take,
    .give_back = memory_give_back,
    .begins = record_begin,
    .stream_open = device_queue_open,
    .stream_close = device_queue_close,
    .copy = check_copy,
    .zero = check_zero,
    .upload = check_upload,
    .download = check_download,
    .event_record = device_queue_event,
    .event_wait = device_queue_wait,
    .stream_wait = device_queue_stream_wait,
    .mark = device_queue_mark,
    .mark_read = device_queue_mark_read,
    .access = check_access,
    .access_end = check_access_end,
    .access_address = check_access_address,
    .address = check_address,
};
