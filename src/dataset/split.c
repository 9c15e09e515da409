// Divides the sequences of a dataset into training, validation and test.
#include "dataset/dataset.h"
#include "dataset/gpt_index.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const split_names[NUM_SPLITS] = {"train", "validation", "test"};

const char *split_name(Split split) {
    static const char *const short_names[NUM_SPLITS] = {"train", "valid", "test"};
    return short_names[split];
}

// Every run of [.0-9] is a number; other characters separate numbers.
static Status split_weights(const char *split, double weights[NUM_SPLITS]) {
    static const char digits[] = ".0123456789";
    int count = 0;
    for (const char *p = split + strcspn(split, digits); *p; p += strcspn(p, digits)) {
        size_t length = strspn(p, digits);
        char number[64], *end = NULL;
        snprintf(number, sizeof number, "%.*s", (int)(length < sizeof number ? length : sizeof number), p);
        double weight = strtod(number, &end);
        if (count == NUM_SPLITS || length >= sizeof number || *end || end == number || !isfinite(weight))
            return fail(ERR_CONFIG,
                        "--split %s: '%s' is a fourth number, or none: write three such as 969,30,1", split,
                        number);
        weights[count++] = weight;
        p += length;
    }
    while (count < NUM_SPLITS) weights[count++] = 0;
    if (weights[0] + weights[1] + weights[2] > 0) return OK;
    return fail(ERR_CONFIG, "--split %s has no number above 0: write numbers such as 969,30,1", split);
}

Status split_bounds(const char *split, int64_t num_sequences, int64_t bounds[NUM_SPLITS + 1]) {
    double weights[NUM_SPLITS];
    TRY(split_weights(split, weights));
    double sum = weights[0] + weights[1] + weights[2], reached = 0;
    bounds[0] = 0;
    for (int k = 0; k < NUM_SPLITS; k++) {
        reached += weights[k] / sum;
        bounds[k + 1] = (int64_t)rint(reached * (double)num_sequences); // half to even
    }
    return OK;
}

Status split_range(const char *split, int64_t num_sequences, Split which, SplitRange *range) {
    int64_t bounds[NUM_SPLITS + 1];
    double weights[NUM_SPLITS];
    TRY(split_bounds(split, num_sequences, bounds));
    TRY(split_weights(split, weights));
    *range = (SplitRange){bounds[which], bounds[which + 1]};
    if (range->first < range->end || weights[which] <= 0) return OK;
    return fail(ERR_CONFIG,
                "--split %s: the %s split, fraction %.6g of %" PRId64
                " sequences, is empty: raise its number, or make it 0",
                split, split_names[which], weights[which] / (weights[0] + weights[1] + weights[2]),
                num_sequences);
}
