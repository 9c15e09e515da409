// Products of factors in 8 bits, and how tensors become such factors. No CPU multiplies them: every E4M3 and E5M2
// number is a BF16 number, and the product of two is an fp32 number, so a product of BF16 copies is exact but for the
// order in which its sums grow in fp32. This is what a GPU computes, emulated for tests and for the study of training
// in 8 bits, not for speed.
#include "base/float8.h"
#include "device/cpu/cpu.h"
#include "device/element.h"
#include <string.h>

enum {
    STRIP_ROWS = 512, // of d that are made at a time
    PIECE = 64,       // elements of a row that are worked on at a time
    ALIGNMENT = 64
};

// ---- quantize ---------------------------------------------------------------------------------------------

void cpu_load_floats(Tensor x, int64_t at, int64_t count, float *to) {
    switch (x.dtype) {
    case BF16:
        for (int64_t i = 0; i < count; i++) to[i] = bf16_to_f32(((const uint16_t *)x.data)[at + i]);
        return;
    case F16:
        for (int64_t i = 0; i < count; i++) to[i] = f16_to_f32(((const uint16_t *)x.data)[at + i]);
        return;
    default: memcpy(to, (const float *)x.data + at, (size_t)count * sizeof *to);
    }
}

static void quantize_piece(const Quantize *p, float factor, int64_t row, int64_t col, int64_t count) {
    float x[PIECE];
    int64_t stride = p->transpose ? p->x.rows : 1;
    uint8_t *q = (uint8_t *)p->q.data + (p->transpose ? col * stride + row : row * p->x.cols + col);
    cpu_load_floats(p->x, row * p->x.cols + col, count, x);
    if (p->q.dtype == E4M3)
        for (int64_t i = 0; i < count; i++) q[i * stride] = e4m3_of_f32(x[i] * factor);
    else
        for (int64_t i = 0; i < count; i++) q[i * stride] = e5m2_of_f32(x[i] * factor);
}

// It works on a square of pieces at a time, so that what is transposed stays in a near cache.
void cpu_quantize(const Exec *exec, const Quantize *p) {
    const Tensor x = p->x;
    const float factor = float8_factor(p->q.dtype == E4M3 ? E4M3_MAX : E5M2_MAX, *(const float *)p->max.data);
    const int64_t down = cpu_num_blocks(x.rows, PIECE), across = cpu_num_blocks(x.cols, PIECE);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(x))) schedule(static)
    for (int64_t tile = 0; tile < down * across; tile++) {
        const int64_t first = tile / across * PIECE, col = tile % across * PIECE;
        for (int64_t row = first; row < x.rows && row < first + PIECE; row++)
            quantize_piece(p, factor, row, col, at_most(PIECE, x.cols - col));
    }
    *(float *)p->scale.data = 1 / factor;
}

// ---- products ---------------------------------------------------------------------------------------------

// A plan cuts a product into strips of d, and says where copies of the factors and sums lie in the workspace, behind
// that of the strip's own product.
typedef struct {
    Matmul strip;
    size_t a_at, b_at, sum_at, bytes; // where they lie in the workspace
} Plan;

static size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

static Plan plan_of(int threads, const Matmul *p) {
    const int64_t rows = at_most(p->d.rows, STRIP_ROWS), inner = p->a.cols;
    Plan plan = {.strip = {.a = {NULL, rows, inner, BF16},
                           .b = {NULL, p->b.rows, inner, BF16},
                           .d = {NULL, rows, p->d.cols, F32},
                           .transpose_b = true}};
    Matmul last = plan.strip; // with fewer rows it may be made by other instructions
    last.a.rows = last.d.rows = p->d.rows % STRIP_ROWS;
    const DeviceOptions options = {.threads = threads};
    const size_t most = cpu_workspace_bytes(&options, OP_MATMUL, &plan.strip),
                 for_last = cpu_workspace_bytes(&options, OP_MATMUL, &last);
    plan.a_at = aligned(most > for_last ? most : for_last);
    plan.b_at = plan.a_at + aligned(tensor_bytes(plan.strip.a));
    plan.sum_at = plan.b_at + aligned(tensor_bytes(plan.strip.b));
    plan.bytes = plan.sum_at + aligned(tensor_bytes(plan.strip.d));
    return plan;
}

size_t cpu_float8_workspace(int threads, const Matmul *p) { return plan_of(threads, p).bytes; }

// Writes rows of x from `first` on as BF16.
static void widen(const Exec *exec, Tensor x, int64_t first, Tensor to) {
    uint16_t wide[256];
    for (int i = 0; i < 256; i++)
        wide[i] = bf16_of_f32(x.dtype == E4M3 ? e4m3_to_f32((uint8_t)i) : e5m2_to_f32((uint8_t)i));
    const uint8_t *from = (const uint8_t *)x.data + first * x.cols;
    uint16_t *values = to.data;
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(to))) schedule(static)
    for (int64_t i = 0; i < tensor_count(to); i++) values[i] = wide[from[i]];
}

static void finish(const Exec *exec, const Matmul *p, int64_t first, Tensor sums) {
    const float a = *(const float *)p->scale_a.data, b = *(const float *)p->scale_b.data;
    const float *sum = sums.data;
    const int64_t begin = first * p->d.cols;
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(sums))) schedule(static)
    for (int64_t i = 0; i < tensor_count(sums); i++) {
        float value = sum[i] * a * b;
        if (p->bias.data) value += (float)load(p->bias, i % p->d.cols);
        if (p->accumulate) value += ((const float *)p->d.data)[begin + i];
        store(p->d, begin + i, (double)value);
    }
}

void cpu_matmul_float8(const Exec *exec, const Matmul *p, const Backend *wide) {
    char *workspace = exec->workspace;
    Plan plan = plan_of(exec->threads, p);
    Matmul strip = plan.strip;
    strip.a.data = workspace + plan.a_at, strip.b.data = workspace + plan.b_at;
    strip.d.data = workspace + plan.sum_at;
    widen(exec, p->b, 0, strip.b);
    for (int64_t first = 0; first < p->d.rows; first += STRIP_ROWS) {
        strip.a.rows = strip.d.rows = at_most(p->d.rows - first, STRIP_ROWS);
        widen(exec, p->a, first, strip.a);
        backend_run(wide, exec, OP_MATMUL, &strip);
        finish(exec, p, first, strip.d);
    }
}
