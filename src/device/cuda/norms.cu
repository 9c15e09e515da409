// Layer norm and RMS norm: the forward pass, the gradient of the input, the gradients of gamma and beta, and all three
// at once.
//
// A row is the work of a team of threads: of a warp, of 128 threads or of 256, by the length of the row alone. Thread i
// of a team takes packs (16 bytes) i, i + threads, ... of the row. Where a row is whole packs and not too long, each
// thread keeps its packs in registers (KEEP of them); otherwise KEEP is 0 and it reads them again. A sum over a row
// adds the elements of each thread in their order, then the lanes of each warp, then the warps. So the bits of a result
// depend on the element type and the length of the row, and on nothing else.
#include "device/cuda/portable.h"

enum {
    MOST_KEPT = 4, // packs of a thread
    SMALL_TEAM = 32,
    MIDDLE_TEAM = 128,
    LARGE_TEAM = 256,
    SMALL_TEAMS = 4, // in a block; a larger team has a block of its own
    MOST_WARPS = LARGE_TEAM / SMALL_TEAM,
};
static_assert((int)SMALL_TEAM == (int)WARP, "the sums of a small team are those of a warp");

typedef struct {
    int threads;
    bool whole; // every row of every tensor is whole aligned packs
} Team;

static Team team_of(int64_t packs, bool whole) {
    Team team = {LARGE_TEAM, whole};
    if (packs <= MOST_KEPT * MIDDLE_TEAM) team.threads = MIDDLE_TEAM;
    if (packs <= MOST_KEPT * SMALL_TEAM) team.threads = SMALL_TEAM;
    return team;
}

// Sums each of the values over the team; all threads get the result. `room` is used by one call alone.
template <int COUNT> DEVICE void team_sums(Team team, float (&values)[COUNT], float *room) {
    UNROLL
    for (int i = 0; i < COUNT; i++) values[i] = warp_sum(values[i]);
    if (team.threads == SMALL_TEAM) return;
    const int warp = (int)threadIdx.x / WARP;
    if (threadIdx.x % WARP == 0)
        for (int i = 0; i < COUNT; i++) room[i * MOST_WARPS + warp] = values[i];
    __syncthreads();
    UNROLL
    for (int i = 0; i < COUNT; i++) {
        values[i] = room[i * MOST_WARPS];
        UNROLL_BY(1)
        for (int w = 1; w < team.threads / WARP; w++) values[i] += room[i * MOST_WARPS + w];
    }
}

// The number of a thread in its team. Sizes of teams are powers of two.
DEVICE int thread_of_team(Team team) { return (int)threadIdx.x & (team.threads - 1); }

DEVICE int64_t row_of_team(Team team) {
    return team.threads == SMALL_TEAM ? (int64_t)blockIdx.x * SMALL_TEAMS + threadIdx.x / SMALL_TEAM
                                      : (int64_t)blockIdx.x;
}

// The number of packs that a thread may have in a row.
template <class E, int KEEP> DEVICE int rounds_of(Team team, int cols) {
    return KEEP ? KEEP : (cols + team.threads * Pack<E>::WIDTH - 1) / (team.threads * Pack<E>::WIDTH);
}

// The first column of this thread's k-th pack.
template <class E> DEVICE int column_of(Team team, int k) {
    return (thread_of_team(team) + k * team.threads) * Pack<E>::WIDTH;
}

// Packs that are kept are whole ones.
template <int KEEP, class E> DEVICE Pack<E> load_own(Team team, const E *from, int left) {
    return KEEP || team.whole ? load_pack<true>(from, left) : load_pack<false>(from, left);
}

template <int KEEP, class E> DEVICE void store_own(Team team, E *to, int left, const Pack<E> &pack) {
    if (KEEP || team.whole)
        store_pack<true>(to, left, pack);
    else
        store_pack<false>(to, left, pack);
}

template <class E, int KEEP>
DEVICE void keep_row(Team team, Pack<E> (&kept)[KEEP ? KEEP : 1], const E *row, int cols) {
    UNROLL
    for (int k = 0; k < KEEP; k++) {
        const int column = column_of<E>(team, k);
        if (column < cols) kept[k] = load_pack<true>(row + column, cols - column);
    }
}

// This thread's k-th pack.
template <class E, int KEEP>
DEVICE Pack<E> pack_of(Team team, const Pack<E> (&kept)[KEEP ? KEEP : 1], const E *row, int cols, int k) {
    const int column = column_of<E>(team, k);
    return KEEP ? kept[KEEP ? k : 0] : load_own<KEEP>(team, row + column, cols - column);
}

// ---- the forward pass -------------------------------------------------------------------------------------

// At most 48 registers, 16 bytes a load.
template <class E, int KEEP>
__global__ void __launch_bounds__(LARGE_TEAM) norm_forward_kernel(const NormForward p, Team team) {
    SHARED(float, room, 2 * MOST_WARPS);
    const int64_t row = row_of_team(team);
    if (row >= p.x.rows) return;
    const int cols = (int)p.x.cols, rounds = rounds_of<E, KEEP>(team, cols);
    const E *x = (const E *)p.x.data + row * cols;
    const E *gamma = (const E *)p.gamma.data, *beta = (const E *)p.beta.data;
    E *y = (E *)p.y.data + row * cols;
    Pack<E> kept[KEEP ? KEEP : 1];
    keep_row<E, KEEP>(team, kept, x, cols);

    float mean = 0;
    if (p.mean.data) {
        float sum[1] = {0};
        UNROLL_BY(KEEP ? KEEP : 1)
        for (int k = 0; k < rounds; k++) {
            if (column_of<E>(team, k) >= cols) continue;
            const Pack<E> own = pack_of<E, KEEP>(team, kept, x, cols, k);
            UNROLL
            for (int i = 0; i < Pack<E>::WIDTH; i++) sum[0] += to_float(own.e[i]); // zeros beyond the row
        }
        team_sums(team, sum, room);
        mean = sum[0] / (float)cols;
    }

    float squares[1] = {0};
    UNROLL_BY(KEEP ? KEEP : 1)
    for (int k = 0; k < rounds; k++) {
        const int column = column_of<E>(team, k);
        if (column >= cols) continue;
        const Pack<E> own = pack_of<E, KEEP>(team, kept, x, cols, k);
        UNROLL
        for (int i = 0; i < Pack<E>::WIDTH; i++) {
            const float centred = KEEP || column + i < cols ? to_float(own.e[i]) - mean : 0;
            squares[0] = fmaf(centred, centred, squares[0]);
        }
    }
    team_sums(team, squares, room + MOST_WARPS);
    const float rstd = 1.0f / sqrtf(squares[0] / (float)cols + p.epsilon);

    UNROLL_BY(KEEP ? KEEP : 1)
    for (int k = 0; k < rounds; k++) {
        const int column = column_of<E>(team, k), left = cols - column;
        if (left <= 0) continue;
        Pack<E> own = pack_of<E, KEEP>(team, kept, x, cols, k), offset = {};
        const Pack<E> scale = load_own<KEEP>(team, gamma + column, left);
        if (beta) offset = load_own<KEEP>(team, beta + column, left);
        UNROLL
        for (int i = 0; i < Pack<E>::WIDTH; i++) {
            const float normal = (to_float(own.e[i]) - mean) * rstd;
            own.e[i] = from_float<E>(fmaf(normal, to_float(scale.e[i]) + p.offset, to_float(offset.e[i])));
        }
        store_own<KEEP>(team, y + column, left, own);
    }
    if (thread_of_team(team)) return;
    if (p.mean.data) ((float *)p.mean.data)[row] = mean;
    ((float *)p.rstd.data)[row] = rstd;
}

// ---- the gradient of the input ----------------------------------------------------------------------------

// A row and its gradient.
template <class E> struct RowGradient {
    const E *dy, *x, *gamma, *residual; // residual may be NULL
    E *dx;
    float mean, rstd;
    bool has_mean;
    int cols;
    float offset; // of gamma
};

// p: the arguments of an operation that computes dx.
template <class E, class P> DEVICE RowGradient<E> row_gradient(const P &p, int64_t row) {
    const int64_t at = row * p.x.cols;
    const E *residual = (const E *)p.residual.data;
    return {(const E *)p.dy.data + at,
            (const E *)p.x.data + at,
            (const E *)p.gamma.data,
            residual ? residual + at : nullptr,
            (E *)p.dx.data + at,
            p.mean.data ? ((const float *)p.mean.data)[row] : 0,
            ((const float *)p.rstd.data)[row],
            p.mean.data != nullptr,
            (int)p.x.cols,
            p.offset};
}

// With n = (x - mean) rstd and g = dy gamma:  dx = rstd (g - mean(g) - n mean(g n)), means over the row. RMS norm
// subtracts no mean, so no mean(g) either. The team has read the packs that it keeps.
template <class E, int KEEP>
DEVICE void input_gradient(Team team, const RowGradient<E> &r, const Pack<E> (&kept_dy)[KEEP ? KEEP : 1],
                           const Pack<E> (&kept_x)[KEEP ? KEEP : 1], float *room) {
    const int rounds = rounds_of<E, KEEP>(team, r.cols);
    float sums[2] = {0, 0}; // of g, of g n; zeros beyond the row add nothing
    UNROLL_BY(KEEP ? KEEP : 1)
    for (int k = 0; k < rounds; k++) {
        const int column = column_of<E>(team, k);
        if (column >= r.cols) continue;
        const Pack<E> own_dy = pack_of<E, KEEP>(team, kept_dy, r.dy, r.cols, k);
        const Pack<E> own_x = pack_of<E, KEEP>(team, kept_x, r.x, r.cols, k);
        const Pack<E> scale = load_own<KEEP>(team, r.gamma + column, r.cols - column);
        UNROLL
        for (int i = 0; i < Pack<E>::WIDTH; i++) {
            const float g = to_float(own_dy.e[i]) * (to_float(scale.e[i]) + r.offset);
            sums[0] += g;
            sums[1] = fmaf(g, (to_float(own_x.e[i]) - r.mean) * r.rstd, sums[1]);
        }
    }
    team_sums(team, sums, room);
    const float mean_g = r.has_mean ? sums[0] / (float)r.cols : 0, mean_gn = sums[1] / (float)r.cols;

    UNROLL_BY(KEEP ? KEEP : 1)
    for (int k = 0; k < rounds; k++) {
        const int column = column_of<E>(team, k), left = r.cols - column;
        if (left <= 0) continue;
        const Pack<E> own_x = pack_of<E, KEEP>(team, kept_x, r.x, r.cols, k);
        const Pack<E> scale = load_own<KEEP>(team, r.gamma + column, left);
        Pack<E> own = pack_of<E, KEEP>(team, kept_dy, r.dy, r.cols, k), add = {};
        if (r.residual) add = load_own<KEEP>(team, r.residual + column, left);
        UNROLL
        for (int i = 0; i < Pack<E>::WIDTH; i++) {
            const float centred = fmaf(to_float(own.e[i]), to_float(scale.e[i]) + r.offset, -mean_g);
            const float normal = (to_float(own_x.e[i]) - r.mean) * r.rstd;
            own.e[i] = from_float<E>(fmaf(r.rstd, fmaf(normal, -mean_gn, centred), to_float(add.e[i])));
        }
        store_own<KEEP>(team, r.dx + column, left, own);
    }
}

// At most 80 registers, 16 bytes a load.
template <class E, int KEEP>
__global__ void __launch_bounds__(LARGE_TEAM)
    norm_backward_input_kernel(const NormBackwardInput p, Team team) {
    SHARED(float, room, 2 * MOST_WARPS);
    const int64_t row = row_of_team(team);
    if (row >= p.x.rows) return;
    const RowGradient<E> r = row_gradient<E>(p, row);
    Pack<E> kept_dy[KEEP ? KEEP : 1], kept_x[KEEP ? KEEP : 1];
    keep_row<E, KEEP>(team, kept_dy, r.dy, r.cols);
    keep_row<E, KEEP>(team, kept_x, r.x, r.cols);
    input_gradient<E, KEEP>(team, r, kept_dy, kept_x, room);
}

// ---- launches of both -------------------------------------------------------------------------------------

#define LAUNCH_ROWS(kernel)                                                                                  \
    const int64_t packs = blocks_of(p->x.cols, Pack<E>::WIDTH);                                              \
    const Team team = team_of(packs, whole);                                                                 \
    const int64_t teams = team.threads == SMALL_TEAM ? SMALL_TEAMS : 1;                                      \
    const int64_t blocks = blocks_of(p->x.rows, teams), threads = teams * team.threads;                      \
    if (whole && packs <= MOST_KEPT * LARGE_TEAM)                                                            \
        LAUNCH((kernel<E, MOST_KEPT>), blocks, threads, 0, stream_of(exec), *p, team);                       \
    else                                                                                                     \
        LAUNCH((kernel<E, 0>), blocks, threads, 0, stream_of(exec), *p, team)

template <class E> static void norm_forward_of(const Exec *exec, const NormForward *p) {
    const bool whole = has_whole_packs(p->x) && has_whole_packs(p->y) && has_whole_packs(p->gamma) &&
                       has_whole_packs(p->beta);
    LAUNCH_ROWS(norm_forward_kernel);
}

template <class E> static void norm_backward_input_of(const Exec *exec, const NormBackwardInput *p) {
    const bool whole = has_whole_packs(p->dy) && has_whole_packs(p->x) && has_whole_packs(p->gamma) &&
                       has_whole_packs(p->residual) && has_whole_packs(p->dx);
    LAUNCH_ROWS(norm_backward_input_kernel);
}
#undef LAUNCH_ROWS

extern "C" void cuda_norm_forward(const Exec *exec, const NormForward *args) {
    if (args->x.rows) BY_ELEMENT(args->x.dtype, norm_forward_of, exec, args);
}

extern "C" void cuda_norm_backward_input(const Exec *exec, const NormBackwardInput *args) {
    if (args->x.rows) BY_ELEMENT(args->x.dtype, norm_backward_input_of, exec, args);
}

// ---- the gradients of gamma and beta ----------------------------------------------------------------------
//
// The rows are cut into parts by their number alone. A block sums one part of the rows of a tile of columns, each group
// of its threads every GROUPS-th row, and adds the groups in order. A second kernel adds the parts in a fixed order.

enum { GROUPS = 8, PART_ROWS = 64, MOST_PARTS = 256, FINISH_GROUPS = 16 };

static int64_t rows_of_part(int64_t rows) {
    const int64_t fewest = (rows + MOST_PARTS - 1) / MOST_PARTS;
    return fewest > PART_ROWS ? fewest : (int64_t)PART_ROWS;
}

static int64_t num_parts(int64_t rows) { return (rows + rows_of_part(rows) - 1) / rows_of_part(rows); }

// Writes parts [num_parts, 2, cols]: sums of dy n, and of dy. At most 64 registers, 16 bytes a load.
template <class E, bool WHOLE>
__global__ void __launch_bounds__(GROUPS *WARP)
    norm_backward_weight_kernel(const NormBackwardWeight p, float *parts, int64_t part_rows) {
    enum { WIDTH = Pack<E>::WIDTH, TILE = WARP * WIDTH };
    SHARED(float, sums, GROUPS * 2 * TILE);
    const int lane = (int)threadIdx.x % WARP, group = (int)threadIdx.x / WARP, cols = (int)p.x.cols;
    const int first_column = (int)blockIdx.x * TILE, column = first_column + lane * WIDTH,
              left = cols - column;
    const int64_t first = blockIdx.y * part_rows, last = first + part_rows;
    const int64_t end = last < p.x.rows ? last : p.x.rows;
    const float *means = (const float *)p.mean.data, *rstds = (const float *)p.rstd.data;
    float gamma[WIDTH] = {}, beta[WIDTH] = {};
    if (left > 0) {
        for (int64_t row = first + group; row < end; row += GROUPS) {
            const Pack<E> dy = load_pack<WHOLE>((const E *)p.dy.data + row * cols + column, left);
            const Pack<E> x = load_pack<WHOLE>((const E *)p.x.data + row * cols + column, left);
            const float mean = means ? means[row] : 0, rstd = rstds[row];
            UNROLL
            for (int i = 0; i < WIDTH; i++) {
                gamma[i] = fmaf(to_float(dy.e[i]), (to_float(x.e[i]) - mean) * rstd, gamma[i]);
                beta[i] += to_float(dy.e[i]);
            }
        }
    }
    float *own = sums + group * 2 * TILE + lane * WIDTH;
    UNROLL
    for (int i = 0; i < WIDTH; i++) own[i] = gamma[i], own[TILE + i] = beta[i];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < 2 * TILE; i += GROUPS * WARP) {
        float sum = sums[i];
        UNROLL
        for (int g = 1; g < GROUPS; g++) sum += sums[g * 2 * TILE + i];
        const int which = i / TILE, c = first_column + i % TILE;
        if (c < cols) parts[((int64_t)blockIdx.y * 2 + which) * cols + c] = sum;
    }
}

// Adds the parts up, to what dgamma holds or in its place, and where blockIdx.y is 1 dbeta. At most 32 registers.
__global__ void __launch_bounds__(FINISH_GROUPS *WARP)
    norm_weight_parts_kernel(const float *parts, int num_parts, int cols, bool accumulate, float *dgamma,
                             float *dbeta) {
    SHARED(float, sums, FINISH_GROUPS *WARP);
    const int lane = (int)threadIdx.x % WARP, group = (int)threadIdx.x / WARP;
    const int column = (int)blockIdx.x * WARP + lane;
    float sum = 0;
    if (column < cols)
        for (int part = group; part < num_parts; part += FINISH_GROUPS)
            sum += parts[((int64_t)part * 2 + blockIdx.y) * cols + column];
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (group || column >= cols) return;
    for (int g = 1; g < FINISH_GROUPS; g++) sum += sums[g * WARP + lane];
    float *total = blockIdx.y ? dbeta : dgamma;
    total[column] = accumulate ? total[column] + sum : sum;
}

static void add_parts(const Exec *exec, int64_t parts, int64_t cols, bool accumulate, Tensor dgamma,
                      Tensor dbeta) {
    const dim3 columns((unsigned)blocks_of(cols, WARP), dbeta.data ? 2 : 1);
    LAUNCH(norm_weight_parts_kernel, columns, FINISH_GROUPS * WARP, 0, stream_of(exec),
           (const float *)exec->workspace, (int)parts, (int)cols, accumulate, (float *)dgamma.data,
           (float *)dbeta.data);
}

extern "C" size_t cuda_norm_backward_weight_workspace(const NormBackwardWeight *args) {
    return (size_t)(num_parts(args->x.rows) * 2 * args->x.cols) * sizeof(float);
}

template <class E>
static void norm_backward_weight_of(const Exec *exec, const NormBackwardWeight *p, bool accumulate) {
    const int64_t tile = WARP * Pack<E>::WIDTH, cols = p->x.cols, parts = num_parts(p->x.rows);
    const dim3 grid((unsigned)blocks_of(cols, tile), (unsigned)parts);
    float *workspace = (float *)exec->workspace;
    cudaStream_t stream = stream_of(exec);
    if (has_whole_packs(p->dy) && has_whole_packs(p->x))
        LAUNCH((norm_backward_weight_kernel<E, true>), grid, GROUPS * WARP, 0, stream, *p, workspace,
               rows_of_part(p->x.rows));
    else
        LAUNCH((norm_backward_weight_kernel<E, false>), grid, GROUPS * WARP, 0, stream, *p, workspace,
               rows_of_part(p->x.rows));
    add_parts(exec, parts, cols, accumulate, p->dgamma, p->dbeta);
}

extern "C" void cuda_norm_backward_weight(const Exec *exec, const NormBackwardWeight *args) {
    if (args->x.rows) BY_ELEMENT(args->x.dtype, norm_backward_weight_of, exec, args, true);
}

// ---- all at once ------------------------------------------------------------------------------------------
//
// Rows are cut into parts, one for each block, by their number and the team alone. A team takes every num_teams-th row
// of its part and adds up the gradients of gamma and beta of its columns in registers; then the teams of a block are
// added in order, and the parts as above. Rows that are not kept in registers are read twice, by the kernels above.

enum {
    SMALL_PARTS = 528,
    LARGE_PARTS = 264,
    LEAST_PART = 8
}; // about two or four blocks on each multiprocessor

static int64_t joined_part_rows(int64_t rows, Team team) {
    const int64_t most = team.threads == SMALL_TEAM ? SMALL_PARTS : LARGE_PARTS,
                  fewest = blocks_of(rows, most);
    return fewest > LEAST_PART ? fewest : (int64_t)LEAST_PART;
}

template <class E> struct ColumnSums {
    float gamma[MOST_KEPT][Pack<E>::WIDTH], beta[MOST_KEPT][Pack<E>::WIDTH];
};

// Adds a row. A row without a mean has no beta.
template <class E>
DEVICE void add_row(Team team, ColumnSums<E> *sums, const RowGradient<E> &r, const Pack<E> (&dy)[MOST_KEPT],
                    const Pack<E> (&x)[MOST_KEPT]) {
    UNROLL
    for (int k = 0; k < MOST_KEPT; k++) {
        if (column_of<E>(team, k) >= r.cols) continue;
        UNROLL
        for (int i = 0; i < Pack<E>::WIDTH; i++) {
            const float g = to_float(dy[k].e[i]);
            sums->gamma[k][i] = fmaf(g, (to_float(x[k].e[i]) - r.mean) * r.rstd, sums->gamma[k][i]);
            sums->beta[k][i] += g;
        }
    }
}

// Writes a team's sums to `to` [2, cols], or adds them.
template <class E> DEVICE void put_sums(Team team, const ColumnSums<E> &sums, float *to, int cols, bool add) {
    UNROLL
    for (int k = 0; k < MOST_KEPT; k++) {
        const int column = column_of<E>(team, k);
        if (column >= cols) continue;
        UNROLL
        for (int i = 0; i < Pack<E>::WIDTH; i++) {
            float *gamma = to + column + i, *beta = gamma + cols;
            *gamma = add ? *gamma + sums.gamma[k][i] : sums.gamma[k][i];
            *beta = add ? *beta + sums.beta[k][i] : sums.beta[k][i];
        }
    }
}

// Writes dx, and parts [num_parts, 2, cols]. dx may be dy, x or residual: a team reads a row before it writes it. Two
// rooms take turns: a slow warp may still read the sums of the row before. At most 168 registers.
template <class E>
__global__ void __launch_bounds__(LARGE_TEAM)
    norm_backward_kernel(const NormBackward p, Team team, float *parts, int64_t part_rows) {
    SHARED(float, rooms, 2 * 2 * MOST_WARPS);
    const int num_teams = team.threads == SMALL_TEAM ? SMALL_TEAMS : 1, cols = (int)p.x.cols;
    const int own_team = (int)threadIdx.x / team.threads;
    const int64_t first = blockIdx.x * part_rows,
                  end = first + part_rows < p.x.rows ? first + part_rows : p.x.rows;
    float *part = parts + (int64_t)blockIdx.x * 2 * cols, *room = rooms;
    ColumnSums<E> sums = {};
    for (int64_t row = first + own_team; row < end; row += num_teams) {
        const RowGradient<E> r = row_gradient<E>(p, row);
        Pack<E> dy[MOST_KEPT], x[MOST_KEPT];
        keep_row<E, MOST_KEPT>(team, dy, r.dy, cols);
        keep_row<E, MOST_KEPT>(team, x, r.x, cols);
        add_row(team, &sums, r, dy, x);
        input_gradient<E, MOST_KEPT>(team, r, dy, x, room);
        room = room == rooms ? rooms + 2 * MOST_WARPS : rooms;
    }
    for (int t = 0; t < num_teams; t++) {
        if (t == own_team) put_sums(team, sums, part, cols, t > 0);
        __syncthreads();
    }
}

static int64_t joined_parts(int64_t rows, Team team) { return blocks_of(rows, joined_part_rows(rows, team)); }

extern "C" size_t cuda_norm_backward_workspace(const NormBackward *args) {
    const Team team =
        team_of(blocks_of((int64_t)((size_t)args->x.cols * dtype_bytes(args->x.dtype)), 16), true);
    const int64_t apart = num_parts(args->x.rows), joined = joined_parts(args->x.rows, team);
    return (size_t)((apart > joined ? apart : joined) * 2 * args->x.cols) * sizeof(float);
}

template <class E> static void norm_backward_apart(const Exec *exec, const NormBackward *p) {
    const NormBackwardWeight weight = {p->dy, p->x, p->mean, p->rstd, p->dgamma, p->dbeta};
    const NormBackwardInput input = {p->dy, p->x, p->gamma, p->mean, p->rstd, p->residual, p->dx, p->offset};
    norm_backward_weight_of<E>(exec, &weight, p->accumulate);
    norm_backward_input_of<E>(exec, &input);
}

template <class E> static void norm_backward_of(const Exec *exec, const NormBackward *p) {
    const bool whole = has_whole_packs(p->dy) && has_whole_packs(p->x) && has_whole_packs(p->gamma) &&
                       has_whole_packs(p->residual) && has_whole_packs(p->dx);
    const int64_t packs = blocks_of(p->x.cols, Pack<E>::WIDTH);
    if (!whole || packs > MOST_KEPT * LARGE_TEAM) {
        norm_backward_apart<E>(exec, p);
        return;
    }
    const Team team = team_of(packs, whole);
    const int64_t part_rows = joined_part_rows(p->x.rows, team), parts = joined_parts(p->x.rows, team);
    const int64_t threads = team.threads == SMALL_TEAM ? SMALL_TEAMS * SMALL_TEAM : team.threads;
    LAUNCH((norm_backward_kernel<E>), parts, threads, 0, stream_of(exec), *p, team, (float *)exec->workspace,
           part_rows);
    add_parts(exec, parts, p->x.cols, p->accumulate, p->dgamma, p->dbeta);
}

extern "C" void cuda_norm_backward(const Exec *exec, const NormBackward *args) {
    if (args->x.rows) {
        BY_ELEMENT(args->x.dtype, norm_backward_of, exec, args);
    } else if (!args->accumulate) {
        cuda_zero(exec, args->dgamma.data, tensor_bytes(args->dgamma));
        if (args->dbeta.data) cuda_zero(exec, args->dbeta.data, tensor_bytes(args->dbeta));
    }
}
