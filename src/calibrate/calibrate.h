// Errors of predictions of measured rows, and fits of a stack's constants to such rows.
#pragma once
#include "calibrate/rows.h"

// Returns the floating-point operations of a row's step on all ranks: those of the model and of recomputation.
double plan_row_flops(const PlanRow *row);

// Errors of predictions, in percent of the measured time.
typedef struct {
    int count;                       // rows that are both measured and predicted
    double mape, median, p90, worst; // of the absolute errors; mape is their mean
    double bias;                     // mean of the signed errors; above 0: predictions are too long
    double naive; // mape of one rate for all rows: the median FLOP/s per device of the other rows
    double skill; // 1 - mape / naive, a fraction
} ErrorSummary;

// Summarises the errors of predicted_s [rows->count], which is 0 where nothing is predicted. Percentiles are
// interpolated between rows.
ErrorSummary error_summary(const PlanRows *rows, const double *predicted_s);

// The way in which the predictions were made; printed below their table.
typedef struct {
    const char *protocol; // "leave one out"; NULL: not printed
    int num_free;         // constants fitted
} AccuracyTerms;

// Prints a table of the rows with their errors, then accuracy_line.
void accuracy_print(const PlanRows *rows, const double *predicted_s, AccuracyTerms terms, Text *out);
// Prints one line: number of rows, free constants, protocol, errors, naive, skill.
void accuracy_line(const ErrorSummary *summary, AccuracyTerms terms, Text *out);

// Predictions of memory against measured rows: a row that ran fits, a row with metric oom does not; rows with
// memory_gb say how much they took. Rows whose microbatch, chunks or recomputation were guessed are left out.
typedef struct {
    int outcomes, right;             // verdicts of the total alone, without the margin
    int false_fits, false_alarms;    // predicted to fit, but did not; predicted not to fit, but did
    int sure, sure_right;            // verdicts with the margin, without those of "perhaps"
    int measured, within;            // rows with memory_gb; predictions within 10 % of it
    double mape, median, p90, worst; // of the absolute errors of those, percent
} MemoryScore;

// Scores the rows with the stack's constants.
Status memory_score(const Stack *stack, const PlanRows *rows, MemoryScore *score);
// Scores each fold with the activation_factor and reserve_gb that suit the other folds best, starting from the usual
// values. fitted [2]: the two constants that suit all rows best.   ERR_DATA without rows that say something about
// memory.
Status memory_cross_validate(const Stack *stack, const PlanRows *rows, int folds, MemoryScore *score,
                             double fitted[2]);
void memory_score_print(const MemoryScore *score, Text *out);

// ---- calibration ----------------------------------------------------------------------------------

// Fits the free constants of a stack to rows, by least squares of log(predicted / measured). Large errors count
// linearly (Huber 1964); a ridge keeps constants that the rows do not determine near their priors. Errors are only
// reported for rows that a fit has not seen: each fold is predicted by a fit to the others, which starts from the
// priors.

// Predicts the seconds of a row's step with these constants; 0: the row is refused and takes no part in the fit.
typedef Status PredictRow(void *self, const Constants *constants, const PlanRow *row, double *step_s);

// The choice of rows that are held out together. Rows of one configuration (model, layout, batch) are near copies: they
// always go together.
typedef enum { LEAVE_ONE_OUT, LEAVE_MODEL_OUT, K_FOLDS } Protocol;

typedef struct {
    PredictRow *predict;
    void *self;
    Constants priors;    // start of each fit; above 0 for free constants
    const bool *is_free; // [num_constants]
    Protocol protocol;
    int folds;    // for K_FOLDS
    double huber; // log error from which on errors count linearly; 0: 0.12
    // Log error of one row that weighs as much as a constant that is off by a factor of e; 0: 0.05.
    double ridge;
} Calibration;

typedef struct {
    Constants constants; // fitted to all rows
    Constants lowest,
        highest;          // of the fits of all folds: far apart where the rows do not determine a constant
    double *held_out;     // [rows] predicted by the fit that has not seen the row; 0: takes no part
    double *fitted;       // [rows] predicted by the fit to all rows: for inspection, never quoted as accuracy
    ErrorSummary summary; // of held_out
    ErrorSummary in_sample; // of fitted
    int num_free, num_folds;
    int refused; // measured rows that `predict` refused
} CalibrationResult;

// Deterministic.   ERR_DATA with fewer than two folds, ERR_CONFIG for a free constant without a prior, and the
// errors of `predict`.
Status calibrate(const Calibration *calibration, const PlanRows *rows, CalibrationResult *out);
void calibration_free(CalibrationResult *result);
// Writes the fold of each row that takes part, from 0, and -1 for the others; returns the number of folds.
// predicted_s [rows]: 0 where a row is refused.
int calibration_folds(Protocol protocol, int folds, const PlanRows *rows, const double *predicted_s,
                      int *fold);
// Writes the name of a protocol: "leave one out", "leave one model out", "5-fold".
void protocol_name(Protocol protocol, int folds, char name[32]);
// Returns the accuracy to write to a stack file; the caller sets `rows` and `date`.
Accuracy calibration_accuracy(const Calibration *calibration, const PlanRows *rows,
                              const CalibrationResult *result);
// Prints the free constants before and after the fit, which of them are at a bound, and accuracy_line.
void calibration_print(const Calibration *calibration, const CalibrationResult *result, Text *out);
