// `trireme evaluate`: the perplexity of a data set, the metrics of tasks, or log-likelihoods of requests.
#include "base/file.h"
#include "cli/model_verb.h"
#include "cli/verb_parts.h"
#include "infer/score.h"

static Status check_task_options(const Options *o) {
    if (o->task.count) return OK;
    const char *alone = o->filter.count ? "--filter is for generated answers"
                        : o->limit      ? "--limit is for lines of tasks"
                        : o->json       ? "--json is for the table of tasks"
                                        : NULL;
    return alone ? fail(ERR_USAGE, "%s: give --task FILE, too, or leave it out", alone) : OK;
}

static Status check(const Options *o) {
    int evaluations = (o->requests != NULL) + (o->data_path.count > 0) + (o->task.count > 0);
    if (!evaluations)
        return fail(ERR_USAGE,
                    "evaluate needs --data-path PREFIX for a perplexity, --task FILE, or --requests FILE");
    if (evaluations > 1)
        return fail(ERR_USAGE,
                    "--data-path, --task and --requests are two evaluations: run one after the other");
    const char *chats = o->dpo ? "--dpo" : "--sft";
    if (options_have_conversations(o) && !o->data_path.count)
        return fail(ERR_USAGE, "%s is for --data-path PREFIX, a data set of %s: add it, or leave %s out",
                    chats, o->dpo ? "preferences" : "conversations", chats);
    if (o->sft && o->dpo)
        return fail(ERR_USAGE, "--sft and --dpo are two evaluations: run one after the other");
    TRY(options_check_preferences(o));
    if (options_have_reference(o) && !o->dpo_reference)
        return fail(ERR_USAGE,
                    "--dpo compares the model with another one: add --dpo-reference PATH, the model that "
                    "training began with");
    if (o->data_path.count > 1)
        return fail(ERR_USAGE, "--data-path has %d words; evaluate reads one data set: give one prefix",
                    o->data_path.count);
    if (o->output && o->data_path.count)
        return fail(ERR_USAGE,
                    "--output is for the answers to --requests and --task; a perplexity is printed: "
                    "leave --output out");
    if (o->output && file_exists(o->output))
        return fail(ERR_CREATE, "--output %s exists and is not replaced: name another file", o->output);
    return check_task_options(o);
}

static Status check_model(const ModelJob *job) {
    return job->options->data_path.count ? OK : model_job_needs_tokenizer(job);
}

Status cmd_evaluate(Options *options) {
    options_note_idle(options);
    return model_verb(options, check, check_model, evaluate_run, NULL);
}

Status evaluate_quietly(Options *options, Perplexity *result) {
    return model_verb(options, check, check_model, evaluate_run, result);
}
