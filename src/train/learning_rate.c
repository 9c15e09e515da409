#include "train/train.h"
#include <math.h>
#include <string.h>

double learning_rate(const LearningRate *s, double samples) {
    if (s->warmup_samples > 0 && samples <= s->warmup_samples)
        return s->init + (s->max - s->init) * samples / s->warmup_samples;
    if (!strcmp(s->style, "constant")) return s->max;
    if (samples > s->decay_samples) return s->min;
    double done = (samples - s->warmup_samples) / (s->decay_samples - s->warmup_samples);
    double left = !strcmp(s->style, "cosine") ? 0.5 * (1 + cos(3.14159265358979323846 * done)) : 1 - done;
    return s->min + left * (s->max - s->min);
}
