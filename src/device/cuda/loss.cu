// Cross-entropy of logits cut over the vocabulary, in the three steps of ops.h. A block treats one row; its thread i takes
// quads of columns i, i + BLOCK, ... So the order of a sum depends on the length of the row alone.
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
