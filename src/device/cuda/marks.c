// Marks of the CUDA device: when a stream got to a place, by events that tell the time, read after the step.
#include "base/rank.h"
#include "device/cuda/cuda.h"
#include <stdlib.h>

// CUDA tells times between events in fp32 milliseconds: over a second that is exact to 0.1 microseconds.
static const double BASE_AGE_S = 1;

// The stream of the base is empty, so its event is done at once.
static cudaError_t set_base(CudaMarks *m) {
    cudaError_t error = cudaEventRecord(m->base, m->stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(m->base);
    m->base_s = clock_s();
    return error;
}

Status marks_open(CudaDevice *d) {
    CudaMarks *m = &d->marks;
    TRY(CUDA_STATUS(d, cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking)));
    return CUDA_STATUS(d, cudaEventCreate(&m->base));
}

void marks_close(CudaDevice *d) {
    CudaMarks *m = &d->marks;
    for (int i = 0; i < m->num_events; i++) CUDA(d, cudaEventDestroy(m->events[i]));
    free(m->events);
    free(m->taken);
    if (m->base) CUDA(d, cudaEventDestroy(m->base));
    if (m->stream) CUDA(d, cudaStreamDestroy(m->stream));
}

static void grow_marks(CudaDevice *d) {
    CudaMarks *m = &d->marks;
    int old = m->num_events, grown = old ? 2 * old : 64;
    cudaEvent_t *events = realloc(m->events, (size_t)grown * sizeof(cudaEvent_t));
    if (events) m->events = events;
    bool *taken = realloc(m->taken, (size_t)grown * sizeof *taken);
    if (taken) m->taken = taken;
    CHECK(events && taken, "no memory for %d marks", grown);
    for (; m->num_events < grown; m->num_events++) {
        CUDA(d, cudaEventCreate(&m->events[m->num_events]));
        m->taken[m->num_events] = false;
    }
}

void cuda_mark(const Exec *exec, DeviceMark *mark) {
    CudaDevice *d = exec->state;
    CudaMarks *m = &d->marks;
    int i = m->num_taken;
    if (!m->num_taken && clock_s() - m->base_s > BASE_AGE_S) CUDA(d, set_base(m));
    if (m->num_taken == m->num_events) grow_marks(d);
    while (m->taken[i % m->num_events]) i++;
    i %= m->num_events;
    m->taken[i] = true;
    m->num_taken++;
    CUDA(d, cudaEventRecord(m->events[i], stream_of(exec)));
    mark->number = i + 1;
}

void cuda_mark_read(void *state, DeviceMark *mark) {
    CudaDevice *d = state;
    CudaMarks *m = &d->marks;
    int64_t i = mark->number - 1;
    float ms;
    CHECK(i >= 0 && i < m->num_events && m->taken[i], "a mark was read twice, or never made");
    event_await(d, m->events[i]);
    CUDA(d, cudaEventElapsedTime(&ms, m->base, m->events[i]));
    m->taken[i] = false;
    m->num_taken--;
    mark->wall_s = mark->work_s = m->base_s + (double)ms * 1e-3;
}
