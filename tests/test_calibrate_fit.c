// Tests the fit of constants to measured rows: it recovers what made them, and resists wrong rows.
#include "base/rng.h"
#include "calibrate/calibrate.h"
#include "calibrate/fit.h"
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- least squares ------------------------------------------------------------------------------

// A narrow curved valley; its floor is at (1, 1). Source: Rosenbrock 1960.
static Status valley(void *self, const double *x, double *errors) {
    (void)self;
    errors[0] = 10 * (x[1] - x[0] * x[0]);
    errors[1] = 1 - x[0];
    return OK;
}

static void valleys_are_followed(void) {
    FitProblem problem = {.num_errors = 2, .num_free = 2, .errors = valley, .huber = 1e9};
    problem.prior = (const double[]){-1.2, 1};
    problem.low = (const double[]){-5, -5};
    problem.high = (const double[]){5, 5};
    double x[2];
    EXPECT_OK(fit_minimise(&problem, x));
    EXPECT(fabs(x[0] - 1) < 1e-4 && fabs(x[1] - 1) < 1e-4, "at %g, %g", x[0], x[1]);
    // With a wall at 0.5 the lowest place is on it.
    problem.high = (const double[]){0.5, 5};
    EXPECT_OK(fit_minimise(&problem, x));
    EXPECT(x[0] == 0.5 && fabs(x[1] - 0.25) < 1e-4, "at the wall: %g, %g", x[0], x[1]);
}

// Errors that count by their size only: their sum is least at the median.
static Status distances(void *self, const double *x, double *errors) {
    const double *points = self;
    for (int i = 0; i < 5; i++) errors[i] = x[0] - points[i];
    return OK;
}

static void far_points_count_little(void) {
    double points[] = {1, 2, 3, 50, 90}, x;
    FitProblem problem = {.num_errors = 5, .num_free = 1, .errors = distances, .self = points, .huber = 1e-3};
    problem.prior = (const double[]){10};
    problem.low = (const double[]){-100};
    problem.high = (const double[]){100};
    EXPECT_OK(fit_minimise(&problem, &x));
    EXPECT(fabs(x - 3) < 0.01, "the median is at %g", x);
    problem.huber = 1e9;
    EXPECT_OK(fit_minimise(&problem, &x));
    EXPECT(fabs(x - 29.2) < 1e-3, "the mean is at %g", x);
    problem.ridge = sqrt(5); // as heavy as all of them
    EXPECT_OK(fit_minimise(&problem, &x));
    EXPECT(fabs(x - (29.2 + 10) / 2) < 1e-3, "pulled to %g", x);
}

// ---- a synthetic stack --------------------------------------------------------------------------

enum { FREE = 4, MAX_ROWS = 60 };

// A step's time is a sum of parts, each in proportion to a constant over its true value.
typedef struct {
    int which[FREE]; // rows of the table of constants
    double truth[FREE];
    double work[MAX_ROWS][FREE];
    PlanRow rows[MAX_ROWS];
    int num_parts; // parts that are in the time
    bool free[MAX_CONSTANTS];
    Constants priors;
    int refused; // this row is; -1: none
} World;

static Status predict_world(void *self, const Constants *constants, const PlanRow *row, double *step_s) {
    World *w = self;
    Constants copy = *constants;
    *step_s = 0;
    if (row->line == w->refused) return OK;
    for (int j = 0; j < w->num_parts; j++)
        *step_s += w->work[row->line][j] * *constant_at(&copy, w->which[j]) / w->truth[j];
    return OK;
}

static double noise(uint64_t i, double scale) { return exp(scale * rng_normal(rng_key(11, "noise", 0), i)); }

static PlanRows make_world(World *w, int count, double scale) {
    *w = (World){.num_parts = FREE, .refused = -1};
    for (int i = 0, j = 0; j < FREE; i++) {
        const ConstantInfo *info = &constant_table[i];
        if (info->lowest <= 0 || info->highest < 9 * info->lowest) continue;
        w->which[j] = i;
        w->truth[j] = sqrt(info->lowest * info->highest);
        w->free[i] = true;
        *constant_at(&w->priors, i) = w->truth[j] * (j % 2 ? 1.3 : 0.8);
        j++;
    }
    for (int i = 0; i < count; i++) {
        PlanRow *row = &w->rows[i];
        for (int j = 0; j < FREE; j++) w->work[i][j] = noise((uint64_t)(1000 + FREE * i + j), 1.0);
        for (int j = 0; j < FREE; j++) row->step_s += w->work[i][j] * noise((uint64_t)i, scale);
        row->line = i;
        row->model = (ModelShape){.layers = 8,
                                  .hidden = 64 * (1 + i),
                                  .heads = 4,
                                  .head_size = 16,
                                  .ffn = 256,
                                  .sequence = 128,
                                  .vocabulary = 512};
        row->config =
            (ParallelConfig){.grid = GRID(1 + i % 2, 1, 1), .chunks = 1, .microbatch = 1, .batch = 8};
        snprintf(row->id, sizeof row->id, "row-%d", i);
        snprintf(row->model_name, sizeof row->model_name, "model-%d", i % 3);
    }
    return (PlanRows){.items = w->rows, .count = count};
}

static Calibration calibration_of(World *w, Protocol protocol, int folds) {
    return (Calibration){.predict = predict_world,
                         .self = w,
                         .priors = w->priors,
                         .is_free = w->free,
                         .protocol = protocol,
                         .folds = folds};
}

static CalibrationResult calibrate_world(World *w, const PlanRows *rows, Protocol protocol, int folds) {
    CalibrationResult result = {0};
    Calibration c = calibration_of(w, protocol, folds);
    EXPECT_OK(calibrate(&c, rows, &result));
    return result;
}

static double found(World *w, const CalibrationResult *result, int j) {
    Constants copy = result->constants;
    return *constant_at(&copy, w->which[j]) / w->truth[j];
}

static void constants_are_recovered(void) {
    static const double SCALES[] = {0, 0.02}, WITHIN[] = {0.005, 0.06};
    World w;
    for (int s = 0; s < 2; s++) {
        PlanRows rows = make_world(&w, MAX_ROWS, SCALES[s]);
        Calibration c = calibration_of(&w, K_FOLDS, 5);
        CalibrationResult r;
        c.ridge = 0.01;
        EXPECT_OK(calibrate(&c, &rows, &r));
        for (int j = 0; j < FREE; j++)
            EXPECT(fabs(found(&w, &r, j) - 1) < WITHIN[s], "noise %g: constant %d is off by %g", SCALES[s], j,
                   found(&w, &r, j) - 1);
        EXPECT(r.num_folds == 5 && r.num_free == FREE && r.summary.count == MAX_ROWS, "%d folds",
               r.num_folds);
        EXPECT(r.summary.mape < 100 * SCALES[s] + 0.1 && r.summary.naive > 10, "MAPE %g, naive %g",
               r.summary.mape, r.summary.naive);
        calibration_free(&r);
    }
}

// A row's own measurement has no influence on what is predicted for it, whatever the protocol.
static void held_out_rows_are_not_seen(void) {
    static const Protocol PROTOCOLS[] = {LEAVE_ONE_OUT, LEAVE_MODEL_OUT, K_FOLDS};
    World w;
    for (int p = 0; p < 3; p++) {
        PlanRows rows = make_world(&w, 12, 0.1);
        CalibrationResult before = calibrate_world(&w, &rows, PROTOCOLS[p], 4);
        rows.items[5].step_s *= 3;
        CalibrationResult after = calibrate_world(&w, &rows, PROTOCOLS[p], 4);
        EXPECT(before.held_out[5] == after.held_out[5], "protocol %d: %.17g, then %.17g", p,
               before.held_out[5], after.held_out[5]);
        EXPECT(before.fitted[5] != after.fitted[5], "protocol %d: the fit to all does not see it", p);
        calibration_free(&before);
        calibration_free(&after);
    }
}

static void overfitting_shows(void) {
    World w;
    PlanRows rows = make_world(&w, 6, 0.3);
    CalibrationResult r = calibrate_world(&w, &rows, LEAVE_ONE_OUT, 0);
    EXPECT(r.num_folds == 6 && r.summary.mape > 1.3 * r.in_sample.mape, "held out %g %%, in sample %g %%",
           r.summary.mape, r.in_sample.mape);
    calibration_free(&r);
}

static void what_rows_do_not_tell_stays(void) {
    World w;
    PlanRows rows = make_world(&w, 20, 0);
    for (int i = 0; i < 20; i++) rows.items[i].step_s -= w.work[i][FREE - 1];
    w.num_parts = FREE - 1;
    CalibrationResult r = calibrate_world(&w, &rows, K_FOLDS, 4);
    double prior = *constant_at(&w.priors, w.which[FREE - 1]) / w.truth[FREE - 1];
    EXPECT(fabs(found(&w, &r, FREE - 1) / prior - 1) < 1e-12, "moved to %g", found(&w, &r, FREE - 1));
    EXPECT(fabs(found(&w, &r, 0) - 1) < 0.02, "another is at %g", found(&w, &r, 0));
    calibration_free(&r);
}

static void bounds_hold(void) {
    World w;
    PlanRows rows = make_world(&w, 20, 0);
    const ConstantInfo *info = &constant_table[w.which[1]];
    w.truth[1] = info->highest * 2; // the rows ask for twice what is allowed
    CalibrationResult r = calibrate_world(&w, &rows, K_FOLDS, 4);
    Constants copy = r.constants;
    double value = *constant_at(&copy, w.which[1]);
    EXPECT(fabs(value / info->highest - 1) < 1e-9, "%g of at most %g", value, info->highest);
    Text text = {0};
    Calibration c = calibration_of(&w, K_FOLDS, 4);
    calibration_print(&c, &r, &text);
    EXPECT(strstr(text_string(&text), "at its upper bound") && strstr(text_string(&text), info->name) &&
               strstr(text_string(&text), "n 20, 4 free constants, 4-fold: MAPE"),
           "%s", text_string(&text));
    text_free(&text);
    calibration_free(&r);
}

static void one_wrong_row_moves_little(void) {
    World w;
    PlanRows rows = make_world(&w, 30, 0.01);
    rows.items[4].step_s *= 5;
    CalibrationResult r = calibrate_world(&w, &rows, K_FOLDS, 5);
    for (int j = 0; j < FREE; j++)
        EXPECT(fabs(found(&w, &r, j) - 1) < 0.1, "constant %d moved to %g", j, found(&w, &r, j));
    calibration_free(&r);
}

// ---- who is held out ----------------------------------------------------------------------------

static void copies_stay_together(void) {
    World w;
    PlanRows rows = make_world(&w, 23, 0);
    double predicted[23];
    int fold[23], sizes[5] = {0};
    for (int i = 0; i < 23; i++) predicted[i] = 1;
    for (int i = 20; i < 23; i++) { // measured again, on another day with another kernel
        rows.items[i] = rows.items[i - 20];
        rows.items[i].step_s *= 1.1;
        snprintf(rows.items[i].kernel, sizeof rows.items[i].kernel, "other");
    }
    predicted[7] = 0;
    rows.items[8].step_s = 0;
    EXPECT(calibration_folds(K_FOLDS, 5, &rows, predicted, fold) == 5, "five folds");
    for (int i = 0; i < 20; i++) sizes[fold[i] < 0 ? 0 : fold[i]] += fold[i] >= 0;
    for (int f = 0; f < 5; f++)
        EXPECT(sizes[f] >= 3 && sizes[f] <= 4, "%d configurations in a fold", sizes[f]);
    for (int i = 20; i < 23; i++) EXPECT(fold[i] == fold[i - 20], "row %d is apart from its copy", i);
    EXPECT(fold[7] == -1 && fold[8] == -1, "rows that take no part: %d, %d", fold[7], fold[8]);
    EXPECT(calibration_folds(LEAVE_ONE_OUT, 0, &rows, predicted, fold) == 18, "18 configurations");
    EXPECT(calibration_folds(K_FOLDS, 100, &rows, predicted, fold) == 18, "no empty folds");
    EXPECT(calibration_folds(LEAVE_MODEL_OUT, 0, &rows, predicted, fold) == 3, "three models");
    for (int i = 0; i < 20; i++) EXPECT(fold[i] < 0 || fold[i] == fold[i % 3 + 9], "row %d", i);
}

// A row is no copy of one that runs otherwise.
static void other_layouts_are_no_copies(void) {
    World w;
    PlanRows rows = make_world(&w, 8, 0);
    double predicted[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    int fold[8];
    for (int i = 1; i < 8; i++) rows.items[i] = rows.items[0];
    rows.items[1].config.microbatch = 2;
    rows.items[2].config.batch = 16;
    rows.items[3].config.grid = (Grid)GRID(1, 2, 1);
    rows.items[4].config.chunks = 2;
    rows.items[5].config.recompute = RECOMPUTE_UNIFORM;
    rows.items[6].model.sequence = 256;
    EXPECT(calibration_folds(LEAVE_ONE_OUT, 0, &rows, predicted, fold) == 7, "seven configurations");
    EXPECT(fold[7] == fold[0], "and a copy");
}

static void what_takes_no_part_is_reported(void) {
    World w;
    PlanRows rows = make_world(&w, 10, 0);
    w.refused = 3;
    rows.items[6].step_s = 0;
    CalibrationResult r = calibrate_world(&w, &rows, LEAVE_ONE_OUT, 0);
    EXPECT(r.refused == 1 && r.summary.count == 8 && r.held_out[3] == 0 && r.held_out[6] == 0,
           "%d refused, %d used", r.refused, r.summary.count);
    Calibration c = calibration_of(&w, LEAVE_ONE_OUT, 0);
    Accuracy a = calibration_accuracy(&c, &rows, &r);
    EXPECT(a.count == 8 && a.mape == r.summary.mape && !strcmp(a.method, "leave one out, 4 free constants"),
           "%s", a.method);
    EXPECT(a.least_hidden == 64 && a.most_hidden == 640 && a.least_gpus == 1 && a.most_tp == 2,
           "hidden %g to %g", a.least_hidden, a.most_hidden);
    calibration_free(&r);
}

static void impossible_fits_are_refused(void) {
    World w;
    PlanRows rows = make_world(&w, 10, 0);
    Calibration c = calibration_of(&w, LEAVE_ONE_OUT, 0);
    CalibrationResult r;
    *constant_at(&c.priors, w.which[2]) = 0;
    EXPECT(calibrate(&c, &rows, &r) == ERR_CONFIG && strstr(fail_message(), constant_table[w.which[2]].name),
           "%s", fail_message());
    c = calibration_of(&w, LEAVE_ONE_OUT, 0);
    rows.count = 1;
    EXPECT(calibrate(&c, &rows, &r) == ERR_DATA && strstr(fail_message(), "at least 2"), "%s",
           fail_message());
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"fit: valleys are followed", valleys_are_followed},
                                      {"fit: far points count little", far_points_count_little},
                                      {"constants are recovered", constants_are_recovered},
                                      {"held-out rows are not seen", held_out_rows_are_not_seen},
                                      {"overfitting shows", overfitting_shows},
                                      {"what rows do not tell stays", what_rows_do_not_tell_stays},
                                      {"bounds hold", bounds_hold},
                                      {"one wrong row moves little", one_wrong_row_moves_little},
                                      {"copies stay together", copies_stay_together},
                                      {"other layouts are no copies", other_layouts_are_no_copies},
                                      {"what takes no part is reported", what_takes_no_part_is_reported},
                                      {"impossible fits are refused", impossible_fits_are_refused},
                                      {0}},
                       argc, argv);
}
