#include "train/train.h"
#include <math.h>

LossScaler loss_scaler(double initial, double minimum, int window, int hysteresis, bool dynamic) {
    return (LossScaler){.scale = initial,
                        .minimum = minimum,
                        .window = window,
                        .hysteresis = hysteresis,
                        .dynamic = dynamic,
                        .left = hysteresis};
}

// After the tolerated overflows every further one halves, until a whole window was clean.
static void shrink(LossScaler *s) {
    s->growth = 0;
    if (--s->left <= 0) s->scale = fmax(s->scale / 2, s->minimum);
}

static void grow(LossScaler *s) {
    if (++s->growth < s->window) return;
    s->growth = 0;
    s->left = s->hysteresis;
    s->scale *= 2;
}

void loss_scaler_update(LossScaler *s, bool overflow) {
    if (!s->dynamic) return;
    if (overflow)
        shrink(s);
    else
        grow(s);
}
