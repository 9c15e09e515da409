// The rules of attention for backends that compute on the host: which keys a query sees, and how scores are scaled.
#pragma once
#include "device/ops.h"
#include <math.h>

// Returns the first key that query `query` of sample b sees, which is the one of the call's positions from
// `first_position` on. `first_key` may be absent.
static inline int64_t attention_first_key(Tensor first_key, int64_t window, int64_t batch, int64_t b,
                                          int64_t query, int64_t first_position) {
    int64_t first = first_key.data ? ((const int32_t *)first_key.data)[query * batch + b] : 0;
    int64_t windowed = window ? first_position + query - window + 1 : 0;
    return first > windowed ? first : windowed > 0 ? windowed : 0;
}

// Returns the number of positions whose keys a call reads.
static inline int64_t attention_keys(const AttentionShape *shape) {
    return shape->keys ? shape->keys : shape->sequence;
}

static inline float attention_scale(const AttentionShape *shape, const AttentionRules *rules) {
    return rules->scale > 0 ? rules->scale : 1.0f / sqrtf((float)shape->head_size);
}
