// What the CUDA device gives for the products that join other operations, as plain loops of C: see gpu_models.h. The order in
// which NVIDIA's cuBLASLt adds products, and the function that it takes for a GELU, are not known. So these are the bits of the
// simulated GPU (sim/cublaslt.cc, epilogue.h, products.cu), where every sum goes along k from the first product to the last.
// They are those of every GPU where all sums are exact and the GELU is a kernel of the program (case_is_exact).
#pragma once
#include "device/op_table.h"
#include "gpu_models.h"

static float model_product(const Matmul *p, int64_t row, int64_t col) {
    const int64_t depth = p->transpose_a ? p->a.rows : p->a.cols;
    float sum = 0;
    for (int64_t k = 0; k < depth; k++)
        sum += value(p->a, p->transpose_a ? k * p->a.cols + row : row * p->a.cols + k) *
               value(p->b, p->transpose_b ? col * p->b.cols + k : k * p->b.cols + col);
    return sum;
}

// A matrix in 16 bits with rows that are not multiples of 16 bytes.
static bool is_loose(Tensor x) { return dtype_bytes(x.dtype) == 2 && x.cols % 8; }

// Whether the library makes all of it, by the rules of is_for_cublaslt (products.c) and lacks_algorithm (sim/cublaslt.cc).
static bool is_made_at_once(DeviceOp op, const void *args) {
    JoinedProduct product;
    op_product(op, args, &product);
    const Matmul *p = &product.matmul;
    const int64_t depth = p->transpose_a ? p->a.rows : p->a.cols;
    if (product.join != JOINS_SUMS && p->d.cols % 8) return false;
    return !(is_loose(p->a) || is_loose(p->b) || is_loose(p->d)) || (p->d.rows + p->d.cols + depth) % 2 == 0;
}

static void model_matmul_sums(const MatmulSums *p) {
    const Matmul product = {.a = p->a, .b = p->b, .transpose_a = true};
    for (int64_t i = 0; i < tensor_count(p->d); i++) {
        const float sum = model_product(&product, i / p->d.cols, i % p->d.cols);
        put(p->d, i, p->accumulate ? sum + value(p->d, i) : sum);
    }
    if (!is_made_at_once(OP_MATMUL_SUMS, p)) {
        model_column_sums(p->a, p->sums, p->accumulate_sums);
        return;
    }
    for (int64_t c = 0; c < p->a.cols; c++) {
        const float sum = model_column(p->a, NULL, c, 0, p->a.rows, 1);
        put(p->sums, c, p->accumulate_sums ? value(p->sums, c) + sum : sum);
    }
}

static double tanh_of_gelu(double u) { return tanh(0.7978845608028654 * u * (1 + 0.044715 * u * u)); }

static void model_matmul_gelu(const MatmulGelu *p) {
    const Matmul product = {.a = p->a, .b = p->b, .transpose_b = true};
    const bool at_once = is_made_at_once(OP_MATMUL_GELU, p);
    for (int64_t i = 0; i < tensor_count(p->d); i++) {
        float u = model_product(&product, i / p->d.cols, i % p->d.cols);
        if (p->bias.data) u += value(p->bias, i % p->d.cols);
        put(p->aux, i, u);
        if (at_once) put(p->d, i, (float)(0.5 * (double)u * (1 + tanh_of_gelu((double)u))));
    }
    if (!at_once) model_bias_gelu_forward(&(BiasGeluForward){.x = p->aux, .y = p->d});
}

static float slope_at_once(float x) {
    const double u = (double)x, t = tanh_of_gelu(u), inner = 0.7978845608028654 * (1 + 3 * 0.044715 * u * u);
    return (float)(0.5 * (1 + t) + 0.5 * u * (1 - t * t) * inner);
}

static void model_matmul_gelu_backward(const MatmulGeluBackward *p) {
    const Matmul product = {.a = p->a, .b = p->b};
    const bool at_once = is_made_at_once(OP_MATMUL_GELU_BACKWARD, p);
    for (int64_t i = 0; i < tensor_count(p->d); i++) {
        const float sum = model_product(&product, i / p->d.cols, i % p->d.cols);
        put(p->d, i, at_once ? sum * slope_at_once(value(p->aux, i)) : sum);
    }
    if (!at_once) model_bias_gelu_backward(&(BiasGeluBackward){.dy = p->d, .x = p->aux, .dx = p->d});
}
