// Measured rows from a user's own runs: what was run, as options of train, and the times of its steps.
#include "base/file.h"
#include "calibrate/megatron_log.h"
#include "cli/plan_verb.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool ends_in(const char *path, const char *ending) {
    size_t length = strlen(path), size = strlen(ending);
    return length > size && !strcmp(path + length - size, ending);
}

// The file of --save-config has the number of ranks only if the user has given it.
static int ranks_of_run(const Options *o) {
    if (o->ranks != INT_UNSET) return o->ranks;
    int data = o->data_parallel_size == INT_UNSET ? 1 : o->data_parallel_size;
    return o->tensor_model_parallel_size * o->pipeline_model_parallel_size * o->context_parallel_size * data;
}

static Status vocabulary_of_run(const Options *options, const Options *run, const char *path,
                                int *vocabulary) {
    *vocabulary = run->vocab_size != INT_UNSET ? run->vocab_size : options->vocab_size;
    if (*vocabulary != INT_UNSET) return OK;
    return fail(ERR_USAGE, "%s: the run's vocabulary is its tokenizer's: --vocab-size V is required", path);
}

// Adds the run of a file with times, whose options are `words` on the command line of train.
static Status add_run(PlanRows *rows, const Options *options, const char *path, int count, char **words) {
    ParallelConfig config;
    Options run = {0};
    int vocabulary;
    if (!options->machine)
        return fail(ERR_USAGE, "%s does not say where it ran: --machine NAME or FILE.yaml is required", path);
    Status status = options_parse(&run, FOR_TRAIN, count, words);
    if (status == OK) status = options_resolve(&run, ranks_of_run(&run));
    if (status != OK && count > 1) status = fail(status, "%s, as options of train: %s", path, fail_message());
    if (status == OK) {
        status = parallel_config_of_run(&run, &config);
        if (status != OK) status = fail(status, "%s: %s", path, fail_message());
    }
    if (status == OK) status = vocabulary_of_run(options, &run, path, &vocabulary);
    if (status == OK) {
        ModelShape model = options_model(&run, vocabulary);
        status = plan_rows_add_metrics(rows, path, &model, &config, options->machine);
    }
    options_destroy(&run);
    return status;
}

// A file of --metrics has the times; the file of --save-config beside it has the options of the run.
static Status add_metrics(PlanRows *rows, const Options *options, const char *path) {
    char config[4096];
    int stem = (int)(strlen(path) - strlen(".jsonl"));
    int length = snprintf(config, sizeof config, "--config=%.*s.yaml", stem, path);
    if (length >= (int)sizeof config) return fail(ERR_USAGE, "%.80s...: the name is too long", path);
    const char *yaml = config + strlen("--config=");
    if (!file_exists(yaml))
        return fail(ERR_NO_INPUT,
                    "%s: what was run is read from %s, which is not there; --save-config writes it", path,
                    yaml);
    return add_run(rows, options, path, 1, (char *[]){config});
}

// A log of Megatron-LM has both.
static Status add_log(PlanRows *rows, const Options *options, const char *path) {
    MegatronLog *log = calloc(1, sizeof *log);
    char *words[MAX_LOG_WORDS];
    if (!log) return fail(ERR_OS, "%s: no memory for its options", path);
    Status status = megatron_log_read(log, path);
    for (int i = 0; i < log->count; i++) words[i] = log->words[i];
    if (status == OK) status = add_run(rows, options, path, log->count, words);
    free(log);
    return status;
}

bool plan_names_run(const char *path) {
    return ends_in(path, ".jsonl") || ends_in(path, ".log") || ends_in(path, ".txt");
}

Status plan_add_run(PlanRows *rows, const Options *options, const char *path) {
    return ends_in(path, ".jsonl") ? add_metrics(rows, options, path) : add_log(rows, options, path);
}
