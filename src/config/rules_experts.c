// Mixture of experts: which layers have experts, how many, and how a token's experts are chosen.
#include "config/defaults.h"
#include "config/rules.h"
#include "layout/kinds.h"
#include <stdlib.h>
#include <string.h>

static Status check_number(const Options *o) {
    if (o->moe_router_topk > o->num_experts)
        return fail(ERR_CONFIG, "--moe-router-topk %d is more than --num-experts %d: use %d or less",
                    o->moe_router_topk, o->num_experts, o->num_experts);
    if (o->moe_router_topk == 1 && !o->moe_router_pre_softmax &&
        !strcmp(o->moe_router_score_function, "softmax"))
        return fail(
            ERR_CONFIG,
            "--moe-router-topk 1 needs --moe-router-pre-softmax: the softmax over one chosen expert is 1, and "
            "the router would learn nothing");
    if (o->moe_router_enable_expert_bias && strcmp(o->moe_router_score_function, "sigmoid") != 0)
        return fail(
            ERR_CONFIG,
            "--moe-router-enable-expert-bias needs --moe-router-score-function sigmoid, not %s: biases are "
            "of the size of its scores",
            o->moe_router_score_function);
    return OK;
}

static Status check_groups(const Options *o) {
    int groups = o->moe_router_num_groups, open = o->moe_router_group_topk, experts = o->num_experts;
    if (groups == INT_UNSET && open == INT_UNSET) return OK;
    if (groups == INT_UNSET || open == INT_UNSET)
        return fail(ERR_CONFIG, "%s needs %s",
                    open == INT_UNSET ? "--moe-router-num-groups" : "--moe-router-group-topk",
                    open == INT_UNSET ? "--moe-router-group-topk" : "--moe-router-num-groups");
    int fits = groups;
    while (experts % fits) fits--;
    if (fits != groups)
        return fail(
            ERR_CONFIG,
            "--num-experts %d does not divide into --moe-router-num-groups %d equal groups: use %d groups",
            experts, groups, fits);
    if (open > groups)
        return fail(ERR_CONFIG,
                    "--moe-router-group-topk %d is more than --moe-router-num-groups %d: use %d or less",
                    open, groups, groups);
    if (o->moe_router_topk > open * (experts / groups))
        return fail(
            ERR_CONFIG,
            "--moe-router-topk %d is more than the %d experts of --moe-router-group-topk %d groups: use %d groups",
            o->moe_router_topk, open * (experts / groups), open,
            (o->moe_router_topk + experts / groups - 1) / (experts / groups));
    return OK;
}

// Source: Megatron-LM, moe_layer_freq: layer l has experts where l is a multiple of N.
static Status resolve_layers(Options *o) {
    RunShape *s = &o->shape;
    const char *text = o->moe_layer_freq;
    char *end;
    long every = strtol(text, &end, 10);
    bool number = end != text && !*end && every > 0;
    if (!number) {
        TRY(layer_pattern(o, "--moe-layer-freq", text, &s->experts_period, &s->experts_layers));
        if (!s->experts_layers)
            return fail(ERR_CONFIG,
                        "--moe-layer-freq %s: no layer has experts; leave out --num-experts, or use 1", text);
        if (s->experts_period == 1) s->experts_period = 0, s->experts_layers = 0;
        return OK;
    }
    if (every == 1) return OK;
    if (every > MAX_WINDOW_PERIOD)
        return fail(ERR_CONFIG, "--moe-layer-freq %ld is more than %d, the longest pattern: use %d or less",
                    every, MAX_WINDOW_PERIOD, MAX_WINDOW_PERIOD);
    s->experts_period = (int)every;
    s->experts_layers = 1;
    return OK;
}

static Status check_beside(const Options *o) {
    bool shared = o->moe_shared_expert_intermediate_size != INT_UNSET;
    const struct {
        bool given;
        const char *option, *why;
    } refused[] = {
        {shared && !o->disable_bias_linear, "both shared experts and biases of linear layers",
         "add --disable-bias-linear"},
        {shared && o->add_mlp_bias, "both shared experts and --add-mlp-bias",
         "leave it out: shared experts have no biases"},
        {o->parallel_block, "--parallel-block", "leave it out: experts read what attention has added"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].given)
            return fail(ERR_CONFIG, "--num-experts does not go with %s: %s", refused[i].option,
                        refused[i].why);
    return OK;
}

// ---- the exchange beside other computes -------------------------------------------------------------------

Status resolve_pairs(Options *o) {
    const char *paired = schedule_kind_paired()->name;
    if (!o->overlap_moe_expert_parallel_comm) return OK;
    if (!o->schedule) {
        o->schedule = paired;
        derived(o, OPT_schedule);
    }
    if (schedule_kind(o->schedule)->pairs) return OK;
    return fail(
        ERR_CONFIG,
        "--overlap-moe-expert-parallel-comm is the schedule %s, not --schedule %s: leave out one of them",
        paired, o->schedule);
}

Status check_pairs(Options *o) {
    const char *option =
        o->overlap_moe_expert_parallel_comm ? "--overlap-moe-expert-parallel-comm" : "--schedule paired";
    if (!schedule_kind(o->shape.schedule)->pairs) return OK;
    if (o->num_experts == INT_UNSET || o->expert_model_parallel_size == 1)
        return fail(
            ERR_CONFIG,
            "%s hides the exchange of tokens between ranks with other experts, and %s: %s, or leave it out",
            option, o->num_experts == INT_UNSET ? "the model has none" : "each rank has all of them",
            o->num_experts == INT_UNSET ? "add --num-experts and --expert-model-parallel-size"
                                        : "add --expert-model-parallel-size 2 or more");
    if (o->shape.sharding <= SHARD_OPTIMIZER) return OK;
    return fail(
        ERR_CONFIG,
        "%s computes two layers at a time, and --data-parallel-sharding-strategy %s keeps memory for one: use "
        "--data-parallel-sharding-strategy %s, or leave it out",
        option, sharding_names[o->shape.sharding], sharding_names[SHARD_OPTIMIZER]);
}

// ---- products of few bits ---------------------------------------------------------------------------------

static Status check_width(const Options *o, const char *name, int width, int ranks) {
    char option[64];
    int unit = few_bits_recipe(o)->unit;
    few_bits_option(o, option);
    if (width == INT_UNSET || width / ranks % unit == 0) return OK;
    return fail(ERR_CONFIG, "%s: %s %d over %d tensor ranks is not a multiple of %d: use %s %lld", option,
                name, width, ranks, unit, name, (long long)whole_units(width, (int64_t)unit * ranks));
}

Status check_experts_few_bits(Options *o) {
    int own = o->expert_tensor_parallel_size, ranks = own == INT_UNSET ? o->shape.tp : own;
    if (o->num_experts == INT_UNSET || !few_bits_recipe(o)) return OK;
    if (o->moe_ffn_hidden_size != INT_UNSET)
        TRY(check_width(o, "--moe-ffn-hidden-size", o->moe_ffn_hidden_size, ranks));
    TRY(check_width(o, "--moe-shared-expert-intermediate-size", o->moe_shared_expert_intermediate_size,
                    o->shape.tp));
    if (!o->fp4_format || o->expert_model_parallel_size == 1 || o->moe_dispatch_rows == INT_UNSET) return OK;
    return fail(ERR_CONFIG,
                "--moe-dispatch-rows %d with --fp4-format: all rows that an expert gets from a rank have one "
                "scale, and travel in one round: leave it out",
                o->moe_dispatch_rows);
}

Status resolve_experts(Options *o) {
    if (o->num_experts == INT_UNSET) return OK;
    TRY(check_beside(o));
    TRY(check_number(o));
    TRY(check_groups(o));
    o->shape.expert_width = o->moe_ffn_hidden_size != INT_UNSET ? o->moe_ffn_hidden_size : o->ffn_hidden_size;
    return resolve_layers(o);
}
