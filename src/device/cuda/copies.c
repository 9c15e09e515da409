// Copies of the CUDA device: between host and device, within the device, and for host code that uses device memory.
#include "base/rank.h"
#include "device/cuda/cuda.h"
#include <stdlib.h>
#include <string.h>

// ---- stages -----------------------------------------------------------------------------------------------

static void stages_open(CudaQueue *q) {
    char *all = NULL;
    CUDA(q->device, cudaMallocHost((void **)&all, (size_t)NUM_STAGES * STAGE_BYTES));
    for (int i = 0; i < NUM_STAGES; i++) q->stages[i].pinned = all + (size_t)i * STAGE_BYTES;
}

void stages_close(CudaQueue *q) { CUDA(q->device, cudaFreeHost(q->stages[0].pinned)); }

void stages_deliver(CudaQueue *q) {
    for (int i = 0; i < NUM_STAGES; i++) {
        CudaStage *s = &q->stages[i];
        if (!s->to || s->event > q->reached) continue;
        memcpy(s->to, s->pinned, s->bytes);
        s->to = NULL;
    }
}

static CudaStage *next_stage(CudaQueue *q, size_t bytes) {
    if (!q->stages[0].pinned) stages_open(q);
    CudaStage *s = &q->stages[q->num_staged++ % NUM_STAGES];
    queue_await(q, s->event);
    s->bytes = bytes;
    return s;
}

// From and to memory that is not pinned CUDA copies before it returns: it waits for the stream. Here the wait is told.
static void reach_end(CudaQueue *q) { queue_await(q, queue_record(q)); }

void cuda_upload(const Exec *exec, void *to, const void *from, size_t bytes) {
    CudaQueue *q = exec->queue;
    if (bytes > STAGE_BYTES) {
        reach_end(q);
        CUDA(q->device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, q->stream));
        return;
    }
    CudaStage *s = next_stage(q, bytes);
    memcpy(s->pinned, from, bytes);
    CUDA(q->device, cudaMemcpyAsync(to, s->pinned, bytes, cudaMemcpyHostToDevice, q->stream));
    s->event = queue_record(q);
}

void cuda_upload_async(const Exec *exec, void *to, const void *from, size_t bytes) {
    const CudaQueue *q = exec->queue;
    CUDA(q->device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, q->stream));
}

void cuda_download(const Exec *exec, void *to, const void *from, size_t bytes) {
    CudaQueue *q = exec->queue;
    if (bytes > STAGE_BYTES) {
        reach_end(q);
        CUDA(q->device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, q->stream));
        return;
    }
    CudaStage *s = next_stage(q, bytes);
    CUDA(q->device, cudaMemcpyAsync(s->pinned, from, bytes, cudaMemcpyDeviceToHost, q->stream));
    s->event = queue_record(q);
    s->to = to;
}

void cuda_download_async(const Exec *exec, void *to, const void *from, size_t bytes) {
    const CudaQueue *q = exec->queue;
    CUDA(q->device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, q->stream));
}

// ---- within the device ------------------------------------------------------------------------------------

// Parts as long as the distance do not overlap; they are copied in the order in which none is overwritten before.
static void copy_overlapping(const CudaQueue *q, char *to, const char *from, size_t bytes) {
    bool down = (uintptr_t)to < (uintptr_t)from;
    size_t distance = down ? (uintptr_t)from - (uintptr_t)to : (uintptr_t)to - (uintptr_t)from;
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < distance ? bytes - done : distance;
        size_t at = down ? done : bytes - done - part;
        CUDA(q->device, cudaMemcpyAsync(to + at, from + at, part, cudaMemcpyDeviceToDevice, q->stream));
    }
}

void cuda_copy(const Exec *exec, void *to, const void *from, size_t bytes) {
    const CudaQueue *q = exec->queue;
    if (to != from) copy_overlapping(q, to, from, bytes);
}

void cuda_zero(const Exec *exec, void *x, size_t bytes) {
    const CudaQueue *q = exec->queue;
    CUDA(q->device, cudaMemsetAsync(x, 0, bytes, q->stream));
}

// ---- windows: host code that uses device memory -----------------------------------------------------------

static bool is_free(const CudaWindow *w) {
    return !w->in_use && (!w->queue || queue_wait_for(w->queue, w->event, 0));
}

static CudaWindow *grow_windows(CudaDevice *d) {
    CudaWindow *grown = realloc(d->windows, (size_t)(d->num_windows + 1) * sizeof *grown);
    CHECK(grown, "no memory for %d windows", d->num_windows + 1);
    d->windows = grown;
    grown[d->num_windows] = (CudaWindow){0};
    return &grown[d->num_windows++];
}

// The smallest free one that is large enough; else a new one. A run's first steps make all that it needs.
static CudaWindow *take_window(CudaDevice *d, size_t bytes) {
    CudaWindow *best = NULL;
    for (int i = 0; i < d->num_windows; i++) {
        CudaWindow *w = &d->windows[i];
        if (w->capacity >= bytes && (!best || w->capacity < best->capacity) && is_free(w)) best = w;
    }
    if (best) return best;
    size_t capacity = 4096;
    while (capacity < bytes) capacity *= 2;
    best = grow_windows(d);
    CUDA(d, cudaMallocHost((void **)&best->pinned, capacity));
    best->capacity = capacity;
    return best;
}

// The memory is copied even where the host only writes: it may write a part of it.
void cuda_access(const Exec *exec, HostAccess *access) {
    CudaQueue *q = exec->queue;
    CudaWindow *w = take_window(q->device, access->bytes);
    CUDA(q->device,
         cudaMemcpyAsync(w->pinned, access->data, access->bytes, cudaMemcpyDeviceToHost, q->stream));
    w->event = access->since.number = queue_record(q);
    w->bytes = access->bytes;
    w->queue = q;
    w->in_use = true;
    access->address = w->pinned;
    access->number = w - q->device->windows + 1;
}

void *cuda_access_address(void *state, const HostAccess *access) {
    const CudaDevice *d = state;
    const CudaWindow *w = &d->windows[access->number - 1];
    CHECK(queue_wait_for(w->queue, w->event, 0),
          "%s: its address was asked for before the stream had got there", access->what);
    return access->address;
}

// Everything that is put on any stream from now on sees what the host wrote.
void cuda_access_end(void *state, const HostAccess *access) {
    CudaDevice *d = state;
    CudaWindow *w = &d->windows[access->number - 1];
    w->in_use = false;
    if (!access->writes) return;
    CUDA(d, cudaMemcpyAsync(access->data, w->pinned, w->bytes, cudaMemcpyHostToDevice, w->queue->stream));
    w->event = queue_record(w->queue);
    for (CudaQueue *q = d->queues; q; q = q->next)
        if (q != w->queue) queue_follow(q, w->queue, w->event);
}

void windows_leave(CudaQueue *q) {
    CudaDevice *d = q->device;
    for (int i = 0; i < d->num_windows; i++)
        if (d->windows[i].queue == q) {
            CHECK(!d->windows[i].in_use, "a stream was closed while the host used its memory");
            d->windows[i].queue = NULL;
        }
}

void windows_close(CudaDevice *d) {
    for (int i = 0; i < d->num_windows; i++) CUDA(d, cudaFreeHost(d->windows[i].pinned));
    free(d->windows);
}

// A GPU's own memory has no address for the host; the simulated GPU's has.
void *cuda_address(void *state, void *data, size_t bytes) {
    const CudaDevice *d = state;
    struct cudaPointerAttributes attributes;
    (void)bytes;
    CUDA(d, cudaPointerGetAttributes(&attributes, data));
    CHECK(attributes.hostPointer, "the host cannot use the memory of GPU %d (%s) in place", d->number,
          d->name);
    return attributes.hostPointer;
}
