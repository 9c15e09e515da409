// The elements of the simulated cuBLASLt's matrices.
#pragma once
#include "base/float8.h"
#include <cublasLt.h>

inline bool is_8_bit(cudaDataType type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
inline bool is_16_bit(cudaDataType type) { return type == CUDA_R_16F || type == CUDA_R_16BF; }
inline bool is_element(cudaDataType type) { return type == CUDA_R_32F || is_16_bit(type); }
inline int64_t bytes_of(cudaDataType type) { return is_8_bit(type) ? 1 : is_16_bit(type) ? 2 : 4; }

inline float load(cudaDataType type, const void *x, int64_t i) {
    switch (type) {
    case CUDA_R_8F_E4M3: return e4m3_to_f32(static_cast<const uint8_t *>(x)[i]);
    case CUDA_R_8F_E5M2: return e5m2_to_f32(static_cast<const uint8_t *>(x)[i]);
    case CUDA_R_16BF: return bf16_to_f32(static_cast<const uint16_t *>(x)[i]);
    case CUDA_R_16F: return f16_to_f32(static_cast<const uint16_t *>(x)[i]);
    default: return static_cast<const float *>(x)[i];
    }
}

// A result has no 8 bits.
inline void store(cudaDataType type, void *x, int64_t i, float value) {
    if (type == CUDA_R_32F)
        static_cast<float *>(x)[i] = value;
    else
        static_cast<uint16_t *>(x)[i] = type == CUDA_R_16BF ? bf16_of_f32(value) : f16_of_f32(value);
}
