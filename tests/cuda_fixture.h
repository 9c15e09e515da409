// The insides of the CUDA device on the simulated GPU, for tests whose program holds the objects of its module: a
// device, a stream, and memory that the host may write as long as nothing is under way.
#pragma once
#include "device/cuda/products.h"
#include "device/module.h"
#include "harness.h"
#include <string.h>

extern const DeviceModule trireme_device;
size_t sim_num_objects(void); // of the simulated cuBLASLt

enum { GPU_BYTES = 1 << 20, GPU_ALIGNMENT = 256 };

typedef struct {
    const Backend *backend;
    CudaDevice *device;
    Exec exec;
    char *memory; // [GPU_BYTES]
    size_t used;
} Gpu;

static inline Status gpu_try(CudaDevice **device) {
    void *state = NULL;
    Status status =
        trireme_device.backend->open(&state, &(DeviceOptions){.kind = trireme_device.backend->name});
    *device = state;
    return status;
}

static inline void *gpu_take(Gpu *gpu, size_t bytes) {
    const char *why;
    void *memory = gpu->backend->take(gpu->device, "memory", bytes, &why);
    CHECK(memory, "no memory");
    return memory;
}

static inline Gpu gpu_open(void) {
    Gpu gpu = {.backend = trireme_device.backend};
    EXPECT_OK(gpu_try(&gpu.device));
    gpu.exec = (Exec){.state = gpu.device, .threads = 1, .workspace_bytes = PRODUCT_WORKSPACE};
    EXPECT_OK(gpu.backend->stream_open(gpu.device, "compute", &gpu.exec.queue));
    gpu.exec.workspace = gpu_take(&gpu, PRODUCT_WORKSPACE);
    gpu.memory = gpu_take(&gpu, GPU_BYTES);
    return gpu;
}

static inline void gpu_wait(const Gpu *gpu) {
    const Backend *backend = gpu->backend;
    CHECK(backend->event_wait(&gpu->exec, backend->event_record(&gpu->exec), 1e3), "the stream does not end");
}

static inline void gpu_close(Gpu *gpu) {
    gpu_wait(gpu);
    gpu->backend->stream_close(gpu->device, gpu->exec.queue);
    gpu->backend->give_back(gpu->device, gpu->exec.workspace, PRODUCT_WORKSPACE);
    gpu->backend->give_back(gpu->device, gpu->memory, GPU_BYTES);
    gpu->backend->close(gpu->device);
    EXPECT(sim_num_objects() == 0, "%zu objects of cuBLASLt are left", sim_num_objects());
}

// A tensor that begins `offset` bytes behind an aligned address, and is filled with bytes 0xFF: NaN.
static inline Tensor gpu_tensor(Gpu *gpu, DType dtype, int64_t rows, int64_t cols, size_t offset) {
    Tensor x = {gpu->memory + gpu->used + offset, rows, cols, dtype};
    gpu->used += (offset + tensor_bytes(x) + GPU_ALIGNMENT - 1) / GPU_ALIGNMENT * GPU_ALIGNMENT;
    CHECK(gpu->used <= GPU_BYTES, "a test with larger tensors than there is memory");
    memset(x.data, 0xFF, tensor_bytes(x));
    return x;
}
