// Draws a token from logits: temperature, top-k and top-p.
#include "base/rng.h"
#include "infer/infer.h"
#include <math.h>
#include <stdlib.h>

static int most_likely_first(const void *a, const void *b) {
    const TokenLogit *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static int32_t largest(const float *logits, int vocabulary) {
    int best = 0;
    for (int i = 1; i < vocabulary; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

static double weight(const TokenLogit *candidates, int i, double temperature) {
    return exp(((double)candidates[i].logit - (double)candidates[0].logit) / temperature);
}

// The smallest number of the first `count` tokens that has a share of `top_p` of their weight; `sum` becomes theirs.
static int nucleus(const TokenLogit *candidates, int count, const SampleOptions *options, double *sum) {
    double all = 0;
    for (int i = 0; i < count; i++) all += weight(candidates, i, options->temperature);
    int kept = 0;
    for (*sum = 0; kept < count && (kept == 0 || *sum < options->top_p * all); kept++)
        *sum += weight(candidates, kept, options->temperature);
    return kept;
}

// A uniform number in [0, 1) with 32 bits.
static double uniform(const SampleOptions *options, int sample, int position) {
    RngKey key = rng_key(options->seed, "sampling of tokens", 0);
    return rng_word(key, (uint64_t)sample, (uint64_t)position) / 4294967296.0;
}

int32_t sample_token(const float *logits, int vocabulary, const SampleOptions *options, int sample,
                     int position, TokenLogit *scratch) {
    if (options->temperature <= 0) return largest(logits, vocabulary);
    for (int i = 0; i < vocabulary; i++) scratch[i] = (TokenLogit){logits[i], i};
    qsort(scratch, (size_t)vocabulary, sizeof *scratch, most_likely_first);
    int count = options->top_k > 0 && options->top_k < vocabulary ? options->top_k : vocabulary;
    double sum;
    int kept = nucleus(scratch, count, options, &sum);
    double left = uniform(options, sample, position) * sum;
    for (int i = 0; i < kept; i++) {
        left -= weight(scratch, i, options->temperature);
        if (left < 0) return scratch[i].token;
    }
    return scratch[kept - 1].token;
}
