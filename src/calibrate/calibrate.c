// Fits the free constants of a stack to measured rows, and predicts every row by a fit that has not seen it.
#include "calibrate/calibrate.h"
#include "calibrate/fit.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double USUAL_HUBER = 0.12, USUAL_RIDGE = 0.05;

// ---- folds --------------------------------------------------------------------------------------

static uint64_t mix(uint64_t hash, uint64_t number) {
    for (int byte = 0; byte < 8; byte++) hash = (hash ^ (number >> 8 * byte & 0xff)) * 0x100000001b3;
    return hash;
}

static uint64_t mix_all(const int *numbers, size_t count) {
    uint64_t hash = 0xcbf29ce484222325; // FNV-1a
    for (size_t i = 0; i < count; i++) hash = mix(hash, (uint64_t)numbers[i]);
    return hash ^ hash >> 32;
}

// Returns a key that is equal for rows that are held out together. Kernels, precision and the date of a measurement
// do not count: rows that differ only in those are near copies.
static uint64_t key_of(const PlanRow *row, Protocol protocol) {
    const ModelShape *m = &row->model;
    const ParallelConfig *c = &row->config;
    if (protocol == LEAVE_MODEL_OUT) {
        uint64_t hash = mix_all(NULL, 0);
        for (const char *name = row->model_name; *name; name++) hash = mix(hash, (uint8_t)*name);
        if (*row->model_name) return hash;
        return mix_all((int[]){m->layers, m->hidden, m->heads, m->ffn, (int)m->activation}, 5);
    }
    int numbers[] = {m->layers,
                     m->hidden,
                     m->heads,
                     m->groups,
                     m->ffn,
                     m->vocabulary,
                     m->sequence,
                     grid_along(c->grid, AXIS_TP),
                     grid_along(c->grid, AXIS_DP),
                     grid_along(c->grid, AXIS_PP),
                     grid_along(c->grid, AXIS_CP),
                     c->chunks,
                     c->microbatch,
                     c->batch,
                     c->zero_stage,
                     (int)c->recompute};
    uint64_t hash = mix_all(numbers, sizeof numbers / sizeof *numbers);
    return m->experts ? mix(hash, (uint64_t)grid_along(c->grid, AXIS_EP)) : hash;
}

static int rising(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int sort_unique(uint64_t *keys, int count) {
    int unique = 0;
    qsort(keys, (size_t)count, sizeof *keys, rising);
    for (int i = 0; i < count; i++)
        if (!unique || keys[i] != keys[unique - 1]) keys[unique++] = keys[i];
    return unique;
}

static bool takes_part(const PlanRow *row, double predicted_s) { return row->step_s > 0 && predicted_s > 0; }

int calibration_folds(Protocol protocol, int folds, const PlanRows *rows, const double *predicted_s,
                      int *fold) {
    uint64_t *keys = calloc((size_t)rows->count + 1, sizeof *keys);
    CHECK(keys, "no memory for %d rows", rows->count);
    int count = 0;
    for (int i = 0; i < rows->count; i++)
        if (takes_part(&rows->items[i], predicted_s[i])) keys[count++] = key_of(&rows->items[i], protocol);
    int unique = sort_unique(keys, count);
    int used = protocol == K_FOLDS && folds < unique ? folds : unique;
    for (int i = 0; i < rows->count; i++) {
        fold[i] = -1;
        if (!takes_part(&rows->items[i], predicted_s[i])) continue;
        uint64_t key = key_of(&rows->items[i], protocol);
        const uint64_t *place = bsearch(&key, keys, (size_t)unique, sizeof *keys, rising);
        fold[i] = (int)((place - keys) % used);
    }
    free(keys);
    return used;
}

void protocol_name(Protocol protocol, int folds, char name[32]) {
    switch (protocol) {
    case LEAVE_ONE_OUT: snprintf(name, 32, "leave one out"); break;
    case LEAVE_MODEL_OUT: snprintf(name, 32, "leave one model out"); break;
    case K_FOLDS: snprintf(name, 32, "%d-fold", folds); break;
    }
}

// ---- one fit ------------------------------------------------------------------------------------

typedef struct {
    const Calibration *calibration;
    const PlanRows *rows;
    int *chosen; // [num_chosen] rows of this fit
    int num_chosen;
    int *fold;           // [rows]
    int which[MAX_FREE]; // rows of the table of constants
    int num_free;
    double prior[MAX_FREE], low[MAX_FREE], high[MAX_FREE]; // logarithms
} Job;

static Constants constants_at(const Job *job, const double *x) {
    Constants constants = job->calibration->priors;
    for (int j = 0; j < job->num_free; j++) *constant_at(&constants, job->which[j]) = exp(x[j]);
    return constants;
}

static Status predict_row(const Job *job, const Constants *constants, int i, double *step_s) {
    const PlanRow *row = &job->rows->items[i];
    *step_s = 0;
    TRY(job->calibration->predict(job->calibration->self, constants, row, step_s));
    if (!isfinite(*step_s) || *step_s < 0)
        return fail(ERR_NUMERIC, "row %s: the prediction is %g seconds", row->id, *step_s);
    return OK;
}

static Status log_errors(void *self, const double *x, double *errors) {
    const Job *job = self;
    Constants constants = constants_at(job, x);
    for (int i = 0; i < job->num_chosen; i++) {
        double predicted_s;
        TRY(predict_row(job, &constants, job->chosen[i], &predicted_s));
        if (predicted_s <= 0)
            return fail(ERR_NUMERIC, "row %s: was predicted before, but is refused with other constants",
                        job->rows->items[job->chosen[i]].id);
        errors[i] = log(predicted_s / job->rows->items[job->chosen[i]].step_s);
    }
    return OK;
}

// Fits to all rows that take part, without those of fold `without`; -1: to all of them.
static Status fit_without(Job *job, int without, Constants *constants) {
    const Calibration *c = job->calibration;
    double x[MAX_FREE];
    job->num_chosen = 0;
    for (int i = 0; i < job->rows->count; i++)
        if (job->fold[i] >= 0 && job->fold[i] != without) job->chosen[job->num_chosen++] = i;
    FitProblem problem = {.num_errors = job->num_chosen,
                          .num_free = job->num_free,
                          .errors = log_errors,
                          .self = job,
                          .prior = job->prior,
                          .low = job->low,
                          .high = job->high,
                          .huber = c->huber > 0 ? c->huber : USUAL_HUBER,
                          .ridge = c->ridge > 0 ? c->ridge : USUAL_RIDGE};
    TRY(fit_minimise(&problem, x));
    *constants = constants_at(job, x);
    return OK;
}

// Fits work on logarithms. A bound of 0 has none, so a millionth of the prior stands for it.
static Status choose_free(Job *job) {
    Constants priors = job->calibration->priors;
    for (int i = 0; i < num_constants; i++) {
        if (!job->calibration->is_free[i]) continue;
        const ConstantInfo *info = &constant_table[i];
        double prior = *constant_at(&priors, i);
        if (!(prior > 0 && prior >= info->lowest && prior <= info->highest))
            return fail(ERR_CONFIG,
                        "constant %s: the fit starts at %g; a number above 0 and from %g to %g is needed",
                        info->name, prior, info->lowest, info->highest);
        if (job->num_free == MAX_FREE) return fail(ERR_CONFIG, "more than %d free constants", MAX_FREE);
        job->which[job->num_free] = i;
        job->prior[job->num_free] = log(prior);
        job->low[job->num_free] = log(fmax(info->lowest, 1e-6 * prior));
        job->high[job->num_free++] = log(info->highest);
    }
    return OK;
}

// ---- all of them --------------------------------------------------------------------------------

static Status predict_all(const Job *job, const Constants *constants, int fold, double *predicted_s) {
    for (int i = 0; i < job->rows->count; i++)
        if (job->fold[i] >= 0 && (fold < 0 || job->fold[i] == fold))
            TRY(predict_row(job, constants, i, &predicted_s[i]));
    return OK;
}

// Predicts with the priors, which decides which rows take part.
static Status find_folds(Job *job, CalibrationResult *out) {
    for (int i = 0; i < job->rows->count; i++) {
        if (job->rows->items[i].step_s <= 0) continue;
        TRY(predict_row(job, &job->calibration->priors, i, &out->fitted[i]));
        out->refused += out->fitted[i] <= 0;
    }
    out->num_folds = calibration_folds(job->calibration->protocol, job->calibration->folds, job->rows,
                                       out->fitted, job->fold);
    if (out->num_folds < 2)
        return fail(ERR_DATA,
                    "%d configuration%s to calibrate with (%d rows, %d refused): at least 2 are needed",
                    out->num_folds, out->num_folds == 1 ? "" : "s", job->rows->count, out->refused);
    return OK;
}

static void widen(const Job *job, const Constants *constants, CalibrationResult *out) {
    Constants copy = *constants;
    for (int j = 0; j < job->num_free; j++) {
        int i = job->which[j];
        double value = *constant_at(&copy, i), *low = constant_at(&out->lowest, i);
        double *high = constant_at(&out->highest, i);
        *low = fmin(*low, value);
        *high = fmax(*high, value);
    }
}

static Status fit_folds(Job *job, CalibrationResult *out) {
    Constants constants;
    for (int fold = 0; fold < out->num_folds; fold++) {
        TRY(fit_without(job, fold, &constants));
        if (!fold) out->lowest = out->highest = constants;
        widen(job, &constants, out);
        TRY(predict_all(job, &constants, fold, out->held_out));
    }
    return OK;
}

static Status run(Job *job, CalibrationResult *out) {
    TRY(choose_free(job));
    TRY(find_folds(job, out));
    TRY(fit_folds(job, out));
    TRY(fit_without(job, -1, &out->constants));
    TRY(predict_all(job, &out->constants, -1, out->fitted));
    out->num_free = job->num_free;
    out->summary = error_summary(job->rows, out->held_out);
    out->in_sample = error_summary(job->rows, out->fitted);
    return OK;
}

Status calibrate(const Calibration *calibration, const PlanRows *rows, CalibrationResult *out) {
    CHECK(calibration->protocol != K_FOLDS || calibration->folds > 1, "%d folds", calibration->folds);
    size_t n = (size_t)rows->count + 1;
    Job job = {.calibration = calibration, .rows = rows};
    *out = (CalibrationResult){.held_out = calloc(n, sizeof *out->held_out),
                               .fitted = calloc(n, sizeof *out->fitted)};
    job.chosen = calloc(n, sizeof *job.chosen);
    job.fold = calloc(n, sizeof *job.fold);
    Status status = out->held_out && out->fitted && job.chosen && job.fold
                        ? run(&job, out)
                        : fail(ERR_OS, "no memory to calibrate with %d rows", rows->count);
    free(job.chosen);
    free(job.fold);
    if (status != OK) calibration_free(out);
    return status;
}

void calibration_free(CalibrationResult *result) {
    free(result->held_out);
    free(result->fitted);
    *result = (CalibrationResult){0};
}

// ---- what is kept of it -------------------------------------------------------------------------

static void reach(double value, double *least, double *most) {
    if (*least == 0 || value < *least) *least = value;
    if (value > *most) *most = value;
}

Accuracy calibration_accuracy(const Calibration *calibration, const PlanRows *rows,
                              const CalibrationResult *result) {
    const ErrorSummary *s = &result->summary;
    Accuracy a = {.count = s->count,
                  .mape = s->mape,
                  .median = s->median,
                  .p90 = s->p90,
                  .worst = s->worst,
                  .naive = s->naive};
    char method[32];
    protocol_name(calibration->protocol, result->num_folds, method);
    snprintf(a.method, sizeof a.method, "%s, %d free constants", method, result->num_free);
    for (int i = 0; i < rows->count; i++) {
        const PlanRow *row = &rows->items[i];
        if (result->held_out[i] <= 0) continue;
        reach((double)grid_size(row->config.grid), &a.least_gpus, &a.most_gpus);
        reach(row->model.hidden, &a.least_hidden, &a.most_hidden);
        reach(grid_along(row->config.grid, AXIS_TP), &a.least_tp, &a.most_tp);
        reach(row->model.sequence, &a.least_sequence, &a.most_sequence);
    }
    return a;
}
