// Kernels are written once, in CUDA with the words below, and compiled twice: by nvcc for GPUs, and by the host's
// compiler for the simulated GPU (sim/emulator.h). What is built here from additions, multiplications, divisions,
// square roots and fused multiply-adds has the same bits on both: IEEE 754 says what they give, and no compiler fuses
// them on its own.
#pragma once
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
// The functions of half.h, float8.h and blocks.h, for kernels too; before any other header includes them.
#ifdef __CUDACC__
#define inline inline __host__ __device__
#include "base/blocks.h"
#undef inline
#else
#include "base/blocks.h"
#endif
#include "device/cuda/cuda.h"

// LAUNCH(kernel, grid, block, shared_bytes, stream, arguments...): the sizes are dim3 or counts; shared_bytes is of
// the dynamic shared memory. A kernel with commas in its name stands in parentheses. In a kernel, SHARED(T, name,
// count) is an array that the threads of a block share, and DYNAMIC_SHARED(T, name) points to what the launch asked
// for.
#ifdef __CUDACC__
#define SHARED(T, name, count) __shared__ T name[count]
#define DYNAMIC_SHARED(T, name)                                                                              \
    extern __shared__ __align__(128) unsigned char dynamic_shared[];                                         \
    T *const name = (T *)dynamic_shared
#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                               \
    do {                                                                                                     \
        allow_shared((const void *)(kernel), shared_bytes);                                                  \
        (kernel)<<<launch_size(grid), launch_size(block), shared_bytes, stream>>>(__VA_ARGS__);              \
    } while (0)

// More than 48 KB have to be allowed.
static inline void allow_shared(const void *kernel, size_t bytes) {
    if (bytes > 48 << 10)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}
#else
#include "device/cuda/sim/emulator.h"
#endif

#define DEVICE         static __device__ __forceinline__
#define PRAGMA_(words) _Pragma(#words)
#ifdef __CUDACC__
#define UNROLL       PRAGMA_(unroll)
#define UNROLL_BY(n) PRAGMA_(unroll n)
#else
#define UNROLL
#define UNROLL_BY(n)
#endif

enum { WARP = 32 };
#define ALL_LANES 0xffffffffu

// ---- launches ---------------------------------------------------------------------------------------------

static inline int64_t blocks_of(int64_t count, int64_t per_block) {
    return (count + per_block - 1) / per_block;
}

static inline dim3 launch_size(dim3 size) { return size; }
static inline dim3 launch_size(int64_t count) {
    CHECK(count > 0 && count <= INT32_MAX, "a launch of %lld blocks", (long long)count);
    return dim3((unsigned)count);
}

// A thread for each of the packs of each row; the threads of a block have packs that follow each other. Up to
// ROW_THREADS threads a block; a launch may have some more than there are packs.
enum { ROW_THREADS = 256 };
typedef struct {
    dim3 grid, block;
} RowLaunch;

static inline RowLaunch row_launch(int64_t rows, int64_t packs) {
    const int64_t parts = blocks_of(packs, ROW_THREADS), width = blocks_of(packs, parts),
                  height = ROW_THREADS / width;
    const int64_t blocks = blocks_of(rows, height);
    CHECK(blocks <= INT32_MAX && parts <= UINT16_MAX, "a launch of %lld x %lld blocks", (long long)blocks,
          (long long)parts);
    return RowLaunch{dim3((unsigned)blocks, (unsigned)parts), dim3((unsigned)width, (unsigned)height)};
}

DEVICE int64_t row_of_thread() { return (int64_t)blockIdx.x * blockDim.y + threadIdx.y; }
DEVICE int64_t pack_of_thread() { return (int64_t)blockIdx.y * blockDim.x + threadIdx.x; }

// Calls a function template with the type of the elements.
#define BY_ELEMENT(dtype, function, ...)                                                                     \
    ((dtype) == BF16  ? function<Bf16>(__VA_ARGS__)                                                          \
     : (dtype) == F16 ? function<Fp16>(__VA_ARGS__)                                                          \
                      : function<float>(__VA_ARGS__))

// ---- elements ---------------------------------------------------------------------------------------------

// Element types of tensors; that of F32 is float.
struct Bf16 {
    uint16_t bits;
};
struct Fp16 {
    uint16_t bits;
};
// Numbers of 8 bits (base/float8.h).
struct E4m3 {
    uint8_t bits;
};
struct E5m2 {
    uint8_t bits;
};

DEVICE float to_float(float x) { return x; }
// As an instruction: nvcc would keep what a shift gives in registers where it can be had again.
DEVICE float to_float(Bf16 x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("mov.b32 %0, {%1, %2};" : "=f"(y) : "h"((uint16_t)0), "h"(x.bits));
    return y;
#else
    return bf16_to_f32(x.bits);
#endif
}
DEVICE float to_float(Fp16 x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    return f16_to_f32(x.bits);
#endif
}

DEVICE float to_float(E4m3 x) { return e4m3_to_f32(x.bits); }
DEVICE float to_float(E5m2 x) { return e5m2_to_f32(x.bits); }

// A GPU makes another NaN of a NaN than half.h does.
DEVICE void round_to(float *to, float x) { *to = x; }
DEVICE void round_to(Bf16 *to, float x) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
#else
    to->bits = bf16_of_f32(x);
#endif
}
DEVICE void round_to(Fp16 *to, float x) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(to->bits) : "f"(x));
#else
    to->bits = f16_of_f32(x);
#endif
}

DEVICE void round_to(E4m3 *to, float x) { to->bits = e4m3_of_f32(x); }
DEVICE void round_to(E5m2 *to, float x) { to->bits = e5m2_of_f32(x); }

template <class E> DEVICE E from_float(float x) {
    E e;
    round_to(&e, x);
    return e;
}

// Elements side by side that one instruction loads or stores: 16 bytes, or four.
template <class E> struct alignas(16) Pack {
    enum { WIDTH = 16 / sizeof(E) };
    E e[WIDTH];
};
template <class E> struct alignas(4 * sizeof(E)) Quad {
    enum { WIDTH = 4 };
    E e[WIDTH];
};

// WHOLE: all of them exist, and `from` is aligned to their size. Else those from `left` on (any type of whole
// numbers) do not exist: they read as zeros and are not written.
template <bool WHOLE, class P, class E, class N> DEVICE P load_some(const E *from, N left) {
    if constexpr (WHOLE) {
        return *(const P *)from;
    } else {
        P p = {};
        UNROLL
        for (int i = 0; i < P::WIDTH; i++)
            if (i < left) p.e[i] = from[i];
        return p;
    }
}

template <bool WHOLE, class P, class E, class N> DEVICE void store_some(E *to, N left, const P &p) {
    if constexpr (WHOLE) {
        *(P *)to = p;
    } else {
        UNROLL
        for (int i = 0; i < P::WIDTH; i++)
            if (i < left) to[i] = p.e[i];
    }
}

template <bool WHOLE, class E, class N> DEVICE Pack<E> load_pack(const E *from, N left) {
    return load_some<WHOLE, Pack<E>>(from, left);
}
template <bool WHOLE, class E, class N> DEVICE void store_pack(E *to, N left, const Pack<E> &p) {
    store_some<WHOLE>(to, left, p);
}
template <bool WHOLE, class E, class N> DEVICE Quad<E> load_quad(const E *from, N left) {
    return load_some<WHOLE, Quad<E>>(from, left);
}
template <bool WHOLE, class E, class N> DEVICE void store_quad(E *to, N left, const Quad<E> &p) {
    store_some<WHOLE>(to, left, p);
}

// Returns whether every row of a tensor is whole packs that are aligned; true for an absent tensor.
static inline bool has_whole_packs(Tensor x) {
    const size_t row_bytes = (size_t)x.cols * dtype_bytes(x.dtype);
    return !x.data || ((uintptr_t)x.data % 16 == 0 && row_bytes % 16 == 0);
}

// ---- sums of a warp and of a block ------------------------------------------------------------------------

// The larger one, or NaN if one is.
DEVICE float larger(float a, float b) { return b > a || b != b ? b : a; }

// All lanes get the result. The lanes are added by halves.
DEVICE float warp_sum(float x) {
    UNROLL
    for (int distance = WARP / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

// NaN if one is.
DEVICE float warp_max(float x) {
    UNROLL
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        x = larger(x, __shfl_xor_sync(ALL_LANES, x, distance));
    return x;
}

// The lanes of each warp, then the warps in their order. All threads of the block get the result; they call it
// together and are whole warps along x. `room` is shared, a float for each warp; it may be used again at once.
DEVICE float block_sum(float x, float *room) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
    __syncthreads();
    x = room[0];
    for (unsigned w = 1; w < blockDim.x / WARP; w++) x += room[w];
    __syncthreads();
    return x;
}

DEVICE float block_max(float x, float *room) {
    x = warp_max(x);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
    __syncthreads();
    x = room[0];
    for (unsigned w = 1; w < blockDim.x / WARP; w++) x = larger(x, room[w]);
    __syncthreads();
    return x;
}

// ---- random numbers ---------------------------------------------------------------------------------------

// The words of elements 4 * block to 4 * block + 3 of a sample, as rng_word has them.
DEVICE void philox_block(RngKey key, uint64_t sample, uint64_t block, uint32_t (&words)[4]) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32), c2 = (uint32_t)sample,
             c3 = (uint32_t)(sample >> 32);
    uint32_t k0 = key.word[0], k1 = key.word[1];
    UNROLL
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

DEVICE uint32_t philox_word(RngKey key, uint64_t sample, uint64_t index) {
    uint32_t words[4];
    philox_block(key, sample, index / 4, words);
    const uint32_t pair[2] = {index & 2 ? words[2] : words[0], index & 2 ? words[3] : words[1]};
    return index & 1 ? pair[1] : pair[0];
}

// ---- functions --------------------------------------------------------------------------------------------

// 2^n for -126 <= n <= 127, from n + ROUND_TO_WHOLE, which holds n in its low bits.
#define ROUND_TO_WHOLE 0x1.8p23f
DEVICE float power_of_2(float shifted) {
    return __uint_as_float((__float_as_uint(shifted) - __float_as_uint(ROUND_TO_WHOLE) + 127) << 23);
}

// e^x to 1 unit in the last place, for x <= 88.37 or NaN; 0 below -87.33, where e^x is no normal number.
// x = n ln 2 + r with |r| <= ln 2 / 2; the polynomial is a minimax fit of (e^r - 1 - r) / r^2, error 3e-9.
DEVICE float exponential(float x) {
    const float shifted = fmaf(x, 1.44269504f, ROUND_TO_WHOLE), n = shifted - ROUND_TO_WHOLE;
    const float r = fmaf(n, 2.12194440e-4f, fmaf(n, -0.693359375f, x)), r2 = r * r;
    const float high = fmaf(r, 0x1.123b02p-7f, 0x1.5558f8p-5f), low = fmaf(r, 0x1.555490p-3f, 0x1.fffffcp-2f);
    const float y = fmaf(fmaf(fmaf(r2, 0x1.6a2256p-10f, high), r2, low), r2, r) + 1.0f;
    return x < -87.33f ? 0.0f : y * power_of_2(shifted);
}

// 2^x to 2.4 units in the last place, for x < 127.5 or NaN; 0 below -126.
// x = n + r with |r| <= 1/2; the polynomial is a minimax fit of (2^r - 1) / r, error 9e-8.
DEVICE float exponential_of_base_2(float x) {
    const float shifted = x + ROUND_TO_WHOLE, n = shifted - ROUND_TO_WHOLE, r = x - n, r2 = r * r;
    const float high = fmaf(r, 0x1.5bba16p-10f, 0x1.3cea8ap-7f),
                low = fmaf(r, 0x1.c6b752p-5f, 0x1.ebf9bcp-3f);
    const float y = fmaf(fmaf(high, r2, low), r2, fmaf(r, 0x1.62e42ap-1f, 1.0f));
    return x < -126.0f ? 0.0f : y * power_of_2(shifted);
}

// The natural logarithm to 1 unit in the last place; of 0 -infinity, of less NaN.
// x = 2^n m with m from sqrt(1/2) to sqrt(2), f = m - 1, s = f / (2 + f); log m = f - f^2/2 + s (f^2/2 + R(s^2)).
// Source: FreeBSD's e_logf.c (Sun Microsystems), which follows Remez.
DEVICE float logarithm(float x) {
    const bool tiny = x < 0x1p-126f;
    const uint32_t offset = __float_as_uint(0x1.6a09e6p-1f); // sqrt(1/2)
    const uint32_t bits = __float_as_uint(tiny ? x * 0x1p25f : x) - offset;
    const float n = (float)((int32_t)bits >> 23) - (tiny ? 25.0f : 0.0f);
    const float f = __uint_as_float((bits & 0x7fffffu) + offset) - 1.0f, s = f / (2.0f + f), z = s * s,
                w = z * z;
    const float r =
        fmaf(z, fmaf(w, 0.28498786688f, 0.66666662693f), w * fmaf(w, 0.24279078841f, 0.40000972152f));
    const float half = 0.5f * f * f;
    const float y = fmaf(n, 0.69313812256f, fmaf(s, half + r, n * 9.0580006145e-06f) - half + f);
    if (x > 0.0f && x < INFINITY) return y;
    return x == 0.0f ? -INFINITY : x > 0.0f ? x : NAN;
}
