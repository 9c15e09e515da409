// Levenberg-Marquardt with bounds, Huber losses and a ridge.
#include "calibrate/fit.h"
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// STEP, of the central differences, is wide enough to bridge the small jumps of prices in whole tiles.
static const double STEP = 2e-3, ENOUGH = 1e-6, FIRST_DAMPING = 1e-3, MAX_DAMPING = 1e8;
enum { MAX_ROUNDS = 60 };

typedef double Square[MAX_FREE][MAX_FREE];

typedef struct {
    const FitProblem *p;
    double *errors, *above, *below; // [num_errors] at x, and on both sides of it
    double *slopes;                 // [num_free][num_errors]
    double x[MAX_FREE], loss;
    Square curvature;
    double gradient[MAX_FREE];
} Fit;

static double loss_of(const FitProblem *p, const double *x, const double *errors) {
    double sum = 0;
    for (int i = 0; i < p->num_errors; i++) {
        double e = fabs(errors[i]);
        sum += e <= p->huber ? e * e / 2 : p->huber * (e - p->huber / 2);
    }
    for (int j = 0; j < p->num_free; j++) sum += pow(p->ridge * (x[j] - p->prior[j]), 2) / 2;
    return sum;
}

// ---- derivatives --------------------------------------------------------------------------------

static Status take_slopes(Fit *f, int j) {
    const FitProblem *p = f->p;
    double *slope = f->slopes + (size_t)j * (size_t)p->num_errors, here = f->x[j];
    double up = fmin(here + STEP, p->high[j]), down = fmax(here - STEP, p->low[j]);
    f->x[j] = up;
    Status status = p->errors(p->self, f->x, f->above);
    f->x[j] = down;
    if (status == OK) status = p->errors(p->self, f->x, f->below);
    f->x[j] = here;
    for (int i = 0; status == OK && i < p->num_errors; i++)
        slope[i] = (f->above[i] - f->below[i]) / (up - down);
    return status;
}

static double weight(const FitProblem *p, double error) {
    return fabs(error) <= p->huber ? 1 : p->huber / fabs(error);
}

static double weighted_product(const Fit *f, const double *a, const double *b) {
    double sum = 0;
    for (int i = 0; i < f->p->num_errors; i++) sum += weight(f->p, f->errors[i]) * a[i] * b[i];
    return sum;
}

// Computes the gradient of the loss, and its curvature by the Gauss-Newton approximation.
static Status take_derivatives(Fit *f) {
    const FitProblem *p = f->p;
    size_t n = (size_t)p->num_errors;
    double pull = p->ridge * p->ridge;
    for (int j = 0; j < p->num_free; j++) TRY(take_slopes(f, j));
    for (int j = 0; j < p->num_free; j++) {
        const double *slope = f->slopes + (size_t)j * n;
        f->gradient[j] = weighted_product(f, slope, f->errors) + pull * (f->x[j] - p->prior[j]);
        for (int k = 0; k <= j; k++)
            f->curvature[j][k] = f->curvature[k][j] = weighted_product(f, slope, f->slopes + (size_t)k * n);
        f->curvature[j][j] += pull;
    }
    return OK;
}

// ---- one step -----------------------------------------------------------------------------------

// Solves a y = b by Cholesky and overwrites b with y. a is symmetric and positive definite; it is overwritten.
static void solve(int n, Square a, double *b) {
    for (int j = 0; j < n; j++)
        for (int i = j; i < n; i++) {
            for (int k = 0; k < j; k++) a[i][j] -= a[i][k] * a[j][k];
            a[i][j] = i == j ? sqrt(fmax(a[j][j], 1e-300)) : a[i][j] / a[j][j];
        }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++) b[i] -= a[i][k] * b[k];
        b[i] /= a[i][i];
    }
    for (int i = n - 1; i >= 0; i--) {
        for (int k = i + 1; k < n; k++) b[i] -= a[k][i] * b[k];
        b[i] /= a[i][i];
    }
}

// Returns whether element j is at a bound that a step downhill would cross.
static bool is_held(const Fit *f, int j) {
    return (f->x[j] <= f->p->low[j] && f->gradient[j] > 0) ||
           (f->x[j] >= f->p->high[j] && f->gradient[j] < 0);
}

// Writes where a damped step leads, within the bounds. Elements without curvature stay where they are.
static void step_to(const Fit *f, double damping, double *x) {
    Square a;
    double step[MAX_FREE];
    int n = f->p->num_free;
    memcpy(a, f->curvature, sizeof a);
    for (int j = 0; j < n; j++) {
        bool still = is_held(f, j) || f->curvature[j][j] <= 0;
        step[j] = still ? 0 : -f->gradient[j];
        for (int k = 0; still && k < n; k++) a[j][k] = a[k][j] = 0;
        a[j][j] = still ? 1 : f->curvature[j][j] * (1 + damping);
    }
    solve(n, a, step);
    for (int j = 0; j < n; j++) x[j] = fmin(fmax(f->x[j] + step[j], f->p->low[j]), f->p->high[j]);
}

// Tries ever shorter steps until one lowers the loss; `gained` stays 0 when none does.
static Status descend(Fit *f, double *damping, double *gained) {
    double x[MAX_FREE];
    *gained = 0;
    for (; *damping < MAX_DAMPING; *damping *= 8) {
        step_to(f, *damping, x);
        TRY(f->p->errors(f->p->self, x, f->above));
        double loss = loss_of(f->p, x, f->above);
        if (!(loss < f->loss)) continue;
        *gained = f->loss - loss;
        *damping = fmax(*damping / 16, 1e-12);
        memcpy(f->x, x, sizeof x);
        memcpy(f->errors, f->above, (size_t)f->p->num_errors * sizeof *f->errors);
        f->loss = loss;
        return OK;
    }
    return OK;
}

// ---- the fit ------------------------------------------------------------------------------------

static Status run(Fit *f) {
    const FitProblem *p = f->p;
    memcpy(f->x, p->prior, (size_t)p->num_free * sizeof *f->x);
    TRY(p->errors(p->self, f->x, f->errors));
    f->loss = loss_of(p, f->x, f->errors);
    double damping = FIRST_DAMPING, gained = INFINITY;
    for (int round = 0; round < MAX_ROUNDS && gained > ENOUGH * f->loss; round++) {
        TRY(take_derivatives(f));
        TRY(descend(f, &damping, &gained));
    }
    return OK;
}

Status fit_minimise(const FitProblem *p, double *x) {
    CHECK(p->num_free >= 0 && p->num_free <= MAX_FREE && p->num_errors >= 0, "%d free numbers", p->num_free);
    size_t n = (size_t)p->num_errors;
    Fit *f = calloc(1, sizeof *f);
    double *memory = malloc((3 + (size_t)p->num_free) * n * sizeof *memory + 1);
    Status status = f && memory ? OK : fail(ERR_OS, "no memory to fit %zu rows", n);
    if (status == OK) {
        *f = (Fit){
            .p = p, .errors = memory, .above = memory + n, .below = memory + 2 * n, .slopes = memory + 3 * n};
        status = run(f);
        memcpy(x, f->x, (size_t)p->num_free * sizeof *x);
    }
    free(memory);
    free(f);
    return status;
}
