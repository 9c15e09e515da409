// Learning rates and weight decays against Megatron-LM's OptimizerParamScheduler; vocabulary padding,
// parameter and FLOP counts.
#include "harness.h"
#include "train/train.h"
#include <math.h>

enum { NUM_RATES = 11 };
static const double at[NUM_RATES] = {0, 1, 50, 100, 101, 250, 550, 900, 999, 1000, 1001};
static const double wsd_at[NUM_RATES] = {0, 50, 100, 500, 800, 801, 850, 900, 950, 1000, 1001};

static bool is_near(double value, double want) { return fabs(value - want) <= 1e-9 * want + 1e-18; }

static void expect_rates(LearningRate schedule, const double samples[], const double want[]) {
    for (int i = 0; i < NUM_RATES; i++) {
        double rate = learning_rate(&schedule, samples[i]);
        EXPECT(is_near(rate, want[i]), "%s %s after %g samples: %.12g, not %.12g", schedule.style,
               schedule.wsd_style ? schedule.wsd_style : "", samples[i], rate, want[i]);
    }
}

static LearningRate rate(const char *style) {
    return (LearningRate){
        .style = style, .max = 1.5e-4, .min = 1e-5, .warmup_samples = 100, .decay_samples = 1000};
}

static void learning_rates(void) {
    expect_rates(
        rate("constant"), at,
        (const double[]){0, 1.5e-6, 7.5e-5, 1.5e-4, 1.5e-4, 1.5e-4, 1.5e-4, 1.5e-4, 1.5e-4, 1.5e-4, 1.5e-4});
    expect_rates(rate("linear"), at,
                 (const double[]){0, 1.5e-6, 7.5e-5, 1.5e-4, 1.498444444444e-4, 1.266666666667e-4, 8e-5,
                                  2.555555555556e-5, 1.015555555556e-5, 1e-5, 1e-5});
    expect_rates(rate("cosine"), at,
                 (const double[]){0, 1.5e-6, 7.5e-5, 1.5e-4, 1.4999957353e-4, 1.4062177826e-4, 8e-5,
                                  1.42215165374e-5, 1.00004264653e-5, 1e-5, 1e-5});
    expect_rates(rate("inverse-square-root"), at,
                 (const double[]){0, 1.5e-6, 7.5e-5, 1.5e-4, 1.492555785e-4, 9.486832981e-5, 6.396021491e-5,
                                  5e-5, 4.745789979e-5, 4.743416490e-5, 1e-5});
}

static void expect_wsd(const char *wsd_style, const double want[]) {
    LearningRate schedule = rate("WSD");
    schedule.wsd_style = wsd_style;
    schedule.wsd_samples = 200;
    expect_rates(schedule, wsd_at, want);
}

static void warm_up_stable_decay(void) {
    expect_wsd("exponential", (const double[]){0, 7.5e-5, 1.5e-4, 1.5e-4, 1.5e-4, 1.490312736e-4,
                                               1.054509963e-4, 6.798989873e-5, 3.648899610e-5, 1e-5, 1e-5});
    expect_wsd("linear", (const double[]){0, 7.5e-5, 1.5e-4, 1.5e-4, 1.5e-4, 1.493e-4, 1.15e-4, 8e-5, 4.5e-5,
                                          1e-5, 1e-5});
    expect_wsd("cosine", (const double[]){0, 7.5e-5, 1.5e-4, 1.5e-4, 1.5e-4, 1.499913643e-4, 1.294974747e-4,
                                          8e-5, 3.050252532e-5, 1e-5, 1e-5});
    // 1 - sqrt(q) at q = 1/200, 1/4, 1/2, 3/4.
    expect_wsd("minus_sqrt", (const double[]){0, 7.5e-5, 1.5e-4, 1.5e-4, 1.5e-4, 1.40100505063e-4, 8e-5,
                                              5.10050506339e-5, 2.87564434702e-5, 1e-5, 1e-5});
}

// Without a warm-up the inverse square root starts at the peak and counts from the first sample.
static void inverse_square_root_without_warm_up(void) {
    LearningRate schedule = rate("inverse-square-root");
    schedule.warmup_samples = 0;
    EXPECT(is_near(learning_rate(&schedule, 0), 1.5e-4), "%g", learning_rate(&schedule, 0));
    EXPECT(is_near(learning_rate(&schedule, 4), 0.75e-4), "%g", learning_rate(&schedule, 4));
    EXPECT(is_near(learning_rate(&schedule, 900), 1e-5), "%g: below the least",
           learning_rate(&schedule, 900));
}

static void expect_decays(const char *style, double start, const double want[7]) {
    static const double steps[7] = {0, 100, 250, 500, 750, 1000, 1001};
    WeightDecay schedule = {style, start, 0.1, 1000};
    for (int i = 0; i < 7; i++) {
        double decay = weight_decay(&schedule, steps[i]);
        EXPECT(is_near(decay, want[i]), "%s after %g samples: %.12g, not %.12g", style, steps[i], decay,
               want[i]);
    }
}

static void weight_decays(void) {
    expect_decays("constant", .1, (const double[]){.1, .1, .1, .1, .1, .1, .1});
    expect_decays("linear", .01, (const double[]){.01, .019, .0325, .055, .0775, .1, .1});
    expect_decays("cosine", .01,
                  (const double[]){.01, .01220245677, .02318019485, .055, .08681980515, .1, .1});
}

static void another_warm_up(void) {
    LearningRate schedule = {.style = "linear",
                             .max = 0.1,
                             .min = 0.001,
                             .init = 0.01,
                             .warmup_samples = 100,
                             .decay_samples = 1000};
    EXPECT(fabs(learning_rate(&schedule, 50) - 0.055) < 1e-12, "%g", learning_rate(&schedule, 50));
    EXPECT(fabs(learning_rate(&schedule, 500) - (0.1 - 0.099 * 400 / 900)) < 1e-12, "%g",
           learning_rate(&schedule, 500));
    EXPECT(learning_rate(&schedule, 1001) == 0.001, "%g", learning_rate(&schedule, 1001));
}

static void padding(void) {
    const int want[][2] = {{1, 50304}, {2, 50432}, {4, 50688}, {8, 51200}, {16, 51200}, {32, 53248}};
    for (int i = 0; i < 6; i++)
        EXPECT(padded_vocabulary(50257, 128, want[i][0]) == want[i][1], "t %d: %d", want[i][0],
               padded_vocabulary(50257, 128, want[i][0]));
}

static ModelShape shape(int layers, int hidden, int heads, int sequence, int vocabulary) {
    return (ModelShape){.layers = layers,
                        .hidden = hidden,
                        .heads = heads,
                        .head_size = hidden / heads,
                        .ffn = 4 * hidden,
                        .sequence = sequence,
                        .positions = sequence,
                        .vocabulary = vocabulary};
}

// The 72 B L S H^2 (1 + S/6H + V/12LH) column, and parameters by the paper's equation 2, which leaves the
// final norm out.
static void flops_and_parameters(void) {
    const struct {
        ModelShape shape;
        double flops;
        int64_t parameters;
    } want[] = {{shape(24, 1024, 16, 1024, 50304), 2.481149e12, 0},
                {shape(24, 2304, 24, 2048, 51200), 2.301888e13, 1652226048},
                {shape(96, 12288, 96, 2048, 51200), 2.204555e15, 174615822336},
                {shape(128, 25600, 160, 2048, 51200), 1.255054e16, 1008038707200}};
    for (int i = 0; i < 4; i++) {
        const ModelShape *s = &want[i].shape;
        double flops = model_flops(s, s->vocabulary, 1);
        EXPECT(fabs(flops / want[i].flops - 1) < 1e-6, "%.7g FLOP, not %.7g", flops, want[i].flops);
        int64_t parameters = model_parameters(s) - 2 * s->hidden;
        EXPECT(!want[i].parameters || parameters == want[i].parameters, "%lld parameters, not %lld",
               (long long)parameters, (long long)want[i].parameters);
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"learning_rates", learning_rates},
                       {"warm_up_stable_decay", warm_up_stable_decay},
                       {"inverse_square_root_without_warm_up", inverse_square_root_without_warm_up},
                       {"weight_decays", weight_decays},
                       {"another_warm_up", another_warm_up},
                       {"padding", padding},
                       {"flops_and_parameters", flops_and_parameters},
                       {0}},
        argc, argv);
}
