// Asks the planner for the time of a run's step on this machine.
#include "planned.h"
#include "config/config.h"
#include "runs.h"
#include <stdio.h>
#include <string.h>

enum { MAX_WORDS = 80, MAX_COMMAND = 2048 };

static int split(char *text, char **words) {
    int count = 0;
    char *rest = NULL;
    for (char *word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        CHECK(count < MAX_WORDS, "more than %d words", MAX_WORDS);
        words[count++] = word;
    }
    return count;
}

static int ranks_of(const Options *o) { return o->ranks != INT_UNSET ? o->ranks : 1; }

static Status parse(const char *options_text, ModelShape *model, ParallelConfig *config) {
    char text[MAX_COMMAND], *words[MAX_WORDS];
    Options options;
    snprintf(text, sizeof text, RUN_COMMON "--train-iters 1 %s", options_text);
    TRY(options_parse(&options, FOR_TRAIN, split(text, words), words));
    Status status = options_resolve(&options, ranks_of(&options));
    if (status == OK) status = parallel_config_of_run(&options, config);
    if (status == OK) *model = options_model(&options, options.vocab_size);
    options_destroy(&options);
    return status;
}

Status planner_open(Planner *p, const char *machine_file) {
    TRY(machine_open(&p->machine, machine_file));
    Status status = stack_for(&p->stack, &p->machine, (RunKind){0});
    if (status == OK) status = plan_cache_open(&p->cache);
    if (status != OK) return machine_close(&p->machine), status;
    p->costs = (CostModel){
        .machine = &p->machine, .constants = constants_of(&p->machine, &p->stack), .stack = &p->stack};
    return OK;
}

void planner_close(Planner *p) {
    plan_cache_close(p->cache);
    machine_close(&p->machine);
}

Status planner_predict(Planner *p, const char *words, ModelShape *model, Prediction *out) {
    ParallelConfig config;
    TRY(parse(words, model, &config));
    return predict(p->cache, &p->costs, model, &config, out);
}
