// Learning rates against Megatron-LM's OptimizerParamScheduler; vocabulary padding, parameter and FLOP
// counts.
#include "harness.h"
#include "train/train.h"
#include <math.h>

static const double at[] = {0, 1, 50, 100, 101, 250, 550, 900, 999, 1000, 1001};

static void expect_rates(const char *style, const double want[11]) {
    LearningRate schedule = {style, 1.5e-4, 1e-5, 0, 100, 1000};
    for (int i = 0; i < 11; i++) {
        double rate = learning_rate(&schedule, at[i]);
        EXPECT(fabs(rate - want[i]) <= 1e-9 * want[i] + 1e-18, "%s after %g samples: %.12g, not %.12g", style,
               at[i], rate, want[i]);
    }
}

static void learning_rates(void) {
    expect_rates("constant", (const double[]){0, 1.5e-6, 7.5e-5, 1.5e-4, 1.5e-4, 1.5e-4, 1.5e-4, 1.5e-4,
                                              1.5e-4, 1.5e-4, 1.5e-4});
    expect_rates("linear", (const double[]){0, 1.5e-6, 7.5e-5, 1.5e-4, 1.498444444444e-4, 1.266666666667e-4,
                                            8e-5, 2.555555555556e-5, 1.015555555556e-5, 1e-5, 1e-5});
    expect_rates("cosine", (const double[]){0, 1.5e-6, 7.5e-5, 1.5e-4, 1.4999957353e-4, 1.4062177826e-4, 8e-5,
                                            1.42215165374e-5, 1.00004264653e-5, 1e-5, 1e-5});
}

static void another_warm_up(void) {
    LearningRate schedule = {"linear", 0.1, 0.001, 0.01, 100, 1000};
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
                        .vocabulary = vocabulary,
                        .padded_vocabulary = vocabulary};
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
        double flops = model_flops(s, 1);
        EXPECT(fabs(flops / want[i].flops - 1) < 1e-6, "%.7g FLOP, not %.7g", flops, want[i].flops);
        int64_t parameters = model_parameters(s) - 2 * s->hidden;
        EXPECT(!want[i].parameters || parameters == want[i].parameters, "%lld parameters, not %lld",
               (long long)parameters, (long long)want[i].parameters);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"learning_rates", learning_rates},
                                      {"another_warm_up", another_warm_up},
                                      {"padding", padding},
                                      {"flops_and_parameters", flops_and_parameters},
                                      {0}},
                       argc, argv);
}
