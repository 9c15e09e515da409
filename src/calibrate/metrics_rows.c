// Makes a measured row of the step times in a file of `trireme train --metrics`, or in a log of Megatron-LM.
#include "base/file.h"
#include "calibrate/megatron_log.h"
#include "calibrate/rows.h"
#include "formats/formats.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_METRICS_BYTES = 1 << 30, MIN_STEPS = 3 };

typedef struct {
    const char *path;
    bool is_log; // of Megatron-LM
    int line, batch;
    double *seconds; // of each logged step with the row's batch
    int count, other_batches;
} Times;

// Lines without a step time report evaluations and restarts from a checkpoint; they are skipped.
static Status read_line(Times *t, const char *text, size_t size) {
    char what[300];
    snprintf(what, sizeof what, "%.250s: line %d", t->path, t->line);
    Json *object;
    TRY(json_parse(&object, text, size, what));
    const Json *elapsed = json_member(object, "elapsed_ms");
    double ms, batch;
    bool has_time = json_double(elapsed, &ms) && ms > 0;
    bool has_batch = json_double(json_member(object, "global_batch_size"), &batch);
    Status status =
        object->type != JSON_OBJECT ? fail(ERR_DATA, "%s: a JSON object is expected", what)
        : elapsed && !has_time      ? fail(ERR_DATA, "%s: elapsed_ms: a number above 0 is expected", what)
        : elapsed && !has_batch     ? fail(ERR_DATA, "%s: global_batch_size: a number is expected", what)
                                    : OK;
    if (status == OK && elapsed && (int64_t)batch != t->batch) t->other_batches++;
    if (status == OK && elapsed && (int64_t)batch == t->batch) t->seconds[t->count++] = ms / 1e3;
    json_free(object);
    return status;
}

static Status read_log_line(Times *t, const char *text, size_t size) {
    double ms, batch;
    if (!megatron_log_iteration(text, size, &ms, &batch)) return OK;
    if ((int64_t)batch != t->batch)
        t->other_batches++;
    else
        t->seconds[t->count++] = ms / 1e3;
    return OK;
}

static Status read_lines(Times *t, const char *text, size_t size) {
    const char *end = text + size;
    for (t->line = 1; text < end; t->line++) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        if (!stop) stop = end;
        size_t length = (size_t)(stop - text);
        if (length) TRY(t->is_log ? read_log_line(t, text, length) : read_line(t, text, length));
        text = stop + (stop < end);
    }
    return OK;
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static Status median_time(Times *t, double *step_s) {
    int first = (t->count + 9) / 10, count = t->count - first;
    if (count < MIN_STEPS)
        return fail(ERR_DATA,
                    "%s: %d logged steps of a batch of %d, and %d of others: at least %d are needed; "
                    "--log-interval 1 logs each",
                    t->path, t->count, t->batch, t->other_batches, MIN_STEPS + 1);
    double *times = t->seconds + first;
    qsort(times, (size_t)count, sizeof *times, rising);
    *step_s = (times[(count - 1) / 2] + times[count / 2]) / 2;
    return OK;
}

static Status read_times(Times *t, const char *text, size_t size, double *step_s) {
    size_t lines = 1;
    for (size_t i = 0; i < size; i++) lines += text[i] == '\n';
    t->seconds = malloc(lines * sizeof *t->seconds);
    if (!t->seconds) return fail(ERR_OS, "%s: no memory for %zu steps", t->path, lines);
    Status status = read_lines(t, text, size);
    if (status == OK) status = median_time(t, step_s);
    free(t->seconds);
    return status;
}

Status plan_rows_add_metrics(PlanRows *rows, const char *path, const ModelShape *model,
                             const ParallelConfig *config, const char *machine) {
    PlanRow row = {.set = "metrics",
                   .model = *model,
                   .config = *config,
                   .line = 1,
                   .has_zero_stage = true,
                   .has_scatter_gather = true,
                   .has_overlap_gradients = true,
                   .has_overlap_tensor = true};
    const char *name = strrchr(path, '/');
    snprintf(row.id, sizeof row.id, "%.*s", (int)sizeof row.id - 1, name ? name + 1 : path);
    snprintf(row.machine, sizeof row.machine, "%.*s", (int)sizeof row.machine - 1, machine);
    const char *ending = strrchr(path, '.');
    bool is_log = !ending || strcmp(ending, ".jsonl") != 0;
    strcpy(row.stack, is_log ? "megatron-lm" : "trireme");
    Times times = {.path = path, .is_log = is_log, .batch = config->batch};
    char *text;
    size_t size;
    TRY(file_read(path, MAX_METRICS_BYTES, &text, &size));
    Status status = read_times(&times, text, size, &row.step_s);
    free(text);
    return status == OK ? plan_rows_add(rows, &row) : status;
}
