// The one definition of a reduction: ((r0 + r1) + r2) + ... for every element, on every transport.
#pragma once
#include "comm/comm.h"

bool can_reduce(DType dtype); // any type but I32
// out[i] = parts[0][i] op parts[1][i] op ..., i < count. `out` may be one of the parts, at the same address.
// BF16 and F16 are added in fp32 and rounded once, at the end. REDUCE_MAX of NaN and anything is NaN.
void reduce_in_order(void *out, const char *const *parts, int num_parts, size_t count, DType dtype,
                     ReduceOp op);
// Slice i of `count` elements cut into `parts` nearly equal slices is [slice_begin(i), slice_begin(i + 1)).
size_t slice_begin(size_t count, int parts, int i);
