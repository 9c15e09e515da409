// Fits the rates of a CPU to measured times: non-negative least squares of relative errors, one fit per class.
#include "machine/rates.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

Status samples_add(Samples *samples, Sample sample) {
    if (samples->count == samples->capacity) {
        int capacity = samples->capacity ? 2 * samples->capacity : 256;
        Sample *items = realloc(samples->items, (size_t)capacity * sizeof *items);
        if (!items) return fail(ERR_OS, "no memory for %d measurements", capacity);
        samples->items = items;
        samples->capacity = capacity;
    }
    samples->items[samples->count++] = sample;
    return OK;
}

void samples_free(Samples *samples) {
    free(samples->items);
    *samples = (Samples){0};
}

// ---- sorting: by class, item and time ----------------------------------------

static int compare_class(const Sample *a, const Sample *b) {
    int names = strcmp(a->terms.name, b->terms.name);
    return names ? names : (a->dtype > b->dtype) - (a->dtype < b->dtype);
}

static int compare_item(const Sample *a, const Sample *b) {
    for (int i = 0; i < a->terms.count; i++)
        if (a->terms.values[i] != b->terms.values[i]) return a->terms.values[i] < b->terms.values[i] ? -1 : 1;
    return 0;
}

static int compare(const void *left, const void *right) {
    const Sample *a = left, *b = right;
    int order = compare_class(a, b);
    if (!order) order = compare_item(a, b);
    return order ? order : (a->seconds > b->seconds) - (a->seconds < b->seconds);
}

// Keeps one sample of each item, its median. The samples are sorted: equal items in a row, the fastest first.
static void keep_medians(Samples *samples) {
    int kept = 0;
    for (int i = 0, end; i < samples->count; i = end) {
        const Sample *first = &samples->items[i];
        for (end = i + 1; end < samples->count; end++)
            if (compare_class(first, &samples->items[end]) || compare_item(first, &samples->items[end]))
                break;
        samples->items[kept++] = samples->items[i + (end - i) / 2];
    }
    samples->count = kept;
}

// ---- non-negative least squares of relative errors -------------------------------------

typedef struct {
    double square[MAX_TERMS][MAX_TERMS], right[MAX_TERMS];
} Normal;

// Scales every term by its largest value relative to the measurement, so that all values are near 1.
static void find_scales(const Sample *items, int count, int terms, double *scale) {
    for (int j = 0; j < terms; j++) {
        scale[j] = 0;
        for (int i = 0; i < count; i++)
            scale[j] = fmax(scale[j], items[i].terms.values[j] / items[i].seconds);
    }
}

static Normal normal_equations(const Sample *items, int count, int terms, const double *scale) {
    Normal n = {0};
    for (int i = 0; i < count; i++) {
        double row[MAX_TERMS];
        for (int j = 0; j < terms; j++)
            row[j] = scale[j] > 0 ? items[i].terms.values[j] / items[i].seconds / scale[j] : 0;
        for (int j = 0; j < terms; j++) {
            n.right[j] += row[j];
            for (int k = 0; k < terms; k++) n.square[j][k] += row[j] * row[k];
        }
    }
    return n;
}

// Coordinate descent: each unknown in turn gets its best non-negative value. This converges to the minimum because
// the sum of squares is convex.
static void solve(const Normal *n, int terms, double *x) {
    enum { SWEEPS = 50000 };
    for (int j = 0; j < terms; j++) x[j] = 0;
    for (int sweep = 0; sweep < SWEEPS; sweep++)
        for (int j = 0; j < terms; j++) {
            double rest = n->right[j];
            for (int k = 0; k < terms; k++) rest -= k == j ? 0 : n->square[j][k] * x[k];
            x[j] = n->square[j][j] > 0 ? fmax(0, rest / n->square[j][j]) : 0;
        }
}

static double mean_error(const Sample *items, int count, const double *seconds) {
    double sum = 0;
    for (int i = 0; i < count; i++) {
        double fitted = 0;
        for (int j = 0; j < items[i].terms.count; j++) fitted += seconds[j] * items[i].terms.values[j];
        sum += fabs(fitted / items[i].seconds - 1);
    }
    return sum / count;
}

static Rate fit_class(const Sample *items, int count, int ranks) {
    int terms = items->terms.count;
    double scale[MAX_TERMS];
    Rate row = {.dtype = items->dtype, .ranks = ranks, .count = terms};
    memcpy(row.op, items->terms.name, sizeof row.op);
    find_scales(items, count, terms, scale);
    Normal normal = normal_equations(items, count, terms, scale);
    solve(&normal, terms, row.seconds);
    for (int j = 0; j < terms; j++) row.seconds[j] = scale[j] > 0 ? row.seconds[j] / scale[j] : 0;
    row.error = mean_error(items, count, row.seconds);
    return row;
}

static Status add_rate(Machine *machine, Rate row) {
    Rate *rates = realloc(machine->rates, (size_t)(machine->num_rates + 1) * sizeof *rates);
    if (!rates) return fail(ERR_OS, "no memory for the rates of a machine");
    machine->rates = rates;
    rates[machine->num_rates++] = row;
    return OK;
}

Status rates_fit(Machine *machine, Samples *samples, int ranks) {
    qsort(samples->items, (size_t)samples->count, sizeof *samples->items, compare);
    keep_medians(samples);
    for (int i = 0, end; i < samples->count; i = end) {
        const Sample *first = &samples->items[i];
        for (end = i + 1; end < samples->count && !compare_class(first, &samples->items[end]); end++) {
        }
        TRY(add_rate(machine, fit_class(first, end - i, ranks)));
    }
    return OK;
}
