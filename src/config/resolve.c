// The rules of a training run, in the order in which Megatron-LM checks them. Each says the rule, the values, and values
// that would work; it may rely on all rules above it, and fills what the user left open.
#include "config/table.h"
#include <math.h>
#include <string.h>

static void derived(Options *options, int index) { options->store->origins[index] = DERIVED; }

static bool given(const Options *options, int index) {
    return options->store->origins[index] != FROM_DEFAULT && value_is_set(options, &option_table[index]);
}

static void derive_int(Options *options, int index, int *field, int value) {
    if (*field != INT_UNSET) return;
    *field = value;
    derived(options, index);
}

// ---- what must be there ---------------------------------------------------------------------------------------

static Status no_stray_words(Options *o) {
    if (o->positional.count == 0) return OK;
    return fail(
        ERR_USAGE,
        "'%s' belongs to no option; options are written --name value, and a file of them --config FILE",
        o->positional.items[0]);
}

static Status required_options(Options *o) {
    static const struct {
        int index;
        const char *such_as;
    } required[] = {
        {OPT_num_layers, "12"},
        {OPT_hidden_size, "768"},
        {OPT_num_attention_heads, "12"},
        {OPT_seq_length, "1024"},
        {OPT_micro_batch_size, "4"},
        {OPT_lr, "6e-4"},
        {OPT_data_path, "PREFIX, made by `trireme preprocess`"},
    };
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        const OptionInfo *option = &option_table[required[i].index];
        if (value_is_set(o, option)) continue;
        int length = (int)strcspn(option->spellings, " ");
        return fail(ERR_CONFIG, "--%.*s is required, such as --%.*s %s", length, option->spellings, length,
                    option->spellings, required[i].such_as);
    }
    return OK;
}

// ---- the grid -------------------------------------------------------------------------------------------------

static Status ranks_fill_grid(Options *o) {
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

static Status data_parallel_agrees(Options *o) {
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

// ---- the batch ------------------------------------------------------------------------------------------------

static Status batch_divides(Options *o) {
    int64_t b = o->micro_batch_size, d = o->shape.dp;
    if (b * d > INT32_MAX)
        return fail(ERR_CONFIG,
                    "micro batch size (%lld) times data parallel size (%lld) exceeds %d samples: use less",
                    (long long)b, (long long)d, INT32_MAX);
    derive_int(o, OPT_global_batch_size, &o->global_batch_size, (int)(b * d));
    int64_t batch = o->global_batch_size;
    if (batch % (b * d))
        return fail(
            ERR_CONFIG,
            "global batch size (%lld) is not divisible by micro batch size (%lld) times data parallel size "
            "(%lld): use --global-batch-size %lld",
            (long long)batch, (long long)b, (long long)d, (long long)((batch / (b * d) + 1) * b * d));
    o->shape.num_microbatches = (int)(batch / (b * d));
    return OK;
}

// ---- the pipeline ---------------------------------------------------------------------------------------------

static int or_zero(int value) { return value == INT_UNSET ? 0 : value; }

// --decoder-first-... and --decoder-last-...: the ranks between them share what is left.
static Status uneven_layers_divide(Options *o, int first, int last) {
    int others = o->shape.pp - (first > 0) - (last > 0), rest = o->num_layers - first - last;
    if (o->shape.pp == 1)
        return fail(ERR_CONFIG,
                    "--decoder-first-pipeline-num-layers and --decoder-last-pipeline-num-layers need "
                    "--pipeline-model-parallel-size 2 or more, not 1: leave them out");
    if (o->num_layers_per_virtual_pipeline_stage != INT_UNSET)
        return fail(ERR_CONFIG, "--num-layers-per-virtual-pipeline-stage needs equal pipeline ranks: use "
                                "--num-virtual-stages-per-pipeline-rank");
    if (others == 0 ? rest == 0 : rest > 0 && rest % others == 0) return OK;
    return fail(
        ERR_CONFIG,
        "of --num-layers %d the first and last pipeline rank take %d and %d, which leaves %d for %d other "
        "rank%s: they must share them evenly, such as %d in all",
        o->num_layers, first, last, rest, others, others == 1 ? "" : "s",
        first + last + (others && rest > others ? rest / others : others > 0) * others);
}

static Status layers_divide(Options *o) {
    int layers = o->num_layers, p = o->shape.pp;
    o->shape.first_layers = or_zero(o->decoder_first_pipeline_num_layers);
    o->shape.last_layers = or_zero(o->decoder_last_pipeline_num_layers);
    if (o->shape.first_layers || o->shape.last_layers)
        return uneven_layers_divide(o, o->shape.first_layers, o->shape.last_layers);
    if (layers % p == 0) return OK;
    return fail(
        ERR_CONFIG,
        "--num-layers %d is not divisible by --pipeline-model-parallel-size %d: use %d or %d layers, or another "
        "pipeline size",
        layers, p, layers < p ? p : layers - layers % p, layers < p ? 2 * p : layers - layers % p + p);
}

// Every count of layers that some pipeline rank has.
static int rank_counts(const Options *o, int counts[3]) {
    int n = 0, first = o->shape.first_layers, last = o->shape.last_layers;
    int others = o->shape.pp - (first > 0) - (last > 0);
    if (first) counts[n++] = first;
    if (last) counts[n++] = last;
    if (others) counts[n++] = (o->num_layers - first - last) / others;
    return n;
}

static Status chunks_divide(Options *o) {
    int counts[3], n = rank_counts(o, counts), per_chunk = o->num_layers_per_virtual_pipeline_stage;
    int chunks = o->num_virtual_stages_per_pipeline_rank;
    if (per_chunk != INT_UNSET && chunks != INT_UNSET)
        return fail(
            ERR_CONFIG,
            "--num-layers-per-virtual-pipeline-stage %d and --num-virtual-stages-per-pipeline-rank %d "
            "cannot be set at the same time: keep one",
            per_chunk, chunks);
    if (per_chunk != INT_UNSET && counts[0] % per_chunk)
        return fail(ERR_CONFIG,
                    "--num-layers-per-virtual-pipeline-stage %d does not divide the %d layers of a pipeline "
                    "rank (%d / %d): use a divisor of %d, such as 1",
                    per_chunk, counts[0], o->num_layers, o->shape.pp, counts[0]);
    for (int i = 0; i < n && chunks != INT_UNSET; i++)
        if (counts[i] % chunks)
            return fail(
                ERR_CONFIG,
                "--num-virtual-stages-per-pipeline-rank %d does not divide the %d layers of a pipeline "
                "rank: use a divisor of %d, such as %d",
                chunks, counts[i], counts[i], counts[i]);
    o->shape.vp = per_chunk != INT_UNSET ? counts[0] / per_chunk : chunks != INT_UNSET ? chunks : 1;
    return OK;
}

static Status schedule_fits(Options *o) {
    int p = o->shape.pp, v = o->shape.vp, m = o->shape.num_microbatches;
    bool interleaved = o->schedule ? !strcmp(o->schedule, "interleaved") : v > 1;
    if (v > 1 && !interleaved)
        return fail(
            ERR_CONFIG,
            "--schedule %s has one chunk per pipeline rank, but there are %d: use --schedule interleaved, or leave "
            "out the virtual stages",
            o->schedule, v);
    if (interleaved && p < 2)
        return fail(ERR_CONFIG,
                    "the interleaved schedule needs --pipeline-model-parallel-size 2 or more, not %d", p);
    if (interleaved && v < 2)
        return fail(
            ERR_CONFIG,
            "--schedule interleaved needs --num-virtual-stages-per-pipeline-rank 2 or more (a divisor "
            "of %d layers), not %d",
            o->num_layers / p, v);
    if (interleaved && m % p)
        return fail(
            ERR_CONFIG,
            "the interleaved schedule needs a number of microbatches (%d) divisible by the pipeline size (%d): use "
            "--global-batch-size %lld",
            m, p, (long long)(m / p + 1) * p * o->micro_batch_size * o->shape.dp);
    // The caps of layout/layout.h, which refuses more.
    if (m > 1000000 || (long long)p * v * m > 1 << 24)
        return fail(
            ERR_CONFIG,
            "%d microbatches on %d pipeline ranks of %d chunks are more than a schedule holds (1000000, and "
            "%d forwards in all): use a smaller --global-batch-size or a larger --micro-batch-size",
            m, p, v, 1 << 24);
    if (!o->schedule) {
        o->schedule = interleaved ? "interleaved" : "1f1b";
        derived(o, OPT_schedule);
    }
    o->shape.schedule = o->schedule;
    return OK;
}

// ---- the length of the run, in steps or in samples ------------------------------------------------------------

static Status one_length(Options *o) {
    bool iters = o->train_iters != INT_UNSET, samples = o->train_samples != INT_UNSET;
    if (iters && samples)
        return fail(ERR_CONFIG,
                    "--train-iters %lld and --train-samples %lld cannot be set at the same time: keep one",
                    (long long)o->train_iters, (long long)o->train_samples);
    if (!iters && !samples)
        return fail(ERR_CONFIG, "--train-iters or --train-samples is required, such as --train-iters 1000");
    return OK;
}

static Status one_unit(Options *o) {
    static const struct {
        int index;
        bool samples;
        const char *instead;
    } lengths[] = {
        {OPT_lr_decay_samples, true, "--lr-decay-iters"},
        {OPT_lr_warmup_samples, true, "--lr-warmup-iters"},
        {OPT_lr_decay_iters, false, "--lr-decay-samples"},
        {OPT_lr_warmup_iters, false, "--lr-warmup-samples"},
    };
    bool in_samples = o->train_samples != INT_UNSET;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const OptionInfo *option = &option_table[lengths[i].index];
        const OptionLong *value = (const OptionLong *)(const void *)((const char *)o + option->offset);
        if (lengths[i].samples == in_samples || *value == INT_UNSET || *value == 0) continue;
        return fail(ERR_CONFIG, "--%s %lld with --train-%s: expected %s-based training throughout; use %s",
                    option->spellings, (long long)*value, in_samples ? "samples" : "iters",
                    in_samples ? "sample" : "iteration", lengths[i].instead);
    }
    return OK;
}

static Status run_length(Options *o) {
    int64_t batch = o->global_batch_size;
    if (o->train_samples != INT_UNSET) {
        o->shape.train_samples = o->train_samples;
        o->shape.train_iters = o->train_samples / batch;
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

// ---- the model ------------------------------------------------------------------------------------------------

static Status heads_divide(Options *o) {
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
            "--num-attention-heads %d is not divisible by --tensor-model-parallel-size %d: use %d heads, or a "
            "tensor size that divides %d",
            heads, t, heads - heads % t + t, heads);
    derive_int(o, OPT_kv_channels, &o->kv_channels, hidden / heads);
    return OK;
}

static Status mlp_divides(Options *o) {
    int t = o->shape.tp;
    derive_int(o, OPT_ffn_hidden_size, &o->ffn_hidden_size, 4 * o->hidden_size);
    if (o->ffn_hidden_size % t == 0) return OK;
    return fail(
        ERR_CONFIG,
        "--ffn-hidden-size %d is not divisible by --tensor-model-parallel-size %d: use --ffn-hidden-size %d",
        o->ffn_hidden_size, t, o->ffn_hidden_size - o->ffn_hidden_size % t + t);
}

static Status positions_suffice(Options *o) {
    derive_int(o, OPT_max_position_embeddings, &o->max_position_embeddings, o->seq_length);
    if (o->max_position_embeddings >= o->seq_length) return OK;
    return fail(ERR_CONFIG,
                "--max-position-embeddings (%d) must be greater than or equal to --seq-length (%d): use %d",
                o->max_position_embeddings, o->seq_length, o->seq_length);
}

// ---- the learning rate ----------------------------------------------------------------------------------------

static Status rates_ordered(Options *o) {
    if (o->min_lr > o->lr)
        return fail(ERR_CONFIG, "--min-lr %g is above --lr %g: use --min-lr %g or less", o->min_lr, o->lr,
                    o->lr);
    if (o->lr_warmup_init > o->lr)
        return fail(ERR_CONFIG, "--lr-warmup-init %g is above --lr %g: use --lr-warmup-init %g or less",
                    o->lr_warmup_init, o->lr, o->lr);
    return OK;
}

static Status decay_length(Options *o) {
    bool in_samples = o->train_samples != INT_UNSET;
    int64_t *length = in_samples ? &o->lr_decay_samples : &o->lr_decay_iters;
    if (*length == INT_UNSET) {
        *length = in_samples ? o->train_samples : o->train_iters;
        derived(o, in_samples ? OPT_lr_decay_samples : OPT_lr_decay_iters);
    }
    if (!__builtin_mul_overflow(*length, in_samples ? 1 : o->global_batch_size, &o->shape.lr_decay_samples))
        return OK;
    return fail(ERR_CONFIG,
                "--lr-decay-iters %lld times --global-batch-size %d samples is too large: use at most %lld",
                (long long)*length, o->global_batch_size, (long long)(INT64_MAX / o->global_batch_size));
}

static Status warmup_length(Options *o) {
    bool in_samples = o->train_samples != INT_UNSET;
    double fraction = o->lr_warmup_fraction, decay = (double)o->shape.lr_decay_samples;
    int64_t length = in_samples ? o->lr_warmup_samples : o->lr_warmup_iters;
    const char *unit = in_samples ? "samples" : "iters";
    if (!isnan(fraction) && length)
        return fail(
            ERR_CONFIG,
            "--lr-warmup-fraction %g and --lr-warmup-%s %lld cannot be set at the same time: keep one",
            fraction, unit, (long long)length);
    double warmup = (double)length * (in_samples ? 1 : o->global_batch_size);
    o->shape.lr_warmup_samples = isnan(fraction) ? warmup : fraction * decay;
    if (o->shape.lr_warmup_samples <= decay) return OK;
    return fail(
        ERR_CONFIG,
        "--lr-warmup-%s %lld is longer than the decay of %lld %s: use less, or a longer --lr-decay-%s", unit,
        (long long)length, (long long)(in_samples ? o->lr_decay_samples : o->lr_decay_iters), unit, unit);
}

// ---- data and evaluation --------------------------------------------------------------------------------------

static Status one_data_set(Options *o) {
    if (o->data_path.count == 1) return OK;
    return fail(
        ERR_CONFIG,
        "--data-path has %d words, but one data set is read, and blends are not supported: give one prefix, and "
        "make one data set of several with `trireme preprocess --input A B ...`",
        o->data_path.count);
}

Status options_check_tokenizer(const Options *o) {
    const char *file = o->vocab_file ? "--vocab-file" : "--merge-file";
    bool is_null = !strcmp(o->tokenizer_type, "NullTokenizer"), has_files = o->vocab_file || o->merge_file;
    if (is_null && (has_files || o->tokenizer_model))
        return fail(ERR_CONFIG, "--tokenizer-type NullTokenizer reads no files: leave out %s",
                    has_files ? file : "--tokenizer-model");
    if (is_null && o->vocab_size == INT_UNSET)
        return fail(ERR_CONFIG, "--tokenizer-type NullTokenizer needs --vocab-size N: its tokens are 0 to N");
    if (!o->vocab_file != !o->merge_file)
        return fail(ERR_CONFIG,
                    "--vocab-file and --merge-file belong together: %s is missing; give both or neither",
                    o->vocab_file ? "--merge-file" : "--vocab-file");
    if (has_files && o->tokenizer_model)
        return fail(ERR_CONFIG, "--vocab-file and --tokenizer-model both name a tokenizer: keep one");
    return OK;
}

static Status one_tokenizer(Options *o) { return options_check_tokenizer(o); }

// As Megatron-LM reads it: up to three numbers, whatever stands between them, quotes left by a script included.
static Status split_adds_up(Options *o) {
    double sum = 0;
    int count = 0;
    for (const char *c = o->split; *c;) {
        size_t length = strspn(c, "0123456789.");
        char number[32];
        double share;
        if (length == 0) {
            c++;
            continue;
        }
        snprintf(number, sizeof number, "%.*s", (int)length, c);
        if (count == 3 || length >= sizeof number || !parse_double(number, &share))
            return fail(ERR_CONFIG,
                        "--split %s: '%s' is not one of at most three numbers: use such as 969,30,1",
                        o->split, number);
        sum += o->shape.split[count++] = share;
        c += length;
    }
    if (sum <= 0 || o->shape.split[0] <= 0)
        return fail(ERR_CONFIG, "--split %s leaves nothing for training: use such as 969,30,1", o->split);
    for (int i = 0; i < 3; i++) o->shape.split[i] /= sum;
    return OK;
}

static Status evaluation_has_data(Options *o) {
    bool has_data = o->shape.split[1] > 0;
    if (o->eval_iters && !has_data && given(o, OPT_eval_iters))
        return fail(
            ERR_CONFIG,
            "--eval-iters %d, but --split %s has no validation share: use --eval-iters 0, or --split 99,1,0",
            o->eval_iters, o->split);
    if (o->eval_iters && !has_data) {
        o->eval_iters = 0;
        derived(o, OPT_eval_iters);
    }
    o->shape.eval_iters = o->eval_iters;
    return OK;
}

static Status (*const rules[])(Options *) = {
    no_stray_words, ranks_fill_grid,   data_parallel_agrees, required_options, batch_divides, layers_divide,
    chunks_divide,  schedule_fits,     one_length,           one_unit,         run_length,    heads_divide,
    mlp_divides,    positions_suffice, rates_ordered,        decay_length,     warmup_length, one_data_set,
    one_tokenizer,  split_adds_up,     evaluation_has_data,
};

Status options_resolve(Options *options, int world_size) {
    CHECK(world_size > 0, "%d ranks", world_size);
    CHECK(options->store->verb == FOR_TRAIN, "only a training run is resolved");
    options->shape = (RunShape){.world_size = world_size};
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) TRY(rules[i](options));
    return OK;
}
