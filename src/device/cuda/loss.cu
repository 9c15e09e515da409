// Cross-entropy of logits cut over the vocabulary, in the three steps of ops.h, and of whole rows in one. A block
// treats one row; its thread i takes quads of columns i, i + threads, ... So the order of a sum depends on the length
// of the row alone.
#include "device/cuda/portable.h"

enum { BLOCK = 256, WARPS = BLOCK / WARP, QUAD = 4 };

// The columns of a row: `cols` in memory, the first `used` of them vocabulary entries, the rest padding.
typedef struct {
    int cols, used;
} Columns;

static Columns columns_of(Tensor logits, int64_t first_col, int64_t vocabulary) {
    const int64_t left = vocabulary > first_col ? vocabulary - first_col : 0;
    const int64_t used = left < logits.cols ? left : logits.cols;
    return Columns{(int)logits.cols, (int)used};
}

DEVICE float *row_of(Tensor x) { return (float *)x.data + (int64_t)blockIdx.x * x.cols; }
DEVICE float value_of(Tensor x) { return ((const float *)x.data)[blockIdx.x]; }

// The local column of this row's label; -1 where it lies elsewhere.
DEVICE int label_of(Tensor labels, int64_t first_col, int used) {
    const int64_t label = ((const int32_t *)labels.data)[blockIdx.x] - first_col;
    return label >= 0 && label < used ? (int)label : -1;
}

// -inf where no column is used. At most 32 registers, 16 bytes a load.
template <bool WHOLE>
__global__ void __launch_bounds__(BLOCK) loss_max_kernel(const LossMax p, Columns columns) {
    SHARED(float, room, WARPS);
    const float *logits = row_of(p.logits);
    float max = -INFINITY;
    UNROLL_BY(4)
    for (int c = (int)threadIdx.x * QUAD; c < columns.used; c += BLOCK * QUAD) {
        const Quad<float> own = load_quad<WHOLE>(logits + c, columns.cols - c);
        UNROLL
        for (int i = 0; i < QUAD; i++)
            if (c + i < columns.used) max = larger(max, own.e[i]);
    }
    max = block_max(max, room);
    if (threadIdx.x == 0) ((float *)p.max.data)[blockIdx.x] = max;
}

// The sum of a thread's exponentials in their order, of the lanes of a warp, of the warps.
// At most 32 registers, 16 bytes a load.
template <bool WHOLE>
__global__ void __launch_bounds__(BLOCK) loss_sum_kernel(const LossSum p, Columns columns) {
    SHARED(float, room, WARPS);
    const float *logits = row_of(p.logits), max = value_of(p.max);
    float sum = 0;
    UNROLL_BY(4)
    for (int c = (int)threadIdx.x * QUAD; c < columns.used; c += BLOCK * QUAD) {
        const Quad<float> own = load_quad<WHOLE>(logits + c, columns.cols - c);
        UNROLL
        for (int i = 0; i < QUAD; i++) sum += c + i < columns.used ? exponential(own.e[i] - max) : 0;
    }
    sum = block_sum(sum, room);
    if (threadIdx.x) return;
    const int label = label_of(p.labels, p.first_col, columns.used);
    ((float *)p.sum.data)[blockIdx.x] = sum;
    ((float *)p.target.data)[blockIdx.x] = label < 0 ? 0 : logits[label] - max;
}

// dlogits may be the logits: a thread reads what it writes. At most 32 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(BLOCK) loss_finish_kernel(const LossFinish p, Columns columns) {
    const float *logits = row_of(p.logits);
    E *dlogits = (E *)p.dlogits.data + (int64_t)blockIdx.x * columns.cols;
    const float max = value_of(p.max), sum = value_of(p.sum), mask = p.mask.data ? value_of(p.mask) : 1.0f;
    const float weight = p.scale * mask, factor = weight / sum;
    const int label = label_of(p.labels, p.first_col, columns.used);
    UNROLL_BY(2)
    for (int c = (int)threadIdx.x * QUAD; c < columns.cols; c += BLOCK * QUAD) {
        const Quad<float> own = load_quad<WHOLE>(logits + c, columns.cols - c);
        Quad<E> out;
        UNROLL
        for (int i = 0; i < QUAD; i++) {
            const float one = c + i == label ? weight : 0, share = exponential(own.e[i] - max);
            out.e[i] = from_float<E>(c + i < columns.used ? fmaf(share, factor, -one) : 0);
        }
        store_quad<WHOLE>(dlogits + c, columns.cols - c, out);
    }
    if (threadIdx.x == 0) ((float *)p.loss.data)[blockIdx.x] = mask * (logarithm(sum) - value_of(p.target));
}

// ---- whole rows -------------------------------------------------------------------------------------------
//
// The block reads its row twice, the second time from the L2 cache: with 1024 threads, and more registers than a pair
// of such blocks would have, a multiprocessor has one row under way, and 132 rows of 50304 columns are 27 MB.

enum { AHEAD = 4, LARGE_BLOCK = 1024, SMALL_COLUMNS = 8192 }; // a shorter row is the work of BLOCK threads

// A maximum, -inf at first, and the sum of exp(x - maximum) of the numbers so far.
typedef struct {
    float max, sum;
} Softmax;

// exp(x - max), and 0 of -inf, also where the maximum is.
DEVICE float below(float x, float max) { return exponential(x - (max == -INFINITY ? 0.0f : max)); }

// Adds the first `count` numbers of a quad. A new maximum, or a NaN, is rare.
DEVICE void add_quad(Softmax *all, const Quad<float> &own, int count) {
    if (count <= 0) return;
    float max = all->max;
    UNROLL
    for (int i = 0; i < QUAD; i++)
        if (i < count) max = larger(max, own.e[i]);
    if (!(max == all->max)) {
        all->sum *= below(all->max, max);
        all->max = max;
    }
    UNROLL
    for (int i = 0; i < QUAD; i++) all->sum += i < count ? below(own.e[i], max) : 0;
}

// The maximum and sum of the numbers of all threads: the threads' sums are brought to one maximum, then added as
// block_sum does.
DEVICE Softmax block_softmax(Softmax own, float *room) {
    const float max = block_max(own.max, room);
    return Softmax{max, block_sum(own.sum * below(own.max, max), room)};
}

// Reads a thread's next quads from column c on, so that all are under way at once.
template <bool WHOLE>
DEVICE void load_ahead(Quad<float> (&quads)[AHEAD], const float *row, int c, int stride, int cols) {
    UNROLL
    for (int n = 0; n < AHEAD; n++, c += stride)
        if (c < cols) quads[n] = load_quad<WHOLE>(row + c, cols - c);
}

// dlogits may be the logits: a thread writes what it alone reads, and the label's logit is read before.
// At most 64 registers.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(LARGE_BLOCK, 1) loss_whole_kernel(const LossWhole p, Columns columns) {
    SHARED(float, room, LARGE_BLOCK / WARP);
    const float *logits = row_of(p.logits);
    E *dlogits = (E *)p.dlogits.data + (int64_t)blockIdx.x * columns.cols;
    const int stride = (int)blockDim.x * QUAD, first = (int)threadIdx.x * QUAD;
    Softmax own = {-INFINITY, 0};
    for (int c = first; c < columns.used; c += AHEAD * stride) {
        Quad<float> quads[AHEAD];
        load_ahead<WHOLE>(quads, logits, c, stride, columns.cols);
        UNROLL
        for (int n = 0; n < AHEAD; n++) add_quad(&own, quads[n], columns.used - (c + n * stride));
    }
    const int label = label_of(p.labels, 0, columns.used);
    const float at_label = label < 0 ? 0 : logits[label];
    const Softmax all = block_softmax(own, room);
    const float mask = p.mask.data ? value_of(p.mask) : 1.0f, weight = p.scale * mask,
                factor = weight / all.sum;
    for (int c = first; c < columns.cols; c += AHEAD * stride) {
        Quad<float> quads[AHEAD];
        load_ahead<WHOLE>(quads, logits, c, stride, columns.cols);
        UNROLL
        for (int n = 0; n < AHEAD; n++) {
            const int at = c + n * stride;
            if (at >= columns.cols) continue;
            Quad<E> out;
            UNROLL
            for (int i = 0; i < QUAD; i++) {
                const float one = at + i == label ? weight : 0, share = exponential(quads[n].e[i] - all.max);
                out.e[i] = from_float<E>(at + i < columns.used ? fmaf(share, factor, -one) : 0);
            }
            store_quad<WHOLE>(dlogits + at, columns.cols - at, out);
        }
    }
    if (threadIdx.x) return;
    const float target = label < 0 ? 0 : at_label - all.max;
    ((float *)p.max.data)[blockIdx.x] = all.max;
    ((float *)p.sum.data)[blockIdx.x] = all.sum;
    ((float *)p.target.data)[blockIdx.x] = target;
    ((float *)p.loss.data)[blockIdx.x] = mask * (logarithm(all.sum) - target);
}

// ---- launches ---------------------------------------------------------------------------------------------

extern "C" void cuda_loss_max(const Exec *exec, const LossMax *p) {
    if (!p->logits.rows) return;
    const Columns columns = columns_of(p->logits, p->first_col, p->vocabulary);
    if (has_whole_packs(p->logits))
        LAUNCH(loss_max_kernel<true>, p->logits.rows, BLOCK, 0, stream_of(exec), *p, columns);
    else
        LAUNCH(loss_max_kernel<false>, p->logits.rows, BLOCK, 0, stream_of(exec), *p, columns);
}

extern "C" void cuda_loss_sum(const Exec *exec, const LossSum *p) {
    if (!p->logits.rows) return;
    const Columns columns = columns_of(p->logits, p->first_col, p->vocabulary);
    if (has_whole_packs(p->logits))
        LAUNCH(loss_sum_kernel<true>, p->logits.rows, BLOCK, 0, stream_of(exec), *p, columns);
    else
        LAUNCH(loss_sum_kernel<false>, p->logits.rows, BLOCK, 0, stream_of(exec), *p, columns);
}

template <class E> static void loss_finish_of(const Exec *exec, const LossFinish *p) {
    const Columns columns = columns_of(p->logits, p->first_col, p->vocabulary);
    if (has_whole_packs(p->logits) && has_whole_packs(p->dlogits))
        LAUNCH((loss_finish_kernel<E, true>), p->logits.rows, BLOCK, 0, stream_of(exec), *p, columns);
    else
        LAUNCH((loss_finish_kernel<E, false>), p->logits.rows, BLOCK, 0, stream_of(exec), *p, columns);
}

extern "C" void cuda_loss_finish(const Exec *exec, const LossFinish *args) {
    if (args->logits.rows) BY_ELEMENT(args->dlogits.dtype, loss_finish_of, exec, args);
}

template <class E> static void loss_whole_of(const Exec *exec, const LossWhole *p) {
    const Columns columns = columns_of(p->logits, 0, p->vocabulary);
    const int64_t threads = p->logits.cols <= SMALL_COLUMNS ? (int64_t)BLOCK : (int64_t)LARGE_BLOCK;
    if (has_whole_packs(p->logits) && has_whole_packs(p->dlogits))
        LAUNCH((loss_whole_kernel<E, true>), p->logits.rows, threads, 0, stream_of(exec), *p, columns);
    else
        LAUNCH((loss_whole_kernel<E, false>), p->logits.rows, threads, 0, stream_of(exec), *p, columns);
}

extern "C" void cuda_loss_whole(const Exec *exec, const LossWhole *args) {
    if (args->logits.rows) BY_ELEMENT(args->dlogits.dtype, loss_whole_of, exec, args);
}
