// Use of the memory of other GPUs of this process: access, copies between GPUs, events for the streams of other ranks.
#include "device/cuda/cuda.h"

// Ranks that share a GPU, and several ranks of one pair of GPUs, ask for the same access.
static bool cuda_reach(void *state, const void *other) {
    const CudaDevice *d = state, *o = other;
    int can = 0;
    if (d->number == o->number) return true;
    CUDA(d, cudaDeviceCanAccessPeer(&can, d->number, o->number));
    if (!can) return false;
    cudaError_t error = cudaDeviceEnablePeerAccess(o->number, 0);
    if (error != cudaSuccess) cudaGetLastError(); // the next call does not report it again
    return error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled;
}

static Status cuda_shared_event_open(void *state, void **event) {
    const CudaDevice *d = state;
    cudaEvent_t created;
    TRY(CUDA_STATUS(d, cudaEventCreateWithFlags(&created, cudaEventDisableTiming)));
    *event = created;
    return OK;
}

// CUDA keeps what streams still need of it.
static void cuda_shared_event_close(void *event) {
    if (cudaEventDestroy(event) != cudaSuccess) cudaGetLastError();
}

static void cuda_shared_event_record(const Exec *exec, void *event) {
    const CudaQueue *q = exec->queue;
    CUDA(q->device, cudaEventRecord(event, q->stream));
}

static void cuda_shared_event_wait(const Exec *exec, void *event) {
    const CudaQueue *q = exec->queue;
    CUDA(q->device, cudaStreamWaitEvent(q->stream, event, 0));
}

// CUDA takes the way by the host's memory where the GPUs do not reach each other.
static void cuda_copy_between(const Exec *exec, void *to, const void *to_state, const void *from,
                              const void *from_state, size_t bytes) {
    const CudaQueue *q = exec->queue;
    const CudaDevice *t = to_state, *f = from_state;
    if (t->number == f->number)
        CUDA(q->device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, q->stream));
    else
        CUDA(q->device, cudaMemcpyPeerAsync(to, t->number, from, f->number, bytes, q->stream));
}

static void reduce(const Exec *exec, const PeerReduce *args) {
    cuda_peer_reduce(exec, args);
    cuda_check(exec->state, "a sum over GPUs", cudaGetLastError());
}

const PeerBackend cuda_peers = {
    .reach = cuda_reach,
    .event_open = cuda_shared_event_open,
    .event_close = cuda_shared_event_close,
    .event_record = cuda_shared_event_record,
    .event_wait = cuda_shared_event_wait,
    .copy = cuda_copy_between,
    .reduce = reduce,
};
