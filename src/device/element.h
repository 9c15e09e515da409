// Elements of a tensor of any floating point type, one at a time, as doubles: for code that is to be right
// before it is fast. The tensor's data is memory that the host can read.
#pragma once
#include "base/float8.h"
#include "device/ops.h"

// Element i of a tensor of any floating point type.
static inline double load(Tensor x, int64_t i) {
    switch (x.dtype) {
    case BF16: return (double)bf16_to_f32(((const uint16_t *)x.data)[i]);
    case F16: return (double)f16_to_f32(((const uint16_t *)x.data)[i]);
    case E4M3: return (double)e4m3_to_f32(((const uint8_t *)x.data)[i]);
    case E5M2: return (double)e5m2_to_f32(((const uint8_t *)x.data)[i]);
    case F64: return ((const double *)x.data)[i];
    default: return (double)((const float *)x.data)[i];
    }
}

// Rounds to fp32, then to the tensor's type.
static inline void store(Tensor x, int64_t i, double value) {
    switch (x.dtype) {
    case BF16: ((uint16_t *)x.data)[i] = bf16_of_f32((float)value); return;
    case F16: ((uint16_t *)x.data)[i] = f16_of_f32((float)value); return;
    case E4M3: ((uint8_t *)x.data)[i] = e4m3_of_f32((float)value); return;
    case E5M2: ((uint8_t *)x.data)[i] = e5m2_of_f32((float)value); return;
    case F64: ((double *)x.data)[i] = value; return;
    default: ((float *)x.data)[i] = (float)value; return;
    }
}

// Element i, or zero of an absent tensor.
static inline double load_or_zero(Tensor x, int64_t i) { return x.data ? load(x, i) : 0; }
