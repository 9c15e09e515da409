// Tensors in codes of few bits whose blocks have scales (base/blocks.h), and what recipes with them need beside: the
// random Hadamard transform, and scales of tensors. They are for the study of recipes: exact before fast.
#include "device/cpu/cpu.h"
#include "device/element.h"
#include <math.h>

enum { PANEL = MAX_BLOCK_COLS }; // columns that are worked on at a time: a whole number of blocks

// ---- quantize_blocks --------------------------------------------------------------------------------------

static void store_bf16(Tensor y, int64_t at, int64_t count, const float *from) {
    uint16_t *to = (uint16_t *)y.data + at;
    for (int64_t i = 0; i < count; i++) to[i] = bf16_of_f32(from[i]);
}

static uint32_t random_word(const RandomRounding *r, int64_t row, int64_t col) {
    int64_t token = r->transposed ? col : row, j = r->transposed ? row : col;
    int64_t c = r->first_col + j / r->part * r->stride + j % r->part;
    return rng_word(r->key, (uint64_t)(r->first_sample + token % r->samples),
                    (uint64_t)(token / r->samples * r->cols + c));
}

// The scales of a panel's columns, [first_row, first_row + block_rows) of which are a row of blocks.
static void find_factors(const QuantizeBlocks *p, float tensor_factor, int64_t first_row, int64_t end_row,
                         int64_t col, int64_t count, BlockFactor *factors) {
    float x[PANEL], most[PANEL] = {0};
    for (int64_t row = first_row; row < end_row; row++) {
        cpu_load_floats(p->x, row * p->x.cols + col, count, x);
        for (int64_t j = 0; j < count; j++) most[j] = fabsf(x[j]) > most[j] ? fabsf(x[j]) : most[j];
    }
    for (int64_t first = 0, end; first < count; first = end) {
        float largest = 0;
        end = at_most(first + p->block_cols, count);
        for (int64_t j = first; j < end; j++) largest = most[j] > largest ? most[j] : largest;
        BlockFactor factor = block_factor(p->scales, p->codes, largest, tensor_factor);
        for (int64_t j = first; j < end; j++) factors[j] = factor;
    }
}

static void quantize_panel(const QuantizeBlocks *p, float tensor_factor, int64_t first_row, int64_t col,
                           int64_t count) {
    float x[PANEL];
    BlockFactor factors[PANEL];
    const int64_t end_row = at_most(first_row + p->block_rows, p->x.rows);
    find_factors(p, tensor_factor, first_row, end_row, col, count, factors);
    for (int64_t row = first_row; row < end_row; row++) {
        cpu_load_floats(p->x, row * p->x.cols + col, count, x);
        for (int64_t j = 0; j < count; j++) x[j] *= factors[j].encode;
        if (p->random.samples)
            for (int64_t j = 0; j < count; j++)
                x[j] = codes_round_at_random(x[j], random_word(&p->random, row, col + j));
        else
            for (int64_t j = 0; j < count; j++) x[j] = codes_round(p->codes, x[j]);
        for (int64_t j = 0; j < count; j++) x[j] *= factors[j].decode;
        store_bf16(p->q, row * p->x.cols + col, count, x);
    }
}

void cpu_quantize_blocks(const Exec *exec, const QuantizeBlocks *p) {
    const float tensor_factor = p->max.data ? block_tensor_factor(p->codes, *(const float *)p->max.data) : 1;
    const int64_t width = PANEL / p->block_cols * p->block_cols;
    const int64_t down = cpu_num_blocks(p->x.rows, p->block_rows), across = cpu_num_blocks(p->x.cols, width);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t panel = 0; panel < down * across; panel++) {
        const int64_t col = panel % across * width;
        quantize_panel(p, tensor_factor, panel / across * p->block_rows, col,
                       at_most(width, p->x.cols - col));
    }
    if (p->scale.data) *(float *)p->scale.data = 1 / tensor_factor;
}

// ---- hadamard ---------------------------------------------------------------------------------------------

// Transforms HADAMARD_SIZE rows of `count` columns; x[i] is row i.
static void transform(float (*x)[PANEL], int64_t count) {
    for (int i = 0; i < HADAMARD_SIZE; i++)
        for (int64_t j = 0; j < count && HADAMARD_SIGNS >> i & 1; j++) x[i][j] = -x[i][j];
    for (int apart = 1; apart < HADAMARD_SIZE; apart *= 2)
        for (int i = 0; i < HADAMARD_SIZE; i++) {
            if (i & apart) continue;
            for (int64_t j = 0; j < count; j++) {
                float a = x[i][j], b = x[i + apart][j];
                x[i][j] = a + b, x[i + apart][j] = a - b;
            }
        }
}

void cpu_hadamard(const Exec *exec, const Hadamard *p) {
    const int64_t down = p->x.rows / HADAMARD_SIZE, across = cpu_num_blocks(p->x.cols, PANEL);
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->x))) schedule(static)
    for (int64_t panel = 0; panel < down * across; panel++) {
        const int64_t row = panel / across * HADAMARD_SIZE, col = panel % across * PANEL,
                      count = at_most(PANEL, p->x.cols - col);
        float x[HADAMARD_SIZE][PANEL];
        for (int i = 0; i < HADAMARD_SIZE; i++)
            cpu_load_floats(p->x, (row + i) * p->x.cols + col, count, x[i]);
        transform(x, count);
        for (int64_t j = 0; j < count; j++)
            for (int i = 0; i < HADAMARD_SIZE; i++)
                store(p->y, (col + j) * p->x.rows + row + i, (double)(0.25f * x[i][j]));
    }
}

// ---- scale_product ----------------------------------------------------------------------------------------

void cpu_scale_product(const Exec *exec, const ScaleProduct *p) {
    const float a = *(const float *)p->scale_a.data, b = *(const float *)p->scale_b.data;
    const float *x = p->x.data;
#pragma omp parallel for num_threads(cpu_team(exec, tensor_count(p->d))) schedule(static)
    for (int64_t i = 0; i < tensor_count(p->d); i++) {
        float value = x[i] * a * b;
        if (p->bias.data) value += (float)load(p->bias, i % p->d.cols);
        if (p->accumulate) value += ((const float *)p->d.data)[i];
        store(p->d, i, (double)value);
    }
}
