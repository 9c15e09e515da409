// Error statistics of predictions of measured rows.
#include "calibrate/calibrate.h"
#include <math.h>
#include <stdlib.h>

// Published counts: full recomputation adds a forward of all layers, selective recomputation an attention core
// (SC'21, eq. 3; Korthikanti 2022, section 6).
double plan_row_flops(const PlanRow *row) {
    const ModelShape *m = &row->model;
    ModelShape head = *m;
    head.layers = 0;
    double samples = row->config.batch, all = model_flops(m, m->vocabulary, samples);
    double core = 4.0 * samples * m->layers * m->sequence * m->sequence * m->heads * m->head_size;
    switch (row->config.recompute) {
    case RECOMPUTE_SELECTIVE: return all + core;
    case RECOMPUTE_UNIFORM: return all + (all - model_flops(&head, m->vocabulary, samples)) / 3;
    default: return all;
    }
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Returns a percentile of sorted numbers.
static double percentile(const double *sorted, int count, double share) {
    double at = share * (count - 1);
    int below = (int)at, above = below + 1 < count ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

static double mean(const double *values, int count) {
    double sum = 0;
    for (int i = 0; i < count; i++) sum += values[i];
    return sum / count;
}

// Returns the median of sorted numbers without element `left_out`.
static double median_without(const double *sorted, int count, int left_out) {
    int below = (count - 2) / 2, above = (count - 1) / 2;
    return (sorted[below + (below >= left_out)] + sorted[above + (above >= left_out)]) / 2;
}

// Returns a percentage; NAN for a single row, which has no others.
static double naive_error(double *rates, int count) {
    if (count < 2) return NAN;
    qsort(rates, (size_t)count, sizeof *rates, rising);
    double sum = 0;
    for (int i = 0; i < count; i++) sum += fabs(rates[i] / median_without(rates, count, i) - 1);
    return 100 * sum / count;
}

static double device_rate(const PlanRow *row) {
    const ParallelConfig *c = &row->config;
    return plan_row_flops(row) / row->step_s / ((double)grid_size(c->grid));
}

// errors [count]: signed, one per row; on return their absolute values, sorted.
static ErrorSummary summarise(double *errors, double *rates, int count) {
    ErrorSummary s = {.count = count, .naive = naive_error(rates, count), .bias = mean(errors, count)};
    for (int i = 0; i < count; i++) errors[i] = fabs(errors[i]);
    qsort(errors, (size_t)count, sizeof *errors, rising);
    s.mape = mean(errors, count);
    s.median = percentile(errors, count, 0.5);
    s.p90 = percentile(errors, count, 0.9);
    s.worst = errors[count - 1];
    s.skill = s.naive > 0 ? 1 - s.mape / s.naive : 0;
    return s;
}

ErrorSummary error_summary(const PlanRows *rows, const double *predicted_s) {
    double *errors = calloc(2 * (size_t)rows->count + 1, sizeof *errors), *rates = errors + rows->count;
    CHECK(errors, "no memory for %d rows", rows->count);
    int count = 0;
    for (int i = 0; i < rows->count; i++) {
        const PlanRow *row = &rows->items[i];
        if (row->step_s <= 0 || predicted_s[i] <= 0) continue;
        errors[count] = 100 * (predicted_s[i] / row->step_s - 1);
        rates[count++] = device_rate(row);
    }
    ErrorSummary summary = {.mape = NAN, .median = NAN, .p90 = NAN, .worst = NAN, .bias = NAN, .naive = NAN};
    summary.skill = NAN;
    if (count) summary = summarise(errors, rates, count);
    free(errors);
    return summary;
}
