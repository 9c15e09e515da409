// The data set, its tokenizer, its split, and whether there is something to evaluate on; files written.
#include "config/rules.h"
#include <string.h>

static Status one_data_set(Options *o) {
    if (o->data_path.count == 1) return OK;
    return fail(
        ERR_CONFIG,
        "--data-path has %d words, but one data set is read, and blends are not supported: give one prefix, "
        "and make one data set of several with `trireme preprocess --input A B ...`",
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

// As Megatron-LM reads it: up to three numbers, whatever stands between them, quotes left by a script
// included.
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

// One would be lost.
static Status files_differ(Options *o) {
    if (o->trace && o->metrics && !strcmp(o->trace, o->metrics))
        return fail(ERR_CONFIG, "--trace and --metrics both write %s: name two files", o->trace);
    return OK;
}

Rule *const data_rules[] = {one_data_set,        one_tokenizer, split_adds_up,
                            evaluation_has_data, files_differ,  NULL};

// ---- without data -----------------------------------------------------------------------------------------

bool names_tokenizer_files(const Options *o) {
    return o->data_path.count || o->tokenizer_model || o->vocab_file || o->merge_file;
}

static Status vocabulary_known(Options *o) {
    if (names_tokenizer_files(o)) return OK;
    if (o->vocab_size == INT_UNSET)
        return fail(ERR_CONFIG, "--vocab-size is required, such as --vocab-size 50257; or --data-path or "
                                "--tokenizer-model, whose tokenizer says it");
    if (o->eod_mask_loss && strcmp(o->tokenizer_type, "NullTokenizer"))
        return fail(ERR_CONFIG, "--eod-mask-loss is about the tokenizer's end token: add --data-path or "
                                "--tokenizer-model, or leave it out");
    return OK;
}

Rule *const memory_rules[] = {one_tokenizer, vocabulary_known, NULL};
