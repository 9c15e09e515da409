// The sum, or the largest, of the elements of several ranks, with the bits of device/reduce.c: in rank order, or as a
// tree.
#include "device/cuda/portable.h"

enum { BLOCK = 256 };

// What is added: 16-bit types are added in fp32 and rounded once.
template <class E> struct Wide { typedef float type; };
template <> struct Wide<double> { typedef double type; };

DEVICE float widened(float x) { return x; }
DEVICE double widened(double x) { return x; }
DEVICE float widened(Bf16 x) { return to_float(x); }
DEVICE float widened(Fp16 x) { return to_float(x); }

template <class E> DEVICE E narrowed(typename Wide<E>::type x) {
    if constexpr (sizeof(E) == sizeof(uint16_t))
        return from_float<E>(x);
    else
        return x;
}

// NaN if one is.
template <class T, bool MAX> DEVICE T folded(T sum, T x) {
    if constexpr (MAX)
        return x > sum || x != x ? x : sum;
    else
        return sum + x;
}

// A thread reads its elements of all parts before it writes them: a result may replace a part.
// At most 32 registers, 16 bytes a load.
template <class E, bool MAX, bool WHOLE>
__global__ void __launch_bounds__(BLOCK) peer_reduce_kernel(const PeerReduce p) {
    typedef typename Wide<E>::type T;
    const int64_t at = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * Pack<E>::WIDTH,
                  left = (int64_t)p.count - at;
    if (left <= 0) return;
    T sum[Pack<E>::WIDTH];
    Pack<E> part = load_pack<WHOLE>((const E *)p.in[0] + at, left);
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) sum[i] = widened(part.e[i]);
    UNROLL_BY(4)
    for (int r = 1; r < p.num_in; r++) {
        part = load_pack<WHOLE>((const E *)p.in[r] + at, left);
        UNROLL
        for (int i = 0; i < Pack<E>::WIDTH; i++) sum[i] = folded<T, MAX>(sum[i], widened(part.e[i]));
    }
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) part.e[i] = narrowed<E>(sum[i]);
    for (int r = 0; r < p.num_out; r++) store_pack<WHOLE>((E *)p.out[r] + at, left, part);
}

// Loads a pack of one part and widens it.
template <class E, bool WHOLE>
DEVICE void load_wide(const PeerReduce &p, int r, int64_t at, int64_t left,
                      typename Wide<E>::type x[Pack<E>::WIDTH]) {
    const Pack<E> part = load_pack<WHOLE>((const E *)p.in[r] + at, left);
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) x[i] = widened(part.e[i]);
}

enum { TREE_LEVELS = 6 };
static_assert(1 << TREE_LEVELS == MAX_PEERS, "a level for each half");

// The sum as a tree over a power of two of parts. sums[k] is the sum of 2^k parts whose other half is still missing.
// At most 80 registers, 16 bytes a load.
template <class E, bool WHOLE> __global__ void __launch_bounds__(BLOCK) peer_tree_kernel(const PeerReduce p) {
    typedef typename Wide<E>::type T;
    enum { WIDTH = Pack<E>::WIDTH };
    const int64_t at = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * WIDTH, left = (int64_t)p.count - at;
    if (left <= 0) return;
    T sum[WIDTH] = {}, sums[TREE_LEVELS][WIDTH] = {};
    for (int r = 0; r < p.num_in; r++) {
        load_wide<E, WHOLE>(p, r, at, left, sum);
        bool carries = true;
        UNROLL
        for (int level = 0; level < TREE_LEVELS; level++) {
            const bool adds = carries && (r >> level & 1), keeps = carries && !adds;
            UNROLL
            for (int i = 0; i < WIDTH; i++) {
                if (adds) sum[i] = sums[level][i] + sum[i];
                if (keeps) sums[level][i] = sum[i];
            }
            carries = adds;
        }
    }
    Pack<E> part;
    UNROLL
    for (int i = 0; i < WIDTH; i++) part.e[i] = narrowed<E>(sum[i]);
    for (int r = 0; r < p.num_out; r++) store_pack<WHOLE>((E *)p.out[r] + at, left, part);
}

static bool is_whole(const PeerReduce *p, size_t element) {
    uintptr_t any = p->count * element;
    for (int i = 0; i < p->num_in; i++) any |= (uintptr_t)p->in[i];
    for (int i = 0; i < p->num_out; i++) any |= (uintptr_t)p->out[i];
    return any % 16 == 0;
}

template <class E, bool MAX> static void reduce_by(const Exec *exec, const PeerReduce *p) {
    const int64_t blocks = blocks_of((int64_t)p->count, BLOCK * Pack<E>::WIDTH);
    if (is_whole(p, sizeof(E)))
        LAUNCH((peer_reduce_kernel<E, MAX, true>), blocks, BLOCK, 0, stream_of(exec), *p);
    else
        LAUNCH((peer_reduce_kernel<E, MAX, false>), blocks, BLOCK, 0, stream_of(exec), *p);
}

template <class E> static void add_in_tree(const Exec *exec, const PeerReduce *p) {
    const int64_t blocks = blocks_of((int64_t)p->count, BLOCK * Pack<E>::WIDTH);
    if (is_whole(p, sizeof(E)))
        LAUNCH((peer_tree_kernel<E, true>), blocks, BLOCK, 0, stream_of(exec), *p);
    else
        LAUNCH((peer_tree_kernel<E, false>), blocks, BLOCK, 0, stream_of(exec), *p);
}

template <class E> static void reduce_of(const Exec *exec, const PeerReduce *p) {
    if (p->op == REDUCE_TREE)
        add_in_tree<E>(exec, p);
    else if (p->op == REDUCE_MAX)
        reduce_by<E, true>(exec, p);
    else
        reduce_by<E, false>(exec, p);
}

extern "C" void cuda_peer_reduce(const Exec *exec, const PeerReduce *args) {
    if (args->dtype == F64)
        reduce_of<double>(exec, args);
    else
        BY_ELEMENT(args->dtype, reduce_of, exec, args);
}
