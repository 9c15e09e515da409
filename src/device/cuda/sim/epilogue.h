// Holds what a product of the simulated cuBLASLt does beside d: its descriptor, and the functions of the epilogues.
#pragma once
#include "device/cuda/sim/elements.h"
#include <cmath>
#include <cublasLt.h>

struct SimMatmulDesc {
    int32_t transpose_a, transpose_b, bias_type;
    uint32_t epilogue;
    const void *bias; // read, or written by BGRADB
    const void *scale_a, *scale_b;
    int8_t fast;
    const void *aux; // read, or written by GELU_AUX
    int64_t aux_ld;
};

// Questions about its epilogue.
inline bool adds_bias(const SimMatmulDesc &p) {
    return p.epilogue == CUBLASLT_EPILOGUE_BIAS || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
inline bool writes_aux(const SimMatmulDesc &p) {
    return p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX || p.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
inline bool reads_aux(const SimMatmulDesc &p) { return p.epilogue == CUBLASLT_EPILOGUE_DGELU; }
inline bool has_aux(const SimMatmulDesc &p) { return writes_aux(p) || reads_aux(p); }
inline bool sums_b(const SimMatmulDesc &p) { return p.epilogue == CUBLASLT_EPILOGUE_BGRADB; }

// GELU in its tanh form, and its slope.
inline double tanh_of_gelu(double u) { return std::tanh(0.7978845608028654 * u * (1 + 0.044715 * u * u)); }
inline double gelu(double u) { return 0.5 * u * (1 + tanh_of_gelu(u)); }
inline double gelu_slope(double u) {
    const double t = tanh_of_gelu(u), inner = 0.7978845608028654 * (1 + 3 * 0.044715 * u * u);
    return 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * inner;
}
