// In which order a blend draws from its members. Source: Megatron-LM, BlendedDataset and
// build_blending_indices.
#pragma once
#include "dataset/cache.h"
#include "dataset/dataset.h"

enum { MAX_MEMBERS = INT16_MAX };

typedef struct {
    int64_t size;          // samples
    const int16_t *member; // [size] whose sample is drawn i-th,
    const int64_t *sample; // [size] and which of its samples: 0, 1, 2 ... of each member
    IndexArrays arrays;    // the two above
} BlendOrder;

// Weights that sum to 1, added up as NumPy does it.
void blend_normalize(double *weights, int count);
// How many samples a member of weight `share` contributes to a blend of `samples`, rounded up.
int64_t blend_target(int64_t samples, double share);
// Sample i = 0, 1 ... comes from the member with the largest shares[k] * max(i, 1) - (drawn so far), and from
// the first of equals. sizes [count], or NULL: how many samples each member has. `cache` as in GptSource.
Status blend_order_open(BlendOrder *order, const double *shares, const int64_t *sizes, int count,
                        int64_t samples, Split split, const char *cache);
void blend_order_close(BlendOrder *order);
