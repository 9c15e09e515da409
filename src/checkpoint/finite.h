// Finds weights that are NaN or infinite: one of them makes every result of the model NaN.
#pragma once
#include <stdint.h>

// The number of such values among `count`. `*first` (may be NULL) receives the index of the first one.
int64_t count_non_finite(const float *values, int64_t count, int64_t *first);
