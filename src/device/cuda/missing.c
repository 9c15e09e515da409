// Ends the job at an operation that has no kernel yet: the kernel's function takes the place of the one here.
#include "base/error.h"
#include "device/cuda/cuda.h"

#define X(NAME, function, Args, reads, writes)                                                               \
    __attribute__((weak)) void cuda_##function(const Exec *exec, const Args *args) {                         \
        (void)exec, (void)args;                                                                              \
        CHECK(false, "%s has no kernel yet", #function);                                                     \
    }
DEVICE_OPS(X)
#undef X

#define X(NAME, function, Args)                                                                              \
    __attribute__((weak)) size_t cuda_##function##_workspace(const Args *args) {                             \
        (void)args;                                                                                          \
        return 0;                                                                                            \
    }
CUDA_WORKSPACES(X)
#undef X
