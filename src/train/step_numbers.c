// The numbers that change from step to step: learning rate, weight decay, batch size, loss scale.
#include "train/train.h"
#include <math.h>
#include <string.h>

// ---- learning rate and weight decay --------------------------------------------------------------

static const double pi = 3.14159265358979323846;

// A style of decay: the share of max - min that is left when the share `done` of the decay, 0 to 1, is over.
typedef struct {
    const char *name;
    double (*left)(double done);
} Ending;

static double constant(double done) { return (void)done, 1; }
static double linear(double done) { return 1 - done; }
static double cosine(double done) { return 0.5 * (1 + cos(pi * done)); }
static double exponential(double done) { return 2 * pow(0.5, done) - 1; }
static double minus_sqrt(double done) { return 1 - sqrt(done); }

static const Ending endings[] = {{"constant", constant},
                                 {"linear", linear},
                                 {"cosine", cosine},
                                 {"exponential", exponential},
                                 {"minus_sqrt", minus_sqrt}};

static double left(const char *style, double done) {
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (!strcmp(style, endings[i].name)) return endings[i].left(done);
    CHECK(false, "no style of decay is named %s", style);
}

// Warm-up, stable, decay (Hu 2024): the rate stays at its maximum until the last part.
static double wsd_left(const LearningRate *s, double samples) {
    double begin = s->decay_samples - s->wsd_samples;
    return samples <= begin ? 1 : left(s->wsd_style, (samples - begin) / s->wsd_samples);
}

double learning_rate(const LearningRate *s, double samples) {
    if (s->warmup_samples > 0 && samples <= s->warmup_samples)
        return s->init + (s->max - s->init) * samples / s->warmup_samples;
    if (!strcmp(s->style, "constant")) return s->max;
    if (samples > s->decay_samples) return s->min;
    if (!strcmp(s->style, "inverse-square-root"))
        return fmax(s->min, s->max * sqrt(fmax(s->warmup_samples, 1)) / sqrt(fmax(samples, 1)));
    bool wsd = !strcmp(s->style, "WSD");
    double done = (samples - s->warmup_samples) / (s->decay_samples - s->warmup_samples);
    return s->min + (wsd ? wsd_left(s, samples) : left(s->style, done)) * (s->max - s->min);
}

double weight_decay(const WeightDecay *s, double samples) {
    if (samples >= s->samples) return s->end;
    return s->start + (1 - left(s->style, samples / s->samples)) * (s->end - s->start);
}

// ---- batch size ----------------------------------------------------------------------------------

static int unrounded(const BatchRampup *r, int64_t consumed) {
    if (!r->increment || r->start == r->full || consumed > r->samples || !r->samples) return r->full;
    int levels = (r->full - r->start) / r->increment;
    double samples_per_level = (double)r->samples / levels;
    return r->start + r->increment * (int)((double)consumed / samples_per_level);
}

int batch_rampup(const BatchRampup *r, int64_t consumed) {
    int batch = unrounded(r, consumed);
    return batch - batch % r->multiple;
}

// ---- loss scale ----------------------------------------------------------------------------------

LossScaler loss_scaler(double initial, double minimum, int window, int hysteresis, bool dynamic) {
    return (LossScaler){.scale = initial,
                        .minimum = minimum,
                        .window = window,
                        .hysteresis = hysteresis,
                        .dynamic = dynamic,
                        .left = hysteresis};
}

// After the tolerated overflows each further one halves the scale, until a whole window had none.
static void shrink(LossScaler *s) {
    s->growth = 0;
    if (s->left > 0) s->left--;
    if (!s->left) s->scale = fmax(s->scale / 2, s->minimum);
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
