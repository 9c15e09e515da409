// Tests the losses of preferences: golden values, derivatives by finite differences, and the pairs of a microbatch.
#include "harness.h"
#include "nn/preference.h"
#include <math.h>
#include <stddef.h>

static PreferenceRule rule_of(const char *name, double beta, double smoothing) {
    return (PreferenceRule){preference_loss_named(name), beta, smoothing, 0.5};
}

// Golden values of the published formulas, for log-probabilities -12 and -15, of the reference -13 and -14.5.
static void losses_are_golden(void) {
    static const struct {
        const char *name;
        double smoothing, loss, chosen, rejected; // slopes
    } ROWS[] = {
        {"sigmoid", 0, 0.6209570478, -0.0462570155, 0.0462570155},
        {"sigmoid", 0.1, 0.6359570478, -0.0362570155, 0.0362570155},
        {"robust", 0.1, 0.6022070478, -0.0587570155, 0.0587570155},
        {"hinge", 0, 0.85, -0.1, 0.1},
    };
    PairScores scores = {{-12, -15}, {-13, -14.5}, {4, 5}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        PreferenceRule rule = rule_of(ROWS[i].name, 0.1, ROWS[i].smoothing);
        PairOutcome out = preference_outcome(&rule, &scores);
        EXPECT(fabs(out.loss - ROWS[i].loss) < 1e-10 && fabs(out.slope[CHOSEN] - ROWS[i].chosen) < 1e-10 &&
                   fabs(out.slope[REJECTED] - ROWS[i].rejected) < 1e-10,
               "%s: %.10f, slopes %.10f %.10f", ROWS[i].name, out.loss, out.slope[CHOSEN],
               out.slope[REJECTED]);
        EXPECT(fabs(out.reward[CHOSEN] - 0.1) < 1e-12 && fabs(out.reward[REJECTED] + 0.05) < 1e-12,
               "%s: rewards %g %g", ROWS[i].name, out.reward[CHOSEN], out.reward[REJECTED]);
    }
}

// Means per token: -3 and -3, of the reference -3.25 and -2.9.
static void means_are_per_token(void) {
    PairScores scores = {{-12, -15}, {-13, -14.5}, {4, 5}};
    PreferenceRule ipo = rule_of("ipo", 0.1, 0), simpo = rule_of("simpo", 2, 0),
                   orpo = rule_of("orpo", 0.1, 0);
    PairOutcome out = preference_outcome(&ipo, &scores);
    EXPECT(fabs(out.loss - (0.35 - 5) * (0.35 - 5)) < 1e-12, "ipo: %.12f", out.loss);
    EXPECT(fabs(out.slope[CHOSEN] - 2 * (0.35 - 5) / 4) < 1e-12, "ipo: slope %.12f", out.slope[CHOSEN]);
    EXPECT(fabs(out.slope[REJECTED] + 2 * (0.35 - 5) / 5) < 1e-12, "ipo: slope %.12f", out.slope[REJECTED]);
    out = preference_outcome(&simpo, &scores);
    EXPECT(fabs(out.loss - log1p(exp(0.5))) < 1e-12 && fabs(out.reward[CHOSEN] + 6) < 1e-12, "simpo: %.12f",
           out.loss);
    out = preference_outcome(&orpo, &scores);
    EXPECT(fabs(out.loss - (3 + 0.1 * log(2))) < 1e-12, "orpo: %.12f", out.loss);
    EXPECT(!preference_reads_reference(simpo.loss) && preference_reads_reference(ipo.loss), "references");
}

static void slopes_are_derivatives(void) {
    static const char *const NAMES[] = {"sigmoid", "robust", "hinge", "ipo", "simpo", "orpo"};
    const double step = 1e-5;
    for (size_t n = 0; n < sizeof NAMES / sizeof *NAMES; n++)
        for (int k = 0; k < 40; k++) {
            PreferenceRule rule = rule_of(NAMES[n], 0.1 + 0.2 * k, 0.01 * k);
            PairScores at = {{-3.0 - k, -70 + 1.5 * k}, {-4.0 - k, -72 + 1.2 * k}, {3 + k, 7}};
            PairOutcome out = preference_outcome(&rule, &at);
            for (int a = 0; a < NUM_ANSWERS; a++) {
                PairScores up = at, down = at;
                up.log_probability[a] += step, down.log_probability[a] -= step;
                double slope = (preference_outcome(&rule, &up).loss - preference_outcome(&rule, &down).loss) /
                               (2 * step);
                EXPECT(fabs(slope - out.slope[a]) < 1e-6 * (1 + fabs(slope)),
                       "%s, %d: slope %d is %.9g, not %.9g", NAMES[n], k, a, out.slope[a], slope);
            }
        }
}

// Far from balance nothing overflows.
static void far_losses_are_finite(void) {
    static const char *const NAMES[] = {"sigmoid", "robust", "hinge", "ipo", "simpo", "orpo"};
    for (size_t n = 0; n < sizeof NAMES / sizeof *NAMES; n++)
        for (int sign = -1; sign <= 1; sign++) {
            PreferenceRule rule = rule_of(NAMES[n], 10, 0.1);
            PairScores at = {{-1e4 - 1e4 * sign, -1e4 + 1e4 * sign}, {0, 0}, {1, 1}};
            PairOutcome out = preference_outcome(&rule, &at);
            EXPECT(isfinite(out.loss) && isfinite(out.slope[CHOSEN]) && isfinite(out.slope[REJECTED]),
                   "%s, %d: %g, slopes %g %g", NAMES[n], sign, out.loss, out.slope[CHOSEN],
                   out.slope[REJECTED]);
        }
}

// Two pairs of six tokens, side by side: rows s*2 + b.
static void a_microbatch_has_its_pairs(void) {
    static const float MASK[] = {0, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0};
    static const int32_t STARTS[] = {0, 0, 0, 0, 0, 3, 3, 3, 3, 3, 5, 5};
    static const double REFERENCE[][NUM_ANSWERS] = {{-1, -2}, {-3, -4}};
    float sums[12], targets[12], weights[12];
    PairOutcome outcomes[2];
    PairBatch pairs = {.rule = rule_of("sigmoid", 0.1, 0),
                       .samples = 2,
                       .mask = MASK,
                       .starts = STARTS,
                       .reference = REFERENCE,
                       .outcomes = outcomes};
    EXPECT(pairs_train(&pairs, 0, 12) && pairs_train(&pairs, 1, 1) && !pairs_train(&pairs, 5, 2) &&
               !pairs_train(&pairs, 10, 2) && pairs_train(&(PairBatch){.samples = 2}, 0, 12),
           "rows that are trained");
    double logs[2][NUM_ANSWERS] = {{0}};
    for (int i = 0; i < 12; i++) {
        sums[i] = 1.5F + (float)i, targets[i] = -0.25F * (float)i;
        if (MASK[i] > 0) logs[i % 2][STARTS[i] > 0] += (double)targets[i] - log((double)sums[i]);
    }
    pairs_compute(&pairs, 12, sums, targets, weights);
    for (int b = 0; b < 2; b++) {
        PairScores scores = {{logs[b][0], logs[b][1]}, {REFERENCE[b][0], REFERENCE[b][1]}, {2, 1}};
        PairOutcome expected = preference_outcome(&pairs.rule, &scores);
        EXPECT(fabs(outcomes[b].loss - expected.loss) < 1e-12, "pair %d: %g, not %g", b, outcomes[b].loss,
               expected.loss);
        for (int i = b; i < 12; i += 2) {
            double weight = MASK[i] > 0 ? -expected.slope[STARTS[i] > 0] : 0;
            EXPECT(fabs((double)weights[i] - weight) < 1e-7, "row %d: weight %g, not %g", i,
                   (double)weights[i], weight);
        }
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"losses are golden", losses_are_golden},
                                      {"means are per token", means_are_per_token},
                                      {"slopes are derivatives", slopes_are_derivatives},
                                      {"far losses are finite", far_losses_are_finite},
                                      {"a microbatch has its pairs", a_microbatch_has_its_pairs},
                                      {0}},
                       argc, argv);
}
