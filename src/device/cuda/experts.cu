// Pairs of tokens and experts: dropped, sorted; and rows that are gathered and combined by them.
#include "device/cuda/portable.h"

enum { THREADS = 256 };

// ---- pairs that are dropped -------------------------------------------------------------------------------

// A thread takes a pair and counts those of its sample and expert that come before it. At most 40 registers.
__global__ void __launch_bounds__(THREADS)
    router_drop_kernel(const float *weights, const int32_t *experts, int32_t *kept, int64_t rows, int k,
                       int samples, int64_t capacity, bool by_position) {
    const int64_t pair = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (pair >= rows * k) return;
    const int32_t expert = experts[pair];
    const float weight = weights[pair];
    int64_t before = 0;
    for (int64_t row = pair / k % samples; row < rows; row += samples)
        for (int64_t other = row * k; other < row * k + k; other++) {
            if (experts[other] != expert) continue;
            const bool equal = by_position || weights[other] == weight;
            before += equal ? other < pair : weights[other] > weight;
        }
    kept[pair] = before < capacity ? expert : -1;
}

extern "C" void cuda_router_drop(const Exec *exec, const RouterDrop *p) {
    const int64_t pairs = tensor_count(p->experts);
    if (!pairs) return;
    LAUNCH(router_drop_kernel, blocks_of(pairs, THREADS), THREADS, 0, stream_of(exec),
           (const float *)p->weights.data, (const int32_t *)p->experts.data, (int32_t *)p->kept.data,
           p->experts.rows, (int)p->experts.cols, (int)p->samples, p->capacity, p->by_position);
}

// ---- sorted pairs -----------------------------------------------------------------------------------------

// The number of threads of a block, before this one, for which `is` holds; `all` gets that of all threads.
DEVICE int rank_in_block(bool is, int *room, int *all) {
    const unsigned ballot = __ballot_sync(ALL_LANES, is), lane = threadIdx.x % WARP,
                   warp = threadIdx.x / WARP;
    if (lane == 0) room[warp] = __popc(ballot);
    __syncthreads();
    int before = __popc(ballot & ((1u << lane) - 1)), total = 0;
    for (unsigned w = 0; w < THREADS / WARP; w++) {
        if (w < warp) before += room[w];
        total += room[w];
    }
    __syncthreads();
    *all = total;
    return before;
}

// A block takes an expert, or the pairs that are dropped, and goes through all pairs: first it counts those of the
// experts before, then it gives its own their places. At most 40 registers.
__global__ void __launch_bounds__(THREADS)
    sort_pairs_kernel(const int32_t *experts, int32_t *order, int32_t *positions, int32_t *counts,
                      int64_t pairs, int n) {
    SHARED(int, room, THREADS / WARP);
    const int expert = (int)blockIdx.x;
    int64_t first = 0;
    for (int64_t at = 0; at < pairs; at += THREADS) {
        const int64_t pair = at + threadIdx.x;
        int all;
        const int own = pair < pairs ? experts[pair] < 0 ? n : experts[pair] : n + 1;
        rank_in_block(own < expert, room, &all);
        first += all;
    }
    int64_t next = first;
    for (int64_t at = 0; at < pairs; at += THREADS) {
        const int64_t pair = at + threadIdx.x;
        int all;
        const bool is = pair < pairs && (experts[pair] < 0 ? n : experts[pair]) == expert;
        const int64_t place = next + rank_in_block(is, room, &all);
        if (is) {
            order[place] = (int32_t)pair;
            positions[pair] = expert == n ? -1 : (int32_t)place;
        }
        next += all;
    }
    if (threadIdx.x == 0 && expert < n) counts[expert] = (int32_t)(next - first);
}

extern "C" void cuda_sort_pairs(const Exec *exec, const SortPairs *p) {
    LAUNCH(sort_pairs_kernel, p->counts.cols + 1, THREADS, 0, stream_of(exec),
           (const int32_t *)p->experts.data, (int32_t *)p->order.data, (int32_t *)p->positions.data,
           (int32_t *)p->counts.data, tensor_count(p->experts), (int)p->counts.cols);
}

// ---- rows -------------------------------------------------------------------------------------------------

// At most 32 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    gather_rows_kernel(const E *x, const int32_t *order, E *y, int64_t rows, int64_t cols, int divisor) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<E>::WIDTH, left = cols - c;
    if (row >= rows || left <= 0) return;
    const int from = order[row];
    Pack<E> pack = {};
    if (from >= 0) pack = load_pack<WHOLE>(x + (int64_t)(from / divisor) * cols + c, left);
    store_pack<WHOLE>(y + row * cols + c, left, pack);
}

template <class E, bool WHOLE> static void launch_gather(const Exec *exec, const GatherRows *p) {
    const RowLaunch l = row_launch(p->y.rows, blocks_of(p->y.cols, Pack<E>::WIDTH));
    LAUNCH((gather_rows_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec), (const E *)p->x.data,
           (const int32_t *)p->order.data, (E *)p->y.data, p->y.rows, p->y.cols, (int)p->divisor);
}

template <class E> static void gather_rows_of(const Exec *exec, const GatherRows *p) {
    if (has_whole_packs(p->x) && has_whole_packs(p->y))
        launch_gather<E, true>(exec, p);
    else
        launch_gather<E, false>(exec, p);
}

extern "C" void cuda_gather_rows(const Exec *exec, const GatherRows *args) {
    if (tensor_count(args->y)) BY_ELEMENT(args->y.dtype, gather_rows_of, exec, args);
}

// At most 48 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    combine_rows_kernel(const E *x, const int32_t *positions, const float *weights, E *y, int64_t rows,
                        int64_t cols, int k) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<E>::WIDTH, left = cols - c;
    if (row >= rows || left <= 0) return;
    float sums[Pack<E>::WIDTH] = {};
    for (int j = 0; j < k; j++) {
        const int from = positions[row * k + j];
        if (from < 0) continue;
        const float weight = weights ? weights[row * k + j] : 1.0f;
        const Pack<E> pack = load_pack<WHOLE>(x + (int64_t)from * cols + c, left);
        UNROLL
        for (int i = 0; i < Pack<E>::WIDTH; i++) sums[i] = fmaf(weight, to_float(pack.e[i]), sums[i]);
    }
    Pack<E> sum = {};
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) sum.e[i] = from_float<E>(sums[i]);
    store_pack<WHOLE>(y + row * cols + c, left, sum);
}

template <class E, bool WHOLE> static void launch_combine(const Exec *exec, const CombineRows *p) {
    const RowLaunch l = row_launch(p->y.rows, blocks_of(p->y.cols, Pack<E>::WIDTH));
    LAUNCH((combine_rows_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec), (const E *)p->x.data,
           (const int32_t *)p->positions.data, (const float *)p->weights.data, (E *)p->y.data, p->y.rows,
           p->y.cols, (int)p->positions.cols);
}

template <class E> static void combine_rows_of(const Exec *exec, const CombineRows *p) {
    if (has_whole_packs(p->x) && has_whole_packs(p->y))
        launch_combine<E, true>(exec, p);
    else
        launch_combine<E, false>(exec, p);
}

extern "C" void cuda_combine_rows(const Exec *exec, const CombineRows *args) {
    if (tensor_count(args->y)) BY_ELEMENT(args->y.dtype, combine_rows_of, exec, args);
}

// A warp takes a pair; its lanes take every 32nd column. dx may be x: a lane reads what it writes.
// At most 48 registers.
template <class E>
__global__ void __launch_bounds__(THREADS)
    combine_backward_kernel(const E *dy, const E *x, const int32_t *positions, const float *weights, E *dx,
                            float *dweights, int64_t pairs, int64_t cols, int k) {
    const int64_t pair = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (pair >= pairs) return;
    const int to = positions[pair];
    const float weight = weights[pair];
    const E *from = dy + pair / k * cols;
    float sum = 0;
    for (int64_t c = threadIdx.x % WARP; c < cols && to >= 0; c += WARP) {
        const float d = to_float(from[c]);
        sum = fmaf(d, to_float(x[to * cols + c]), sum);
        dx[to * cols + c] = from_float<E>(weight * d);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) dweights[pair] = sum;
}

template <class E> static void combine_backward_of(const Exec *exec, const CombineBackward *p) {
    const int64_t pairs = tensor_count(p->positions);
    LAUNCH((combine_backward_kernel<E>), blocks_of(pairs, THREADS / WARP), THREADS, 0, stream_of(exec),
           (const E *)p->dy.data, (const E *)p->x.data, (const int32_t *)p->positions.data,
           (const float *)p->weights.data, (E *)p->dx.data, (float *)p->dweights.data, pairs, p->dy.cols,
           (int)p->positions.cols);
}

extern "C" void cuda_combine_backward(const Exec *exec, const CombineBackward *args) {
    if (tensor_count(args->positions)) BY_ELEMENT(args->dy.dtype, combine_backward_of, exec, args);
}

// ---- jitter -----------------------------------------------------------------------------------------------

// At most 40 registers.
template <class E>
__global__ void __launch_bounds__(THREADS)
    jitter_kernel(const E *x, E *y, int64_t count, int64_t cols, Dropout place, float epsilon) {
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count) return;
    const int64_t row = place.first_row + i / cols, s = row / place.samples, sample = row - s * place.samples;
    const uint32_t word =
        philox_word(place.key, (uint64_t)(place.first_sample + sample), (uint64_t)(s * cols + i % cols));
    const double factor = 1 + (double)epsilon * (((double)word + 0.5) * 0x1p-31 - 1);
    y[i] = from_float<E>(to_float(x[i]) * (float)factor);
}

template <class E> static void jitter_of(const Exec *exec, const Jitter *p) {
    LAUNCH((jitter_kernel<E>), blocks_of(tensor_count(p->x), THREADS), THREADS, 0, stream_of(exec),
           (const E *)p->x.data, (E *)p->y.data, tensor_count(p->x), p->x.cols, p->place, p->epsilon);
}

extern "C" void cuda_jitter(const Exec *exec, const Jitter *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, jitter_of, exec, args);
}
