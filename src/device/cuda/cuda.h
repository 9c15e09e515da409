// The insides of the CUDA device: what its host code (backend.c) and its kernels (*.cu) share.
//
// These files make a module that the program loads when the device is opened (device/module.h). They are built twice:
// with nvcc for GPUs, and with the host's compiler for the simulated GPU in sim/, which has the calls of the CUDA runtime
// and runs kernels on the host.
#pragma once
#include <cuda_runtime_api.h>
#ifdef __cplusplus
#define _Noreturn __attribute__((noreturn)) // a word of C that C++ does not know
extern "C" {
#endif
#include "device/backend.h"

// ---- operations -------------------------------------------------------------------------------------------

// Each operation puts its kernels on the stream of `exec` and returns. It allocates nothing, waits for nothing and follows
// no address of device memory.
#define X(NAME, function, Args, reads, writes) void cuda_##function(const Exec *exec, const Args *args);
DEVICE_OPS(X)
#undef X

// ---- streams ----------------------------------------------------------------------------------------------

typedef struct CudaDevice CudaDevice;

enum {
    NUM_EVENTS = 1024,      // of a stream: so many of the last ones can be asked for
    NUM_STAGES = 16,        // small copies between the host and a stream that may be under way at once
    STAGE_BYTES = 64 << 10, // what is larger is copied without a stage
};

// Pinned memory for one small copy.
typedef struct {
    char *pinned;
    int64_t event; // the copy is done when the stream has reached it
    void *to;      // of a download whose bytes the host has not got yet; else NULL
    size_t bytes;
} CudaStage;

// The `queue` of an Exec.
typedef struct CudaQueue {
    cudaStream_t stream;
    CudaDevice *device;
    struct CudaQueue *next; // of the device's queues
    const char *name;
    // The event with the number n is events[n % NUM_EVENTS].
    cudaEvent_t events[NUM_EVENTS];
    int64_t recorded, reached; // the numbers of the last event, and of the last one that is known to be done
    CudaStage stages[NUM_STAGES];
    int64_t num_staged;
} CudaQueue;

// The stream on which an operation runs. Without a queue: CUDA's default stream.
static inline cudaStream_t stream_of(const Exec *exec) {
    return exec->queue ? ((const CudaQueue *)exec->queue)->stream : NULL;
}
#ifdef __cplusplus
}
#endif
