// Finds weights that are NaN or infinite: a model that has one computes nothing else.
#pragma once
#include <stdint.h>

// How many of `count` values are; `*first` (may be NULL) is the place of the first one.
int64_t count_non_finite(const float *values, int64_t count, int64_t *first);
