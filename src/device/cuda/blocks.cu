// Tensors in codes of few bits whose blocks have scales (base/blocks.h), the random Hadamard transform, and scales of
// tensors: recipes of training on GPUs of any age, as a CPU emulates them. Tensor cores multiply the BF16 numbers.
#include "device/cuda/portable.h"

// A block of threads takes PANEL columns, one a thread: a whole number of the tensor's blocks.
enum { PANEL = MAX_BLOCK_COLS };

DEVICE uint32_t random_word(const RandomRounding &r, int64_t row, int64_t col) {
    const int64_t token = r.transposed ? col : row, j = r.transposed ? row : col;
    const int64_t c = r.first_col + j / r.part * r.stride + j % r.part;
    return philox_word(r.key, (uint64_t)(r.first_sample + token % r.samples),
                       (uint64_t)(token / r.samples * r.cols + c));
}

// The sizes of a call as its kernel gets them.
typedef struct {
    int64_t rows, cols;
    int block_rows, block_cols, width;
    Codes codes;
    BlockScale scales;
    RandomRounding random;
} BlockShape;

// At most 40 registers.
template <class E>
__global__ void __launch_bounds__(PANEL)
    quantize_blocks_kernel(const E *x, const float *max, Bf16 *q, float *scale, BlockShape s) {
    SHARED(float, most, PANEL);
    const int lane = (int)threadIdx.x;
    const int64_t col = (int64_t)blockIdx.y * s.width + lane, first = (int64_t)blockIdx.x * s.block_rows;
    const int64_t end = first + s.block_rows < s.rows ? first + s.block_rows : s.rows;
    const bool works = lane < s.width && col < s.cols;
    const float tensor_factor = max ? block_tensor_factor(s.codes, *max) : 1;
    float mine = 0;
    for (int64_t row = first; row < end && works; row++) {
        const float a = fabsf(to_float(x[row * s.cols + col]));
        mine = a > mine ? a : mine;
    }
    most[lane] = mine;
    __syncthreads();
    if (scale && !blockIdx.x && !blockIdx.y && !lane) *scale = 1 / tensor_factor;
    if (!works) return;
    const int begin = lane / s.block_cols * s.block_cols;
    for (int i = begin; i < begin + s.block_cols; i++) mine = most[i] > mine ? most[i] : mine;
    const BlockFactor factor = block_factor(s.scales, s.codes, mine, tensor_factor);
    for (int64_t row = first; row < end; row++) {
        const float scaled = to_float(x[row * s.cols + col]) * factor.encode;
        const float value = s.random.samples ? codes_round_at_random(scaled, random_word(s.random, row, col))
                                             : codes_round(s.codes, scaled);
        q[row * s.cols + col] = from_float<Bf16>(value * factor.decode);
    }
}

template <class E> static void quantize_blocks_of(const Exec *exec, const QuantizeBlocks *p) {
    BlockShape s = {};
    s.rows = p->x.rows, s.cols = p->x.cols;
    s.block_rows = (int)p->block_rows, s.block_cols = (int)p->block_cols;
    s.width = PANEL / s.block_cols * s.block_cols;
    s.codes = p->codes, s.scales = p->scales, s.random = p->random;
    const dim3 grid((unsigned)blocks_of(s.rows, s.block_rows), (unsigned)blocks_of(s.cols, s.width));
    LAUNCH((quantize_blocks_kernel<E>), grid, PANEL, 0, stream_of(exec), (const E *)p->x.data,
           (const float *)p->max.data, (Bf16 *)p->q.data, (float *)p->scale.data, s);
}

extern "C" void cuda_quantize_blocks(const Exec *exec, const QuantizeBlocks *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, quantize_blocks_of, exec, args);
}

// A thread transforms HADAMARD_SIZE rows of a column. At most 40 registers.
template <class E>
__global__ void __launch_bounds__(PANEL) hadamard_kernel(const E *x, E *y, int64_t rows, int64_t cols) {
    const int64_t first = (int64_t)blockIdx.x * HADAMARD_SIZE,
                  col = (int64_t)blockIdx.y * PANEL + (int64_t)threadIdx.x;
    if (col >= cols) return;
    float v[HADAMARD_SIZE];
    UNROLL
    for (int i = 0; i < HADAMARD_SIZE; i++) {
        const float value = to_float(x[(first + i) * cols + col]);
        v[i] = HADAMARD_SIGNS >> i & 1 ? -value : value;
    }
    UNROLL
    for (int apart = 1; apart < HADAMARD_SIZE; apart *= 2) {
        UNROLL
        for (int i = 0; i < HADAMARD_SIZE; i++) {
            if (i & apart) continue;
            const float a = v[i], b = v[i + apart];
            v[i] = a + b, v[i + apart] = a - b;
        }
    }
    UNROLL
    for (int i = 0; i < HADAMARD_SIZE; i++) y[col * rows + first + i] = from_float<E>(0.25f * v[i]);
}

template <class E> static void hadamard_of(const Exec *exec, const Hadamard *p) {
    const dim3 grid((unsigned)(p->x.rows / HADAMARD_SIZE), (unsigned)blocks_of(p->x.cols, PANEL));
    LAUNCH((hadamard_kernel<E>), grid, PANEL, 0, stream_of(exec), (const E *)p->x.data, (E *)p->y.data,
           p->x.rows, p->x.cols);
}

extern "C" void cuda_hadamard(const Exec *exec, const Hadamard *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, hadamard_of, exec, args);
}

// At most 40 registers.
template <class E>
__global__ void __launch_bounds__(ROW_THREADS)
    scale_product_kernel(const float *x, const float *scale_a, const float *scale_b, const E *bias, E *d,
                         int64_t count, int64_t cols, bool accumulate) {
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i >= count) return;
    float value = x[i] * *scale_a * *scale_b;
    if (bias) value += to_float(bias[i % cols]);
    if (accumulate) value += to_float(d[i]);
    d[i] = from_float<E>(value);
}

template <class E> static void scale_product_of(const Exec *exec, const ScaleProduct *p) {
    const int64_t count = tensor_count(p->d);
    LAUNCH((scale_product_kernel<E>), blocks_of(count, ROW_THREADS), ROW_THREADS, 0, stream_of(exec),
           (const float *)p->x.data, (const float *)p->scale_a.data, (const float *)p->scale_b.data,
           (const E *)p->bias.data, (E *)p->d.data, count, p->d.cols, p->accumulate);
}

extern "C" void cuda_scale_product(const Exec *exec, const ScaleProduct *args) {
    if (tensor_count(args->d)) BY_ELEMENT(args->d.dtype, scale_product_of, exec, args);
}
