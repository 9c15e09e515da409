// The one definition of a reduction over ranks: ((r0 + r1) + r2) + ... for every element, on every transport and device.
#pragma once
#include "device/device.h"

typedef enum { REDUCE_SUM, REDUCE_MAX } ReduceOp;

bool can_reduce(DType dtype); // any type but I32
// out[i] = parts[0][i] op parts[1][i] op ..., i < count. `out` may be one of the parts, at the same address.
// BF16 and F16 are added in fp32 and rounded once, at the end. REDUCE_MAX of NaN and anything is NaN.
void reduce_in_order(void *out, const char *const *parts, int num_parts, size_t count, DType dtype,
                     ReduceOp op);
