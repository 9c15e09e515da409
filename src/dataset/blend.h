// The order in which a blend draws samples from its members. Source: Megatron-LM, BlendedDataset and
// build_blending_indices.
#pragma once
#include "dataset/cache.h"
#include "dataset/dataset.h"

enum { MAX_MEMBERS = INT16_MAX };

typedef struct {
    int64_t size;          // samples
    const int16_t *member; // [size] the member whose sample is drawn i-th
    const int64_t *sample; // [size] the number of that sample; each member's count 0, 1, 2, ...
    IndexArrays arrays;    // owns the two above
} BlendOrder;

// Scales the weights to a sum of 1. They are added in the order in which NumPy adds.
void blend_normalize(double *weights, int count);
// The number of samples that a member of weight `share` contributes to a blend of `samples`, rounded up.
int64_t blend_target(int64_t samples, double share);
// Sample i = 0, 1, ... comes from the member with the largest shares[k] * max(i, 1) - (drawn so far), the first one
// of equals. sizes [count] are the numbers of samples of the members, or NULL. `cache` is GptSource's.
Status blend_order_open(BlendOrder *order, const double *shares, const int64_t *sizes, int count,
                        int64_t samples, Split split, const char *cache);
void blend_order_close(BlendOrder *order);
