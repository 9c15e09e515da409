// A product of the simulated cuBLASLt as its descriptors say, and which ones there are.
#pragma once
#include "device/cuda/sim/epilogue.h"
#include "device/cuda/sim/runtime.h"

struct SimMatrixLayout {
    cudaDataType type;
    int64_t rows, cols, ld;
};

struct Problem {
    SimMatmulDesc product;
    SimMatrixLayout a, b, d;
    int64_t m, n, k;
};

// From the first element to the last.
inline size_t bytes_of(const SimMatrixLayout &x) {
    return static_cast<size_t>(((x.cols - 1) * x.ld + x.rows) * bytes_of(x.type));
}

inline bool is_same(const SimMatrixLayout &x, const SimMatrixLayout &y) {
    return x.type == y.type && x.rows == y.rows && x.cols == y.cols && x.ld == y.ld;
}

// Returns why a problem can be no product, or NULL.
inline const char *impossible(const Problem &p) {
    const bool ta = p.product.transpose_a, tb = p.product.transpose_b;
    for (const auto *x : {&p.a, &p.b, &p.d})
        if (x->rows < 1 || x->cols < 1 || x->ld < x->rows)
            return "a layout without elements, or with overlapping columns";
    if ((ta ? p.a.cols : p.a.rows) != p.m || (tb ? p.b.rows : p.b.cols) != p.n)
        return "op(a) or op(b) does not fit d";
    if ((tb ? p.b.cols : p.b.rows) != p.k) return "op(a) does not fit op(b)";
    if (is_8_bit(p.a.type) && is_8_bit(p.b.type))
        for (const int64_t size : {p.m, p.n, p.k, p.a.ld, p.b.ld, p.d.ld * bytes_of(p.d.type)})
            if (size % 16) return "factors in 8 bits, and a size that is no multiple of 16";
    return nullptr;
}

inline bool is_known_operation(int32_t operation) {
    return operation == CUBLAS_OP_N || operation == CUBLAS_OP_T;
}

// Returns whether there is an algorithm for factors in 8 bits.
inline bool is_supported_8_bit(const Problem &p) {
    const SimMatmulDesc &product = p.product;
    cudaDeviceProp gpu;
    if (cudaGetDeviceProperties(&gpu, sim_gpu()) || gpu.major * 10 + gpu.minor < 89) return false;
    if (!is_8_bit(p.a.type) || !is_8_bit(p.b.type) || !is_element(p.d.type)) return false;
    if (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2) return false;
    if (product.transpose_a != CUBLAS_OP_T || product.transpose_b != CUBLAS_OP_N) return false;
    if (product.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
    return product.epilogue == CUBLASLT_EPILOGUE_BIAS && is_16_bit(p.d.type) &&
           product.bias_type == static_cast<int32_t>(p.d.type);
}

inline bool is_supported(const Problem &p) {
    const SimMatmulDesc &product = p.product;
    if (is_8_bit(p.a.type) || is_8_bit(p.b.type)) return is_supported_8_bit(p);
    if (product.scale_a || product.scale_b) return false;
    if (!is_element(p.a.type) || p.b.type != p.a.type) return false;
    if (p.d.type != p.a.type && p.d.type != CUDA_R_32F) return false;
    if (!is_known_operation(product.transpose_a) || !is_known_operation(product.transpose_b)) return false;
    if (product.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
    if (!adds_bias(product) && !has_aux(product) && !sums_b(product)) return false;
    if (has_aux(product) && (product.aux_ld % 8 || product.aux_ld < p.m)) return false;
    return product.bias_type == -1 || product.bias_type == static_cast<int32_t>(p.d.type);
}
