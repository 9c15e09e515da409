// Least squares with bounds: Levenberg-Marquardt (Marquardt 1963) on errors that are functions of a few
// numbers, by central differences. Errors beyond `huber` count by their size only (Huber 1964), and every
// number is pulled towards its prior. What is minimised is
//   sum over errors of  e^2/2, or huber (|e| - huber/2) beyond huber   +   ridge^2/2 |x - prior|^2
#pragma once
#include "base/error.h"

enum { MAX_FREE = 32 };

typedef struct {
    int num_errors, num_free; // at most MAX_FREE
    // errors [num_errors] at x [num_free]; the same for the same x. Its failure ends the fit.
    Status (*errors)(void *self, const double *x, double *errors);
    void *self;
    const double *prior, *low, *high; // [num_free]; low < high, prior between them
    double huber, ridge;
} FitProblem;

// x: the minimum that lies downhill from the priors.   ERR_OS without memory.
Status fit_minimise(const FitProblem *problem, double *x);
