// Least squares with bounds: Levenberg-Marquardt (Marquardt 1963) with central differences. Errors beyond `huber`
// count linearly (Huber 1964), and a ridge pulls every number towards its prior. It minimises
//   sum over errors of  e^2/2, or huber (|e| - huber/2) beyond huber   +   ridge^2/2 |x - prior|^2
#pragma once
#include "base/error.h"

enum { MAX_FREE = 32 };

typedef struct {
    int num_errors, num_free; // at most MAX_FREE
    // Computes errors [num_errors] at x [num_free], always the same for the same x. A failure ends the fit.
    Status (*errors)(void *self, const double *x, double *errors);
    void *self;
    const double *prior, *low, *high; // [num_free]; low < high, low <= prior <= high
    double huber, ridge;
} FitProblem;

// Writes the local minimum that is found from the priors to x [num_free].   ERR_OS without memory, or as `errors`
// fails.
Status fit_minimise(const FitProblem *problem, double *x);
