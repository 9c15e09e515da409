// The state of a run from step to step: its counts, the numbers of the next step, and when it cannot continue.
#include "train/internal.h"
#include <math.h>

static LossScaler scaler_of(const Options *o) {
    if (!o->fp16) return loss_scaler(1, 1, 1, 1, false);
    bool dynamic = o->shape.dynamic_loss_scale;
    return loss_scaler(dynamic ? o->initial_loss_scale : o->loss_scale, o->min_loss_scale,
                       o->loss_scale_window, o->hysteresis, dynamic);
}

StepControl control_open(const Options *o) {
    const RunShape *shape = &o->shape;
    Ranges skipped = {0};
    Status parsed = o->skip_samples ? ranges_parse(&skipped, o->skip_samples, "--skip-samples") : OK;
    CHECK(parsed == OK, "options that are not resolved: %s", fail_message());
    return (StepControl){
        .skipped = skipped,
        .options = o,
        .rate = {.style = o->lr_decay_style,
                 .max = o->lr,
                 .min = o->min_lr,
                 .init = o->lr_warmup_init,
                 .warmup_samples = shape->lr_warmup_samples,
                 .decay_samples = (double)shape->lr_decay_samples,
                 .wsd_style = o->lr_wsd_decay_style,
                 .wsd_samples = (double)shape->lr_wsd_samples},
        .decay = {.style = o->weight_decay_incr_style,
                  .start = o->start_weight_decay,
                  .end = o->end_weight_decay,
                  .samples = (double)shape->train_samples},
        .rampup = {.start = shape->rampup_start,
                   .increment = shape->rampup_increment,
                   .full = o->global_batch_size,
                   .multiple = o->micro_batch_size * (shape->virtual_data ? shape->virtual_data : shape->dp),
                   .samples = shape->rampup_samples},
        .scaler = scaler_of(o),
        .end = shape->train_iters,
    };
}

void control_save(const StepControl *c, RunState *state) {
    state->skipped = c->skipped, state->rewinds = c->rewinds;
    state->iteration = c->iteration, state->consumed = c->consumed, state->stepped = c->stepped;
    state->skipped_in_a_row = c->skipped_in_a_row;
    state->usual_loss = c->usual_loss, state->num_losses = c->num_losses;
    if (!c->scaler.dynamic) return;
    state->loss_scale = c->scaler.scale;
    state->loss_scale_growth = c->scaler.growth, state->loss_scale_left = c->scaler.left;
}

// For a run measured in samples, which may have had other batches before its checkpoint.
static int64_t end_of_samples(const StepControl *c) {
    int64_t all = c->options->train_samples, at = c->consumed, iteration = c->iteration;
    for (; at <= c->rampup.samples && at + batch_rampup(&c->rampup, at) <= all; iteration++)
        at += batch_rampup(&c->rampup, at);
    return at < all ? iteration + (all - at) / c->rampup.full : iteration;
}

int64_t control_consumed_at_end(const StepControl *c) {
    int64_t at = c->consumed, left = c->end - c->iteration;
    for (; left > 0 && at <= c->rampup.samples; left--) at += batch_rampup(&c->rampup, at);
    return left > 0 ? at + left * c->rampup.full : at;
}

// A checkpoint of a run with a fixed scale has none.
void control_restore(StepControl *c, const RunState *state) {
    c->iteration = state->iteration, c->consumed = state->consumed, c->stepped = state->stepped;
    c->skipped_in_a_row = (int)state->skipped_in_a_row;
    c->usual_loss = state->usual_loss, c->num_losses = state->num_losses;
    if (c->options->train_samples != INT_UNSET) c->end = end_of_samples(c);
    if (!c->scaler.dynamic || !(state->loss_scale > 0)) return;
    c->scaler.scale = state->loss_scale;
    c->scaler.growth = (int)state->loss_scale_growth,
    c->scaler.left = state->loss_scale_left > 0 ? (int)state->loss_scale_left : 0;
}

int64_t control_next_sample(const Ranges *skipped, int64_t consumed) {
    return consumed ? ranges_left(skipped, consumed - 1) + 1 : 0;
}

Status control_join_skipped(StepControl *c, const RunState *state) {
    int64_t next = control_next_sample(&state->skipped, state->consumed);
    int64_t trained = ranges_first_new(&state->skipped, &c->skipped, next);
    if (trained >= 0)
        return fail(
            ERR_CONFIG,
            "--skip-samples %s: the checkpoint of iteration %lld has been trained on sample %lld. Skip samples from "
            "%lld on, or go back to an older checkpoint with --ckpt-step",
            c->options->skip_samples, (long long)state->iteration, (long long)trained, (long long)next);
    for (int i = 0; i < state->skipped.count; i++)
        if (!ranges_add(&c->skipped, state->skipped.items[i].first, state->skipped.items[i].end))
            return fail(ERR_CONFIG,
                        "--skip-samples and the checkpoint leave out more than %d ranges of samples",
                        MAX_RANGES);
    c->rewinds = state->rewinds;
    return OK;
}

int control_batch(const StepControl *c) { return batch_rampup(&c->rampup, c->consumed); }

StepOptions control_options(const StepControl *c) {
    return (StepOptions){.lr = learning_rate(&c->rate, (double)c->stepped),
                         .weight_decay = weight_decay(&c->decay, (double)c->stepped),
                         .loss_scale = c->scaler.scale};
}

void control_advance(StepControl *c, int batch, const StepResult *result) {
    c->iteration++;
    c->consumed += batch;
    if (result->finite) c->stepped += batch;
    c->skipped_in_a_row = result->finite ? 0 : c->skipped_in_a_row + 1;
    loss_scaler_update(&c->scaler, !result->finite);
}

// An overflow of scaled gradients is harmless; a loss that is not finite is an error.
static bool ends_the_run(const Options *o, const StepResult *result) {
    if (result->finite || !o->check_for_nan_in_loss_and_grad || o->shape.dynamic_loss_scale) return false;
    return !o->fp16 || !isfinite(result->loss);
}

Status control_check(const StepControl *c, const StepResult *result) {
    const Options *o = c->options;
    double loss = unsigned_nan((double)result->loss), norm = unsigned_nan(result->grad_norm);
    if (ends_the_run(o, result))
        return fail(
            ERR_NUMERIC,
            "iteration %lld: lm loss %g, gradient norm %g. Lower --lr, or continue in spite of it with "
            "--no-check-for-nan-in-loss-and-grad (such a step changes nothing)",
            (long long)c->iteration, loss, norm);
    if (c->skipped_in_a_row < o->max_skipped_steps) return OK;
    return fail(
        ERR_NUMERIC,
        "iteration %lld: %d steps in a row changed nothing (--max-skipped-steps): lm loss %g, gradient norm "
        "%g, loss scale %g. Lower --lr%s",
        (long long)c->iteration, c->skipped_in_a_row, loss, norm, c->scaler.scale,
        o->fp16 ? ", or use --bf16 in place of --fp16" : "");
}

// First the mean of all losses, then an exponential mean, since the loss of a run keeps falling.
double control_spike(StepControl *c, double loss) {
    enum { MEMORY = 100 }; // in steps
    bool wanted = c->options->check_for_spiky_loss || c->options->rewind_on_spike;
    if (!wanted || !isfinite(loss)) return 0;
    double usual = c->usual_loss;
    bool spike = c->num_losses > 0 && loss > c->options->loss_spike_factor * usual;
    if (c->num_losses < MEMORY) c->num_losses++;
    c->usual_loss += (loss - usual) / (double)c->num_losses;
    return spike ? usual : 0;
}
