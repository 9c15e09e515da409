// The metrics of tasks, their table and JSON. The rules are lm-evaluation-harness's (api/metrics.py, api/task.py).
#include "infer/task.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

// A mean over items, and the standard error of it.
typedef struct {
    double value, error;
} Mean;

// The value of item `i` for a metric.
typedef double ItemValue(const Tasks *tasks, const TaskItem *item);

static Mean mean_of(const Tasks *tasks, const Task *task, ItemValue *value) {
    double sum = 0, squares = 0;
    for (int i = 0; i < task->count; i++) sum += value(tasks, &task->items[i]);
    double mean = sum / task->count;
    for (int i = 0; i < task->count; i++) {
        double d = value(tasks, &task->items[i]) - mean;
        squares += d * d;
    }
    double error = task->count > 1 ? sqrt(squares / (task->count - 1) / task->count) : NAN;
    return (Mean){mean, error};
}

// ---- choices ------------------------------------------------------------------------------------

static const Continuation *continuations_of(const Tasks *tasks, const TaskItem *item) {
    return tasks->continuations.items + item->first;
}

static double is_right(const Tasks *tasks, const TaskItem *item, Normalised by) {
    return item->right[best_continuation(continuations_of(tasks, item), item->count, by)];
}

static double right(const Tasks *tasks, const TaskItem *item) {
    return is_right(tasks, item, PER_CONTINUATION);
}

static double right_per_character(const Tasks *tasks, const TaskItem *item) {
    return is_right(tasks, item, PER_CHARACTER);
}

static double right_per_byte(const Tasks *tasks, const TaskItem *item) {
    return is_right(tasks, item, PER_BYTE);
}

// ---- continuations, texts, answers ------------------------------------------------------------------

static double greedy(const Tasks *tasks, const TaskItem *item) {
    return continuations_of(tasks, item)->greedy;
}

static double log_likelihood(const Tasks *tasks, const TaskItem *item) {
    double sum = 0;
    for (int i = 0; i < item->count; i++) sum += continuations_of(tasks, item)[i].log_likelihood;
    return sum;
}

static double num_words(const Tasks *tasks, const TaskItem *item) {
    (void)tasks;
    return (double)item->words;
}

static double num_bytes(const Tasks *tasks, const TaskItem *item) {
    (void)tasks;
    return (double)item->bytes;
}

static double matches(const Tasks *tasks, const TaskItem *item) {
    (void)tasks;
    return item->matches;
}

// ---- the table ----------------------------------------------------------------------------------

// How the values of items become a metric.
typedef enum {
    MEAN,
    PERPLEXITY,          // exp of the negative mean; its error to first order in that of the mean
    WEIGHTED_PERPLEXITY, // exp of the negative sum per unit
    BITS                 // log2 of that
} Aggregation;

typedef struct {
    TaskKind kind;
    const char *name;
    Aggregation by;
    ItemValue *value, *units;
} Metric;

static const Metric METRICS[] = {
    {TASK_CHOICE, "acc", MEAN, right, NULL},
    {TASK_CHOICE, "acc_norm", MEAN, right_per_character, NULL},
    {TASK_CHOICE, "acc_bytes", MEAN, right_per_byte, NULL},
    {TASK_CONTINUATION, "acc", MEAN, greedy, NULL},
    {TASK_CONTINUATION, "perplexity", PERPLEXITY, log_likelihood, NULL},
    {TASK_TEXT, "word_perplexity", WEIGHTED_PERPLEXITY, log_likelihood, num_words},
    {TASK_TEXT, "byte_perplexity", WEIGHTED_PERPLEXITY, log_likelihood, num_bytes},
    {TASK_TEXT, "bits_per_byte", BITS, log_likelihood, num_bytes},
    {TASK_UNTIL, "exact_match", MEAN, matches, NULL},
};
enum { NUM_METRICS = sizeof METRICS / sizeof *METRICS };

static Mean aggregate(const Tasks *tasks, const Task *task, const Metric *metric) {
    Mean mean = mean_of(tasks, task, metric->value);
    if (metric->by == MEAN) return mean;
    if (metric->by == PERPLEXITY) return (Mean){exp(-mean.value), exp(-mean.value) * mean.error};
    double nats = -mean.value / mean_of(tasks, task, metric->units).value;
    return (Mean){metric->by == BITS ? nats / log(2) : exp(nats), NAN};
}

int tasks_measure(const Tasks *tasks, TaskResult *results) {
    int count = 0;
    for (int t = 0; t < tasks->count; t++)
        for (int m = 0; m < NUM_METRICS; m++) {
            const Task *task = &tasks->tasks[t];
            if (METRICS[m].kind != task->kind) continue;
            Mean mean = aggregate(tasks, task, &METRICS[m]);
            results[count++] = (TaskResult){task->name, METRICS[m].name, mean.value, mean.error, task->count};
        }
    return count;
}

void task_results_print(const TaskResult *results, int count, FILE *out) {
    int width = 4;
    for (int i = 0; i < count; i++)
        if ((int)strlen(results[i].task) > width) width = (int)strlen(results[i].task);
    fprintf(out, "%-*s  %-15s  %14s  %9s  %8s\n", width, "task", "metric", "value", "stderr", "n");
    for (int i = 0; i < count; i++) {
        const TaskResult *r = &results[i];
        bool again = i && !strcmp(r->task, results[i - 1].task);
        fprintf(out, "%-*s  %-15s  %14.4f  ", width, again ? "" : r->task, r->metric, r->value);
        if (isnan(r->error))
            fprintf(out, "%9s", "-");
        else
            fprintf(out, "%9.4f", r->error);
        fprintf(out, "  %8" PRId64 "\n", r->count);
    }
}

// ---- JSON ---------------------------------------------------------------------------------------

static void add_name(Text *out, const char *before, const char *name) {
    text_add(out, "%s", before);
    json_add_string(out, name, strlen(name));
}

static void add_number(Text *out, const char *before, double value) {
    text_add(out, "%s", before);
    json_add_double(out, value);
}

void task_results_json(const TaskResult *results, int count, const char *model, Text *out) {
    add_name(out, "{\"model\": ", model);
    text_add(out, ", \"results\": [");
    for (int i = 0; i < count; i++) {
        const TaskResult *r = &results[i];
        add_name(out, i ? ",\n  {\"task\": " : "\n  {\"task\": ", r->task);
        add_name(out, ", \"metric\": ", r->metric);
        add_number(out, ", \"value\": ", r->value);
        add_number(out, ", \"stderr\": ", r->error);
        text_add(out, ", \"n\": %" PRId64 "}", r->count);
    }
    text_add(out, "]}\n");
}

static void add_list(const Tasks *tasks, const TaskItem *item, Text *out) {
    text_add(out, ", \"log_likelihoods\": [");
    for (int i = 0; i < item->count; i++)
        add_number(out, i ? ", " : "", continuations_of(tasks, item)[i].log_likelihood);
    text_add(out, "], \"best\": %d, \"right\": [",
             best_continuation(continuations_of(tasks, item), item->count, PER_CONTINUATION));
    const char *comma = "";
    for (int i = 0; i < item->count; i++)
        if (item->right[i]) text_add(out, "%s%d", comma, i), comma = ", ";
    text_add(out, "]");
}

static void add_answer(const TaskItem *item, Text *out) {
    text_add(out, ", \"answer\": ");
    json_add_string(out, text_string(&item->answer), item->answer.size);
    text_add(out, ", \"filtered\": ");
    json_add_string(out, text_string(&item->filtered), item->filtered.size);
    text_add(out, ", \"exact_match\": %s", item->matches ? "true" : "false");
}

static void add_item(const Tasks *tasks, const Task *task, const TaskItem *item, Text *out) {
    add_name(out, "{\"task\": ", task->name);
    text_add(out, ", \"line\": %" PRId64, item->line);
    switch (task->kind) {
    case TASK_CHOICE: add_list(tasks, item, out); break;
    case TASK_UNTIL: add_answer(item, out); break;
    default: add_number(out, ", \"log_likelihood\": ", log_likelihood(tasks, item)); break;
    }
    if (task->kind == TASK_CONTINUATION)
        text_add(out, ", \"is_greedy\": %s", continuations_of(tasks, item)->greedy ? "true" : "false");
    if (task->kind == TASK_TEXT)
        text_add(out, ", \"num_words\": %" PRId64 ", \"num_bytes\": %" PRId64, item->words, item->bytes);
    text_add(out, "}\n");
}

void tasks_write(const Tasks *tasks, Text *out) {
    for (int t = 0; t < tasks->count; t++)
        for (int i = 0; i < tasks->tasks[t].count; i++)
            add_item(tasks, &tasks->tasks[t], &tasks->tasks[t].items[i], out);
}
