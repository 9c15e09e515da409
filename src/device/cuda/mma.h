// Products of small matrices by a warp: the tensor cores' instructions, and the same by plain loops for the simulated
// GPU, which holds the fragments as the hardware does.
//
// A fragment is a lane's share of a matrix, two elements a register. With row = lane / 4 and col = lane % 4 * 2:
//   a [16, 16]  a[0] (row, col..col + 1)   a[1] (row + 8, ...)   a[2] (row, col + 8...)   a[3] (row + 8, col + 8...)
//   b [16, 8]   b[0] (k = col..col + 1, n = row)   b[1] (k = col + 8..., n = row)
//   c [16, 8]   c[0], c[1] (row, col..col + 1)   c[2], c[3] (row + 8, ...)
// Source: PTX ISA, "Matrix Fragments for mma.m16n8k16", "ldmatrix".
#pragma once
#include "device/cuda/portable.h"

// True for bf16; the other element type of tensor cores here is fp16.
template <class E> inline constexpr bool IS_BF16 = false;
template <> inline constexpr bool IS_BF16<Bf16> = true;

#ifdef __CUDACC__

// Two numbers as elements in one register, the first in the lower half.
template <class E> DEVICE uint32_t mma_pair(float low, float high) {
    uint32_t pair;
    if constexpr (IS_BF16<E>)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// c += a b.
template <class E> DEVICE void mma_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (IS_BF16<E>)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                     "{%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices from shared memory: lane 8 m + r has the address of row r of matrix m, 16 bytes at a multiple of
// 16. Register m gets (row, col..col + 1) of matrix m.
DEVICE void mma_load(uint32_t (&x)[4], const void *row) {
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

// The same, transposed: register m gets (col..col + 1, row) of matrix m.
DEVICE void mma_load_transposed(uint32_t (&x)[4], const void *row) {
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

// Copies 16 or 4 bytes from global to shared memory, or zeros if nothing is there, until the thread's next copy_wait.
template <int BYTES> DEVICE void copy_begin(void *to, const void *from, bool is_there) {
    const uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                     "r"(is_there ? 16 : 0)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from),
                     "r"(is_there ? 4 : 0)
                     : "memory");
}

DEVICE void copy_wait(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

// 2^x to 2 units in the last place; its bits are the GPU's own.
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#else

template <class E> DEVICE uint32_t mma_pair(float low, float high) {
    return (uint32_t)from_float<E>(low).bits | (uint32_t)from_float<E>(high).bits << 16;
}

static inline float fast_exp2(float x) { return exponential_of_base_2(x); }

// The lanes of a warp show each other what is in this room: the factors of a product, b transposed, or the addresses of
// rows.
struct MmaRoom {
    float a[16][16], b[8][16];
    const uint16_t *rows[WARP];
};

static inline MmaRoom *mma_room(void) {
    static thread_local MmaRoom rooms[32];
    return &rooms[threadIdx.x / WARP];
}

// Writes a register's two elements as numbers.
template <class E> void mma_show(float *to, uint32_t pair) {
    to[0] = to_float(E{(uint16_t)pair});
    to[1] = to_float(E{(uint16_t)(pair >> 16)});
}

template <class E> void mma_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    MmaRoom *room = mma_room();
    const int lane = (int)threadIdx.x % WARP, row = lane / 4, col = lane % 4 * 2;
    for (int i = 0; i < 4; i++) mma_show<E>(&room->a[row + i % 2 * 8][col + i / 2 * 8], a[i]);
    mma_show<E>(&room->b[row][col], b0);
    mma_show<E>(&room->b[row][col + 8], b1);
    __syncwarp();
    for (int i = 0; i < 4; i++) {
        const float *x = room->a[row + i / 2 * 8], *y = room->b[col + i % 2];
        for (int k = 0; k < 16; k++) c[i] += x[k] * y[k];
    }
    __syncwarp();
}

static inline void mma_load_any(uint32_t (&x)[4], const void *row, bool transposed) {
    MmaRoom *room = mma_room();
    const int lane = (int)threadIdx.x % WARP, down = lane / 4, right = lane % 4 * 2;
    room->rows[lane] = (const uint16_t *)row;
    __syncwarp();
    for (int m = 0; m < 4; m++) {
        const uint16_t *const *rows = room->rows + 8 * m;
        const uint16_t low = transposed ? rows[right][down] : rows[down][right];
        const uint16_t high = transposed ? rows[right + 1][down] : rows[down][right + 1];
        x[m] = (uint32_t)low | (uint32_t)high << 16;
    }
    __syncwarp();
}

static inline void mma_load(uint32_t (&x)[4], const void *row) { mma_load_any(x, row, false); }
static inline void mma_load_transposed(uint32_t (&x)[4], const void *row) { mma_load_any(x, row, true); }

enum { MAX_COPIES = 32 };

// The copies of a thread that are under way; they are made as late as can be.
struct Copies {
    struct {
        void *to;
        const void *from;
        int bytes;
    } copy[MAX_COPIES];
    int count;
};

static inline Copies *copies_of_thread(void) {
    static thread_local Copies copies[1024];
    return &copies[threadIdx.x];
}

template <int BYTES> DEVICE void copy_begin(void *to, const void *from, bool is_there) {
    Copies *copies = copies_of_thread();
    CHECK(copies->count < MAX_COPIES, "more than %d copies under way", MAX_COPIES);
    copies->copy[copies->count++] = {to, is_there ? from : NULL, BYTES};
}

static inline void copy_wait(void) {
    Copies *copies = copies_of_thread();
    for (int i = 0; i < copies->count; i++)
        if (copies->copy[i].from)
            memcpy(copies->copy[i].to, copies->copy[i].from, copies->copy[i].bytes);
        else
            memset(copies->copy[i].to, 0, copies->copy[i].bytes);
    copies->count = 0;
}

#endif
