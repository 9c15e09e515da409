// Operations that have no kernels yet.
#include "base/error.h"
#include "device/cuda/cuda.h"
#define X(NAME, function, Args, reads, writes)                                                               \
    __attribute__((weak)) void cuda_##function(const Exec *exec, const Args *args) {                         \
        (void)exec, (void)args;                                                                              \
        CHECK(false, "%s is missing", #function);                                                            \
    }
DEVICE_OPS(X)
#undef X
