// Norms of queries and keys. A warp treats a head of a row; its lanes take every 32nd column.
#include "device/cuda/portable.h"

enum { WARPS = 8 };

// How a row of qkv is cut, see AttentionShape. Gammas that all heads share have a stride of 0 from head to head.
typedef struct {
    int per, heads, groups, size; // query heads of a group; of a row: query heads, groups; D
    int query_stride, key_stride;
    int64_t row_size;
} Cut;

// Head i of a row, 0 <= i < heads + groups: those of a group are its queries, then its key.
typedef struct {
    int64_t at; // of its first element in the row
    int gamma;  // of its first element in the gammas
    bool is_key;
} Head;

DEVICE Head head_of(const Cut &cut, int i) {
    const int group = i / (cut.per + 1), within = i - group * (cut.per + 1);
    const bool is_key = within == cut.per;
    const int gamma = is_key ? group * cut.key_stride : (group * cut.per + within) * cut.query_stride;
    return Head{(int64_t)(i + group) * cut.size, gamma, is_key}; // behind each group its value
}

static Cut cut_of(const AttentionShape *s, Tensor query_gamma, Tensor key_gamma, int64_t row_size) {
    const int size = (int)s->head_size;
    return Cut{(int)(s->heads / s->groups),
               (int)s->heads,
               (int)s->groups,
               size,
               query_gamma.cols > size ? size : 0,
               key_gamma.cols > size ? size : 0,
               row_size};
}

template <class E> struct Gammas {
    const E *query, *key;
    float offset;
};

template <class E> DEVICE const E *gamma_of(const Gammas<E> &gammas, const Head &head) {
    return (head.is_key ? gammas.key : gammas.query) + head.gamma;
}

template <class E> static Gammas<E> gammas_of(Tensor query, Tensor key, float offset) {
    return Gammas<E>{(const E *)query.data, (const E *)key.data, offset};
}

// The sum of x^2, or of dy gamma x, over a head; all lanes get it.
template <class E> DEVICE float squares_of(const E *x, int size) {
    float sum = 0;
    for (int c = (int)threadIdx.x % WARP; c < size; c += WARP)
        sum = fmaf(to_float(x[c]), to_float(x[c]), sum);
    return warp_sum(sum);
}

template <class E> DEVICE float products_of(const E *dy, const E *x, const E *gamma, float offset, int size) {
    float sum = 0;
    for (int c = (int)threadIdx.x % WARP; c < size; c += WARP)
        sum = fmaf(to_float(dy[c]) * (to_float(gamma[c]) + offset), to_float(x[c]), sum);
    return warp_sum(sum);
}

// The number of a warp among all.
DEVICE int64_t warp_number() { return (int64_t)blockIdx.x * WARPS + threadIdx.x / WARP; }

// ---- sums over all heads of a row --------------------------------------------------------------------------

// A warp takes a row, head by head. At most 48 registers.
template <class E>
__global__ void __launch_bounds__(WARPS *WARP)
    qk_sums_kernel(const E *qkv, const E *dy, const float *rstd, float *sums, int64_t rows, Cut cut,
                   Gammas<E> gammas) {
    const int64_t row = warp_number();
    if (row >= rows) return;
    const int heads = cut.heads + cut.groups;
    float query = 0, key = 0;
    for (int i = 0; i < heads; i++) {
        const Head head = head_of(cut, i);
        const E *x = qkv + row * cut.row_size + head.at;
        float own;
        if (dy)
            own = rstd[row * heads + i] * products_of(dy + row * cut.row_size + head.at, x,
                                                      gamma_of(gammas, head), gammas.offset, cut.size);
        else
            own = squares_of(x, cut.size);
        head.is_key ? key += own : query += own;
    }
    if (threadIdx.x % WARP) return;
    sums[row * 2] = query;
    sums[row * 2 + 1] = key;
}

template <class E> static void qk_sums_of(const Exec *exec, const QkSums *p) {
    const Cut cut = cut_of(&p->shape, p->query_gamma, p->key_gamma, p->qkv.cols);
    LAUNCH((qk_sums_kernel<E>), blocks_of(p->qkv.rows, WARPS), WARPS * WARP, 0, stream_of(exec),
           (const E *)p->qkv.data, (const E *)p->dy.data, (const float *)p->rstd.data, (float *)p->sums.data,
           p->qkv.rows, cut, gammas_of<E>(p->query_gamma, p->key_gamma, p->offset));
}

extern "C" void cuda_qk_sums(const Exec *exec, const QkSums *args) {
    if (args->qkv.rows) BY_ELEMENT(args->qkv.dtype, qk_sums_of, exec, args);
}

// ---- the norm and its gradient -----------------------------------------------------------------------------

// The reciprocals of the numbers of columns over which means are taken.
typedef struct {
    float query, key;
} Shares;

static Shares shares_of(const AttentionShape *s, bool all, int ranks) {
    const int64_t query = all ? s->heads * ranks : 1, key = all ? s->groups * ranks : 1;
    return Shares{1.0f / (float)(s->head_size * query), 1.0f / (float)(s->head_size * key)};
}

// At most 48 registers.
template <class E>
__global__ void __launch_bounds__(WARPS *WARP)
    qk_norm_forward_kernel(const E *qkv, const float *sums, E *y, float *rstds, int64_t rows, Cut cut,
                           Gammas<E> gammas, Shares shares, float epsilon) {
    const int heads = cut.heads + cut.groups;
    const int64_t number = warp_number(), row = number / heads;
    if (row >= rows) return;
    const Head head = head_of(cut, (int)(number - row * heads));
    const E *x = qkv + row * cut.row_size + head.at, *gamma = gamma_of(gammas, head);
    E *to = y + row * cut.row_size + head.at;
    const float squares = sums ? sums[row * 2 + head.is_key] : squares_of(x, cut.size);
    const float rstd = 1.0f / sqrtf(squares * (head.is_key ? shares.key : shares.query) + epsilon);
    for (int c = (int)threadIdx.x % WARP; c < cut.size; c += WARP) {
        to[c] = from_float<E>(to_float(x[c]) * rstd * (to_float(gamma[c]) + gammas.offset));
        if (head.is_key) to[cut.size + c] = x[cut.size + c]; // the value
    }
    if (threadIdx.x % WARP == 0) rstds[number] = rstd;
}

template <class E> static void qk_norm_forward_of(const Exec *exec, const QkNormForward *p) {
    const Cut cut = cut_of(&p->shape, p->query_gamma, p->key_gamma, p->qkv.cols);
    LAUNCH((qk_norm_forward_kernel<E>), blocks_of(p->qkv.rows * (cut.heads + cut.groups), WARPS),
           WARPS * WARP, 0, stream_of(exec), (const E *)p->qkv.data, (const float *)p->sums.data,
           (E *)p->y.data, (float *)p->rstd.data, p->qkv.rows, cut,
           gammas_of<E>(p->query_gamma, p->key_gamma, p->offset),
           shares_of(&p->shape, p->sums.data, p->ranks), p->epsilon);
}

extern "C" void cuda_qk_norm_forward(const Exec *exec, const QkNormForward *args) {
    if (args->qkv.rows) BY_ELEMENT(args->qkv.dtype, qk_norm_forward_of, exec, args);
}

// With n = x rstd and g = dy gamma:  dx = rstd (g - n mean(g n)). dx may be dy or qkv: a lane reads what it writes.
// At most 80 registers.
template <class E>
__global__ void __launch_bounds__(WARPS *WARP)
    qk_norm_backward_input_kernel(const E *dy, const E *qkv, const float *rstds, const float *sums, E *dx,
                                  int64_t rows, Cut cut, Gammas<E> gammas, Shares shares) {
    const int heads = cut.heads + cut.groups;
    const int64_t number = warp_number(), row = number / heads;
    if (row >= rows) return;
    const Head head = head_of(cut, (int)(number - row * heads));
    const int64_t at = row * cut.row_size + head.at;
    const E *gamma = gamma_of(gammas, head);
    const float rstd = rstds[number];
    const float sum = sums ? sums[row * 2 + head.is_key]
                           : rstd * products_of(dy + at, qkv + at, gamma, gammas.offset, cut.size);
    const float mean = -sum * (head.is_key ? shares.key : shares.query);
    for (int c = (int)threadIdx.x % WARP; c < cut.size; c += WARP) {
        const float g = to_float(dy[at + c]) * (to_float(gamma[c]) + gammas.offset);
        dx[at + c] = from_float<E>(rstd * fmaf(to_float(qkv[at + c]) * rstd, mean, g));
        if (head.is_key) dx[at + cut.size + c] = dy[at + cut.size + c]; // of the value
    }
}

template <class E> static void qk_norm_backward_input_of(const Exec *exec, const QkNormBackwardInput *p) {
    const Cut cut = cut_of(&p->shape, p->query_gamma, p->key_gamma, p->qkv.cols);
    LAUNCH((qk_norm_backward_input_kernel<E>), blocks_of(p->qkv.rows * (cut.heads + cut.groups), WARPS),
           WARPS * WARP, 0, stream_of(exec), (const E *)p->dy.data, (const E *)p->qkv.data,
           (const float *)p->rstd.data, (const float *)p->sums.data, (E *)p->dx.data, p->qkv.rows, cut,
           gammas_of<E>(p->query_gamma, p->key_gamma, p->offset),
           shares_of(&p->shape, p->sums.data, p->ranks));
}

extern "C" void cuda_qk_norm_backward_input(const Exec *exec, const QkNormBackwardInput *args) {
    if (args->qkv.rows) BY_ELEMENT(args->qkv.dtype, qk_norm_backward_input_of, exec, args);
}

// ---- the gradients of weights ------------------------------------------------------------------------------
//
// Rows are cut into parts by their number alone. A thread adds up a column of the gammas over the rows of a part, then
// one over the parts.

enum { MOST_PARTS = 256, LEAST_ROWS = 16, COLUMN_THREADS = 128 };

static int64_t rows_of_part(int64_t rows) {
    const int64_t least = LEAST_ROWS, needed = blocks_of(rows, MOST_PARTS);
    return needed > least ? needed : least;
}

static int64_t parts_of(int64_t rows) { return blocks_of(rows, rows_of_part(rows)); }

extern "C" size_t cuda_qk_norm_backward_weight_workspace(const QkNormBackwardWeight *args) {
    const int64_t cols = args->dquery_gamma.cols + args->dkey_gamma.cols;
    return (size_t)(parts_of(args->qkv.rows) * cols) * sizeof(float);
}

// parts [number of parts, query columns + key columns]. At most 48 registers.
template <class E>
__global__ void __launch_bounds__(COLUMN_THREADS)
    qk_norm_backward_weight_kernel(const E *dy, const E *qkv, const float *rstds, float *parts, int64_t rows,
                                   Cut cut, int query_cols, int cols, int64_t part_rows) {
    const int column = (int)(blockIdx.x * COLUMN_THREADS + threadIdx.x), heads = cut.heads + cut.groups;
    const bool is_key = column >= query_cols;
    if (column >= cols) return;
    const int own = is_key ? column - query_cols : column, c = own % cut.size, gamma = own - c;
    const int64_t first = blockIdx.y * part_rows, end = first + part_rows < rows ? first + part_rows : rows;
    float sum = 0;
    for (int64_t row = first; row < end; row++)
        for (int i = 0; i < heads; i++) {
            const Head head = head_of(cut, i);
            if (head.is_key != is_key || head.gamma != gamma) continue;
            const int64_t at = row * cut.row_size + head.at + c;
            sum = fmaf(to_float(dy[at]), to_float(qkv[at]) * rstds[row * heads + i], sum);
        }
    parts[blockIdx.y * (int64_t)cols + column] = sum;
}

// At most 32 registers.
__global__ void __launch_bounds__(COLUMN_THREADS)
    qk_norm_weight_parts_kernel(const float *parts, int num_parts, int query_cols, int cols, float *query,
                                float *key) {
    const int column = (int)(blockIdx.x * COLUMN_THREADS + threadIdx.x);
    if (column >= cols) return;
    float *total = column < query_cols ? query + column : key + (column - query_cols), sum = *total;
    for (int part = 0; part < num_parts; part++) sum += parts[(int64_t)part * cols + column];
    *total = sum;
}

template <class E> static void qk_norm_backward_weight_of(const Exec *exec, const QkNormBackwardWeight *p) {
    const Cut cut = cut_of(&p->shape, p->dquery_gamma, p->dkey_gamma, p->qkv.cols);
    const int query_cols = (int)p->dquery_gamma.cols, cols = query_cols + (int)p->dkey_gamma.cols;
    const int64_t rows = p->qkv.rows, parts = parts_of(rows), blocks = blocks_of(cols, COLUMN_THREADS);
    const dim3 grid((unsigned)blocks, (unsigned)parts);
    float *workspace = (float *)exec->workspace;
    LAUNCH((qk_norm_backward_weight_kernel<E>), grid, COLUMN_THREADS, 0, stream_of(exec),
           (const E *)p->dy.data, (const E *)p->qkv.data, (const float *)p->rstd.data, workspace, rows, cut,
           query_cols, cols, rows_of_part(rows));
    LAUNCH(qk_norm_weight_parts_kernel, blocks, COLUMN_THREADS, 0, stream_of(exec), (const float *)workspace,
           (int)parts, query_cols, cols, (float *)p->dquery_gamma.data, (float *)p->dkey_gamma.data);
}

extern "C" void cuda_qk_norm_backward_weight(const Exec *exec, const QkNormBackwardWeight *args) {
    if (args->qkv.rows) BY_ELEMENT(args->qkv.dtype, qk_norm_backward_weight_of, exec, args);
}
