// Backward operations against finite differences of their forwards: for L = sum of w y with random w, dL/dx of each single
// element by Richardson-extrapolated central differences.
#pragma once
#include "device_fixture.h"
#include <stdio.h>

enum { MAX_INPUTS = 3 };
// A part of the largest gradient; the differences themselves are good to about 2e-5.
static const double TOLERANCE = 2e-4;

// The function that is differentiated, y of the inputs. Other tensors are for the two functions alone.
typedef struct {
    Tensor inputs[MAX_INPUTS], gradients[MAX_INPUTS];
    Tensor y, dy;
    Tensor other[3];
    Dropout dropout;
    AttentionShape shape;
    AttentionRules rules;
} Problem;

typedef void Step(Fixture *b, Problem *p);

static inline void add_input(Fixture *b, Problem *p, int i, int64_t rows, int64_t cols) {
    p->inputs[i] = normals(b, rows, cols);
    p->gradients[i] = tensor(b, rows, cols);
    device_zero(b->device, b->stream, p->gradients[i]);
}

static inline void set_y(Fixture *b, Problem *p, int64_t rows, int64_t cols) {
    p->y = tensor(b, rows, cols);
    p->dy = normals(b, rows, cols);
}

static inline double weighted_sum(Fixture *b, Problem *p, Step *forward, const float *weights) {
    forward(b, p);
    float *y = values_of(b, p->y);
    double sum = 0;
    for (int64_t i = 0; i < tensor_count(p->y); i++) sum += (double)weights[i] * (double)y[i];
    free(y);
    return sum;
}

static inline double central_difference(Fixture *b, Problem *p, Step *forward, const float *weights,
                                        Tensor element, float x, float h) {
    float up = x + h, down = x - h;
    device_upload(b->device, b->stream, element, &up);
    double above = weighted_sum(b, p, forward, weights);
    device_upload(b->device, b->stream, element, &down);
    double below = weighted_sum(b, p, forward, weights);
    device_upload(b->device, b->stream, element, &x);
    return (above - below) / ((double)up - (double)down);
}

static inline void check_input(const char *name, int input, Fixture *b, Problem *p, Step *forward,
                               const float *weights) {
    Tensor x = p->inputs[input];
    float *values = values_of(b, x), *gradient = values_of(b, p->gradients[input]);
    double largest = 0, error = 0;
    for (int64_t i = 0; i < tensor_count(x); i++) {
        Tensor element = tensor_part(x, i, 1);
        double wide = central_difference(b, p, forward, weights, element, values[i], 0.0625f);
        double narrow = central_difference(b, p, forward, weights, element, values[i], 0.03125f);
        double slope = (4 * narrow - wide) / 3;
        largest = fmax(largest, fabs(slope));
        error = fmax(error, fabs(slope - (double)gradient[i]));
    }
    EXPECT(largest > 0.01 && error < TOLERANCE * largest, "%s, input %d: error %.2g, largest gradient %.2g",
           name, input, error, largest);
    free(values);
    free(gradient);
}

static inline void check_gradients_on(const char *kind, const char *name,
                                      void (*declare)(Fixture *, Problem *), Step *forward, Step *backward) {
    Fixture b = fixture_open(kind, 1);
    Problem p = {0};
    declare(&b, &p);
    forward(&b, &p);
    backward(&b, &p);
    float *weights = values_of(&b, p.dy);
    for (int i = 0; i < MAX_INPUTS && p.inputs[i].data; i++) check_input(name, i, &b, &p, forward, weights);
    free(weights);
    fixture_close(&b);
}
