// How far predictions are from measured rows, and the constants of a stack fitted to them.
#pragma once
#include "calibrate/rows.h"

// Floating-point operations of a row's step, all ranks: of the model, and what is computed again.
double plan_row_flops(const PlanRow *row);

// Of predictions against measurements, in percent of what was measured.
typedef struct {
    int count;                       // rows that were measured and predicted
    double mape, median, p90, worst; // of the absolute errors; mape is their mean
    double bias;                     // mean of the errors: above 0 predicts too long
    double naive;                    // mape of one rate for all: FLOP/s of a device, median of the others
    double skill;                    // 1 - mape / naive; of a share, not percent
} ErrorSummary;

// predicted_s [rows->count], 0 where nothing is predicted. Percentiles are interpolated between rows.
ErrorSummary error_summary(const PlanRows *rows, const double *predicted_s);

// How predictions came about, for the line below their table.
typedef struct {
    const char *protocol; // "leave one out"; NULL: as told elsewhere
    int num_free;         // constants fitted
} AccuracyTerms;

// A table of the rows with their errors, then accuracy_line.
void accuracy_print(const PlanRows *rows, const double *predicted_s, AccuracyTerms terms, Text *out);
// One line: n, free constants, protocol, errors, naive, skill.
void accuracy_line(const ErrorSummary *summary, AccuracyTerms terms, Text *out);

// Verdicts against measured rows: those that ran fit, those of metric oom do not; rows with memory_gb say how
// much they took. Rows whose microbatch, chunks or recomputation had to be guessed are left out.
typedef struct {
    int outcomes, right;             // verdicts with margin 0
    int false_fits, false_alarms;    // said to fit and did not; said not to fit and did
    int sure, sure_right;            // with the stack's margin, "perhaps" left out
    int measured, within;            // within 10 % of memory_gb
    double mape, median, p90, worst; // of those, percent
} MemoryScore;

// By the stack's constants.
Status memory_score(const Stack *stack, const PlanRows *rows, MemoryScore *score);
// Each of the folds by the activation_factor and reserve_gb that suit the others best, from the usual ones.
// `fitted` [2]: those two, of all rows.   ERR_DATA without rows that say something of memory.
Status memory_cross_validate(const Stack *stack, const PlanRows *rows, int folds, MemoryScore *score,
                             double fitted[2]);
void memory_score_print(const MemoryScore *score, Text *out);

// ---- calibration ----------------------------------------------------------------------------------

// Fits the free constants of a stack to rows, by least squares of log(predicted / measured). Large errors
// count by their size only (Huber 1964), and a pull towards the priors keeps what the rows do not tell where
// it was. An error is only ever reported of rows that a fit has not seen: each fold is predicted by a fit of
// the others, which starts from the priors.

// Seconds of a row's step with these constants; 0: the row is refused and takes no part in the fit.
typedef Status PredictRow(void *self, const Constants *constants, const PlanRow *row, double *step_s);

// What is held out together. Rows of one configuration (model, layout, batch) are near copies and never part.
typedef enum { LEAVE_ONE_OUT, LEAVE_MODEL_OUT, K_FOLDS } Protocol;

typedef struct {
    PredictRow *predict;
    void *self;
    Constants priors;    // of free constants above 0
    const bool *is_free; // [num_constants]
    Protocol protocol;
    int folds;    // of K_FOLDS
    double huber; // log error from which rows count by its size only; 0: 0.12
    double ridge; // log error of one row that weighs as much as a constant off by a factor e; 0: 0.05
} Calibration;

typedef struct {
    Constants constants;       // fitted to all rows
    Constants lowest, highest; // of the folds' fits: what the rows do not tell is wide
    double *held_out;          // [rows] by the fit that has not seen the row; 0: takes no part
    double *fitted;            // [rows] by the fit to all: for looking at, never an accuracy
    ErrorSummary summary;      // of held_out
    ErrorSummary in_sample;    // of fitted
    int num_free, num_folds;
    int refused; // timed rows that predict refused
} CalibrationResult;

// Deterministic.   ERR_DATA with fewer than two folds, ERR_CONFIG for a free constant without a prior, and
// what predict returns.
Status calibrate(const Calibration *calibration, const PlanRows *rows, CalibrationResult *out);
void calibration_free(CalibrationResult *result);
// The fold of each row that takes part, from 0, and how many there are; -1 for the others.
// predicted_s [rows]: 0 where a row is refused.
int calibration_folds(Protocol protocol, int folds, const PlanRows *rows, const double *predicted_s,
                      int *fold);
// "leave one out", "leave one model out", "5-fold"
void protocol_name(Protocol protocol, int folds, char name[32]);
// What a stack file says of it. `rows` and `date` are left to the caller.
Accuracy calibration_accuracy(const Calibration *calibration, const PlanRows *rows,
                              const CalibrationResult *result);
// The free constants before and after, which of them are at a bound, and accuracy_line.
void calibration_print(const Calibration *calibration, const CalibrationResult *result, Text *out);
