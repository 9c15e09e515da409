// Every rule of a run, group by group in the order in which Megatron-LM checks them, and notes on what has no
// effect.
#include "config/rules.h"
#include "layout/kinds.h"
#include <math.h>
#include <string.h>

// ---- what must be there -----------------------------------------------------------------------------------

static Status check_no_stray_words(Options *o) {
    if (o->positional.count == 0) return OK;
    return fail(
        ERR_USAGE,
        "'%s' belongs to no option; options are written --name value, and a file of them --config FILE",
        o->positional.items[0]);
}

static bool without_length(const Options *o) {
    return o->train_iters == INT_UNSET && o->train_samples == INT_UNSET;
}

static bool without_data(const Options *o) { return !names_data(o); }

// Training reads the size of the vocabulary from the tokenizer of its data; other verbs may have no data.
static bool without_vocabulary(const Options *o) {
    bool known = o->store->verb & FOR_PLAN ? false : names_tokenizer_files(o);
    if (o->store->verb & FOR_TRAIN && !o->mock_data) known = true;
    return o->vocab_size == INT_UNSET && !known && !options_have_null_tokenizer(o);
}

static const struct {
    int index;
    Verb verbs;
    const char *value;
    const char *hint;                 // at the end, once; NULL: none
    bool (*missing)(const Options *); // NULL: while it is unset
} required[] = {
    {OPT_num_layers, FOR_PLAN, "12", "--model gpt2-124m brings the model", NULL},
    {OPT_num_layers, FOR_RUN, "12", "--model gpt2-124m brings the model, and so does --load of one", NULL},
    {OPT_hidden_size, FOR_DESIGN, "768", NULL, NULL},
    {OPT_num_attention_heads, FOR_DESIGN, "12", NULL, NULL},
    {OPT_seq_length, FOR_DESIGN, "1024", NULL, NULL},
    {OPT_vocab_size, FOR_PLAN, "50257", NULL, without_vocabulary},
    {OPT_vocab_size, FOR_RUN, "50257", "--tokenizer-model brings the vocabulary", without_vocabulary},
    {OPT_micro_batch_size, FOR_RUN, "4", NULL, NULL},
    {OPT_train_iters, FOR_TRAIN, "1000", "--train-samples will do for --train-iters", without_length},
    {OPT_lr, FOR_TRAIN, "6e-4", NULL, NULL},
    {OPT_data_path, FOR_TRAIN, "PREFIX", "`trireme preprocess` makes PREFIX; --mock-data needs no files",
     without_data},
};

// Names all required options that are missing in one message, with an example to type.
static Status check_required_options(Options *o) {
    Text names = {0}, example = {0}, hints = {0};
    int count = 0;
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        const OptionInfo *option = &option_table[required[i].index];
        int length = (int)strcspn(option->spellings, " ");
        if (!(required[i].verbs & o->store->verb)) continue;
        if (required[i].missing ? !required[i].missing(o) : value_is_set(o, option)) continue;
        text_add(&names, "%s--%.*s", count++ ? ", " : "", length, option->spellings);
        text_add(&example, " --%.*s %s", length, option->spellings, required[i].value);
        if (required[i].hint) text_add(&hints, "; %s", required[i].hint);
    }
    Status status = OK;
    if (count)
        status = fail(ERR_CONFIG, "%s %s required, such as%s%s", names.data, count == 1 ? "is" : "are",
                      example.data, text_string(&hints));
    text_free(&names);
    text_free(&example);
    text_free(&hints);
    return status;
}

// ---- the grid ---------------------------------------------------------------------------------------------

static Status resolve_grid(Options *o) {
    int n = o->shape.world_size;
    if (o->ranks != INT_UNSET && o->ranks != n)
        return fail(ERR_CONFIG, "--ranks %d, but %d ranks were launched: leave out --ranks or launch %d",
                    o->ranks, n, o->ranks);
    int64_t t = o->tensor_model_parallel_size, p = o->pipeline_model_parallel_size;
    if (n % (t * p))
        return fail(
            ERR_CONFIG,
            "world size (%d) is not divisible by tensor (%lld) * pipeline (%lld) model-parallel size: "
            "use --ranks %lld, or another --tensor-model-parallel-size or --pipeline-model-parallel-size",
            n, (long long)t, (long long)p, (long long)((n / (t * p) + 1) * t * p));
    o->shape.tp = (int)t;
    o->shape.pp = (int)p;
    o->shape.dp = (int)(n / (t * p));
    derive_int(o, OPT_ranks, &o->ranks, n);
    return OK;
}

static Status resolve_data_parallel(Options *o) {
    int d = o->shape.dp;
    if (o->data_parallel_size != INT_UNSET && o->data_parallel_size != d)
        return fail(
            ERR_CONFIG,
            "--data-parallel-size %d, but %d ranks / (%d tensor * %d pipeline) leave %d: use --ranks %lld or "
            "--data-parallel-size %d",
            o->data_parallel_size, o->shape.world_size, o->shape.tp, o->shape.pp, d,
            (long long)o->data_parallel_size * o->shape.tp * o->shape.pp, d);
    derive_int(o, OPT_data_parallel_size, &o->data_parallel_size, d);
    return OK;
}

static Status resolve_virtual_data(Options *o) {
    int v = o->virtual_data_parallel, d = o->shape.dp, larger = 1;
    if (v == INT_UNSET) return OK;
    while (larger < v || larger < d) larger *= 2;
    if (v & (v - 1))
        return fail(ERR_CONFIG, "--virtual-data-parallel %d is no power of two: use %d", v, larger);
    if (v % d)
        return fail(ERR_CONFIG,
                    "--virtual-data-parallel %d is not divisible by data parallel size (%d): use a data "
                    "parallel size of 1, 2, 4 and so on, up to %d",
                    v, d, v);
    o->shape.virtual_data = v;
    return OK;
}

static Rule *const start_rules[] = {
    check_no_stray_words, resolve_model,         resolve_grid,           resolve_data_parallel,
    resolve_virtual_data, check_one_data_source, check_required_options, NULL};

// A plan searches for the grid, so that the model is checked for one rank.
static Status resolve_open_grid(Options *o) {
    o->shape.tp = o->shape.pp = o->shape.dp = 1;
    return OK;
}

static Rule *const open_rules[] = {check_no_stray_words, resolve_model, resolve_open_grid,
                                   check_required_options, NULL};

// ---- options without effect -------------------------------------------------------------------------------

static bool without_groups(const Options *o) { return !o->group_query_attention; }
static bool without_rope(const Options *o) { return strcmp(o->position_embedding_type, "rope") != 0; }
static bool without_scaling(const Options *o) { return without_rope(o) || !o->use_rope_scaling; }
static bool without_gelu(const Options *o) { return o->swiglu; }
static bool without_table(const Options *o) {
    return strcmp(o->position_embedding_type, "learned_absolute") != 0;
}
static bool without_fp16(const Options *o) { return !o->fp16; }
static bool without_fp8(const Options *o) { return !o->fp8_format; }
static bool without_wide_layers(const Options *o) { return !o->fp8_format || !o->first_last_layers_bf16; }
static bool with_fixed_scale(const Options *o) { return !o->shape.dynamic_loss_scale; }
static bool without_wsd(const Options *o) { return strcmp(o->lr_decay_style, "WSD") != 0; }
static bool without_tensor_ranks(const Options *o) { return o->shape.tp == 1; }
static bool without_rewinds(const Options *o) { return !o->rewind_on_spike; }
static bool without_spikes(const Options *o) { return !o->check_for_spiky_loss && without_rewinds(o); }
static bool without_removal(const Options *o) { return o->keep_last == 0; }
static bool without_lora(const Options *o) { return !o->lora_rank; }
static bool without_trace(const Options *o) { return !o->trace; }

static void note_idle_option(Options *o, int index, const char *why) {
    const char *spellings = option_table[index].spellings;
    char name[80];
    snprintf(name, sizeof name, "--%.*s", (int)strcspn(spellings, " "), spellings);
    if (option_given(o, index)) note_idle(o, name, why);
}

static void note_idle_options(Options *o) {
    static const struct {
        int index;
        bool (*idle)(const Options *);
        const char *why;
    } rows[] = {
        {OPT_num_query_groups, without_groups, "it is for --group-query-attention"},
        {OPT_rotary_base, without_rope, "it is for --position-embedding-type rope"},
        {OPT_rotary_percent, without_rope, "it is for --position-embedding-type rope"},
        {OPT_rotary_seq_len_interpolation_factor, without_rope, "it is for --position-embedding-type rope"},
        {OPT_use_rope_scaling, without_rope, "it is for --position-embedding-type rope"},
        {OPT_rope_scaling_factor, without_scaling, "it is for --use-rope-scaling"},
        {OPT_rope_low_freq_factor, without_scaling, "it is for --use-rope-scaling"},
        {OPT_rope_high_freq_factor, without_scaling, "it is for --use-rope-scaling"},
        {OPT_rope_original_max_position_embeddings, without_scaling, "it is for --use-rope-scaling"},
        {OPT_bias_gelu_fusion, without_gelu, "the MLP has SwiGLU"},
        {OPT_openai_gelu, without_gelu, "the MLP has SwiGLU"},
        {OPT_max_position_embeddings, without_table, "there is no table of positions"},
        {OPT_loss_scale, without_fp16, "it is for --fp16"},
        {OPT_fp8_recipe, without_fp8, "it is for --fp8-format"},
        {OPT_first_last_layers_bf16, without_fp8, "it is for --fp8-format"},
        {OPT_num_layers_at_start_in_bf16, without_wide_layers, "it is for --first-last-layers-bf16"},
        {OPT_num_layers_at_end_in_bf16, without_wide_layers, "it is for --first-last-layers-bf16"},
        {OPT_initial_loss_scale, with_fixed_scale, "it is for --fp16 without --loss-scale"},
        {OPT_min_loss_scale, with_fixed_scale, "it is for --fp16 without --loss-scale"},
        {OPT_loss_scale_window, with_fixed_scale, "it is for --fp16 without --loss-scale"},
        {OPT_hysteresis, with_fixed_scale, "it is for --fp16 without --loss-scale"},
        {OPT_lr_wsd_decay_style, without_wsd, "it is for --lr-decay-style WSD"},
        {OPT_lr_wsd_decay_iters, without_wsd, "it is for --lr-decay-style WSD"},
        {OPT_lr_wsd_decay_samples, without_wsd, "it is for --lr-decay-style WSD"},
        {OPT_sequence_parallel, without_tensor_ranks, "--tensor-model-parallel-size is 1"},
        {OPT_loss_spike_factor, without_spikes, "it is for --check-for-spiky-loss and --rewind-on-spike"},
        {OPT_rewind_margin, without_rewinds, "it is for --rewind-on-spike"},
        {OPT_max_rewinds, without_rewinds, "it is for --rewind-on-spike"},
        {OPT_save_retain_interval, without_removal, "without --keep-last every checkpoint is kept"},
        {OPT_trace_events, without_trace, "it is for --trace"},
        {OPT_lora_alpha, without_lora, "it is for --lora-rank"},
        {OPT_lora_dropout, without_lora, "it is for --lora-rank"},
        {OPT_lora_target_modules, without_lora, "it is for --lora-rank"},
        {OPT_use_rslora, without_lora, "it is for --lora-rank"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].idle(o)) note_idle_option(o, rows[i].index, rows[i].why);
}

// Adds a note for each option that the kind of --schedule does not use.
static void note_idle_settings(Options *o) {
    static const struct {
        int index;
        ScheduleSetting setting;
    } rows[] = {{OPT_schedule_times, SETTING_TIMES},
                {OPT_schedule_stash_limit, SETTING_STASH_LIMIT},
                {OPT_microbatch_group_size_per_virtual_pipeline_stage, SETTING_GROUP}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Text why = {0};
        text_add(&why, "it is for --schedule ");
        schedule_kind_names(rows[i].setting, " or ", &why);
        if (!(schedule_kind(o->schedule)->settings & rows[i].setting))
            note_idle_option(o, rows[i].index, text_string(&why));
        text_free(&why);
    }
}

// ---- all of them ------------------------------------------------------------------------------------------

Status options_resolve(Options *options, int world_size) {
    static const struct {
        Verb verbs;
        Rule *const *rules;
    } groups[] = {
        {FOR_RUN, start_rules},    {FOR_PLAN, open_rules},
        {FOR_RUN, batch_rules},    {FOR_RUN, pipeline_rules},
        {FOR_TRAIN, length_rules}, {FOR_DESIGN, model_rules},
        {FOR_RUN, method_rules},   {FOR_TRAIN, rate_rules},
        {FOR_TRAIN, data_rules},   {FOR_MEMORY | FOR_BENCH, memory_rules},
    };
    CHECK(world_size > 0, "%d ranks", world_size);
    CHECK(options->store->verb & FOR_DESIGN, "only a training run is resolved");
    options->shape = (RunShape){.world_size = world_size};
    for (size_t g = 0; g < sizeof groups / sizeof groups[0]; g++) {
        if (!(groups[g].verbs & options->store->verb)) continue;
        for (Rule *const *rule = groups[g].rules; *rule; rule++) TRY((*rule)(options));
    }
    if (!(options->store->verb & FOR_RUN)) return OK;
    note_idle_options(options);
    note_idle_settings(options);
    return OK;
}
