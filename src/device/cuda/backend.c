// The backend of the CUDA device: memory, streams and events. An operation is done by the kernels of *.cu, a product by
// cuBLASLt (products.c), attention by cuDNN where that is faster (sdpa.c).
#include "base/rank.h"
#include "device/cuda/checked.h"
#include "device/cuda/cuda.h"
#include "device/cuda/nccl_links.h"
#include "device/cuda/products.h"
#include "device/cuda/sdpa.h"
#include "device/module.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- errors -----------------------------------------------------------------------------------------------

// The name of the function in "function(arguments)".
static int name_length(const char *call) { return (int)strcspn(call, "("); }

Status cuda_fail(const CudaDevice *device, const char *call, const char *error, Status status) {
    return fail(status, "%.*s failed on GPU %d (%s): %s", name_length(call), call, device->number,
                device->name, error);
}

// Errors of a GPU that is broken or gone, not of what it was told to do.
static bool is_lost(cudaError_t error) {
    static const cudaError_t lost[] = {cudaErrorDevicesUnavailable, cudaErrorNoDevice,
                                       cudaErrorECCUncorrectable,   cudaErrorNvlinkUncorrectable,
                                       cudaErrorHardwareStackError, cudaErrorUnknown};
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++)
        if (lost[i] == error) return true;
    return false;
}

static const char AFTER_LOSS[] =
    "  The GPU is broken or gone: nvidia-smi shows whether it answers, and the system's log (dmesg) has the driver's "
    "message (Xid).\n  What was saved is whole: when the GPU answers again, or on others (CUDA_VISIBLE_DEVICES), the "
    "same command with\n  --load goes on from the newest checkpoint.\n";
static const char AFTER_FAULT[] =
    "  CUDA reports a fault of an operation late, at any call that follows: with --device " CUDA_KIND
    "-check the run is "
    "slow, and names\n  the operation that made it.\n";
static const char AFTER_CHECKED_FAULT[] =
    "  It is the operation that failed, with the shapes of the last one below: please report it with these lines.\n";

static const char *after_fault(const CudaDevice *device) {
    return device->checks ? AFTER_CHECKED_FAULT : AFTER_FAULT;
}

static _Noreturn void end_job(const CudaDevice *device, const char *call, const char *error, Status status,
                              const char *advice) {
    const Rank *rank = rank_current();
    char who[64];
    rank_describe(rank, who, sizeof who);
    fprintf(stderr, "trireme: error: %s%s%.*s failed on GPU %d (%s)%s%s: %s.\n%s", who, *who ? " " : "",
            name_length(call), call, device->number, device->name, *rank->doing ? " at " : "", rank->doing,
            error, advice);
    rank_dump_events(rank);
    rank_abort_job((int)status);
}

_Noreturn void cuda_fault(const CudaDevice *device, const char *call, const char *error, Status status) {
    end_job(device, call, error, status, after_fault(device));
}

_Noreturn void cuda_refused(const CudaDevice *device, const char *call, const char *error, Status status) {
    end_job(device, call, error, status, "");
}

// The name and the meaning of an error of the CUDA runtime.
typedef struct {
    char text[256];
} ErrorText;

static ErrorText error_text(cudaError_t error) {
    ErrorText t;
    snprintf(t.text, sizeof t.text, "%s, %s", cudaGetErrorName(error), cudaGetErrorString(error));
    return t;
}

Status cuda_status(const CudaDevice *device, const char *call, cudaError_t error) {
    if (error == cudaSuccess) return OK;
    cudaGetLastError(); // the next call does not report it again
    return cuda_fail(device, call, error_text(error).text, ERR_OS);
}

void cuda_check(const CudaDevice *device, const char *call, cudaError_t error) {
    if (error == cudaSuccess) return;
    const bool of_the_machine = is_lost(error) || error == cudaErrorMemoryAllocation;
    end_job(device, call, error_text(error).text, of_the_machine ? ERR_OS : ERR_BUG,
            is_lost(error) ? AFTER_LOSS : after_fault(device));
}

// ---- opening and closing ----------------------------------------------------------------------------------

static Status cuda_available(void) {
    TRY(gpus_available());
    return products_available();
}

void cuda_close(void *state) {
    CudaDevice *d = state;
    CHECK(!d->queues, "a device was closed before its streams");
    checks_close(d);
    sdpa_close(d);
    products_close(d);
    windows_close(d);
    marks_close(d);
    free(d);
}

Status cuda_open(void **state, const DeviceOptions *options) {
    CudaDevice *d = calloc(1, sizeof *d);
    static const DeviceWait nobody = {0};
    if (!d) return fail(ERR_OS, "no memory for a device");
    d->wait = &nobody;
    Status status = gpu_choose(d, options->rank_here);
    if (status == OK && options->float8) status = gpu_check_float8(d);
    if (status == OK) status = marks_open(d);
    if (status == OK) status = products_open(d);
    if (status == OK) status = sdpa_open(d, options);
    if (status == OK)
        *state = d;
    else
        cuda_close(d);
    return status;
}

static void cuda_on_wait(void *state, const DeviceWait *wait) {
    CudaDevice *d = state;
    d->wait = wait;
}

// ---- memory -----------------------------------------------------------------------------------------------

void *cuda_take(void *state, const char *name, size_t bytes, const char **why) {
    CudaDevice *d = state;
    void *memory = NULL;
    (void)name;
    cudaError_t error = cudaMalloc(&memory, bytes ? bytes : 1);
    if (error == cudaSuccess) return memory;
    cudaGetLastError();
    gpu_out_of_memory(d, error);
    *why = d->why;
    return NULL;
}

static void await_queues(const CudaDevice *d) {
    for (CudaQueue *q = d->queues; q; q = q->next) queue_await(q, queue_record(q));
}

void cuda_give_back(void *state, void *memory, size_t bytes) {
    CudaDevice *d = state;
    (void)bytes;
    await_queues(d);
    CUDA(d, cudaFree(memory));
}

static void *cuda_host_take(void *state, const char *name, size_t bytes, const char **why) {
    CudaDevice *d = state;
    void *memory = NULL;
    (void)name;
    cudaError_t error = cudaMallocHost(&memory, bytes ? bytes : 1);
    if (error == cudaSuccess) return memory;
    cudaGetLastError();
    snprintf(d->why, sizeof d->why, "pinned memory of the host: %s", error_text(error).text);
    *why = d->why;
    return NULL;
}

static void cuda_host_give_back(void *state, void *memory, size_t bytes) {
    CudaDevice *d = state;
    (void)bytes;
    await_queues(d);
    CUDA(d, cudaFreeHost(memory));
}

// ---- streams ----------------------------------------------------------------------------------------------

static void destroy_queue(CudaQueue *q) {
    CudaDevice *d = q->device;
    stages_close(q);
    for (int i = 0; i < NUM_EVENTS; i++)
        if (q->events[i]) CUDA(d, cudaEventDestroy(q->events[i]));
    if (q->stream) CUDA(d, cudaStreamDestroy(q->stream));
    free(q);
}

static Status cuda_stream_open(void *state, const char *name, void **queue) {
    CudaDevice *d = state;
    CudaQueue *q = calloc(1, sizeof *q);
    if (!q) return fail(ERR_OS, "no memory for the stream %s", name);
    q->device = d;
    Status status = CUDA_STATUS(d, cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking));
    if (status != OK) {
        destroy_queue(q);
        return status;
    }
    q->next = d->queues;
    d->queues = *queue = q;
    return OK;
}

static void cuda_stream_close(void *state, void *queue) {
    CudaDevice *d = state;
    CudaQueue *q = queue, **link = &d->queues;
    if (!q) return; // it could not be opened
    queue_await(q, queue_record(q));
    windows_leave(q);
    while (*link != q) link = &(*link)->next;
    *link = q->next;
    destroy_queue(q);
}

// ---- events -----------------------------------------------------------------------------------------------

static void set_reached(CudaQueue *q, int64_t event) {
    q->reached = event;
    stages_deliver(q);
}

// An event is used again once it is done. So the host is never more than NUM_EVENTS ahead of the GPU.
int64_t queue_record(CudaQueue *q) {
    queue_await(q, q->recorded + 1 - NUM_EVENTS);
    cudaEvent_t *event = &q->events[++q->recorded % NUM_EVENTS];
    if (!*event) CUDA(q->device, cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    CUDA(q->device, cudaEventRecord(*event, q->stream));
    return q->recorded;
}

static void sleep_us(int us) { nanosleep(&(struct timespec){.tv_nsec = us * 1000L}, NULL); }

// Short waits are for one more operation: there the host asks again at once.
static bool event_reached(const CudaDevice *d, cudaEvent_t event, double seconds) {
    const double spins_s = 5e-5;
    const int longest_us = 200;
    double start_s = 0;
    for (int pause_us = 10;;) {
        cudaError_t error = cudaEventQuery(event);
        if (error == cudaSuccess) return true;
        if (error != cudaErrorNotReady) cuda_check(d, "cudaEventQuery", error);
        if (seconds <= 0) return false;
        double now_s = clock_s();
        if (start_s == 0) start_s = now_s;
        if (now_s - start_s >= seconds) return false;
        if (now_s - start_s < spins_s) continue;
        sleep_us(pause_us);
        pause_us = 2 * pause_us < longest_us ? 2 * pause_us : longest_us;
    }
}

void event_await(const CudaDevice *d, cudaEvent_t event) {
    const double turn_s = 1e-2;
    for (WaitClock clock = {0}; !event_reached(d, event, turn_s);) wait_clock_turn(&clock, d->wait);
}

bool queue_wait_for(CudaQueue *q, int64_t event, double seconds) {
    if (event <= q->reached) return true;
    if (!event_reached(q->device, q->events[event % NUM_EVENTS], seconds)) return false;
    set_reached(q, event);
    return true;
}

void queue_await(CudaQueue *q, int64_t event) {
    if (event <= q->reached) return;
    event_await(q->device, q->events[event % NUM_EVENTS]);
    set_reached(q, event);
}

void queue_follow(CudaQueue *q, const CudaQueue *of, int64_t event) {
    if (event > of->reached)
        CUDA(q->device, cudaStreamWaitEvent(q->stream, of->events[event % NUM_EVENTS], 0));
}

static int64_t cuda_event_record(const Exec *exec) { return queue_record(exec->queue); }

static bool cuda_event_wait(const Exec *exec, int64_t event, double seconds) {
    return queue_wait_for(exec->queue, event, seconds);
}

static void cuda_stream_wait(const Exec *exec, const Exec *of, int64_t event) {
    queue_follow(exec->queue, of->queue, event);
}

// ---- operations -------------------------------------------------------------------------------------------

static size_t cuda_workspace_bytes(const DeviceOptions *options, DeviceOp op, const void *args) {
    switch (op) {
    case OP_ATTENTION_FORWARD: return cuda_attention_forward_workspace(options, args);
    case OP_ATTENTION_BACKWARD: return cuda_attention_backward_workspace(options, args);
#define X(NAME, function, Args)                                                                              \
    case OP_##NAME: return cuda_##function##_workspace(args);
        CUDA_WORKSPACES(X)
#undef X
    default: return 0;
    }
}

static Status cuda_prepare(void *state, DeviceOp op, const void *args) {
    switch (op) {
    case OP_ATTENTION_FORWARD: return cuda_prepare_attention_forward(state, args);
    case OP_ATTENTION_BACKWARD: return cuda_prepare_attention_backward(state, args);
    default: return cuda_prepare_product(state, op, args);
    }
}

static const Backend operations = {
#define X(NAME, function, Args, reads, writes) .function = cuda_##function,
    DEVICE_OPS(X)
#undef X
};

void cuda_run(const Exec *exec, DeviceOp op, const void *args) {
    backend_run(&operations, exec, op, args);
    cuda_check(exec->state, op_rows[op].name, cudaGetLastError());
}

// The callbacks of both kinds.
#define CALLBACKS                                                                                            \
    .is_fused = true, .workspace_bytes = cuda_workspace_bytes, .head_tokens = cuda_head_tokens,              \
    .check = cuda_available, .arithmetic = cuda_arithmetic, .survey = cuda_survey, .close = cuda_close,      \
    .unit = cuda_unit, .pci = cuda_pci, .stream_open = cuda_stream_open, .stream_close = cuda_stream_close,  \
    .event_record = cuda_event_record, .event_wait = cuda_event_wait, .stream_wait = cuda_stream_wait,       \
    .mark = cuda_mark, .mark_read = cuda_mark_read, .access = cuda_access,                                   \
    .access_address = cuda_access_address, .access_end = cuda_access_end, .address = cuda_address,           \
    .choose_attention = cuda_choose_attention, .attention = cuda_attention,                                  \
    .algorithms_about = cuda_algorithms_about, .algorithms_time = cuda_algorithms_time,                      \
    .algorithms_take = cuda_algorithms_take, .prepare = cuda_prepare, .on_wait = cuda_on_wait,               \
    .host_take = cuda_host_take, .host_give_back = cuda_host_give_back, .peers = &cuda_peers,                \
    .links = &nccl_links

static const Backend cuda_backend = {
    CALLBACKS,
    .name = CUDA_KIND,
    .run = cuda_run,
    .open = cuda_open,
    .take = cuda_take,
    .give_back = cuda_give_back,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .upload = cuda_upload,
    .download = cuda_download,
    .upload_async = cuda_upload_async,
    .download_async = cuda_download_async,
};

static const Backend checked_backend = {
    CALLBACKS,
    .name = CUDA_KIND "-check",
    .run = checked_run,
    .open = checked_open,
    .take = checked_take,
    .give_back = checked_give_back,
    .begins = checked_begins,
    .copy = checked_copy,
    .zero = checked_zero,
    .upload = checked_upload,
    .download = checked_download,
};

const DeviceModule trireme_device = {MODULE_INTERFACE, {&cuda_backend, &checked_backend}};
