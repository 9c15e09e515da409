// How kernels and simulated libraries reach the simulated GPU, and what the runtime knows of the GPUs.
#pragma once
#include <cuda_runtime_api.h>
#include <functional>

// Puts a kernel on a stream, where it runs some time before a host thread has waited for it. `run` holds a copy of the
// kernel's arguments. With the default stream (NULL) it runs at once. `name` stays alive.
void sim_launch(cudaStream_t stream, const char *name, std::function<void()> run);

// The same for an entry that may run only while `ready` says so, which calls nothing of the simulation; meanwhile its
// stream stands. Not for the default stream.
void sim_launch_when(cudaStream_t stream, const char *name, std::function<bool()> ready,
                     std::function<void()> run);
// Runs at most so many entries, as cudaEventQuery does. Others may be ready from now on.
void sim_get_on(int most);
// Every later call of the runtime returns the error, and no kernel runs any more.
void sim_fault(cudaError_t error);
uint64_t sim_draw(); // the next number of those that TRIREME_SIM_SEED draws

// Counts a call of `name`; returns whether TRIREME_SIM_FAIL wants it to fail.
bool sim_fails(const char *name);
// Keeps an error for cudaGetLastError, and returns it.
cudaError_t sim_returned(cudaError_t error);

// Returns whether [memory, memory + bytes) was allocated by one cudaMalloc.
bool sim_is_device(const void *memory, size_t bytes);

int sim_gpu();          // the GPU that the calling thread has chosen
size_t sim_gpu_bytes(); // the memory of each GPU
size_t sim_bytes_in_use(int gpu);

// The number of objects of the simulated cuBLASLt that have been created and not destroyed.
extern "C" size_t sim_num_objects();
extern "C" size_t sim_num_objects_made();  // that have been created
extern "C" size_t sim_num_cudnn_objects(); // the same of the simulated cuDNN
