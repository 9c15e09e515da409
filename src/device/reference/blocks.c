// The reference backend's tensors in codes of few bits whose blocks have scales.
#include "device/reference/reference.h"
#include <math.h>

static uint32_t random_word(const RandomRounding *r, int64_t row, int64_t col) {
    int64_t token = r->transposed ? col : row, j = r->transposed ? row : col;
    int64_t c = r->first_col + j / r->part * r->stride + j % r->part;
    return rng_word(r->key, (uint64_t)(r->first_sample + token % r->samples),
                    (uint64_t)(token / r->samples * r->cols + c));
}

static void quantize_block(const QuantizeBlocks *p, int64_t first_row, int64_t first_col,
                           float tensor_factor) {
    float most = 0;
    int64_t end_row = first_row + p->block_rows, end_col = first_col + p->block_cols;
    if (end_row > p->x.rows) end_row = p->x.rows;
    if (end_col > p->x.cols) end_col = p->x.cols;
    for (int64_t i = first_row; i < end_row; i++)
        for (int64_t j = first_col; j < end_col; j++)
            most = fmaxf(most, fabsf((float)load(p->x, i * p->x.cols + j)));
    BlockFactor factor = block_factor(p->scales, p->codes, most, tensor_factor);
    for (int64_t i = first_row; i < end_row; i++)
        for (int64_t j = first_col; j < end_col; j++) {
            float x = (float)load(p->x, i * p->x.cols + j) * factor.encode;
            float value = p->random.samples ? codes_round_at_random(x, random_word(&p->random, i, j))
                                            : codes_round(p->codes, x);
            store(p->q, i * p->x.cols + j, (double)(value * factor.decode));
        }
}

void reference_quantize_blocks(const Exec *exec, const QuantizeBlocks *p) {
    (void)exec;
    float tensor_factor = p->max.data ? block_tensor_factor(p->codes, (float)load(p->max, 0)) : 1;
    for (int64_t i = 0; i < p->x.rows; i += p->block_rows)
        for (int64_t j = 0; j < p->x.cols; j += p->block_cols) quantize_block(p, i, j, tensor_factor);
    if (p->scale.data) store(p->scale, 0, (double)(1 / tensor_factor));
}

// H[i][j] is -1 to the number of common bits of i and j. The rounds are what ops.h says: every device has their bits.
void reference_hadamard(const Exec *exec, const Hadamard *p) {
    (void)exec;
    for (int64_t first = 0; first < p->x.rows; first += HADAMARD_SIZE)
        for (int64_t j = 0; j < p->x.cols; j++) {
            float x[HADAMARD_SIZE];
            for (int i = 0; i < HADAMARD_SIZE; i++) {
                x[i] = (float)load(p->x, (first + i) * p->x.cols + j);
                if (HADAMARD_SIGNS >> i & 1) x[i] = -x[i];
            }
            for (int apart = 1; apart < HADAMARD_SIZE; apart *= 2)
                for (int i = 0; i < HADAMARD_SIZE; i++) {
                    if (i & apart) continue;
                    float a = x[i], b = x[i + apart];
                    x[i] = a + b, x[i + apart] = a - b;
                }
            for (int i = 0; i < HADAMARD_SIZE; i++)
                store(p->y, j * p->x.rows + first + i, (double)(0.25f * x[i]));
        }
}

void reference_scale_product(const Exec *exec, const ScaleProduct *p) {
    (void)exec;
    double scale = load(p->scale_a, 0) * load(p->scale_b, 0);
    for (int64_t i = 0; i < tensor_count(p->d); i++) {
        double start = (p->accumulate ? load(p->d, i) : 0) + load_or_zero(p->bias, i % p->d.cols);
        store(p->d, i, start + scale * load(p->x, i));
    }
}
