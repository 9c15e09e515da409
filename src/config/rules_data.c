// The data, its tokenizer, its split, and whether there is something to evaluate on; checkpoints; files
// written.
#include "base/ranges.h"
#include "config/rules.h"
#include <string.h>

// ---- where the data are -----------------------------------------------------------------------------------

static bool has_lists(const Options *o) {
    return o->train_data_path.count || o->valid_data_path.count || o->test_data_path.count;
}

// Returns whether options name the data of each split, instead of dividing one data set.
static bool names_splits(const Options *o) { return has_lists(o) || o->per_split_data_args_path; }

bool names_data(const Options *o) {
    return o->data_path.count || o->data_args_path || names_splits(o) || o->mock_data;
}

Status check_one_data_source(Options *o) {
    const struct {
        bool given;
        const char *name;
    } sources[] = {
        {o->data_path.count > 0, "--data-path"},
        {o->data_args_path != NULL, "--data-args-path"},
        {has_lists(o), o->train_data_path.count ? "--train-data-path" : "--valid-data-path"},
        {o->per_split_data_args_path != NULL, "--per-split-data-args-path"},
        {o->mock_data, "--mock-data"},
    };
    const char *found = NULL;
    if (!(o->store->verb & FOR_TRAIN)) return OK;
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        if (!sources[i].given) continue;
        if (found)
            return fail(ERR_CONFIG, "%s and %s both say what to train on: keep one", found, sources[i].name);
        found = sources[i].name;
    }
    if (has_lists(o) && !o->train_data_path.count)
        return fail(ERR_CONFIG, "--valid-data-path and --test-data-path need --train-data-path: add it, or "
                                "use --data-path and --split");
    return OK;
}

// Checks that the words are pairs of WEIGHT and PREFIX, or prefixes alone. A file of such words is checked when it is
// read.
static Status check_blend(const StringList *list, const char *name) {
    int numbers = 0;
    double weight;
    for (int i = 0; i < list->count; i += 2) numbers += parse_double(list->items[i], &weight);
    if (numbers > 1 && list->count % 2)
        return fail(ERR_CONFIG, "%s: %d words cannot be pairs of WEIGHT and PREFIX; the last one is '%s'",
                    name, list->count, list->items[list->count - 1]);
    for (int i = 0; i < list->count && numbers && list->count % 2 == 0; i += 2)
        if (!parse_double(list->items[i], &weight) || weight <= 0)
            return fail(ERR_CONFIG,
                        "%s: '%s' before %s is not a weight above 0: write WEIGHT PREFIX WEIGHT PREFIX ...",
                        name, list->items[i], list->items[i + 1]);
    return OK;
}

static Status check_blends(Options *o) {
    TRY(check_blend(&o->data_path, "--data-path"));
    TRY(check_blend(&o->train_data_path, "--train-data-path"));
    TRY(check_blend(&o->valid_data_path, "--valid-data-path"));
    return check_blend(&o->test_data_path, "--test-data-path");
}

Status options_check_tokenizer(const Options *o) {
    const char *file = o->vocab_file ? "--vocab-file" : "--merge-file";
    bool is_null = options_have_null_tokenizer(o), has_files = o->vocab_file || o->merge_file;
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

static Status check_one_tokenizer(Options *o) { return options_check_tokenizer(o); }

// ---- splits and evaluation --------------------------------------------------------------------------------

// Each split has a data set, so that --split has no meaning. A file says later which splits there are.
static Status resolve_named_splits(Options *o) {
    bool file = o->per_split_data_args_path != NULL;
    if (option_given(o, OPT_split))
        return fail(ERR_CONFIG,
                    "--split %s divides --data-path, but %s names the data of each split: leave --split out",
                    o->split, file ? "--per-split-data-args-path" : "--train-data-path");
    bool valid = file || o->valid_data_path.count, test = file || o->test_data_path.count;
    double share = 1.0 / (1 + valid + test);
    o->shape.split[0] = share;
    o->shape.split[1] = valid ? share : 0;
    o->shape.split[2] = test ? share : 0;
    return OK;
}

// Reads --split as Megatron-LM does: up to three numbers with any other characters between them, such as the quotes of
// a script.
static Status resolve_split(Options *o) {
    double sum = 0;
    int count = 0;
    if (names_splits(o)) return resolve_named_splits(o);
    if (o->mock_data && !option_given(o, OPT_split)) {
        o->split = "1,1,1";
        derived(o, OPT_split);
    }
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
                        "--split %s: '%s' is a fourth number, or none: write three such as 969,30,1",
                        o->split, number);
        sum += o->shape.split[count++] = share;
        c += length;
    }
    if (sum <= 0 || o->shape.split[0] <= 0)
        return fail(ERR_CONFIG, "--split %s leaves nothing for training: write numbers such as 969,30,1",
                    o->split);
    for (int i = 0; i < 3; i++) o->shape.split[i] /= sum;
    return OK;
}

static Status resolve_evaluation(Options *o) {
    bool has_data = o->shape.split[1] > 0;
    if (o->eval_iters && !has_data && names_splits(o) && option_given(o, OPT_eval_iters))
        return fail(ERR_CONFIG, "--eval-iters %d needs --valid-data-path: add it, or use --eval-iters 0",
                    o->eval_iters);
    if (o->eval_iters && !has_data && option_given(o, OPT_eval_iters))
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

// ---- checkpoints and files --------------------------------------------------------------------------------

static Status check_checkpoint_folders(Options *o) {
    const struct {
        bool used;
        const char *name, *needs, *folder;
    } rows[] = {
        {o->save_interval != INT_UNSET, "--save-interval", "--save", o->save},
        {o->keep_last > 0, "--keep-last", "--save", o->save},
        {o->save_retain_interval != INT_UNSET, "--save-retain-interval", "--save", o->save},
        {o->async_save, "--async-save", "--save", o->save},
        {o->memory_save_interval != INT_UNSET, "--memory-save-interval", "--save", o->save},
        {o->memory_save_dir != NULL, "--memory-save-dir", "--save", o->save},
        {!o->save_optim, "--no-save-optim", "--save", o->save},
        {o->rewind_on_spike, "--rewind-on-spike", "--save", o->save},
        {o->ckpt_step != INT_UNSET, "--ckpt-step", "--load", o->load},
        {o->finetune, "--finetune", "--load", o->load},
        {!o->load_optim, "--no-load-optim", "--load", o->load},
        {o->exit_on_missing_checkpoint, "--exit-on-missing-checkpoint", "--load", o->load},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].used && !rows[i].folder)
            return fail(ERR_CONFIG, "%s needs %s FOLDER: add it, or leave %s out", rows[i].name,
                        rows[i].needs, rows[i].name);
    return OK;
}

static Status check_skipped_samples(Options *o) {
    Ranges ranges;
    return o->skip_samples ? ranges_parse(&ranges, o->skip_samples, "--skip-samples") : OK;
}

// The number of checkpoints of which the oldest is always old enough, also where a spike comes in the step after a
// checkpoint. --save-interval auto may save after each step.
static int64_t needed_to_rewind(const Options *o) {
    int64_t interval = o->save_interval == INT_AUTO ? 1 : o->save_interval;
    return 1 + (o->rewind_margin - 1 + interval - 1) / interval;
}

static Status check_rewinds(Options *o) {
    char interval[32] = "auto";
    if (!o->rewind_on_spike) return OK;
    if (o->save_interval == INT_UNSET)
        return fail(ERR_CONFIG, "--rewind-on-spike needs checkpoints to go back to: add --save-interval N");
    if (!o->save_optim)
        return fail(ERR_CONFIG, "--rewind-on-spike goes back to checkpoints with the optimizer's moments: "
                                "leave --no-save-optim out");
    long long needed = needed_to_rewind(o);
    if (o->keep_last == 0 || o->keep_last >= needed) return OK;
    if (o->save_interval != INT_AUTO)
        snprintf(interval, sizeof interval, "%lld", (long long)o->save_interval);
    return fail(
        ERR_CONFIG,
        "--keep-last %d, but --rewind-margin %lld with --save-interval %s goes back to one of the last "
        "%lld checkpoints: use --keep-last %lld or more",
        o->keep_last, (long long)o->rewind_margin, interval, needed, needed);
}

// One of two outputs to the same file would be lost.
static Status check_files_differ(Options *o) {
    const struct {
        const char *name, *path;
    } files[] = {{"trace", o->trace}, {"metrics", o->metrics}, {"metrics-prom", o->metrics_prom}};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < i; j++)
            if (files[i].path && files[j].path && !strcmp(files[i].path, files[j].path))
                return fail(ERR_CONFIG, "--%s and --%s both write %s: name two files", files[j].name,
                            files[i].name, files[i].path);
    return OK;
}

bool options_have_conversations(const Options *o) { return o->sft || o->dpo; }

bool options_have_reference(const Options *o) {
    return o->dpo && strcmp(o->dpo_loss, "simpo") != 0 && strcmp(o->dpo_loss, "orpo") != 0;
}

static Status check_conversations(Options *o) {
    const char *name = o->dpo ? "--dpo" : "--sft";
    if (!options_have_conversations(o)) return OK;
    if (o->sft && o->dpo)
        return fail(ERR_CONFIG,
                    "--sft trains on conversations and --dpo on pairs of answers: keep one of them");
    if (o->mock_data)
        return fail(ERR_CONFIG, "%s trains on %s, which --mock-data does not make: leave one of them out",
                    name, o->dpo ? "pairs" : "conversations");
    if (o->eod_mask_loss)
        return fail(ERR_CONFIG, "%s has a loss mask of its own: leave --eod-mask-loss out", name);
    return OK;
}

// Options of the losses of preferences that others would leave without effect.
Status options_check_preferences(const Options *o) {
    const struct {
        int option;
        const char *name;
        bool used;
    } rows[] = {
        {OPT_dpo_loss, "--dpo-loss", true},
        {OPT_dpo_beta, "--dpo-beta", true},
        {OPT_dpo_label_smoothing, "--dpo-label-smoothing",
         !strcmp(o->dpo_loss, "sigmoid") || !strcmp(o->dpo_loss, "robust") || !strcmp(o->dpo_loss, "simpo")},
        {OPT_simpo_gamma, "--simpo-gamma", !strcmp(o->dpo_loss, "simpo")},
        {OPT_dpo_reference, "--dpo-reference", options_have_reference(o)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!option_given(o, rows[i].option)) continue;
        if (!o->dpo) return fail(ERR_CONFIG, "%s is for --dpo: add that, or leave it out", rows[i].name);
        if (!rows[i].used)
            return fail(ERR_CONFIG, "%s has no effect with --dpo-loss %s: leave it out", rows[i].name,
                        o->dpo_loss);
    }
    if (o->dpo && option_given(o, OPT_calculate_per_token_loss) && o->calculate_per_token_loss)
        return fail(ERR_CONFIG,
                    "--dpo has the mean over pairs as its loss: leave --calculate-per-token-loss out");
    return OK;
}

static Status check_preferences(Options *o) { return options_check_preferences(o); }

Rule *const data_rules[] = {check_conversations,      check_preferences,     check_blends,
                            check_one_tokenizer,      resolve_split,         resolve_evaluation,
                            check_checkpoint_folders, check_skipped_samples, check_rewinds,
                            check_files_differ,       check_lora_base,       NULL};

// ---- without data -----------------------------------------------------------------------------------------

bool options_have_null_tokenizer(const Options *o) {
    return o->tokenizer_type && !strcmp(o->tokenizer_type, "NullTokenizer");
}

bool names_tokenizer_files(const Options *o) {
    bool has_data = names_data(o) && !o->mock_data;
    return has_data || o->tokenizer_model || o->vocab_file || o->merge_file;
}

const char *needs_end_token(const Options *o) {
    return o->eod_mask_loss          ? "--eod-mask-loss"
           : o->reset_attention_mask ? "--reset-attention-mask"
           : o->reset_position_ids   ? "--reset-position-ids"
                                     : NULL;
}

static Status check_end_token(Options *o) {
    if (!names_tokenizer_files(o) && needs_end_token(o) && !options_have_null_tokenizer(o))
        return fail(
            ERR_CONFIG,
            "%s needs the tokenizer's end token: add --data-path or --tokenizer-model, or leave it out",
            needs_end_token(o));
    return OK;
}

Rule *const memory_rules[] = {check_one_tokenizer, check_end_token, check_conversations, check_preferences,
                              NULL};
