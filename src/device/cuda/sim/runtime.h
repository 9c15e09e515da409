// How kernels and simulated libraries reach the simulated GPU.
#pragma once
#include <cuda_runtime_api.h>
#include <functional>

// Puts a kernel on a stream, where it runs some time before a host thread has waited for it. `run` holds a copy of the
// kernel's arguments. With the default stream (NULL) it runs at once. `name` stays alive.
void sim_launch(cudaStream_t stream, const char *name, std::function<void()> run);

// Whether TRIREME_SIM_FAIL wants this call to fail: the call counts as one of `name`.
bool sim_fails(const char *name);

// Whether [memory, memory + bytes) was allocated by one cudaMalloc.
bool sim_is_device(const void *memory, size_t bytes);

// The GPU that the calling thread has chosen.
int sim_device();

// The number of objects of the simulated cuBLASLt that have been created and not destroyed.
extern "C" size_t sim_num_objects();
