// The optimizer's kernels: the largest magnitude, sums of squares whose order changes no bit, AdamW and blends. They
// treat flat memory in quads of elements. Where a table of segments is given, the blocks of a launch are shared out
// among up to TABLE_SEGMENTS of them; a tile, what one block treats, starts at a multiple of its size in the flat
// tensors, so that quads are aligned wherever a segment starts.
#include "device/cuda/portable.h"

enum { BLOCK = 256, WARPS = BLOCK / WARP, QUAD = 4, TABLE_SEGMENTS = 64 };

static bool is_aligned(Tensor x) { return (uintptr_t)x.data % (QUAD * dtype_bytes(x.dtype)) == 0; }

// ---- tables of segments -----------------------------------------------------------------------------------

// Some segments of a call, none of them empty. Block b treats tile b - first_block[i] of the last segment i with
// first_block[i] <= b.
typedef struct {
    int count;
    int first_block[TABLE_SEGMENTS + 1];
    OpSegment segments[TABLE_SEGMENTS];
} Table;

// Fills a table with segments from *next on, and moves *next behind them. Those that are empty, and with `rows` those
// that belong to no row, are left out.
static Table table_of(const OpSegment *segments, int count, int *next, bool rows, int64_t tile) {
    Table table = {};
    for (; *next < count && table.count < TABLE_SEGMENTS; ++*next) {
        const OpSegment s = segments[*next];
        if (!s.count || (rows && s.row < 0)) continue;
        const int64_t tiles = (s.begin + s.count - 1) / tile - s.begin / tile + 1;
        table.segments[table.count] = s;
        table.first_block[table.count + 1] = table.first_block[table.count] + (int)tiles;
        table.count++;
    }
    return table;
}

// The number of this block's segment.
DEVICE int segment_of_block(const Table &table) {
    int low = 0, high = table.count; // it is in [low, high)
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (table.first_block[middle] <= (int)blockIdx.x)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// One block treats one tile: elements [begin, end) of the `size` from `first` on, which is a multiple of `size`.
typedef struct {
    int64_t first, begin, end;
    int size;
} Tile;

DEVICE Tile tile_of(int64_t number, int size, int64_t begin, int64_t end) {
    const int64_t first = number * size, last = first + size;
    return Tile{first, begin > first ? begin : first, end < last ? end : last, size};
}

DEVICE Tile tile_of_segment(const Table &table, int i, int size) {
    const int64_t begin = table.segments[i].begin, end = begin + table.segments[i].count;
    return tile_of(begin / size + ((int)blockIdx.x - table.first_block[i]), size, begin, end);
}

DEVICE bool is_full(Tile tile) { return tile.end - tile.begin == tile.size; }

// The quad of x at `at`, with zeros for what is not of the tile; WHOLE: all of it is, and it is aligned.
template <bool WHOLE, class E> DEVICE Quad<E> load_of(const void *x, Tile tile, int64_t at) {
    Quad<E> quad = {};
    if constexpr (WHOLE) {
        quad = *(const Quad<E> *)((const E *)x + at);
    } else {
        UNROLL
        for (int i = 0; i < QUAD; i++)
            if (at + i >= tile.begin && at + i < tile.end) quad.e[i] = ((const E *)x)[at + i];
    }
    return quad;
}

template <bool WHOLE, class E> DEVICE void store_of(void *x, Tile tile, int64_t at, Quad<E> quad) {
    if constexpr (WHOLE) {
        *(Quad<E> *)((E *)x + at) = quad;
    } else {
        UNROLL
        for (int i = 0; i < QUAD; i++)
            if (at + i >= tile.begin && at + i < tile.end) ((E *)x)[at + i] = quad.e[i];
    }
}

// ---- the largest magnitude --------------------------------------------------------------------------------

enum { LOOPS = 16, LONG_TILE = BLOCK * QUAD * LOOPS };
static const int INFINITY_BITS = 0x7f800000;

// The bits of the largest |x| of this thread, as a whole number: they grow with |x|, and those of a NaN are above those
// of infinity.
template <bool WHOLE, class E> DEVICE int abs_max_of(const E *x, Tile tile) {
    int most = 0;
    UNROLL_BY(4)
    for (int k = 0; k < LOOPS; k++) {
        const Quad<E> quad = load_of<WHOLE, E>(x, tile, tile.first + (k * BLOCK + (int)threadIdx.x) * QUAD);
        UNROLL
        for (int i = 0; i < QUAD; i++) most = max(most, __float_as_int(to_float(quad.e[i])) & 0x7fffffff);
    }
    return most;
}

// At most 32 registers.
template <class E>
__global__ void __launch_bounds__(BLOCK) abs_max_kernel(const E *x, int64_t count, bool whole, int *result) {
    SHARED(int, room, WARPS);
    const Tile tile = tile_of(blockIdx.x, LONG_TILE, 0, count);
    int most = whole && is_full(tile) ? abs_max_of<true, E>(x, tile) : abs_max_of<false, E>(x, tile);
    for (int o = WARP / 2; o; o /= 2) most = max(most, __shfl_xor_sync(ALL_LANES, most, o));
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = most;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < WARPS; w++) most = max(most, room[w]);
    atomicMax(result, min(most, INFINITY_BITS));
}

template <class E> static void abs_max_in(const Exec *exec, const AbsMax *p) {
    const int64_t count = tensor_count(p->x);
    if (!count) return;
    LAUNCH((abs_max_kernel<E>), blocks_of(count, LONG_TILE), BLOCK, 0, stream_of(exec), (const E *)p->x.data,
           count, is_aligned(p->x), (int *)p->max.data);
}

extern "C" void cuda_abs_max(const Exec *exec, const AbsMax *args) {
    BY_ELEMENT(args->x.dtype, abs_max_in, exec, args);
}

// ---- the sum of squares -----------------------------------------------------------------------------------
//
// A square in units of 2^-60 is a whole number of three digits to the base 2^20, the first of which may be 2^20. Sums
// of digits are sums of whole numbers, so no order and no atomic addition changes them. 32 bits hold those of a warp.

typedef struct {
    unsigned high, middle, low;
    int most; // the bits of the largest |x|, as of abs_max_of
} Digits;

template <bool WHOLE> DEVICE Digits sum_squares_of(const float *x, Tile tile, double scale) {
    Digits sums = {0, 0, 0, 0};
    UNROLL_BY(4)
    for (int k = 0; k < LOOPS; k++) {
        const Quad<float> quad =
            load_of<WHOLE, float>(x, tile, tile.first + (k * BLOCK + (int)threadIdx.x) * QUAD);
        UNROLL
        for (int i = 0; i < QUAD; i++) {
            sums.most = max(sums.most, __float_as_int(quad.e[i]) & 0x7fffffff);
            const double root = (double)quad.e[i] * scale; // exact, and so is its square
            const uint64_t square =
                (uint64_t)fmin(root * root, 0x1p62); // larger ones, and NaN, count for `most`
            sums.high += (unsigned)(square >> 40);
            sums.middle += (unsigned)(square >> 20) & 0xfffff;
            sums.low += (unsigned)square & 0xfffff;
        }
    }
    return sums;
}

// Adds to digits [rows, 3], and enlarges `largest`, the bits of a float, unless it is NULL. `scale` is
// 2^(30 - exponent). At most 40 registers, 16 bytes a load.
__global__ void __launch_bounds__(BLOCK)
    sum_squares_kernel(const float *x, bool whole, double scale, const Table table,
                       unsigned long long *digits, int *largest) {
    SHARED(unsigned, room, 4 * WARPS);
    const int segment = segment_of_block(table), warp = (int)threadIdx.x / WARP;
    const Tile tile = tile_of_segment(table, segment, LONG_TILE);
    Digits sums =
        whole && is_full(tile) ? sum_squares_of<true>(x, tile, scale) : sum_squares_of<false>(x, tile, scale);
    for (int o = WARP / 2; o; o /= 2) {
        sums.high += __shfl_xor_sync(ALL_LANES, sums.high, o);
        sums.middle += __shfl_xor_sync(ALL_LANES, sums.middle, o);
        sums.low += __shfl_xor_sync(ALL_LANES, sums.low, o);
        sums.most = max(sums.most, __shfl_xor_sync(ALL_LANES, sums.most, o));
    }
    if (threadIdx.x % WARP == 0) {
        room[warp] = sums.high, room[WARPS + warp] = sums.middle, room[2 * WARPS + warp] = sums.low;
        room[3 * WARPS + warp] = (unsigned)sums.most;
    }
    __syncthreads();
    if (threadIdx.x == 3 && largest) {
        unsigned most = 0;
        for (int w = 0; w < WARPS; w++) most = max(most, room[3 * WARPS + w]);
        atomicMax(largest, min((int)most, INFINITY_BITS));
    }
    if (threadIdx.x >= 3) return;
    unsigned long long sum = 0;
    const int digit = (int)threadIdx.x;
    for (int w = 0; w < WARPS; w++) sum += room[digit * WARPS + w];
    atomicAdd(&digits[3 * table.segments[segment].row + digit], sum);
}

// At most 16 registers.
__global__ void sum_squares_start_kernel(unsigned long long *digits, int count) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) digits[i] = 0;
}

// At most 16 registers.
__global__ void sum_squares_finish_kernel(const unsigned long long *digits, int count, double *sum) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const double quantum = i % 3 == 0 ? 0x1p-20 : i % 3 == 1 ? 0x1p-40 : 0x1p-60;
    if (i < count) sum[i] += quantum * (double)digits[i];
}

extern "C" size_t cuda_sum_squares_workspace(const SumSquares *args) {
    return (size_t)tensor_count(args->sum) * sizeof(unsigned long long);
}

extern "C" void cuda_sum_squares(const Exec *exec, const SumSquares *p) {
    const int rows = (int)tensor_count(p->sum);
    const int64_t blocks = blocks_of(rows, BLOCK);
    const OpSegment all = {0, tensor_count(p->x), 0, false};
    const OpSegment *segments = p->num_segments ? p->segments : &all;
    unsigned long long *digits = (unsigned long long *)exec->workspace;
    cudaStream_t stream = stream_of(exec);
    LAUNCH(sum_squares_start_kernel, blocks, BLOCK, 0, stream, digits, rows);
    for (int next = 0, count = segments_or_one(p->num_segments); next < count;) {
        const Table table = table_of(segments, count, &next, true, LONG_TILE);
        if (!table.count) continue;
        LAUNCH(sum_squares_kernel, table.first_block[table.count], BLOCK, 0, stream, (const float *)p->x.data,
               is_aligned(p->x), ldexp(1, 30 - p->exponent), table, digits, (int *)p->max.data);
    }
    LAUNCH(sum_squares_finish_kernel, blocks, BLOCK, 0, stream, digits, rows, (double *)p->sum.data);
}

// ---- AdamW ------------------------------------------------------------------------------------------------

enum { STEP_TILE = BLOCK * QUAD };

// The factors of a step, each rounded to fp32 once.
typedef struct {
    float scale, beta1, rest1, correct1, beta2, rest2, correct2, epsilon, lr, decay;
} Factors;

static Factors factors_of(const AdamW *p) {
    Factors f;
    f.scale = (float)p->grad_scale;
    f.beta1 = (float)p->beta1;
    f.rest1 = (float)(1 - p->beta1);
    f.correct1 = (float)(1 / p->correction1);
    f.beta2 = (float)p->beta2;
    f.rest2 = (float)(1 - p->beta2);
    f.correct2 = (float)(1 / p->correction2);
    f.epsilon = (float)p->epsilon;
    f.lr = (float)p->lr;
    f.decay = (float)p->weight_decay;
    return f;
}

// The parameters in F32; SPLIT: from the two parts that bf16_split (half.h) makes.
template <bool SPLIT, bool WHOLE>
DEVICE Quad<float> load_parameter(const void *parameter, const void *halves, Tile tile, int64_t at) {
    if (!SPLIT) return load_of<WHOLE, float>(parameter, tile, at);
    const Quad<uint16_t> value = load_of<WHOLE, uint16_t>(halves, tile, at);
    const Quad<uint16_t> remainder = load_of<WHOLE, uint16_t>(parameter, tile, at);
    Quad<float> joined;
    UNROLL
    for (int i = 0; i < QUAD; i++) joined.e[i] = bf16_join(value.e[i], remainder.e[i]);
    return joined;
}

template <class E, bool SPLIT, bool WHOLE>
DEVICE void store_parameter(void *parameter, void *values, Tile tile, int64_t at, Quad<float> x) {
    if (SPLIT) {
        Quad<uint16_t> value, remainder;
        UNROLL
        for (int i = 0; i < QUAD; i++) value.e[i] = bf16_split(x.e[i], &remainder.e[i]);
        store_of<WHOLE>(values, tile, at, value);
        store_of<WHOLE>(parameter, tile, at, remainder);
        return;
    }
    store_of<WHOLE>(parameter, tile, at, x);
    if (!values) return;
    Quad<E> value;
    UNROLL
    for (int i = 0; i < QUAD; i++) value.e[i] = from_float<E>(x.e[i]);
    store_of<WHOLE>(values, tile, at, value);
}

// In the order of operations of the cpu backend, none of them fused: the results have its bits.
template <class E, bool SPLIT, bool WHOLE>
DEVICE void adamw_quad(const AdamW &p, const Factors &f, float decay, Tile tile, int64_t at) {
    const Quad<float> gradient = load_of<WHOLE, float>(p.gradient.data, tile, at);
    Quad<float> m = load_of<WHOLE, float>(p.m.data, tile, at), v = load_of<WHOLE, float>(p.v.data, tile, at);
    Quad<float> parameter = load_parameter<SPLIT, WHOLE>(p.parameter.data, p.value.data, tile, at);
    UNROLL
    for (int i = 0; i < QUAD; i++) {
        const float g = gradient.e[i] * f.scale, old = parameter.e[i];
        m.e[i] = m.e[i] * f.beta1 + g * f.rest1;
        v.e[i] = v.e[i] * f.beta2 + g * g * f.rest2;
        const float step = m.e[i] * f.correct1 / (sqrtf(v.e[i] * f.correct2) + f.epsilon);
        parameter.e[i] = old - f.lr * (step + decay * old);
    }
    store_of<WHOLE>(p.m.data, tile, at, m);
    store_of<WHOLE>(p.v.data, tile, at, v);
    store_parameter<E, SPLIT, WHOLE>(p.parameter.data, p.value.data, tile, at, parameter);
}

// At most 40 registers, 16 bytes a load.
template <class E, bool SPLIT>
__global__ void __launch_bounds__(BLOCK)
    adamw_kernel(const AdamW p, const Factors f, bool whole, const Table table) {
    const int segment = segment_of_block(table);
    const Tile tile = tile_of_segment(table, segment, STEP_TILE);
    const float decay = table.segments[segment].decays ? f.decay : 0;
    const int64_t at = tile.first + (int)threadIdx.x * QUAD;
    if (whole && at >= tile.begin && at + QUAD <= tile.end)
        adamw_quad<E, SPLIT, true>(p, f, decay, tile, at);
    else
        adamw_quad<E, SPLIT, false>(p, f, decay, tile, at);
}

template <class E, bool SPLIT> static void adamw_in(const Exec *exec, const AdamW *p) {
    const OpSegment all = {0, tensor_count(p->parameter), 0, true};
    const OpSegment *segments = p->num_segments ? p->segments : &all;
    const bool whole = is_aligned(p->gradient) && is_aligned(p->parameter) && is_aligned(p->m) &&
                       is_aligned(p->v) && is_aligned(p->value);
    for (int next = 0, count = segments_or_one(p->num_segments); next < count;) {
        const Table table = table_of(segments, count, &next, false, STEP_TILE);
        if (!table.count) continue;
        LAUNCH((adamw_kernel<E, SPLIT>), table.first_block[table.count], BLOCK, 0, stream_of(exec), *p,
               factors_of(p), whole, table);
    }
}

template <class E> static void adamw_of(const Exec *exec, const AdamW *p) { adamw_in<E, false>(exec, p); }

extern "C" void cuda_adamw(const Exec *exec, const AdamW *args) {
    if (args->parameter.dtype == U16)
        adamw_in<Bf16, true>(exec, args);
    else
        BY_ELEMENT(args->value.data ? args->value.dtype : F32, adamw_of, exec, args);
}

// ---- blend ------------------------------------------------------------------------------------------------

// In the order of operations of the cpu backend, none of them fused.
template <class E, bool SPLIT_X, bool SPLIT_Y, bool WHOLE>
DEVICE void blend_quad(const Blend &p, bool reads, Tile tile, int64_t at) {
    const float keep = (float)p.keep, own = (float)p.own, factor = (float)p.factor;
    const Quad<float> x = load_parameter<SPLIT_X, WHOLE>(p.x.data, p.x_value.data, tile, at);
    Quad<float> y = {};
    if (reads) y = load_parameter<SPLIT_Y, WHOLE>(p.y.data, p.y_value.data, tile, at);
    UNROLL
    for (int i = 0; i < QUAD; i++) y.e[i] = y.e[i] * keep + (x.e[i] + y.e[i] * own) * factor;
    store_parameter<E, SPLIT_Y, WHOLE>(p.y.data, p.y_value.data, tile, at, y);
}

// At most 40 registers, 16 bytes a load.
template <class E, bool SPLIT_X, bool SPLIT_Y>
__global__ void __launch_bounds__(BLOCK) blend_kernel(const Blend p, bool reads, bool whole, int64_t count) {
    const Tile tile = tile_of(blockIdx.x, STEP_TILE, 0, count);
    const int64_t at = tile.first + (int)threadIdx.x * QUAD;
    if (whole && at + QUAD <= tile.end)
        blend_quad<E, SPLIT_X, SPLIT_Y, true>(p, reads, tile, at);
    else
        blend_quad<E, SPLIT_X, SPLIT_Y, false>(p, reads, tile, at);
}

template <class E, bool SPLIT_X, bool SPLIT_Y> static void blend_in(const Exec *exec, const Blend *p) {
    const int64_t count = tensor_count(p->x);
    const bool whole =
        is_aligned(p->x) && is_aligned(p->x_value) && is_aligned(p->y) && is_aligned(p->y_value);
    if (!count) return;
    LAUNCH((blend_kernel<E, SPLIT_X, SPLIT_Y>), blocks_of(count, STEP_TILE), BLOCK, 0, stream_of(exec), *p,
           blend_reads(p), whole, count);
}

template <class E> static void blend_of(const Exec *exec, const Blend *p) {
    if (p->x.dtype == U16)
        blend_in<E, true, false>(exec, p);
    else
        blend_in<E, false, false>(exec, p);
}

extern "C" void cuda_blend(const Exec *exec, const Blend *args) {
    if (args->y.dtype != U16)
        BY_ELEMENT(args->y_value.data ? args->y_value.dtype : F32, blend_of, exec, args);
    else if (args->x.dtype == U16)
        blend_in<Bf16, true, true>(exec, args);
    else
        blend_in<Bf16, false, true>(exec, args);
}
