// Counts values that are NaN or infinite.
#include "checkpoint/finite.h"
#include <stdbool.h>
#include <string.h>

static bool is_non_finite(float value) {
    const uint32_t exponent = 0x7f800000;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (bits & exponent) == exponent;
}

int64_t count_non_finite(const float *values, int64_t count, int64_t *first) {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) found += is_non_finite(values[i]);
    for (int64_t i = 0; found && first; i++)
        if (is_non_finite(values[i])) {
            *first = i;
            break;
        }
    return found;
}
