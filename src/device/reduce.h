// The one definition of a reduction over ranks, for every element, on every transport and device: a sum adds in rank
// order, ((r0 + r1) + r2) + r3, or as a binary tree, (r0 + r1) + (r2 + r3).
#pragma once
#include "device/device.h"

// REDUCE_TREE is a sum over a power of two of parts. Its halves are the sums of the first and of the last half of the
// parts, so the same parts give the same bits whether one rank has added 2^k neighbours before, or the reduction does.
typedef enum { REDUCE_SUM, REDUCE_MAX, REDUCE_TREE } ReduceOp;
enum { MAX_TREE_PARTS = 4096 };

bool can_reduce(DType dtype);        // any type but I32
bool can_add_in_tree(int num_parts); // a power of two, at most MAX_TREE_PARTS
// out[i] = parts[0][i] op parts[1][i] op ..., i < count, in the order of `op`. `out` may be one of the parts, at the
// same address.
// BF16 and F16 are added in fp32 and rounded once, at the end. REDUCE_MAX of NaN and anything is NaN.
void reduce_in_order(void *out, const char *const *parts, int num_parts, size_t count, DType dtype,
                     ReduceOp op);
