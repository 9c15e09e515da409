// Every rule of a run, group by group in the order in which Megatron-LM checks them.
#include "config/rules.h"
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
    int64_t c = o->context_parallel_size;
    if (n % (t * p) == 0 && n % (t * p * c))
        return fail(
            ERR_CONFIG,
            "world size (%d) is not divisible by tensor (%lld) * context (%lld) * pipeline (%lld) parallel "
            "size: use --ranks %lld, or another --context-parallel-size",
            n, (long long)t, (long long)c, (long long)p, (long long)((n / (t * p * c) + 1) * t * p * c));
    if (n % (t * p))
        return fail(
            ERR_CONFIG,
            "world size (%d) is not divisible by tensor (%lld) * pipeline (%lld) model-parallel size: "
            "use --ranks %lld, or another --tensor-model-parallel-size or --pipeline-model-parallel-size",
            n, (long long)t, (long long)p, (long long)((n / (t * p) + 1) * t * p));
    o->shape.tp = (int)t;
    o->shape.cp = (int)c;
    o->shape.pp = (int)p;
    o->shape.dp = (int)(n / (t * p * c));
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
    o->shape.tp = o->shape.cp = o->shape.pp = o->shape.dp = 1;
    return OK;
}

static Rule *const open_rules[] = {check_no_stray_words, resolve_model,          resolve_open_grid,
                                   resolve_pairs,        check_required_options, NULL};

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
    options_note_idle(options);
    note_idle_settings(options);
    return OK;
}
