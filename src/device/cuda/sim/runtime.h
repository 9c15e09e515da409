// How kernels reach the streams of the simulated GPU.
#pragma once
#include <cuda_runtime_api.h>
#include <functional>

// Puts a kernel on a stream, where it runs some time before a host thread has waited for it. `run` holds a copy of the
// kernel's arguments. With the default stream (NULL) it runs at once. `name` stays alive.
void sim_launch(cudaStream_t stream, const char *name, std::function<void()> run);
