// `trireme evaluate`: the perplexity of a data set, or log-likelihoods of requests.
#include "base/file.h"
#include "cli/model_verb.h"
#include "infer/score.h"

static Status check(const Options *o) {
    if (!o->requests && !o->data_path.count)
        return fail(ERR_USAGE, "evaluate needs --data-path PREFIX for a perplexity, or --requests FILE");
    if (o->requests && o->data_path.count)
        return fail(ERR_USAGE, "--data-path and --requests are two evaluations: run one after the other");
    if (o->sft && !o->data_path.count)
        return fail(ERR_USAGE, "--sft is for --data-path PREFIX, a data set of conversations: add it, or "
                               "leave --sft out");
    if (o->data_path.count > 1)
        return fail(ERR_USAGE, "--data-path has %d words; evaluate reads one data set: give one prefix",
                    o->data_path.count);
    if (o->output && !o->requests)
        return fail(ERR_USAGE,
                    "--output is for the answers to --requests; a perplexity is printed: leave --output out");
    if (o->output && file_exists(o->output))
        return fail(ERR_CREATE, "--output %s exists and is not replaced: name another file", o->output);
    return OK;
}

static Status check_model(const ModelJob *job) {
    return job->options->requests ? model_job_needs_tokenizer(job) : OK;
}

Status cmd_evaluate(Options *options) { return model_verb(options, check, check_model, evaluate_run); }
