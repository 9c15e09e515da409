// Data sets by which models are compared, written out as JSON lines: multiple choice, perplexity of texts, answers that
// are generated. Their metrics are those of lm-evaluation-harness.
//
// A file is read through one table of shapes (task_read.c). What is scored becomes Continuations, of all files
// together, so that batches may mix data sets; what is generated becomes prompts. Then each kind of task has its row of
// metrics (task_metrics.c).
#pragma once
#include "infer/generate.h"
#include "infer/score.h"

typedef enum {
    TASK_CHOICE,       // several continuations, of which one or more are right
    TASK_CONTINUATION, // one continuation: is it the most likely text?
    TASK_TEXT,         // a whole text
    TASK_UNTIL,        // a prompt, and what is to be generated
    NUM_TASK_KINDS
} TaskKind;

// A line of a file.
typedef struct {
    int64_t line;
    int first, count;     // its continuations; those of a text are its windows
    bool *right;          // TASK_CHOICE: [count]
    int64_t words, bytes; // TASK_TEXT: that metrics count
    // TASK_UNTIL
    TokenList prompt;
    int max_new_tokens;
    const char **stops, **targets; // in the block of this item's strings
    int num_stops, num_targets;
    char *strings;
    Text answer, filtered; // what is generated, and what is compared with the targets
    bool matches;
} TaskItem;

typedef struct {
    char *path, *name; // the name is the file's, without what lm-evaluation-harness adds to it
    TaskKind kind;
    TaskItem *items;
    int count;
    size_t capacity;
    int64_t left_out; // lines that repeat a question for another filter
    int64_t num_cut;  // prompts that lost their beginning
} Task;

typedef struct {
    Task *tasks;
    int count;
    size_t capacity;
    Continuations continuations;
    int longest_prompt, longest_answered; // tokens of a prompt; of one together with its answer
} Tasks;

// Adds the lines of a file, at most `limit` (0: all). Fails with ERR_DATA, which names file and line, for a line of no
// known shape or of another kind than the first.
Status task_add(Tasks *tasks, const char *path, const char *text, size_t size, int64_t limit,
                const Tokenizer *tokenizer, int positions);
void tasks_free(Tasks *tasks);

// ---- generated answers --------------------------------------------------------------------------

// What is done to an answer before it is compared with its targets: see task_filters_open.
typedef struct TaskFilters TaskFilters;
// Each word is one of
//   strip, lowercase, uppercase       of the answer
//   first=REGEX, last=REGEX           the first or last match in the answer, or its first group that is not empty;
//                                     without a match "[invalid]"
//   ignore-case, ignore-punctuation, ignore-numbers    of answer and target
// They are applied in their order. Fails with ERR_USAGE and the nearest name.
Status task_filters_open(TaskFilters **filters, const char *const *words, int count);
void task_filters_close(TaskFilters *filters); // takes NULL
// Sets `filtered` and `matches` of an item from its answer.
Status task_filters_apply(TaskFilters *filters, TaskItem *item);
// Generates the answers of all prompts, the most likely token each time, in batches of prompts of similar length.
// Each of the tokens `ends` ends an answer. `done` is an optional callback, which gets the model's `self`: so many more
// are generated. May return INTERRUPTED.
Status tasks_generate(const TokenModel *model, const Tokenizer *tokenizer, const TokenList *ends,
                      Tasks *tasks, void (*done)(void *self, int count));

// ---- results ------------------------------------------------------------------------------------

typedef struct {
    const char *task, *metric;
    double value, error; // the standard error; NaN: none
    int64_t count;
} TaskResult;

// Adds the metrics of all tasks to `results` [capacity of MAX_TASK_METRICS for each], and returns how many.
enum { MAX_TASK_METRICS = 4 };
int tasks_measure(const Tasks *tasks, TaskResult *results);
void task_results_print(const TaskResult *results, int count, FILE *out);
// {"model": PATH, "results": [{"task", "metric", "value", "stderr", "n"}, ...]}
void task_results_json(const TaskResult *results, int count, const char *model, Text *out);
// Adds a line of JSON for every item: its task, line, and what the model made of it.
void tasks_write(const Tasks *tasks, Text *out);
