#include "train/train.h"

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
