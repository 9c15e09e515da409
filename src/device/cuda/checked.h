// --device cuda-check: the CUDA device, so that a fault names the operation that made it. After every operation and
// copy the host waits for the stream, and:
//   faults    an error of the GPU is that operation's;
//   numbers   the first number that it wrote and that is not finite ends the job with ERR_NUMERIC;
//   bounds    every allocation lies between guard bytes, and those that are not what they were end the job;
//   blocks    a block of an arena begins as NaNs, so that what is read before it is written shows as a number.
// It is slow. What depends on time alone, as a missing wait between two streams, does not show here: `check` and
// `cuda-sim` find that.
#pragma once
#include "device/cuda/cuda.h"
#ifdef __cplusplus
extern "C" {
#endif

// The kernel (checked.cu): adds the place of the first element of x that is not finite to what `found` [1] holds, 2^64
// - 1 - i of the element i; 0: there is none. -infinity or infinity may be allowed.
void check_numbers(cudaStream_t stream, Tensor x, float allowed, unsigned long long *found);

Status checks_open(CudaDevice *device);
void checks_close(CudaDevice *device); // takes what was only zeroed

// The callbacks of Backend (device/backend.h) that look.
Status checked_open(void **state, const DeviceOptions *options);
void *checked_take(void *state, const char *name, size_t bytes, const char **why);
void checked_give_back(void *state, void *memory, size_t bytes);
void checked_begins(void *state, const char *name, void *address, size_t bytes);
void checked_run(const Exec *exec, DeviceOp op, const void *args);
void checked_copy(const Exec *exec, void *to, const void *from, size_t bytes);
void checked_zero(const Exec *exec, void *x, size_t bytes);
void checked_upload(const Exec *exec, void *to, const void *from, size_t bytes);
void checked_download(const Exec *exec, void *to, const void *from, size_t bytes);

// The callbacks of the plain device that they call (backend.c).
Status cuda_open(void **state, const DeviceOptions *options);
void cuda_close(void *state);
void *cuda_take(void *state, const char *name, size_t bytes, const char **why);
void cuda_give_back(void *state, void *memory, size_t bytes);
void cuda_run(const Exec *exec, DeviceOp op, const void *args);
#ifdef __cplusplus
}
#endif
