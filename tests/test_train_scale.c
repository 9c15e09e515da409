// The loss scale against Megatron-LM's DynamicGradScaler; what a step that changed nothing does to the run.
#include "harness.h"
#include "train/internal.h"
#include <math.h>
#include <string.h>

typedef struct {
    int overflow;
    double scale;
    int growth, left;
} Step;

// Every decision: tolerated, halving, still halving before a clean window, doubling, forgetting at the
// window.
static void dynamic_scale(void) {
    static const Step steps[] = {
        {1, 65536, 0, 1}, {1, 32768, 0, 0}, {1, 16384, 0, 0}, {0, 16384, 1, 0}, {0, 16384, 2, 0},
        {0, 16384, 3, 0}, {0, 32768, 0, 2}, {1, 32768, 0, 1}, {1, 16384, 0, 0}, {0, 16384, 1, 0},
        {0, 16384, 2, 0}, {0, 16384, 3, 0}, {0, 32768, 0, 2}, {0, 32768, 1, 2}, {0, 32768, 2, 2},
        {0, 32768, 3, 2}, {0, 65536, 0, 2}, {1, 65536, 0, 1}, {0, 65536, 1, 1}, {1, 32768, 0, 0},
    };
    LossScaler s = loss_scaler(65536, 1, 4, 2, true);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        loss_scaler_update(&s, steps[i].overflow);
        EXPECT(s.scale == steps[i].scale && s.growth == steps[i].growth && s.left == steps[i].left,
               "step %zu: %g %d %d, not %g %d %d", i, s.scale, s.growth, s.left, steps[i].scale,
               steps[i].growth, steps[i].left);
    }
}

static void keeps_its_minimum(void) {
    LossScaler s = loss_scaler(64, 8, 1000, 1, true);
    for (int i = 0; i < 10; i++) loss_scaler_update(&s, true);
    EXPECT(s.scale == 8, "%g", s.scale);
}

static void constant_scale(void) {
    LossScaler s = loss_scaler(1024, 1, 2, 1, false);
    for (int i = 0; i < 10; i++) loss_scaler_update(&s, i % 3 == 0);
    EXPECT(s.scale == 1024, "%g", s.scale);
}

// ---- skipped steps ------------------------------------------------------------------------------

static const StepResult good = {.loss = 2, .grad_norm = 1, .finite = true};
static const StepResult overflow = {.loss = 2, .grad_norm = INFINITY};
static const StepResult bad_loss = {.loss = NAN, .grad_norm = NAN};

static Options options_of(bool fp16, double loss_scale) {
    return (Options){.fp16 = fp16,
                     .loss_scale = loss_scale,
                     .initial_loss_scale = 1024,
                     .min_loss_scale = 1,
                     .loss_scale_window = 1000,
                     .hysteresis = 1,
                     .check_for_nan_in_loss_and_grad = true,
                     .max_skipped_steps = 3,
                     .loss_spike_factor = 2,
                     .lr_decay_style = "linear",
                     .lr = 1,
                     .weight_decay_incr_style = "linear",
                     .start_weight_decay = 0,
                     .end_weight_decay = 1,
                     .global_batch_size = 10,
                     .micro_batch_size = 1,
                     .shape = {.dp = 1,
                               .dynamic_loss_scale = fp16 && isnan(loss_scale),
                               .train_samples = 100,
                               .lr_decay_samples = 100}};
}

static Status step(StepControl *control, StepResult result) {
    control_advance(control, control_batch(control), &result);
    return control_check(control, &result);
}

// Rates follow steps that changed something, samples and the loss scale every step.
static void a_skipped_step_keeps_the_rates(void) {
    Options options = options_of(true, NAN);
    StepControl control = control_open(&options);
    EXPECT_OK(step(&control, good));
    StepOptions before = control_options(&control);
    EXPECT(fabs(before.lr - 0.9) < 1e-12 && fabs(before.weight_decay - 0.1) < 1e-12, "%g, %g", before.lr,
           before.weight_decay);
    EXPECT_OK(step(&control, overflow));
    EXPECT_OK(step(&control, bad_loss));
    StepOptions after = control_options(&control);
    EXPECT(after.lr == before.lr && after.weight_decay == before.weight_decay, "%g, %g", after.lr,
           after.weight_decay);
    EXPECT(control.iteration == 3 && control.consumed == 30, "%lld samples", (long long)control.consumed);
    EXPECT(before.loss_scale == 1024 && after.loss_scale == 256, "scales %g, %g", before.loss_scale,
           after.loss_scale);
}

static void what_ends_a_run(void) {
    static const struct {
        bool fp16;
        double scale;
        bool check;
        Status overflow, bad_loss;
    } rows[] = {
        {false, NAN, true, ERR_NUMERIC, ERR_NUMERIC}, // fp32 and bf16
        {false, NAN, false, OK, OK},
        {true, NAN, true, OK, OK}, // a dynamic scale
        {true, 512, true, OK, ERR_NUMERIC},
        {true, 512, false, OK, OK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Options options = options_of(rows[i].fp16, rows[i].scale);
        options.check_for_nan_in_loss_and_grad = rows[i].check;
        StepControl control = control_open(&options);
        EXPECT(step(&control, good) == OK, "row %zu: %s", i, fail_message());
        EXPECT(step(&control, overflow) == rows[i].overflow, "row %zu, overflow: %s", i, fail_message());
        EXPECT(step(&control, bad_loss) == rows[i].bad_loss, "row %zu, loss: %s", i, fail_message());
    }
}

// What a NaN's sign bit is nobody wants to read.
static void a_nan_has_no_sign(void) {
    Options options = options_of(false, NAN);
    StepControl control = control_open(&options);
    StepResult negative = {.loss = -fabsf(NAN), .grad_norm = -fabs(NAN)};
    EXPECT(step(&control, negative) == ERR_NUMERIC &&
               strstr(fail_message(), "lm loss nan, gradient norm nan."),
           "%s", fail_message());
    options.max_skipped_steps = 1, options.check_for_nan_in_loss_and_grad = false;
    EXPECT(step(&control, negative) == ERR_NUMERIC &&
               strstr(fail_message(), "lm loss nan, gradient norm nan,"),
           "%s", fail_message());
}

static void too_many_in_a_row(void) {
    Options options = options_of(true, NAN);
    StepControl control = control_open(&options);
    EXPECT_OK(step(&control, overflow));
    EXPECT_OK(step(&control, overflow));
    EXPECT_OK(step(&control, good));
    EXPECT_OK(step(&control, overflow));
    EXPECT_OK(step(&control, overflow));
    EXPECT(step(&control, overflow) == ERR_NUMERIC && strstr(fail_message(), "3 steps in a row"), "%s",
           fail_message());
}

static void spikes(void) {
    Options options = options_of(false, NAN);
    StepControl control = control_open(&options);
    EXPECT(control_spike(&control, 1) == 0 && control_spike(&control, 100) == 0, "not asked for");
    options.check_for_spiky_loss = true;
    EXPECT(control_spike(&control, 10) == 0, "the first is usual");
    EXPECT(control_spike(&control, 8) == 0 && control_spike(&control, 17.9) == 0, "less than twice 9");
    EXPECT(control_spike(&control, 25) > 11.9, "more than twice 11.97");
    EXPECT(control_spike(&control, NAN) == 0 && isfinite(control.usual_loss),
           "what is no number is no spike");
    for (int i = 0; i < 2000; i++) control_spike(&control, 1);
    EXPECT(fabs(control.usual_loss - 1) < 1e-6 && control_spike(&control, 2.1) > 0, "it forgets: %g",
           control.usual_loss);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"dynamic_scale", dynamic_scale},
                                      {"keeps_its_minimum", keeps_its_minimum},
                                      {"constant_scale", constant_scale},
                                      {"a_skipped_step_keeps_the_rates", a_skipped_step_keeps_the_rates},
                                      {"what_ends_a_run", what_ends_a_run},
                                      {"a_nan_has_no_sign", a_nan_has_no_sign},
                                      {"too_many_in_a_row", too_many_in_a_row},
                                      {"spikes", spikes},
                                      {0}},
                       argc, argv);
}
