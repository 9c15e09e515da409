// Times of benchmarks: the middle of some measurements, which one slow moment of a shared machine does not
// move.
#pragma once
#include <stdlib.h>
#include <time.h>

static inline int measured_less(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sorts the values.
static inline double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, measured_less);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static inline double now_s(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// The median time of work(self), after one call to warm up: at least 3 calls, then as many as a quarter of a
// second has room for. Processor time for one thread, which other programs disturb less, and wall time for
// several.
static inline double median_time(int threads, void (*work)(void *self), void *self) {
    enum { MAX_CALLS = 25, FEWEST_CALLS = 3 };
    clockid_t clock = threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    double times[MAX_CALLS], total = 0;
    int count = 0;
    work(self);
    while (count < MAX_CALLS && (count < FEWEST_CALLS || total < 0.25)) {
        double start = now_s(clock);
        work(self);
        total += times[count++] = now_s(clock) - start;
    }
    return median(times, count);
}
