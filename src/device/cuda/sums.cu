// Sums of tensors: over rows, and of one tensor with another; multiples of one.
#include "device/cuda/portable.h"

enum { BLOCK = 256 };

// ---- one tensor and another -------------------------------------------------------------------------------

// At most 32 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(BLOCK) add_kernel(const E *x, E *y, int64_t count) {
    const int64_t at = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * Pack<E>::WIDTH, left = count - at;
    if (left <= 0) return;
    const Pack<E> more = load_pack<WHOLE>(x + at, left);
    Pack<E> sum = load_pack<WHOLE>(y + at, left);
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++)
        sum.e[i] = from_float<E>(to_float(sum.e[i]) + to_float(more.e[i]));
    store_pack<WHOLE>(y + at, left, sum);
}

template <class E> static void add_of(const Exec *exec, const Add *p) {
    const int64_t count = tensor_count(p->x), blocks = blocks_of(count, BLOCK * Pack<E>::WIDTH);
    const Tensor x = tensor_part(p->x, 0, count), y = tensor_part(p->y, 0, count);
    if (has_whole_packs(x) && has_whole_packs(y))
        LAUNCH((add_kernel<E, true>), blocks, BLOCK, 0, stream_of(exec), (const E *)x.data, (E *)y.data,
               count);
    else
        LAUNCH((add_kernel<E, false>), blocks, BLOCK, 0, stream_of(exec), (const E *)x.data, (E *)y.data,
               count);
}

// y may be x. At most 32 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(BLOCK) scale_kernel(const E *x, E *y, int64_t count, float factor) {
    const int64_t at = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * Pack<E>::WIDTH, left = count - at;
    if (left <= 0) return;
    Pack<E> own = load_pack<WHOLE>(x + at, left);
    UNROLL
    for (int i = 0; i < Pack<E>::WIDTH; i++) own.e[i] = from_float<E>(factor * to_float(own.e[i]));
    store_pack<WHOLE>(y + at, left, own);
}

template <class E> static void scale_of(const Exec *exec, const Scale *p) {
    const int64_t count = tensor_count(p->x), blocks = blocks_of(count, BLOCK * Pack<E>::WIDTH);
    const Tensor x = tensor_part(p->x, 0, count), y = tensor_part(p->y, 0, count);
    if (has_whole_packs(x) && has_whole_packs(y))
        LAUNCH((scale_kernel<E, true>), blocks, BLOCK, 0, stream_of(exec), (const E *)x.data, (E *)y.data,
               count, p->factor);
    else
        LAUNCH((scale_kernel<E, false>), blocks, BLOCK, 0, stream_of(exec), (const E *)x.data, (E *)y.data,
               count, p->factor);
}

extern "C" void cuda_scale(const Exec *exec, const Scale *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, scale_of, exec, args);
}

extern "C" void cuda_add(const Exec *exec, const Add *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, add_of, exec, args);
}

// ---- columns ----------------------------------------------------------------------------------------------

// First the columns of parts of the rows are added up, then the parts. Groups of WARP threads share the rows of a
// part, or the parts: a group's sum, then the groups in their order. How the rows are cut depends on their number
// alone.
enum { GROUPS = 8, FINISH_GROUPS = 16, LEAST_ROWS = 32, MOST_PARTS = 256 };

static int64_t rows_of_part(int64_t rows) {
    const int64_t rows_of_most = blocks_of(rows, MOST_PARTS), least = LEAST_ROWS;
    return rows_of_most > least ? rows_of_most : least;
}

static int64_t parts_of(int64_t rows) { return blocks_of(rows, rows_of_part(rows)); }

extern "C" size_t cuda_column_sum_workspace(const ColumnSum *args) {
    return (size_t)(parts_of(args->x.rows) * args->x.cols) * sizeof(float);
}

// parts [number of parts, cols]. At most 48 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(GROUPS *WARP)
    column_sum_kernel(const E *x, float *parts, int64_t rows, int64_t cols, int64_t part_rows) {
    enum { WIDTH = Pack<E>::WIDTH };
    SHARED(float, room, GROUPS *WARP *WIDTH);
    const int lane = (int)threadIdx.x % WARP, group = (int)threadIdx.x / WARP;
    const int64_t c = ((int64_t)blockIdx.x * WARP + lane) * WIDTH, left = cols - c,
                  begin = blockIdx.y * part_rows;
    const int64_t end = left <= 0 ? begin : begin + part_rows < rows ? begin + part_rows : rows;
    float sum[WIDTH] = {};
    UNROLL_BY(4)
    for (int64_t row = begin + group; row < end; row += GROUPS) {
        const Pack<E> own = load_pack<WHOLE>(x + row * cols + c, left);
        UNROLL
        for (int i = 0; i < WIDTH; i++) sum[i] += to_float(own.e[i]);
    }
    UNROLL
    for (int i = 0; i < WIDTH; i++) room[(group * WIDTH + i) * WARP + lane] = sum[i];
    __syncthreads();
    // Groups share the columns of the lanes' packs.
    for (int i = group; i < WIDTH && i < left; i += GROUPS) {
        float total = 0;
        for (int g = 0; g < GROUPS; g++) total += room[(g * WIDTH + i) * WARP + lane];
        parts[blockIdx.y * cols + c + i] = total;
    }
}

// At most 32 registers.
__global__ void __launch_bounds__(FINISH_GROUPS *WARP)
    column_sum_parts_kernel(const float *parts, float *sum, int64_t cols, int num_parts) {
    SHARED(float, room, FINISH_GROUPS *WARP);
    const int lane = (int)threadIdx.x % WARP, group = (int)threadIdx.x / WARP;
    const int64_t c = (int64_t)blockIdx.x * WARP + lane;
    float own = 0;
    UNROLL_BY(4)
    for (int part = group; part < num_parts; part += FINISH_GROUPS)
        if (c < cols) own += parts[part * cols + c];
    room[threadIdx.x] = own;
    __syncthreads();
    if (group > 0 || c >= cols) return;
    float total = sum[c];
    for (int g = 0; g < FINISH_GROUPS; g++) total += room[g * WARP + lane];
    sum[c] = total;
}

template <class E, bool WHOLE> static void launch_column_sum(const Exec *exec, const ColumnSum *p) {
    const int64_t rows = p->x.rows, cols = p->x.cols, parts = parts_of(rows);
    const dim3 grid((unsigned)blocks_of(cols, WARP * Pack<E>::WIDTH), (unsigned)parts);
    float *workspace = (float *)exec->workspace;
    LAUNCH((column_sum_kernel<E, WHOLE>), grid, GROUPS * WARP, 0, stream_of(exec), (const E *)p->x.data,
           workspace, rows, cols, rows_of_part(rows));
    LAUNCH(column_sum_parts_kernel, blocks_of(cols, WARP), FINISH_GROUPS * WARP, 0, stream_of(exec),
           workspace, (float *)p->sum.data, cols, (int)parts);
}

template <class E> static void column_sum_of(const Exec *exec, const ColumnSum *p) {
    if (has_whole_packs(p->x))
        launch_column_sum<E, true>(exec, p);
    else
        launch_column_sum<E, false>(exec, p);
}

extern "C" void cuda_column_sum(const Exec *exec, const ColumnSum *args) {
    if (tensor_count(args->x)) BY_ELEMENT(args->x.dtype, column_sum_of, exec, args);
}
