// The rules of a run's length, in steps or in samples, and of what changes along it: learning rate and weight decay.
#include "config/rules.h"
#include <math.h>
#include <string.h>

static bool in_samples(const Options *o) { return o->train_samples != INT_UNSET; }

static Status check_one_length(Options *o) {
    bool iters = o->train_iters != INT_UNSET;
    if (iters && in_samples(o))
        return fail(ERR_CONFIG,
                    "--train-iters %lld and --train-samples %lld cannot be set at the same time: keep one",
                    (long long)o->train_iters, (long long)o->train_samples);
    if (iters && o->rampup_batch_size.count)
        return fail(
            ERR_CONFIG,
            "--rampup-batch-size with --train-iters %lld: expected no batch-size rampup for iteration-based "
            "training; use --train-samples, such as %lld",
            (long long)o->train_iters,
            (long long)((o->train_iters < 1000000000 ? o->train_iters : 1000000000) * o->shape.global_batch));
    return OK;
}

static Status check_one_unit(Options *o) {
    static const struct {
        int index;
        bool samples;
        const char *instead;
    } lengths[] = {
        {OPT_lr_decay_samples, true, "--lr-decay-iters"},
        {OPT_lr_warmup_samples, true, "--lr-warmup-iters"},
        {OPT_lr_wsd_decay_samples, true, "--lr-wsd-decay-iters"},
        {OPT_lr_decay_iters, false, "--lr-decay-samples"},
        {OPT_lr_warmup_iters, false, "--lr-warmup-samples"},
        {OPT_lr_wsd_decay_iters, false, "--lr-wsd-decay-samples"},
    };
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const OptionInfo *option = &option_table[lengths[i].index];
        const OptionLong *value = (const OptionLong *)(const void *)((const char *)o + option->offset);
        if (lengths[i].samples == in_samples(o) || *value == INT_UNSET || *value == 0) continue;
        return fail(ERR_CONFIG, "--%s %lld with --train-%s: expected %s-based training throughout; use %s",
                    option->spellings, (long long)*value, in_samples(o) ? "samples" : "iters",
                    in_samples(o) ? "sample" : "iteration", lengths[i].instead);
    }
    return OK;
}

static Status resolve_run_length(Options *o) {
    int64_t batch = o->shape.global_batch;
    if (in_samples(o)) {
        int64_t consumed, steps = rampup_steps(o, &consumed);
        o->shape.train_samples = o->train_samples;
        o->shape.train_iters = steps + (o->train_samples - consumed) / batch;
        return OK;
    }
    o->shape.train_iters = o->train_iters;
    if (__builtin_mul_overflow(o->train_iters, batch, &o->shape.train_samples))
        return fail(
            ERR_CONFIG,
            "--train-iters %lld times --global-batch-size %lld samples is too large: use at most %lld",
            (long long)o->train_iters, (long long)batch, (long long)(INT64_MAX / batch));
    return OK;
}

Rule *const length_rules[] = {check_one_length, check_one_unit, resolve_run_length, NULL};

// ---- the learning rate ------------------------------------------------------------------------------------

static Status check_rates(Options *o) {
    if (o->min_lr > o->lr)
        return fail(ERR_CONFIG, "--min-lr %g is above --lr %g: use --min-lr %g or less", o->min_lr, o->lr,
                    o->lr);
    if (o->lr_warmup_init > o->lr)
        return fail(ERR_CONFIG, "--lr-warmup-init %g is above --lr %g: use --lr-warmup-init %g or less",
                    o->lr_warmup_init, o->lr, o->lr);
    return OK;
}

static int64_t decay_length_of(const Options *o) {
    return in_samples(o) ? o->lr_decay_samples : o->lr_decay_iters;
}

static Status resolve_decay_length(Options *o) {
    int64_t *length = in_samples(o) ? &o->lr_decay_samples : &o->lr_decay_iters;
    if (*length == INT_UNSET) {
        *length = in_samples(o) ? o->train_samples : o->train_iters;
        derived(o, in_samples(o) ? OPT_lr_decay_samples : OPT_lr_decay_iters);
    }
    if (!__builtin_mul_overflow(*length, in_samples(o) ? 1 : o->shape.global_batch,
                                &o->shape.lr_decay_samples))
        return OK;
    return fail(ERR_CONFIG,
                "--lr-decay-iters %lld times --global-batch-size %d samples is too large: use at most %lld",
                (long long)*length, o->shape.global_batch, (long long)(INT64_MAX / o->shape.global_batch));
}

static Status resolve_warmup_length(Options *o) {
    double fraction = o->lr_warmup_fraction, decay = (double)o->shape.lr_decay_samples;
    int64_t length = in_samples(o) ? o->lr_warmup_samples : o->lr_warmup_iters;
    const char *unit = in_samples(o) ? "samples" : "iters";
    if (!isnan(fraction) && length)
        return fail(
            ERR_CONFIG,
            "--lr-warmup-fraction %g and --lr-warmup-%s %lld cannot be set at the same time: keep one",
            fraction, unit, (long long)length);
    double warmup = (double)length * (in_samples(o) ? 1 : o->shape.global_batch);
    o->shape.lr_warmup_samples = isnan(fraction) ? warmup : fraction * decay;
    if (o->shape.lr_warmup_samples <= decay) return OK;
    return fail(
        ERR_CONFIG,
        "--lr-warmup-%s %lld is longer than the decay of %lld %s: use less, or a longer --lr-decay-%s", unit,
        (long long)length, (long long)decay_length_of(o), unit, unit);
}

static Status resolve_wsd_length(Options *o) {
    if (strcmp(o->lr_decay_style, "WSD")) return OK;
    int64_t length = in_samples(o) ? o->lr_wsd_decay_samples : o->lr_wsd_decay_iters;
    int64_t decay = decay_length_of(o);
    const char *unit = in_samples(o) ? "samples" : "iters";
    if (length == INT_UNSET)
        return fail(ERR_CONFIG,
                    "--lr-decay-style WSD needs the length of its last part: --lr-wsd-decay-%s, such as %lld",
                    unit, (long long)(decay / 10 > 0 ? decay / 10 : 1));
    if (length > decay)
        return fail(ERR_CONFIG,
                    "--lr-wsd-decay-%s %lld is longer than the decay of %lld %s: use %lld or less", unit,
                    (long long)length, (long long)decay, unit, (long long)decay);
    o->shape.lr_wsd_samples = length * (in_samples(o) ? 1 : o->shape.global_batch);
    return OK;
}

// ---- weight decay -----------------------------------------------------------------------------------------

static Status resolve_weight_decay(Options *o) {
    bool start = !isnan(o->start_weight_decay), end = !isnan(o->end_weight_decay);
    const char *style = o->weight_decay_incr_style;
    if (strcmp(style, "constant")) {
        if (start && end) return OK;
        return fail(ERR_CONFIG,
                    "--weight-decay-incr-style %s needs --%s-weight-decay, such as 0.1: "
                    "it goes from one to the other",
                    style, start ? "end" : "start");
    }
    bool same = o->start_weight_decay == o->weight_decay && o->end_weight_decay == o->weight_decay;
    if ((start || end) && !same)
        return fail(
            ERR_CONFIG,
            "--%s-weight-decay with --weight-decay-incr-style constant: use --weight-decay alone, or the "
            "style linear or cosine",
            start ? "start" : "end");
    o->start_weight_decay = o->end_weight_decay = o->weight_decay;
    derived(o, OPT_start_weight_decay);
    derived(o, OPT_end_weight_decay);
    return OK;
}

static Status check_weight_decay_grows(Options *o) {
    if (o->start_weight_decay <= o->end_weight_decay) return OK;
    return fail(ERR_CONFIG,
                "--start-weight-decay %g is above --end-weight-decay %g: it can only grow; use %g or less",
                o->start_weight_decay, o->end_weight_decay, o->end_weight_decay);
}

Rule *const rate_rules[] = {check_rates,
                            resolve_decay_length,
                            resolve_warmup_length,
                            resolve_wsd_length,
                            resolve_weight_decay,
                            check_weight_decay_grows,
                            NULL};
