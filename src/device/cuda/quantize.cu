// Tensors in 8 bits with one scale: each element is scaled and rounded as base/float8.h does, in its place or
// transposed by way of shared memory.
#include "device/cuda/portable.h"

// A block makes a square tile of q: TILE of its threads make a row at a time.
enum { TILE = 64, THREADS = 256, GROUPS = THREADS / TILE, PADDED = TILE + 4 };

template <class Q> inline constexpr float LARGEST = E4M3_MAX;
template <> inline constexpr float LARGEST<E5m2> = E5M2_MAX;

DEVICE void set_scale(float factor, float *scale) {
    if (!blockIdx.x && !blockIdx.y && !threadIdx.x && !threadIdx.y) *scale = 1 / factor;
}

// WHOLE: packs of x are aligned, and so are the elements of q that they become. At most 40 registers, 16 bytes a load.
template <class E, class Q, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    quantize_kernel(const E *x, const float *max, Q *q, float *scale, int64_t count) {
    struct alignas(Pack<E>::WIDTH) Result {
        enum { WIDTH = Pack<E>::WIDTH };
        Q e[WIDTH];
    };
    const float factor = float8_factor(LARGEST<Q>, *max);
    const int64_t at = ((int64_t)blockIdx.x * ROW_THREADS + threadIdx.x) * Result::WIDTH;
    set_scale(factor, scale);
    if (at >= count) return;
    const Pack<E> pack = load_pack<WHOLE>(x + at, count - at);
    Result result;
    UNROLL
    for (int i = 0; i < Result::WIDTH; i++) result.e[i] = from_float<Q>(to_float(pack.e[i]) * factor);
    store_some<WHOLE>(q + at, count - at, result);
}

// Makes q [cols, rows]. At most 40 registers.
template <class E, class Q>
__global__ void __launch_bounds__(THREADS)
    quantize_transpose_kernel(const E *x, const float *max, Q *q, float *scale, int64_t rows, int64_t cols) {
    SHARED(uint8_t, tile, TILE * PADDED);
    const float factor = float8_factor(LARGEST<Q>, *max);
    const int64_t first_row = (int64_t)blockIdx.x * TILE, first_col = (int64_t)blockIdx.y * TILE;
    const int lane = (int)threadIdx.x % TILE, group = (int)threadIdx.x / TILE;
    set_scale(factor, scale);
    for (int r = group; r < TILE; r += GROUPS)
        if (first_row + r < rows && first_col + lane < cols)
            tile[lane * PADDED + r] =
                from_float<Q>(to_float(x[(first_row + r) * cols + first_col + lane]) * factor).bits;
    __syncthreads();
    for (int c = group; c < TILE; c += GROUPS)
        if (first_col + c < cols && first_row + lane < rows)
            q[(first_col + c) * rows + first_row + lane] = Q{tile[c * PADDED + lane]};
}

template <class E, class Q> static void quantize_in(const Exec *exec, const Quantize *p) {
    const Tensor x = p->x;
    const float *max = (const float *)p->max.data;
    float *scale = (float *)p->scale.data;
    const int64_t count = tensor_count(x),
                  blocks = blocks_of(count ? count : 1, ROW_THREADS * Pack<E>::WIDTH);
    const bool whole =
        (uintptr_t)x.data % 16 == 0 && (uintptr_t)p->q.data % 16 == 0 && count % Pack<E>::WIDTH == 0;
    cudaStream_t stream = stream_of(exec);
    if (p->transpose && count) {
        const dim3 grid((unsigned)blocks_of(x.rows, TILE), (unsigned)blocks_of(x.cols, TILE));
        LAUNCH((quantize_transpose_kernel<E, Q>), grid, THREADS, 0, stream, (const E *)x.data, max,
               (Q *)p->q.data, scale, x.rows, x.cols);
    } else if (whole) {
        LAUNCH((quantize_kernel<E, Q, true>), blocks, ROW_THREADS, 0, stream, (const E *)x.data, max,
               (Q *)p->q.data, scale, count);
    } else {
        LAUNCH((quantize_kernel<E, Q, false>), blocks, ROW_THREADS, 0, stream, (const E *)x.data, max,
               (Q *)p->q.data, scale, count);
    }
}

template <class E> static void quantize_of(const Exec *exec, const Quantize *p) {
    if (p->q.dtype == E4M3)
        quantize_in<E, E4m3>(exec, p);
    else
        quantize_in<E, E5m2>(exec, p);
}

extern "C" void cuda_quantize(const Exec *exec, const Quantize *args) {
    BY_ELEMENT(args->x.dtype, quantize_of, exec, args);
}
