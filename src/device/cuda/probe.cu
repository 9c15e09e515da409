// A small kernel that shows whether a GPU runs those of this module.
#include "device/cuda/portable.h"

enum { ANSWER = 42 };

// At most 16 registers.
__global__ void probe_kernel(int *out) { *out = ANSWER; }

extern "C" cudaError_t probe_kernels(int *machine, int *virtual_machine) {
    cudaFuncAttributes attributes = {};
    const cudaError_t error =
        cudaFuncGetAttributes(&attributes, reinterpret_cast<const void *>(probe_kernel));
    *machine = attributes.binaryVersion;
    *virtual_machine = attributes.ptxVersion;
    return error;
}

static cudaError_t run_on(cudaStream_t stream, int *memory) {
    int answer = 0;
    LAUNCH(probe_kernel, 1, 1, 0, stream, memory);
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(&answer, memory, sizeof answer, cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    return error == cudaSuccess && answer != ANSWER ? cudaErrorLaunchFailure : error;
}

extern "C" cudaError_t probe_run(void) {
    void *memory = nullptr;
    cudaStream_t stream = nullptr;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return error;
    error = cudaMalloc(&memory, sizeof(int));
    if (error == cudaSuccess) error = run_on(stream, static_cast<int *>(memory));
    cudaFree(memory);
    cudaStreamDestroy(stream);
    return error;
}
