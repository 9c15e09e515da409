// The losses of preferences: a table of functions of a pair's log-probabilities, with their derivatives.
#include "nn/preference.h"
#include <math.h>
#include <string.h>

// Log-probabilities as a loss takes them: sums, or means per token.
typedef struct {
    double model[NUM_ANSWERS], reference[NUM_ANSWERS];
} Taken;

typedef struct {
    double loss, slope[NUM_ANSWERS]; // derivatives by model[]
} Sloped;

struct PreferenceLoss {
    const char *name;
    bool reads_reference, takes_means;
    Sloped (*compute)(const PreferenceRule *rule, Taken x);
};

static double log_sigmoid(double x) { return x < 0 ? x - log1p(exp(x)) : -log1p(exp(-x)); }
static double sigmoid(double x) { return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x)); }

// By how much the model prefers the chosen answer beyond what the reference does.
static double preference(Taken x) {
    return x.model[CHOSEN] - x.reference[CHOSEN] - (x.model[REJECTED] - x.reference[REJECTED]);
}

// A loss of the difference of both log-probabilities, with its derivative by that.
static Sloped of_difference(double loss, double slope) { return (Sloped){loss, {slope, -slope}}; }

// The label is right with probability 1 - e.
static Sloped smoothed(const PreferenceRule *rule, double x) {
    double e = rule->label_smoothing;
    return of_difference(-(1 - e) * log_sigmoid(x) - e * log_sigmoid(-x),
                         rule->beta * (e * sigmoid(x) - (1 - e) * sigmoid(-x)));
}

static Sloped sigmoid_loss(const PreferenceRule *rule, Taken x) {
    return smoothed(rule, rule->beta * preference(x));
}

// Its mean over wrong labels of probability e is the loss without them.
static Sloped robust_loss(const PreferenceRule *rule, Taken x) {
    double e = rule->label_smoothing, h = rule->beta * preference(x);
    return of_difference((-(1 - e) * log_sigmoid(h) + e * log_sigmoid(-h)) / (1 - 2 * e),
                         -rule->beta * ((1 - e) * sigmoid(-h) + e * sigmoid(h)) / (1 - 2 * e));
}

static Sloped hinge_loss(const PreferenceRule *rule, Taken x) {
    double left = 1 - rule->beta * preference(x);
    return of_difference(left > 0 ? left : 0, left > 0 ? -rule->beta : 0);
}

static Sloped ipo_loss(const PreferenceRule *rule, Taken x) {
    double off = preference(x) - 1 / (2 * rule->beta);
    return of_difference(off * off, 2 * off);
}

static Sloped simpo_loss(const PreferenceRule *rule, Taken x) {
    return smoothed(rule, rule->beta * preference(x) - rule->gamma);
}

// The cross-entropy of the chosen answer, and beta times -log sigmoid of the logarithm of the ratio of both odds. An
// answer of probability 1 has no finite odds.
static Sloped orpo_loss(const PreferenceRule *rule, Taken x) {
    double ratio = 0, slope[NUM_ANSWERS];
    for (int i = 0; i < NUM_ANSWERS; i++) {
        double p = fmin(x.model[i], -1e-9), sign = i == CHOSEN ? 1 : -1;
        ratio += sign * (p - log(-expm1(p)));
        slope[i] = sign / -expm1(p);
    }
    double pull = -rule->beta * sigmoid(-ratio);
    return (Sloped){-x.model[CHOSEN] - rule->beta * log_sigmoid(ratio),
                    {pull * slope[CHOSEN] - 1, pull * slope[REJECTED]}};
}

static const PreferenceLoss losses[] = {
    {"sigmoid", true, false, sigmoid_loss}, {"robust", true, false, robust_loss},
    {"hinge", true, false, hinge_loss},     {"ipo", true, true, ipo_loss},
    {"simpo", false, true, simpo_loss},     {"orpo", false, true, orpo_loss},
};

const PreferenceLoss *preference_loss_named(const char *name) {
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
        if (!strcmp(name, losses[i].name)) return &losses[i];
    return NULL;
}

bool preference_reads_reference(const PreferenceLoss *loss) { return loss->reads_reference; }

PairOutcome preference_outcome(const PreferenceRule *rule, const PairScores *scores) {
    PairOutcome outcome = {0};
    double per[NUM_ANSWERS];
    Taken taken = {0};
    for (int i = 0; i < NUM_ANSWERS; i++) {
        per[i] = rule->loss->takes_means && scores->tokens[i] ? 1 / (double)scores->tokens[i] : 1;
        taken.model[i] = per[i] * scores->log_probability[i];
        if (rule->loss->reads_reference) taken.reference[i] = per[i] * scores->reference[i];
    }
    Sloped sloped = rule->loss->compute(rule, taken);
    outcome.loss = sloped.loss;
    for (int i = 0; i < NUM_ANSWERS; i++) {
        outcome.reward[i] = rule->beta * (taken.model[i] - taken.reference[i]);
        outcome.slope[i] = per[i] * sloped.slope[i];
        outcome.log_probability[i] = scores->log_probability[i];
    }
    return outcome;
}

bool pairs_train(const PairBatch *p, int64_t first, int64_t count) {
    for (int64_t row = first; p->mask && row < first + count; row++)
        if (p->mask[row] != 0) return true;
    return !p->mask;
}

static int answer_of(const PairBatch *pairs, int64_t row) {
    return pairs->starts[row] > 0 ? REJECTED : CHOSEN;
}

static PairScores scores_of(const PairBatch *p, int64_t pair, int64_t tokens, const float *sums,
                            const float *targets) {
    PairScores scores = {0};
    for (int i = 0; i < NUM_ANSWERS && p->reference; i++) scores.reference[i] = p->reference[pair][i];
    for (int64_t row = pair; row < tokens; row += p->samples) {
        if (p->mask[row] == 0) continue;
        int answer = answer_of(p, row);
        scores.log_probability[answer] += (double)targets[row] - log((double)sums[row]);
        scores.tokens[answer]++;
    }
    return scores;
}

void pairs_compute(const PairBatch *p, int64_t tokens, const float *sums, const float *targets,
                   float *weights) {
    memset(weights, 0, (size_t)tokens * sizeof *weights);
    for (int64_t pair = 0; pair < p->samples && p->mask; pair++) {
        PairScores scores = scores_of(p, pair, tokens, sums, targets);
        p->outcomes[pair] = preference_outcome(&p->rule, &scores);
        for (int64_t row = pair; row < tokens; row += p->samples)
            if (p->mask[row] != 0) weights[row] = (float)-p->outcomes[pair].slope[answer_of(p, row)];
    }
}
