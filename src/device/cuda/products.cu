// Products of matrices of any shape, transposition and type, by one plain kernel: tiles in shared memory, sums in
// registers. They are those for which cuBLASLt has no algorithm (products.c).
#include "device/cuda/portable.h"

// A block of 16 x 16 threads makes a square tile of d, PART x PART elements a thread, DEPTH products at a time.
enum { SIDE = 16, THREADS = SIDE * SIDE, PART = 4, TILE = SIDE * PART, DEPTH = 16, PADDED = TILE + 4 };

// op(a) or op(b): element (i, k), where k counts along the sum, lies at i * outer + k * inner.
typedef struct {
    int64_t count, outer, inner;
} Factor;

// Copies elements [first, first + TILE) x [k, k + DEPTH) to tile[k][i]; zeros beyond the matrix. Threads that follow
// each other read elements that do.
template <class E>
DEVICE void load_tile(float *tile, const E *x, Factor f, int64_t first, int64_t depth, int64_t begin) {
    for (int n = (int)threadIdx.x; n < TILE * DEPTH; n += THREADS) {
        const int i = f.inner == 1 ? n / DEPTH : n % TILE, k = f.inner == 1 ? n % DEPTH : n / TILE;
        const bool inside = first + i < f.count && begin + k < depth;
        tile[k * PADDED + i] = inside ? to_float(x[(first + i) * f.outer + (begin + k) * f.inner]) : 0;
    }
}

// Adds DEPTH products to each of the thread's sums. Products are rounded before they are added: then a compiler for any
// CPU makes vector instructions of this loop.
DEVICE void add_products(float (&sums)[PART][PART], const float *a, const float *b) {
    UNROLL
    for (int k = 0; k < DEPTH; k++) UNROLL
    for (int i = 0; i < PART; i++) UNROLL
    for (int j = 0; j < PART; j++) sums[i][j] += a[k * PADDED + i] * b[k * PADDED + j];
}

// Every sum goes along k from the first product to the last. At most 128 registers.
template <class A, class B, class C, class D>
__global__ void __launch_bounds__(THREADS)
    matmul_kernel(const A *a, const B *b, const C *bias, const float *scale_a, const float *scale_b, D *d,
                  Factor fa, Factor fb, int64_t depth, bool accumulate) {
    SHARED(float, tile_a, DEPTH *PADDED);
    SHARED(float, tile_b, DEPTH *PADDED);
    const int64_t first_row = (int64_t)blockIdx.x * TILE, first_col = (int64_t)blockIdx.y * TILE;
    const int row = (int)threadIdx.x / SIDE * PART, col = (int)threadIdx.x % SIDE * PART;
    float sums[PART][PART] = {};
    for (int64_t k = 0; k < depth; k += DEPTH) {
        load_tile(tile_a, a, fa, first_row, depth, k);
        load_tile(tile_b, b, fb, first_col, depth, k);
        __syncthreads();
        add_products(sums, tile_a + row, tile_b + col);
        __syncthreads();
    }
    for (int i = 0; i < PART; i++)
        for (int j = 0; j < PART; j++) {
            const int64_t r = first_row + row + i, c = first_col + col + j, at = r * fb.count + c;
            if (r >= fa.count || c >= fb.count) continue;
            float sum = sums[i][j];
            if constexpr (sizeof(A) == 1) sum = sum * *scale_a * *scale_b;
            if (bias) sum += to_float(bias[c]);
            if (accumulate) sum += to_float(d[at]);
            d[at] = from_float<D>(sum);
        }
}

// Factors of types A and B; a bias of C; D is the type of d.
template <class A, class B, class C, class D> static void matmul_to(const Exec *exec, const Matmul *p) {
    const int64_t depth = p->transpose_a ? p->a.rows : p->a.cols;
    const Factor a = {p->d.rows, p->transpose_a ? 1 : p->a.cols, p->transpose_a ? p->a.cols : 1};
    const Factor b = {p->d.cols, p->transpose_b ? p->b.cols : 1, p->transpose_b ? 1 : p->b.cols};
    const dim3 grid((unsigned)((a.count + TILE - 1) / TILE), (unsigned)((b.count + TILE - 1) / TILE));
    LAUNCH((matmul_kernel<A, B, C, D>), grid, THREADS, 0, stream_of(exec), (const A *)p->a.data,
           (const B *)p->b.data, (const C *)p->bias.data, (const float *)p->scale_a.data,
           (const float *)p->scale_b.data, (D *)p->d.data, a, b, depth, p->accumulate);
}

template <class E> static void matmul_of(const Exec *exec, const Matmul *p) {
    if (p->d.dtype == F32)
        matmul_to<E, E, E, float>(exec, p);
    else
        matmul_to<E, E, E, E>(exec, p);
}

// Factors in 8 bits: d is in D.
template <class D> static void matmul_float8(const Exec *exec, const Matmul *p) {
    if (p->a.dtype == E5M2)
        matmul_to<E5m2, E4m3, D, D>(exec, p);
    else if (p->b.dtype == E5M2)
        matmul_to<E4m3, E5m2, D, D>(exec, p);
    else
        matmul_to<E4m3, E4m3, D, D>(exec, p);
}

extern "C" void cuda_matmul_plain(const Exec *exec, const Matmul *p) {
    if (dtype_is_float8(p->a.dtype))
        BY_ELEMENT(p->d.dtype, matmul_float8, exec, p);
    else
        BY_ELEMENT(p->a.dtype, matmul_of, exec, p);
}
