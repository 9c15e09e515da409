// `trireme import`: makes a checkpoint of a Hugging Face folder or a GGUF file, with --upcycle one of experts.
#include "base/rank.h"
#include "checkpoint/checkpoint.h"
#include "cli/cli.h"
#include <string.h>

// Opens the tokenizer that the options name; NULL: they name none.
static Status open_tokenizer(const Options *o, Tokenizer **tokenizer) {
    *tokenizer = NULL;
    if (options_have_null_tokenizer(o))
        return fail(ERR_CONFIG,
                    "import copies the files of a tokenizer, and the null tokenizer has none: leave out "
                    "--tokenizer-type NullTokenizer");
    TRY(options_check_tokenizer(o));
    if (o->vocab_file) return tokenizer_open(tokenizer, o->vocab_file, o->merge_file);
    return o->tokenizer_model ? tokenizer_open_path(tokenizer, o->tokenizer_model) : OK;
}

static Status check_fits(const ModelSource *source, const Tokenizer *tokenizer) {
    int rows = model_source_info(source)->shape.vocabulary;
    if (!tokenizer || tokenizer_vocab_size(tokenizer) <= rows) return OK;
    return fail(ERR_CONFIG, "the tokenizer has %d tokens, the model %d", tokenizer_vocab_size(tokenizer),
                rows);
}

static Status import(ModelSource *source, const Options *o, const Tokenizer *tokenizer) {
    double start = clock_s();
    tokenizer_print_note(tokenizer);
    TRY(check_fits(source, tokenizer));
    TRY(import_model(source, tokenizer, o->save, o->lock_timeout));
    double millions = (double)model_parameters(&model_source_info(source)->shape) / 1e6;
    printf("%s/step-00000000: %.2f M parameters from %s in %.1f s\n", o->save, millions,
           model_source_path(source), clock_s() - start);
    if (model_source_non_finite(source))
        printf("WARNING: %lld of its weights are NaN or infinite\n",
               (long long)model_source_non_finite(source));
    return OK;
}

Status cmd_import(Options *o) {
    tell_notes(o);
    ModelSource *source;
    Tokenizer *tokenizer;
    if (o->positional.count != 1)
        return options_misused(
            FOR_IMPORT, 0, "; SOURCE is a Hugging Face folder, a GGUF file, or with --upcycle a checkpoint");
    if (!o->save || !*o->save)
        return fail(ERR_USAGE, "import needs --save FOLDER: it writes FOLDER/step-00000000");
    TRY(open_tokenizer(o, &tokenizer));
    Status status = model_source_open(&source, o->positional.items[0], -1);
    if (status == OK) {
        model_source_warn(source);
        model_source_allow_non_finite(source, o->allow_non_finite);
        status = model_source_merge(source);
        if (status == OK && o->upcycle != INT_UNSET)
            status = model_source_upcycle(source, o->upcycle, o->upcycle_topk);
        if (status == OK) status = import(source, o, tokenizer);
    }
    model_source_close(source);
    tokenizer_close(tokenizer);
    return status;
}
