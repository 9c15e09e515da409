// `trireme evaluate --task`: reads data sets of tasks, has them scored and generated, and prints the table.
#include "infer/evaluate.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- reading ------------------------------------------------------------------------------------

static Status read_file(EvaluateRun *run, const char *path, int positions) {
    char *text;
    size_t size;
    TRY(input_read(path, MAX_REQUEST_BYTES, &text, &size));
    const char *what = strcmp(path, "-") ? path : "standard input";
    Status status =
        task_add(&run->tasks, what, text, size, run->job->options->limit, run->job->tokenizer, positions);
    free(text);
    return status;
}

static bool is_task(const char *name) {
    size_t length = strlen(name);
    return length > 6 && name[0] != '.' && !strcmp(name + length - 6, ".jsonl");
}

// Reads the files of a folder that end in .jsonl, by name.
static Status read_folder(EvaluateRun *run, const char *path, int positions) {
    char **names;
    int count, found = 0;
    TRY(folder_list(path, &names, &count));
    Status status = OK;
    for (int i = 0; status == OK && i < count; i++) {
        if (!is_task(names[i])) continue;
        Text file = {0};
        text_add(&file, "%s/%s", path, names[i]);
        status = read_file(run, file.data, positions);
        text_free(&file);
        found++;
    }
    free(names);
    if (status != OK || found) return status;
    return fail(ERR_NO_INPUT, "--task %s: the folder has no file that ends in .jsonl", path);
}

static Status read_tasks(EvaluateRun *run) {
    const StringList *tasks = &run->job->options->task;
    int positions;
    TRY(evaluate_sequence(run->job, &positions));
    for (int i = 0; i < tasks->count; i++) {
        struct stat st;
        bool folder = !stat(tasks->items[i], &st) && S_ISDIR(st.st_mode);
        TRY(folder ? read_folder(run, tasks->items[i], positions)
                   : read_file(run, tasks->items[i], positions));
    }
    return OK;
}

static Status prepare(EvaluateRun *run) {
    const Options *o = run->job->options;
    const Tasks *t = &run->tasks;
    TRY(task_filters_open(&run->filters, o->filter.items, o->filter.count));
    TRY(read_tasks(run));
    if (o->filter.count && !t->longest_prompt)
        return fail(
            ERR_USAGE,
            "--filter is for generated answers, but no task has a prompt to be answered: leave it out");
    if (o->output) TRY(file_writer_open(&run->answers, o->output));
    int scored = t->continuations.longest;
    run->longest = scored > t->longest_prompt ? scored : t->longest_prompt;
    run->capacity = scored > t->longest_answered ? scored : t->longest_answered;
    if (run->longest < 1) run->longest = run->capacity = 1;
    return OK;
}

// ---- results ------------------------------------------------------------------------------------

// Prints what does not show in the table: lines that were cut or left out.
static void print_notes(const Tasks *tasks) {
    if (tasks->continuations.num_cut)
        fprintf(stderr, "%" PRId64 " contexts were cut on the left to what the model can see\n",
                tasks->continuations.num_cut);
    for (int t = 0; t < tasks->count; t++) {
        const Task *task = &tasks->tasks[t];
        if (task->num_cut)
            fprintf(stderr, "%s: %" PRId64 " prompts were cut on the left to leave room for their answers\n",
                    task->name, task->num_cut);
        if (task->left_out)
            fprintf(stderr,
                    "%s: %" PRId64 " lines repeat a question for another filter, and are left out; --filter "
                    "says what is done to answers\n",
                    task->name, task->left_out);
    }
}

static void print_results(const EvaluateRun *run) {
    size_t most = (size_t)run->tasks.count * MAX_TASK_METRICS;
    TaskResult *results = malloc(most * sizeof *results);
    CHECK(results, "no memory for %zu results", most);
    int count = tasks_measure(&run->tasks, results);
    Text json = {0};
    if (run->job->options->json) {
        task_results_json(results, count, run->job->path, &json);
        fwrite(json.data, 1, json.size, stdout);
    } else {
        task_results_print(results, count, stdout);
    }
    text_free(&json);
    free(results);
}

static Status give_results(EvaluateRun *run) {
    Text answers = {0};
    Status status = OK;
    if (run->job->options->output) {
        tasks_write(&run->tasks, &answers);
        status = evaluate_finish_file(&run->answers, &answers);
    }
    text_free(&answers);
    print_results(run);
    print_notes(&run->tasks);
    return status;
}

// ---- the run ------------------------------------------------------------------------------------

// NaN can be neither compared nor added up.
static Status check_numbers(const Continuations *c) {
    for (int i = 0; i < c->count; i++)
        if (isnan(c->items[i].log_likelihood))
            return fail(ERR_NUMERIC,
                        "a log-likelihood is NaN: the weights are damaged, or too large for the precision "
                        "(try without --fp16)");
    return OK;
}

static Status filter_answers(EvaluateRun *run) {
    for (int t = 0; t < run->tasks.count; t++) {
        Task *task = &run->tasks.tasks[t];
        for (int i = 0; task->kind == TASK_UNTIL && i < task->count; i++)
            TRY(task_filters_apply(run->filters, &task->items[i]));
    }
    return OK;
}

// Everything that is counted as progress: what is scored, and prompts.
static int64_t count_work(const Tasks *tasks) {
    int64_t count = 0;
    for (int i = 0; i < tasks->continuations.count; i++) count += tasks->continuations.items[i].scored > 0;
    for (int t = 0; t < tasks->count; t++)
        count += tasks->tasks[t].kind == TASK_UNTIL ? tasks->tasks[t].count : 0;
    return count;
}

static Done progress_of(const EvaluateRun *run) {
    return (Done){run->done, (double)run->done / (double)(run->total ? run->total : 1)};
}

static void count_done(void *self, int count) {
    EvaluateRun *run = self;
    run->done += count;
    progress_update(&run->progress, progress_of(run));
}

static Status score_and_generate(EvaluateRun *run, const ScoreModel *model) {
    ScoreModel counted = *model;
    counted.done = count_done;
    TRY(continuations_score(&counted, &run->tasks.continuations));
    TRY(check_numbers(&run->tasks.continuations));
    TokenModel generator = evaluate_token_model(run);
    return tasks_generate(&generator, run->job->tokenizer, &run->job->ends, &run->tasks, count_done);
}

static Status work(EvaluateRun *run, const ScoreModel *model) {
    bool shown = isatty(STDERR_FILENO);
    run->total = count_work(&run->tasks);
    run->progress =
        progress_start(shown ? stderr : NULL, false, "evaluating", "continuations and prompts", 1);
    Status status = score_and_generate(run, model);
    progress_end(&run->progress, progress_of(run));
    TRY(status);
    TRY(filter_answers(run));
    return give_results(run);
}

Status evaluate_tasks(EvaluateRun *run) {
    TRY(comm_agree(run->world, run->leads ? prepare(run) : OK));
    TRY(evaluate_open(run));
    return evaluate_together(run, work);
}
