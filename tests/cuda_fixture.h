// The insides of the CUDA device on the simulated GPU, for tests whose program holds the objects of its module: a
// device, a stream, and memory that the host may write as long as nothing is under way.
#pragma once
#include "device/cuda/products.h"
#include "device/module.h"
#include "harness.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern const DeviceModule trireme_device;
size_t sim_num_objects(void);       // of the simulated cuBLASLt
size_t sim_num_objects_made(void);  // those that are gone, too
size_t sim_num_cudnn_objects(void); // of the simulated cuDNN

enum { GPU_BYTES = 1 << 20, GPU_ALIGNMENT = 256 };

typedef struct {
    const Backend *backend;
    CudaDevice *device;
    Exec exec;
    char *memory; // [GPU_BYTES]
    size_t used;
} Gpu;

static inline Status gpu_try_with(CudaDevice **device, DeviceOptions options) {
    void *state = NULL;
    options.kind = trireme_device.backends[MODULE_PLAIN]->name;
    Status status = trireme_device.backends[MODULE_PLAIN]->open(&state, &options);
    *device = state;
    return status;
}

static inline Status gpu_try(CudaDevice **device) { return gpu_try_with(device, (DeviceOptions){0}); }

static inline void *gpu_take(Gpu *gpu, size_t bytes) {
    const char *why;
    void *memory = gpu->backend->take(gpu->device, "memory", bytes, &why);
    CHECK(memory, "no memory");
    return memory;
}

static inline Gpu gpu_open_with(DeviceOptions options) {
    Gpu gpu = {.backend = trireme_device.backends[MODULE_PLAIN]};
    EXPECT_OK(gpu_try_with(&gpu.device, options));
    gpu.exec = (Exec){.state = gpu.device, .threads = 1, .workspace_bytes = PRODUCT_WORKSPACE};
    EXPECT_OK(gpu.backend->stream_open(gpu.device, "compute", &gpu.exec.queue));
    gpu.exec.workspace = gpu_take(&gpu, PRODUCT_WORKSPACE);
    gpu.memory = gpu_take(&gpu, GPU_BYTES);
    return gpu;
}

static inline Gpu gpu_open(void) { return gpu_open_with((DeviceOptions){0}); }

static inline void gpu_wait(const Gpu *gpu) {
    const Backend *backend = gpu->backend;
    CHECK(backend->event_wait(&gpu->exec, backend->event_record(&gpu->exec), 1e3), "the stream does not end");
}

// For several GPUs at a time; what is left of the libraries' objects is for the last one to tell.
static inline void gpu_release(Gpu *gpu) {
    gpu_wait(gpu);
    gpu->backend->stream_close(gpu->device, gpu->exec.queue);
    gpu->backend->give_back(gpu->device, gpu->exec.workspace, PRODUCT_WORKSPACE);
    gpu->backend->give_back(gpu->device, gpu->memory, GPU_BYTES);
    gpu->backend->close(gpu->device);
}

static inline void gpu_close(Gpu *gpu) {
    gpu_release(gpu);
    EXPECT(sim_num_objects() == 0, "%zu objects of cuBLASLt are left", sim_num_objects());
    EXPECT(sim_num_cudnn_objects() == 0, "%zu objects of cuDNN are left", sim_num_cudnn_objects());
}

// A tensor that begins `offset` bytes behind an aligned address, and is filled with bytes 0xFF: NaN.
static inline Tensor gpu_tensor(Gpu *gpu, DType dtype, int64_t rows, int64_t cols, size_t offset) {
    Tensor x = {gpu->memory + gpu->used + offset, rows, cols, dtype};
    gpu->used += (offset + tensor_bytes(x) + GPU_ALIGNMENT - 1) / GPU_ALIGNMENT * GPU_ALIGNMENT;
    CHECK(gpu->used <= GPU_BYTES, "a test with larger tensors than there is memory");
    memset(x.data, 0xFF, tensor_bytes(x));
    return x;
}

// Standard error goes to a file from here on.
typedef struct {
    FILE *file;
    int own; // standard error as it was
} Said;

static inline Said said_begin(void) {
    Said said = {fopen(harness_path("said"), "w+"), dup(STDERR_FILENO)};
    CHECK(said.file && said.own >= 0, "no file");
    dup2(fileno(said.file), STDERR_FILENO);
    return said;
}

// Undoes it; `text` becomes what was said.
static inline void said_end(const Said *said, char *text, size_t bytes) {
    dup2(said->own, STDERR_FILENO);
    close(said->own);
    rewind(said->file);
    text[fread(text, 1, bytes - 1, said->file)] = 0;
    fclose(said->file);
}
