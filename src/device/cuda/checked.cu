// Finds numbers that are not finite, for --device cuda-check.
#include "device/cuda/checked.h"
#include "device/cuda/portable.h"

enum { BLOCK = 256, MOST_BLOCKS = 1024 };

DEVICE float to_float(double x) { return isfinite(x) ? 0.0f : (float)x; }

// At most 32 registers.
template <class E>
__global__ void __launch_bounds__(BLOCK)
    check_numbers_kernel(const E *x, int64_t count, float allowed, unsigned long long *found) {
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK) {
        const float value = to_float(x[i]);
        if (value - value != 0 && !(value == allowed)) atomicMax(found, ~(unsigned long long)i);
    }
}

template <class E>
static void check_of(cudaStream_t stream, Tensor x, float allowed, unsigned long long *found) {
    const int64_t count = tensor_count(x), blocks = blocks_of(count, BLOCK), most = MOST_BLOCKS;
    LAUNCH((check_numbers_kernel<E>), blocks < most ? blocks : most, BLOCK, 0, stream, (const E *)x.data,
           count, allowed, found);
}

extern "C" void check_numbers(cudaStream_t stream, Tensor x, float allowed, unsigned long long *found) {
    if (!x.data || !tensor_count(x)) return;
    if (x.dtype == F64)
        check_of<double>(stream, x, allowed, found);
    else if (dtype_is_element(x.dtype))
        BY_ELEMENT(x.dtype, check_of, stream, x, allowed, found);
}
