// Sums of tensors: over rows, and of one tensor with another.
#include "device/cuda/portable.h"

enum { BLOCK = 256 };

// ---- one tensor and another -------------------------------------------------------------------------------

// At most 32 registers.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(BLOCK) add_kernel(const E *x, E *y, int64_t count) {
    const int64_t at = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * Pack<E>::WIDTH, left = count - at;
    if (left <= 0) return;
    const Pack<E> more = load_pack<WHOLE>(x + at, left);
    Pack<E> sum = load_pack<WHOLE>(y + at, left);
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++)
        sum.e[i] = from_float<E>(to_float(sum.e[i]) + to_float(more.e[i]));
    store_pack<WHOLE>(y + at, left, sum);
}

template <class E> static void add_of(const Exec *exec, const Add *p) {
    const int64_t count = tensor_count(p->x), blocks = blocks_of(count, BLOCK * Pack<E>::WIDTH);
    const Tensor x = tensor_part(p->x, 0, count), y = tensor_part(p->y, 0, count);
    if (has_whole_packs(x) && has_whole_packs(y))
        LAUNCH((add_kernel<E, true>), blocks, BLOCK, 0, stream_of(exec), (const E *)x.data, (E *)y.data,
               count);
    else
        LAUNCH((add_kernel<E, false>), blocks, BLOCK, 0, stream_of(exec), (const E *)x.data, (E *)y.data,
               count);
}

extern "C" void cuda_add(const Exec *exec, const Add *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, add_of, exec, args);
}
