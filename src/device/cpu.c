// The cpu backend: which variant of the kernels this machine runs, matrix products by oneDNN, and the
// workspace.
#include "device/cpu.h"
#include <dnnl.h>
#include <omp.h>
#include <string.h>

// ---- the variants -----------------------------------------------------------------------------------------

static bool always(void) { return true; }

#if defined(__x86_64__)
extern const Backend cpu_backend_v3, cpu_backend_v4;

static bool runs_v3(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

static bool runs_v4(void) {
    return runs_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

const CpuVariant cpu_variants[] = {
    {"x86-64-v4", &cpu_backend_v4, runs_v4},
    {"x86-64-v3", &cpu_backend_v3, runs_v3},
    {"x86-64", &cpu_backend_baseline, always},
};
#else
const CpuVariant cpu_variants[] = {{"baseline", &cpu_backend_baseline, always}};
#endif

const int num_cpu_variants = (int)(sizeof cpu_variants / sizeof cpu_variants[0]);

const CpuVariant *cpu_best(void) {
    const CpuVariant *variant = cpu_variants;
    while (!variant->runs_here()) variant++;
    return variant;
}

static const Backend *best(void) { return cpu_best()->backend; }

// ---- threads ----------------------------------------------------------------------------------------------

// Waking a thread takes some microseconds, in which one thread alone handles some ten thousand elements.
int cpu_team(const Exec *exec, int64_t elements) {
    int64_t useful = 1 + elements / 16384;
    return useful < exec->threads ? (int)useful : exec->threads;
}

// ---- matrix products --------------------------------------------------------------------------------------

void cpu_products_alone(void) { omp_set_num_threads(1); }

void cpu_product(int64_t rows, int64_t cols, int64_t inner, float alpha, Factor a, Factor b, float beta,
                 float *c, int64_t stride) {
    dnnl_status_t status = dnnl_sgemm(a.transpose ? 'T' : 'N', b.transpose ? 'T' : 'N', rows, cols, inner,
                                      alpha, a.data, a.stride, b.data, b.stride, beta, c, stride);
    CHECK(status == dnnl_success, "dnnl_sgemm [%lld, %lld, %lld] returned %d", (long long)rows,
          (long long)cols, (long long)inner, (int)status);
}

// A product is cut into tiles by its shape alone: left to oneDNN, the cut and with it some bits would depend
// on the number of threads. Each tile packs its operands again; at this size that costs one thread 1 to 4 %,
// at 256 x 384 up to 8 %.
enum { TILE_ROWS = 512, TILE_COLS = 768 };

// The bias becomes the start of the sum.
static void add_bias(const Matmul *p, float *d, int64_t rows, const float *bias, int64_t cols) {
    for (int64_t r = 0; r < rows; r++, d += p->d.cols)
        for (int64_t c = 0; c < cols; c++) d[c] = p->accumulate ? d[c] + bias[c] : bias[c];
}

static void matmul_tile(const Matmul *p, int64_t row, int64_t rows, int64_t col, int64_t cols) {
    Factor a = {p->a.data, p->a.cols, p->transpose_a}, b = {p->b.data, p->b.cols, p->transpose_b};
    float *d = (float *)p->d.data + row * p->d.cols + col;
    a.data += p->transpose_a ? row : row * a.stride;
    b.data += p->transpose_b ? col * b.stride : col;
    if (p->bias.data) add_bias(p, d, rows, (const float *)p->bias.data + col, cols);
    float beta = p->accumulate || p->bias.data ? 1 : 0;
    cpu_product(rows, cols, p->transpose_a ? p->a.rows : p->a.cols, 1, a, b, beta, d, p->d.cols);
}

// Part `i` of `count` cut into `parts` as equal as multiples of 16 allow.
static int64_t part_start(int64_t count, int64_t parts, int64_t i) {
    int64_t start = cpu_num_blocks(cpu_num_blocks(count, parts), 16) * 16 * i;
    return start < count ? start : count;
}

void cpu_matmul(const Exec *exec, const Matmul *p) {
    int64_t rows = p->d.rows, cols = p->d.cols;
    int64_t tiles_down = cpu_num_blocks(rows, TILE_ROWS), tiles_across = cpu_num_blocks(cols, TILE_COLS);
#pragma omp parallel num_threads(exec->threads)
    {
        cpu_products_alone();
#pragma omp for schedule(dynamic)
        for (int64_t tile = 0; tile < tiles_down * tiles_across; tile++) {
            int64_t i = tile % tiles_down, j = tile / tiles_down;
            int64_t row = part_start(rows, tiles_down, i), col = part_start(cols, tiles_across, j);
            int64_t height = part_start(rows, tiles_down, i + 1) - row;
            int64_t width = part_start(cols, tiles_across, j + 1) - col;
            if (height && width) matmul_tile(p, row, height, col, width);
        }
    }
}

// ---- workspace --------------------------------------------------------------------------------------------

static size_t attention_bytes(int threads, AttentionShape shape, int64_t num_buffers) {
    return (size_t)(cpu_attention_team(threads, shape) * num_buffers * QUERY_BLOCK *
                    cpu_score_stride(shape.sequence)) *
           sizeof(float);
}

size_t cpu_workspace_bytes(int threads, DeviceOp op, const void *args) {
    switch (op) {
    case OP_ATTENTION_FORWARD: return attention_bytes(threads, ((const AttentionForward *)args)->shape, 1);
    case OP_ATTENTION_BACKWARD: return attention_bytes(threads, ((const AttentionBackward *)args)->shape, 2);
    case OP_SUM_SQUARES:
        return (size_t)cpu_num_blocks(tensor_count(((const SumSquares *)args)->x), FLAT_BLOCK) *
               sizeof(double);
    default: return 0;
    }
}

// ---- the backend: whichever variant is best here ----------------------------------------------------------

static void cpu_bias_gelu_forward(const Exec *e, const BiasGeluForward *p) {
    best()->bias_gelu_forward(e, p);
}
static void cpu_bias_gelu_backward(const Exec *e, const BiasGeluBackward *p) {
    best()->bias_gelu_backward(e, p);
}
static void cpu_bias_dropout_add(const Exec *e, const BiasDropoutAdd *p) { best()->bias_dropout_add(e, p); }
static void cpu_dropout_backward(const Exec *e, const DropoutBackward *p) { best()->dropout_backward(e, p); }
static void cpu_column_sum(const Exec *e, const ColumnSum *p) { best()->column_sum(e, p); }
static void cpu_norm_forward(const Exec *e, const NormForward *p) { best()->norm_forward(e, p); }
static void cpu_norm_backward_input(const Exec *e, const NormBackwardInput *p) {
    best()->norm_backward_input(e, p);
}
static void cpu_norm_backward_weight(const Exec *e, const NormBackwardWeight *p) {
    best()->norm_backward_weight(e, p);
}
static void cpu_attention_forward(const Exec *e, const AttentionForward *p) {
    best()->attention_forward(e, p);
}
static void cpu_attention_backward(const Exec *e, const AttentionBackward *p) {
    best()->attention_backward(e, p);
}
static void cpu_embedding_forward(const Exec *e, const EmbeddingForward *p) {
    best()->embedding_forward(e, p);
}
static void cpu_embedding_backward(const Exec *e, const EmbeddingBackward *p) {
    best()->embedding_backward(e, p);
}
static void cpu_position_dropout(const Exec *e, const PositionDropout *p) { best()->position_dropout(e, p); }
static void cpu_position_backward(const Exec *e, const PositionBackward *p) {
    best()->position_backward(e, p);
}
static void cpu_loss_max(const Exec *e, const LossMax *p) { best()->loss_max(e, p); }
static void cpu_loss_sum(const Exec *e, const LossSum *p) { best()->loss_sum(e, p); }
static void cpu_loss_finish(const Exec *e, const LossFinish *p) { best()->loss_finish(e, p); }
static void cpu_sum_squares(const Exec *e, const SumSquares *p) { best()->sum_squares(e, p); }
static void cpu_adamw(const Exec *e, const AdamW *p) { best()->adamw(e, p); }
static void cpu_add(const Exec *e, const Add *p) { best()->add(e, p); }

const Backend cpu_backend = {
    .name = "cpu",
#define X(NAME, function, Args, reads, writes) .function = cpu_##function,
    DEVICE_OPS(X)
#undef X
        .workspace_bytes = cpu_workspace_bytes,
};
