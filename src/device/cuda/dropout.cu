// Dropout where activations are added: after a sublayer, and with the rows of a position table; and the gradients of
// both. A thread treats a pack of columns.
#include "device/cuda/portable.h"

// ---- masks ------------------------------------------------------------------------------------------------

// A Dropout (ops.h) as kernels get it.
typedef struct {
    RngKey key;
    uint32_t threshold;
    float scale; // of what is kept
    bool drops;
    int64_t first_sample;
    uint32_t samples, first_row;
    int64_t first_col, cols; // as in a Dropout
} Mask;

static Mask mask_of(const Dropout *dropout, int64_t rows) {
    CHECK(dropout->first_row + rows <= UINT32_MAX, "rows up to %lld", (long long)(dropout->first_row + rows));
    Mask mask = {};
    mask.key = dropout->key;
    mask.threshold = rng_dropout_threshold(dropout->probability);
    mask.scale = 1.0f / (1.0f - dropout->probability);
    mask.drops = dropout->probability != 0;
    mask.first_sample = dropout->first_sample;
    mask.samples = (uint32_t)dropout->samples;
    mask.first_row = (uint32_t)dropout->first_row;
    mask.first_col = dropout->first_col, mask.cols = dropout->cols;
    return mask;
}

// A mask's columns begin at a whole block of random words in every row.
static bool has_whole_blocks(const Dropout *dropout) {
    return dropout->first_col % 4 == 0 && dropout->cols % 4 == 0;
}

// Scales what is kept of columns c, c + 1, ... of a row, and zeroes the rest. Element c of row s*B + b is number
// s * cols + c of its sample, or of a tensor with other columns beside these s * mask.cols + mask.first_col + c. WHOLE:
// that is a multiple of 4, so a pack is whole blocks of random words.
template <bool WHOLE, int WIDTH>
DEVICE void apply_mask(const Mask &mask, int64_t row, int64_t cols, int64_t c, float (&x)[WIDTH]) {
    if (!mask.drops) return;
    const uint32_t whole_row = mask.first_row + (uint32_t)row, s = whole_row / mask.samples;
    const uint64_t sample = (uint64_t)mask.first_sample + (whole_row - s * mask.samples);
    const uint64_t width = (uint64_t)(mask.cols ? mask.cols : cols);
    const uint64_t index = (uint64_t)s * width + (uint64_t)(mask.first_col + c);
    UNROLL
    for (int i = 0; i < WIDTH; i += 4) {
        uint32_t words[4];
        if constexpr (WHOLE) philox_block(mask.key, sample, (index + (uint64_t)i) / 4, words);
        UNROLL
        for (int k = 0; k < 4; k++) {
            const uint64_t at = index + (uint64_t)(i + k);
            const uint32_t word = WHOLE ? words[k] : philox_word(mask.key, sample, at);
            x[i + k] = word >= mask.threshold ? x[i + k] * mask.scale : 0;
        }
    }
}

// ---- after a sublayer -------------------------------------------------------------------------------------

// y may be x or the residual: a thread reads what it writes. At most 48 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    bias_dropout_add_kernel(const E *x, const E *bias, const E *residual, E *y, int64_t rows, int64_t cols,
                            Mask mask) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<E>::WIDTH, left = cols - c,
                  at = row * cols + c;
    if (row >= rows || left <= 0) return;
    const Pack<E> in = load_pack<WHOLE>(x + at, left);
    Pack<E> out = load_pack<WHOLE>(residual + at, left), offset = {};
    if (bias) offset = load_pack<WHOLE>(bias + c, left);
    float sum[Pack<E>::WIDTH];
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) sum[i] = to_float(in.e[i]) + to_float(offset.e[i]);
    apply_mask<WHOLE>(mask, row, cols, c, sum);
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) out.e[i] = from_float<E>(to_float(out.e[i]) + sum[i]);
    store_pack<WHOLE>(y + at, left, out);
}

// dx may be dy. At most 40 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    dropout_backward_kernel(const E *dy, E *dx, int64_t rows, int64_t cols, Mask mask) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<E>::WIDTH, left = cols - c,
                  at = row * cols + c;
    if (row >= rows || left <= 0) return;
    Pack<E> d = load_pack<WHOLE>(dy + at, left);
    float x[Pack<E>::WIDTH];
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) x[i] = to_float(d.e[i]);
    apply_mask<WHOLE>(mask, row, cols, c, x);
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) d.e[i] = from_float<E>(x[i]);
    store_pack<WHOLE>(dx + at, left, d);
}

template <class E, bool WHOLE>
static void launch_bias_dropout_add(const Exec *exec, const BiasDropoutAdd *p) {
    const RowLaunch l = row_launch(p->x.rows, blocks_of(p->x.cols, Pack<E>::WIDTH));
    LAUNCH((bias_dropout_add_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec), (const E *)p->x.data,
           (const E *)p->bias.data, (const E *)p->residual.data, (E *)p->y.data, p->x.rows, p->x.cols,
           mask_of(&p->dropout, p->x.rows));
}

template <class E, bool WHOLE>
static void launch_dropout_backward(const Exec *exec, const DropoutBackward *p) {
    const RowLaunch l = row_launch(p->dy.rows, blocks_of(p->dy.cols, Pack<E>::WIDTH));
    LAUNCH((dropout_backward_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec), (const E *)p->dy.data,
           (E *)p->dx.data, p->dy.rows, p->dy.cols, mask_of(&p->dropout, p->dy.rows));
}

template <class E> static void bias_dropout_add_of(const Exec *exec, const BiasDropoutAdd *p) {
    if (has_whole_packs(p->x) && has_whole_packs(p->bias) && has_whole_packs(p->residual) &&
        has_whole_packs(p->y) && has_whole_blocks(&p->dropout))
        launch_bias_dropout_add<E, true>(exec, p);
    else
        launch_bias_dropout_add<E, false>(exec, p);
}

template <class E> static void dropout_backward_of(const Exec *exec, const DropoutBackward *p) {
    if (has_whole_packs(p->dy) && has_whole_packs(p->dx) && has_whole_blocks(&p->dropout))
        launch_dropout_backward<E, true>(exec, p);
    else
        launch_dropout_backward<E, false>(exec, p);
}

extern "C" void cuda_bias_dropout_add(const Exec *exec, const BiasDropoutAdd *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, bias_dropout_add_of, exec, args);
}

extern "C" void cuda_dropout_backward(const Exec *exec, const DropoutBackward *args) {
    const bool is_done = args->dropout.probability == 0 && args->dx.data == args->dy.data;
    if (tensor_count(args->dy) && !is_done) BY_ELEMENT(args->dy.dtype, dropout_backward_of, exec, args);
}

// ---- with a position table --------------------------------------------------------------------------------

// y may be x. At most 40 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    position_dropout_kernel(const E *x, const E *position, E *y, int64_t rows, int64_t cols, Mask mask) {
    const int64_t row = row_of_thread(), c = pack_of_thread() * Pack<E>::WIDTH, left = cols - c,
                  at = row * cols + c;
    if (row >= rows || left <= 0) return;
    const uint32_t s = (mask.first_row + (uint32_t)row) / mask.samples;
    Pack<E> in = load_pack<WHOLE>(x + at, left), offset = {};
    if (position) offset = load_pack<WHOLE>(position + s * cols + c, left);
    float sum[Pack<E>::WIDTH];
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) sum[i] = to_float(in.e[i]) + to_float(offset.e[i]);
    apply_mask<WHOLE>(mask, row, cols, c, sum);
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) in.e[i] = from_float<E>(sum[i]);
    store_pack<WHOLE>(y + at, left, in);
}

// Rows of `sum` += those of their position, in their order. At most 48 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(ROW_THREADS)
    position_backward_kernel(const E *dy, float *sum, int64_t positions, int64_t cols, int samples) {
    const int64_t s = row_of_thread(), c = pack_of_thread() * Quad<E>::WIDTH, left = cols - c;
    if (s >= positions || left <= 0) return;
    const E *rows = dy + s * samples * cols + c;
    Quad<float> total = load_quad<WHOLE>(sum + s * cols + c, left);
    UNROLL_BY(4)
    for (int b = 0; b < samples; b++) {
        const Quad<E> d = load_quad<WHOLE>(rows + b * cols, left);
        UNROLL
        for (int i = 0; i < Quad<E>::WIDTH; i++) total.e[i] += to_float(d.e[i]);
    }
    store_quad<WHOLE>(sum + s * cols + c, left, total);
}

template <class E, bool WHOLE>
static void launch_position_dropout(const Exec *exec, const PositionDropout *p) {
    const RowLaunch l = row_launch(p->x.rows, blocks_of(p->x.cols, Pack<E>::WIDTH));
    LAUNCH((position_dropout_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec), (const E *)p->x.data,
           (const E *)p->position.data, (E *)p->y.data, p->x.rows, p->x.cols,
           mask_of(&p->dropout, p->x.rows));
}

template <class E, bool WHOLE>
static void launch_position_backward(const Exec *exec, const PositionBackward *p) {
    const int64_t cols = p->dy.cols, positions = p->dy.rows / p->samples;
    const RowLaunch l = row_launch(positions, blocks_of(cols, Quad<E>::WIDTH));
    float *sum = (float *)p->dposition.data + p->first_row / p->samples * cols;
    LAUNCH((position_backward_kernel<E, WHOLE>), l.grid, l.block, 0, stream_of(exec), (const E *)p->dy.data,
           sum, positions, cols, (int)p->samples);
}

template <class E> static void position_dropout_of(const Exec *exec, const PositionDropout *p) {
    if (has_whole_packs(p->x) && has_whole_packs(p->position) && has_whole_packs(p->y))
        launch_position_dropout<E, true>(exec, p);
    else
        launch_position_dropout<E, false>(exec, p);
}

template <class E> static void position_backward_of(const Exec *exec, const PositionBackward *p) {
    if (has_whole_packs(p->dy) && has_whole_packs(p->dposition))
        launch_position_backward<E, true>(exec, p);
    else
        launch_position_backward<E, false>(exec, p);
}

extern "C" void cuda_position_dropout(const Exec *exec, const PositionDropout *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, position_dropout_of, exec, args);
}

extern "C" void cuda_position_backward(const Exec *exec, const PositionBackward *args) {
    if (tensor_count(args->dy)) BY_ELEMENT(args->dy.dtype, position_backward_of, exec, args);
}
