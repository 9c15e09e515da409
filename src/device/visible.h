// The rules of attention for backends that compute on the host: which keys a query sees, and how scores are scaled.
#pragma once
#include "device/ops.h"
#include <math.h>

// Positions are counted from the first one whose key a call reads.

// Returns the number of positions of each sample, in a call or not; of those whose keys a call reads; and the position
// of the call's first query.
static inline int64_t attention_positions(const AttentionShape *shape) {
    return shape->keys ? shape->keys : shape->sequence;
}
static inline int64_t attention_keys(const AttentionShape *shape) {
    return shape->kept ? shape->kept : attention_positions(shape);
}
static inline int64_t attention_first_position(const AttentionShape *shape) {
    return shape->first_position - shape->first_kept;
}

// Returns the first key that query `query` of sample b sees. `first_key` may be absent.
static inline int64_t attention_first_key(Tensor first_key, int64_t window, const AttentionShape *shape,
                                          int64_t b, int64_t query) {
    int64_t first = 0, windowed = window ? attention_first_position(shape) + query - window + 1 : 0;
    if (first_key.data)
        first = ((const int32_t *)first_key.data)[query * shape->batch + b] - shape->first_kept;
    if (windowed > first) first = windowed;
    return first > 0 ? first : 0;
}

// Returns the end of the keys that a query sees.
static inline int64_t attention_end_of_keys(const AttentionShape *shape, int64_t query) {
    int64_t end = attention_first_position(shape) + query + 1, keys = attention_keys(shape);
    return end < keys ? end : keys;
}

// Returns the number of the element of a query and a key in the dropout mask of head 0 (AttentionShape).
static inline int64_t attention_element(const AttentionShape *shape, int64_t query, int64_t key) {
    return (shape->first_position + query) * attention_positions(shape) + shape->first_kept + key;
}

static inline float attention_scale(const AttentionShape *shape, const AttentionRules *rules) {
    return rules->scale > 0 ? rules->scale : 1.0f / sqrtf((float)shape->head_size);
}
