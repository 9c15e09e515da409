// The model: sizes that divide over tp, and how it is run: precision, recomputation.
#include "config/rules.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- sizes ------------------------------------------------------------------------------------------------

static Status resolve_heads(Options *o) {
    int hidden = o->hidden_size, heads = o->num_attention_heads, t = o->shape.tp;
    if (o->kv_channels == INT_UNSET && hidden % heads)
        return fail(
            ERR_CONFIG,
            "--hidden-size %d is not divisible by --num-attention-heads %d: use --hidden-size %lld, or set "
            "--kv-channels",
            hidden, heads, (long long)(hidden / heads + 1) * heads);
    if (heads % t)
        return fail(
            ERR_CONFIG,
            "--num-attention-heads %d is not divisible by --tensor-model-parallel-size %d: use %d heads, or "
            "a tensor size that divides %d",
            heads, t, heads - heads % t + t, heads);
    derive_int(o, OPT_kv_channels, &o->kv_channels, hidden / heads);
    return OK;
}

// Returns the smallest divisor of `heads` from `groups` on that t divides; `heads` where there is none.
static int groups_that_fit(int heads, int groups, int t) {
    while (groups < heads && (heads % groups || groups % t)) groups++;
    return groups < heads ? groups : heads;
}

static Status resolve_query_groups(Options *o) {
    int heads = o->num_attention_heads, groups = o->num_query_groups, t = o->shape.tp;
    o->shape.query_groups = o->group_query_attention ? groups : heads;
    if (!o->group_query_attention) return OK;
    if (heads % groups)
        return fail(ERR_CONFIG,
                    "--num-attention-heads %d is not divisible by --num-query-groups %d: use %d groups",
                    heads, groups, groups_that_fit(heads, groups, t));
    if (groups % t)
        return fail(
            ERR_CONFIG,
            "--num-query-groups %d is not divisible by --tensor-model-parallel-size %d: use %d groups, or a "
            "tensor size that divides %d",
            groups, t, groups_that_fit(heads, groups, t), groups);
    return OK;
}

bool options_have_gate(const Options *o) { return o->swiglu || o->geglu || o->quick_geglu; }

static Status resolve_mlp(Options *o) {
    int t = o->shape.tp, gated = o->hidden_size / 24 * 64; // 2/3 of 4 H in multiples of 64
    bool has_gate = options_have_gate(o);
    if (o->swiglu + o->geglu + o->quick_geglu + o->squared_relu > 1)
        return fail(ERR_CONFIG,
                    "--swiglu, --geglu, --quick-geglu and --squared-relu are different MLPs: keep one");
    if (!o->quick_geglu && (o->glu_linear_offset > 0 || o->activation_func_clamp_value > 0))
        return fail(ERR_CONFIG, "--%s is of --quick-geglu alone: add that, or leave it out",
                    o->glu_linear_offset > 0 ? "glu-linear-offset" : "activation-func-clamp-value");
    if (has_gate && gated == 0 && o->ffn_hidden_size == INT_UNSET)
        return fail(ERR_CONFIG,
                    "--%s with --hidden-size %d leaves no multiple of 64 for the MLP: set --ffn-hidden-size, "
                    "such as %lld",
                    o->swiglu  ? "swiglu"
                    : o->geglu ? "geglu"
                               : "quick-geglu",
                    o->hidden_size, 4LL * o->hidden_size);
    derive_int(o, OPT_ffn_hidden_size, &o->ffn_hidden_size, has_gate ? gated : 4 * o->hidden_size);
    if (o->ffn_hidden_size % t == 0) return OK;
    return fail(
        ERR_CONFIG,
        "--ffn-hidden-size %d is not divisible by --tensor-model-parallel-size %d: use --ffn-hidden-size %d",
        o->ffn_hidden_size, t, o->ffn_hidden_size - o->ffn_hidden_size % t + t);
}

// A padded vocabulary is less than twice the vocabulary, which is at most 2^30, or it is one unit.
static Status check_padded_vocabulary(Options *o) {
    int t = o->shape.tp;
    int64_t unit = (int64_t)o->make_vocab_size_divisible_by * t;
    if (unit <= INT32_MAX) return OK;
    return fail(
        ERR_CONFIG,
        "--make-vocab-size-divisible-by %d times --tensor-model-parallel-size %d pads the vocabulary to %lld "
        "entries, more than %d: use --make-vocab-size-divisible-by %d or less",
        o->make_vocab_size_divisible_by, t, (long long)unit, INT32_MAX, INT32_MAX / t);
}

// ---- positions --------------------------------------------------------------------------------------------

static bool positions_are(const Options *o, const char *type) {
    return !strcmp(o->position_embedding_type, type);
}

// --no-position-embedding is an older option for a model without a position table.
static Status resolve_position_type(Options *o) {
    if (o->position_embedding || !positions_are(o, "learned_absolute")) return OK;
    if (option_given(o, OPT_position_embedding_type))
        return fail(
            ERR_CONFIG,
            "--no-position-embedding contradicts --position-embedding-type learned_absolute: use rope or "
            "none");
    o->position_embedding_type = "none";
    derived(o, OPT_position_embedding_type);
    return OK;
}

static Status resolve_positions(Options *o) {
    derive_int(o, OPT_max_position_embeddings, &o->max_position_embeddings, o->seq_length);
    if (!positions_are(o, "learned_absolute") || o->max_position_embeddings >= o->seq_length) return OK;
    Origin origin = o->store->origins[OPT_max_position_embeddings];
    if (origin == FROM_CHECKPOINT || origin == DERIVED)
        return fail(
            ERR_CONFIG,
            "--seq-length %d is longer than the table of %d positions that the model of --load has: use "
            "--seq-length %d or less",
            o->seq_length, o->max_position_embeddings, o->max_position_embeddings);
    return fail(ERR_CONFIG,
                "--max-position-embeddings (%d) must be greater than or equal to --seq-length (%d): use %d",
                o->max_position_embeddings, o->seq_length, o->seq_length);
}

static Status resolve_rotary_columns(Options *o) {
    int columns =
        o->multi_latent_attention ? o->qk_pos_emb_head_dim : (int)(o->kv_channels * o->rotary_percent);
    if (!positions_are(o, "rope")) return OK;
    o->shape.rotary_columns = columns;
    if (columns > 0 && columns % 2 == 0) return OK;
    return fail(
        ERR_CONFIG,
        "--position-embedding-type rope rotates pairs, but --rotary-percent %g of the %d columns of a head "
        "are %d: use an even --kv-channels, or another share",
        o->rotary_percent, o->kv_channels, columns);
}

enum { LARGEST_FACTOR = 1 << 16 }; // of LongRoPE

// A number for each pair of columns that rotates.
static Status check_factors(const Options *o, const char *option, const StringList *words) {
    int pairs = o->shape.rotary_columns / 2;
    if (words->count != pairs)
        return fail(ERR_CONFIG, "--%s has %d numbers, and %d pairs of columns of a head rotate: one for each",
                    option, words->count, pairs);
    if (pairs > MAX_ROPE_FACTORS)
        return fail(ERR_CONFIG, "--rope-scaling-type longrope rotates at most %d columns of a head, not %d",
                    2 * MAX_ROPE_FACTORS, 2 * pairs);
    for (int i = 0; i < pairs; i++) {
        char *end;
        double value = strtod(words->items[i], &end);
        if (*end || !(value > 0 && value <= LARGEST_FACTOR))
            return fail(ERR_CONFIG, "--%s: \"%s\" is no number above 0 and up to %d", option, words->items[i],
                        LARGEST_FACTOR);
    }
    return OK;
}

static Status check_longrope(const Options *o) {
    if (o->rope_original_max_position_embeddings < 2)
        return fail(ERR_CONFIG,
                    "--rope-scaling-type longrope: --rope-original-max-position-embeddings %d is no "
                    "length that a model was trained on: Phi-3 has 4096",
                    o->rope_original_max_position_embeddings);
    TRY(check_factors(o, "rope-short-factors", &o->rope_short_factors));
    return check_factors(o, "rope-long-factors", &o->rope_long_factors);
}

static Status check_scaling_type(const Options *o) {
    if (o->use_rope_scaling || !isnan(o->rotary_seq_len_interpolation_factor))
        return fail(ERR_CONFIG,
                    "--rope-scaling-type %s and --%s are two ways to scale rotary positions: keep one",
                    o->rope_scaling_type,
                    o->use_rope_scaling ? "use-rope-scaling" : "rotary-seq-len-interpolation-factor");
    if (!strcmp(o->rope_scaling_type, "longrope")) return check_longrope(o);
    if (strcmp(o->rope_scaling_type, "yarn") != 0 || o->yarn_beta_fast > o->yarn_beta_slow) return OK;
    return fail(ERR_CONFIG, "--yarn-beta-fast (%g) must be greater than --yarn-beta-slow (%g): use %g",
                o->yarn_beta_fast, o->yarn_beta_slow, 32 * o->yarn_beta_slow);
}

static Status check_rope_scaling(Options *o) {
    if (positions_are(o, "rope") && o->rope_scaling_type) return check_scaling_type(o);
    if (!positions_are(o, "rope") || !o->use_rope_scaling) return OK;
    if (!isnan(o->rotary_seq_len_interpolation_factor))
        return fail(ERR_CONFIG,
                    "--use-rope-scaling and --rotary-seq-len-interpolation-factor are two ways to scale "
                    "rotary positions: keep one");
    if (o->rope_high_freq_factor > o->rope_low_freq_factor) return OK;
    return fail(ERR_CONFIG,
                "--rope-high-freq-factor (%g) must be greater than --rope-low-freq-factor (%g): use %g",
                o->rope_high_freq_factor, o->rope_low_freq_factor, 4 * o->rope_low_freq_factor);
}

// ---- norms ------------------------------------------------------------------------------------------------

static Status check_norms(Options *o) {
    bool all_biases = !o->disable_bias_linear;
    if (strcmp(o->qk_norm, "none") && strcmp(o->normalization, "RMSNorm"))
        return fail(ERR_CONFIG, "--qk-norm %s is an RMS norm: add --normalization RMSNorm", o->qk_norm);
    if (o->residual_multiplier > 0 && (all_biases || o->add_attn_proj_bias || o->add_mlp_bias))
        return fail(ERR_CONFIG, "--residual-multiplier %g: what it multiplies has no bias: %s",
                    o->residual_multiplier,
                    all_biases              ? "add --disable-bias-linear"
                    : o->add_attn_proj_bias ? "leave out --add-attn-proj-bias"
                                            : "leave out --add-mlp-bias");
    if (!strcmp(o->norm_placement, "pre")) return OK;
    if (o->parallel_block)
        return fail(ERR_CONFIG,
                    "--parallel-block has norms before attention and MLP alone: leave out "
                    "--norm-placement %s",
                    o->norm_placement);
    if (!all_biases && !o->add_attn_proj_bias && !o->add_mlp_bias) return OK;
    return fail(ERR_CONFIG, "--norm-placement %s: what goes into these norms has no bias: %s",
                o->norm_placement,
                all_biases              ? "add --disable-bias-linear"
                : o->add_attn_proj_bias ? "leave out --add-attn-proj-bias"
                                        : "leave out --add-mlp-bias");
}

// ---- precision --------------------------------------------------------------------------------------------

static Status resolve_precision(Options *o) {
    if (o->bf16 && o->fp16)
        return fail(ERR_CONFIG, "--bf16 and --fp16 cannot be set at the same time: keep one");
    o->shape.dynamic_loss_scale = o->fp16 && isnan(o->loss_scale);
    if (o->shape.dynamic_loss_scale && o->min_loss_scale > o->initial_loss_scale)
        return fail(ERR_CONFIG,
                    "--min-loss-scale %g is above --initial-loss-scale %g: use --min-loss-scale %g or less",
                    o->min_loss_scale, o->initial_loss_scale, o->initial_loss_scale);
    return OK;
}

static const FewBitsRecipe RECIPES[] = {
    {"tensorwise", 16}, {"delayed", 16}, {"blockwise", 128}, {"mxfp8", 32}, {"nvfp4", 16}};

static const char *recipe_of(const Options *o) { return o->fp4_format ? o->fp4_recipe : o->fp8_recipe; }

static Status check_recipe(const Options *o) {
    const char *bits = o->fp4_format ? "fp4" : "fp8";
    if (!strcmp(recipe_of(o), "custom"))
        return fail(ERR_CONFIG,
                    "--%s-recipe custom is not available: there are no others; use --%s-recipe %s", bits,
                    bits, o->fp4_format ? "nvfp4" : "tensorwise");
    if (o->dpo && !strcmp(recipe_of(o), "delayed"))
        return fail(ERR_CONFIG,
                    "--fp8-recipe delayed with --dpo: the reference model's values would depend on the "
                    "step at which they are computed; use --fp8-recipe tensorwise");
    return OK;
}

static Status check_few_bits(Options *o) {
    const char *option = o->fp4_format ? "--fp4-format" : "--fp8-format";
    if (!o->fp8_format && !o->fp4_format) return OK;
    if (o->fp8_format && o->fp4_format)
        return fail(ERR_CONFIG, "--fp8-format and --fp4-format cannot be set at the same time: keep one");
    if (!o->bf16)
        return fail(ERR_CONFIG,
                    "%s %s needs --bf16, the type of all that is not a product of a layer: add it", option,
                    o->fp4_format ? o->fp4_format : o->fp8_format);
    int wide = o->first_last_layers_bf16 ? o->num_layers_at_start_in_bf16 + o->num_layers_at_end_in_bf16 : 0;
    if (wide >= o->num_layers)
        return fail(
            ERR_CONFIG,
            "--first-last-layers-bf16 leaves no layer of --num-layers %d for %s: %d stay in bf16; lower "
            "--num-layers-at-start-in-bf16 or --num-layers-at-end-in-bf16, or leave out %s",
            o->num_layers, option, wide, option);
    return check_recipe(o);
}

const FewBitsRecipe *few_bits_recipe(const Options *o) {
    if (!o->fp8_format && !o->fp4_format) return NULL;
    for (size_t i = 0; i < sizeof RECIPES / sizeof *RECIPES; i++)
        if (!strcmp(recipe_of(o), RECIPES[i].name)) return &RECIPES[i];
    CHECK(false, "no recipe is named %s", recipe_of(o));
}

int few_bits_unit(const char *recipe) {
    for (size_t i = 0; i < sizeof RECIPES / sizeof *RECIPES; i++)
        if (!strcmp(recipe, RECIPES[i].name)) return RECIPES[i].unit;
    return 0;
}

void few_bits_option(const Options *o, char option[64]) {
    const FewBitsRecipe *recipe = few_bits_recipe(o);
    if (o->fp4_format || recipe->unit == 16)
        snprintf(option, 64, "%s", o->fp4_format ? "--fp4-format" : "--fp8-format");
    else
        snprintf(option, 64, "--fp8-recipe %s", recipe->name);
}

int64_t whole_units(int64_t x, int64_t unit) { return (x + unit - 1) / unit * unit; }

static Status check_few_bits_sizes(Options *o) {
    char option[64];
    if (!few_bits_recipe(o)) return OK;
    few_bits_option(o, option);
    int t = o->shape.tp, unit = few_bits_recipe(o)->unit;
    int64_t b = o->micro_batch_size, tokens = b * o->seq_length / o->shape.cp, d = o->kv_channels;
    int64_t width = o->num_attention_heads / t * d, groups = o->shape.query_groups / t * d;
    if (tokens % unit)
        return fail(
            ERR_CONFIG,
            "%s: a rank has %lld tokens of a microbatch (--micro-batch-size %d, --seq-length %d), not a "
            "multiple of %d: use --seq-length %lld",
            option, (long long)tokens, o->micro_batch_size, o->seq_length, unit,
            (long long)whole_units(o->seq_length, unit * o->shape.cp));
    if (o->hidden_size % unit)
        return fail(ERR_CONFIG, "%s: --hidden-size %d is not a multiple of %d: use --hidden-size %lld",
                    option, o->hidden_size, unit, (long long)whole_units(o->hidden_size, unit));
    if (o->ffn_hidden_size / t % unit)
        return fail(ERR_CONFIG,
                    "%s: --ffn-hidden-size %d over %d tensor ranks is not a multiple of %d: use "
                    "--ffn-hidden-size %lld",
                    option, o->ffn_hidden_size, t, unit,
                    (long long)whole_units(o->ffn_hidden_size, unit * t));
    if (width % unit || (width + 2 * groups) % unit)
        return fail(ERR_CONFIG,
                    "%s: the heads of a rank, %d with %d columns each, are not a multiple of %d wide, alone "
                    "and with keys and values: use --kv-channels %lld",
                    option, o->num_attention_heads / t, o->kv_channels, unit,
                    (long long)whole_units(d, unit));
    return OK;
}

// The kinds of devices that look at every value: "check", and those whose names end with it.
static bool looks_at_values(const char *device) {
    size_t length = strlen(device), end = strlen("check");
    return length >= end && !strcmp(device + length - end, "check");
}

// A dynamic loss scale grows until values overflow, so that overflows are no errors.
static Status check_device_overflows(Options *o) {
    if (!o->shape.dynamic_loss_scale || !looks_at_values(o->device)) return OK;
    return fail(ERR_CONFIG,
                "--device %s ends the job at the first value that is not finite, which a dynamic loss scale "
                "meets on purpose: use --loss-scale, such as --loss-scale 65536, or another --device",
                o->device);
}

static Status resolve_overflow_check(Options *o) {
    if (!o->shape.dynamic_loss_scale || !o->check_for_nan_in_loss_and_grad) return OK;
    if (option_given(o, OPT_check_for_nan_in_loss_and_grad))
        note_idle(o, "--check-for-nan-in-loss-and-grad",
                  "with a dynamic loss scale steps that overflow are skipped");
    o->check_for_nan_in_loss_and_grad = false;
    derived(o, OPT_check_for_nan_in_loss_and_grad);
    return OK;
}

// ---- what is kept for the backward ------------------------------------------------------------------------

static Status check_recompute_modules(const Options *o) {
    for (int i = 0; i < o->recompute_modules.count; i++)
        if (strcmp(o->recompute_modules.items[i], "core_attn"))
            return fail(
                ERR_CONFIG,
                "--recompute-modules %s is not available: use core_attn, or --recompute-granularity full",
                o->recompute_modules.items[i]);
    return OK;
}

static Status resolve_recompute_selective(Options *o) {
    const char *extra = o->recompute_method                    ? "--recompute-method"
                        : o->recompute_num_layers != INT_UNSET ? "--recompute-num-layers"
                                                               : NULL;
    if (extra)
        return fail(
            ERR_CONFIG,
            "%s is not for --recompute-granularity selective, which recomputes the attention of every "
            "layer: leave it out, or use --recompute-granularity full",
            extra);
    o->shape.recompute = "selective";
    return check_recompute_modules(o);
}

static Status resolve_recompute_full(Options *o) {
    if (!o->recompute_method)
        return fail(
            ERR_CONFIG,
            "--recompute-granularity full needs --recompute-method: uniform recomputes all layers, block the "
            "first --recompute-num-layers of each chunk");
    if (o->recompute_modules.count)
        return fail(ERR_CONFIG,
                    "--recompute-modules %s is not for --recompute-granularity full, which recomputes whole "
                    "layers: leave it out, or use --recompute-granularity selective",
                    o->recompute_modules.items[0]);
    derive_int(o, OPT_recompute_num_layers, &o->recompute_num_layers, 1);
    o->shape.recompute = o->recompute_method;
    o->shape.recompute_layers = o->recompute_num_layers;
    return OK;
}

static Status resolve_recompute_nothing(Options *o) {
    const char *extra = o->recompute_method                    ? "--recompute-method"
                        : o->recompute_num_layers != INT_UNSET ? "--recompute-num-layers"
                        : o->recompute_modules.count           ? "--recompute-modules"
                                                               : NULL;
    o->shape.recompute = "nothing";
    if (!extra) return OK;
    return fail(ERR_CONFIG, "%s needs --recompute-granularity %s: nothing is recomputed without it", extra,
                o->recompute_method || o->recompute_num_layers != INT_UNSET ? "full" : "selective");
}

static Status resolve_recomputation(Options *o) {
    const char *what = o->recompute_granularity;
    o->shape.keep_probabilities =
        !strcmp(o->attention_backend, "unfused") || !strcmp(o->attention_backend, "local");
    if (!what) return resolve_recompute_nothing(o);
    return strcmp(what, "full") ? resolve_recompute_selective(o) : resolve_recompute_full(o);
}

// ---- what is shared out -----------------------------------------------------------------------------------

static Status resolve_sequence_parallel(Options *o) {
    int t = o->shape.tp, s = o->seq_length;
    o->shape.sequence_parallel = o->sequence_parallel && t > 1;
    if (!o->shape.sequence_parallel || s % t == 0) return OK;
    return fail(
        ERR_CONFIG,
        "--sequence-parallel: --seq-length %d is not divisible by --tensor-model-parallel-size %d: use "
        "--seq-length %d",
        s, t, s - s % t + t);
}

static Status check_saved_activations(Options *o) {
    if (!o->distribute_saved_activations) return OK;
    int t = o->shape.tp, s = o->seq_length;
    bool full = o->recompute_granularity && !strcmp(o->recompute_granularity, "full");
    if (t == 1)
        return fail(ERR_CONFIG,
                    "--distribute-saved-activations needs --tensor-model-parallel-size 2 or more, not 1");
    if (!full)
        return fail(ERR_CONFIG,
                    "--distribute-saved-activations splits the inputs that full recomputation saves: use "
                    "--recompute-granularity full with --recompute-method uniform");
    if (o->shape.sequence_parallel)
        return fail(ERR_CONFIG, "--distribute-saved-activations and --sequence-parallel, which splits more, "
                                "cannot be set at the same time: keep --sequence-parallel");
    if (s % t)
        return fail(ERR_CONFIG,
                    "--distribute-saved-activations: --seq-length %d is not divisible by "
                    "--tensor-model-parallel-size %d: use --seq-length %d",
                    s, t, s - s % t + t);
    return OK;
}

Rule *const model_rules[] = {resolve_latents,
                             resolve_heads,
                             resolve_query_groups,
                             resolve_mlp,
                             check_padded_vocabulary,
                             resolve_position_type,
                             resolve_positions,
                             resolve_rotary_columns,
                             check_rope_scaling,
                             check_norms,
                             resolve_windows,
                             resolve_experts,
                             resolve_precision,
                             resolve_lora,
                             NULL};

static Status check_audits(Options *o) {
    if (o->audit_interval == 0 || o->deterministic_mode) return OK;
    return fail(ERR_CONFIG,
                "--audit-interval %d compares bits, which --no-deterministic-mode lets change: leave out "
                "one of them",
                o->audit_interval);
}

Rule *const method_rules[] = {check_few_bits,
                              check_few_bits_sizes,
                              check_experts_few_bits,
                              check_device_overflows,
                              resolve_overflow_check,
                              resolve_recomputation,
                              resolve_sequence_parallel,
                              check_saved_activations,
                              resolve_sharding,
                              check_gathers,
                              check_grid,
                              check_sums,
                              check_offload,
                              check_pairs,
                              check_audits,
                              check_context_parallel,
                              NULL};
