// The middle of some measurements, which one slow moment of a shared machine does not move.
#pragma once
#include <stdlib.h>

static inline int measured_less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sorts the values.
static inline double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, measured_less);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}
