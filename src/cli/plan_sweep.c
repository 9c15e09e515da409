// --vary: the question of a command line asked for several machines, numbers of devices, batches and sequences. Each
// cell's answer is that of the command line with the cell's values behind it.
#include "cli/plan_verb.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_WORD = 512 };

// ---- what varies --------------------------------------------------------------------------------

static const struct {
    const char *name, *field;
} axes[NUM_SWEEP_AXES] = {[SWEEP_MACHINE] = {"machine", "machine"},
                          [SWEEP_SEQUENCE] = {"seq-length", "seq_length"},
                          [SWEEP_BATCH] = {"global-batch-size", "global_batch_size"},
                          [SWEEP_DEVICES] = {"gpus", "gpus"}};

static Status unknown_axis(const char *item) {
    return fail(ERR_USAGE,
                "--vary %s: what varies is machine, gpus, global-batch-size or seq-length, such as "
                "gpus=256,512,1024",
                item);
}

static Status add_value(SweepAxis *axis, const char *item, const char *value, size_t length) {
    if (!length) return fail(ERR_USAGE, "--vary %s: a value is empty", item);
    if (length >= MAX_SWEEP_WORD) return fail(ERR_USAGE, "--vary %.40s...: a value is too long", item);
    if (axis->count == MAX_SWEEP_VALUES)
        return fail(ERR_USAGE, "--vary %.40s...: at most %d values are possible", item, MAX_SWEEP_VALUES);
    char *word = axis->values[axis->count];
    snprintf(word, MAX_SWEEP_WORD, "%.*s", (int)length, value);
    axis->count++, axis->varies = true;
    return OK;
}

static Status read_axis(PlanAxes *out, const char *item) {
    const char *values = strchr(item, '=');
    int at = 0;
    if (!values) return unknown_axis(item);
    while (at < NUM_SWEEP_AXES && (strlen(axes[at].name) != (size_t)(values - item) ||
                                   memcmp(axes[at].name, item, (size_t)(values - item)) != 0))
        at++;
    if (at == NUM_SWEEP_AXES) return unknown_axis(item);
    if (out->of[at].count) return fail(ERR_USAGE, "--vary: %s is there twice", axes[at].name);
    do {
        size_t length = strcspn(++values, ",");
        TRY(add_value(&out->of[at], item, values, length));
        values += length;
    } while (*values);
    return OK;
}

// "NAME" or "NAME@PRICE" as words of the command line; returns how many.
static int machine_words(const char *value, char words[2][MAX_WORD]) {
    const char *at = strrchr(value, '@');
    snprintf(words[0], MAX_WORD, "--machine=%.*s", (int)(at ? at - value : (ptrdiff_t)strlen(value)), value);
    if (at) snprintf(words[1], MAX_WORD, "--price=%s", at + 1);
    return at ? 2 : 1;
}

// Parses the command line of `from` again, with value number at[axis] of each axis behind it; -1: none.
static Status parse_with(Options *options, const Options *from, const PlanAxes *sizes,
                         const int at[NUM_SWEEP_AXES]) {
    char words[NUM_SWEEP_AXES + 1][MAX_WORD], *more[NUM_SWEEP_AXES + 1];
    int count = 0;
    for (int axis = 0; axis < NUM_SWEEP_AXES; axis++) {
        if (at[axis] < 0 || at[axis] >= sizes->of[axis].count) continue;
        const char *value = sizes->of[axis].values[at[axis]];
        if (axis == SWEEP_MACHINE)
            count += machine_words(value, &words[count]);
        else
            snprintf(words[count++], MAX_WORD, "--%s=%s", axes[axis].name, value);
    }
    for (int i = 0; i < count; i++) more[i] = words[i];
    Status status = options_again(options, from, count, more);
    return status == OK ? OK : fail(status, "--vary: %s", fail_message());
}

// Machines are the same at any price: what a reader chooses by is their name.
static bool is_same(const SweepAxis *axis, bool machines, int a, int b) {
    const char *x = axis->values[a], *y = axis->values[b];
    size_t length = strcspn(x, "@");
    if (!machines) return axis->numbers[a] == axis->numbers[b];
    return length == strcspn(y, "@") && !strncmp(x, y, length);
}

static Status check_repeats(const PlanAxes *sizes) {
    for (int at = 0; at < NUM_SWEEP_AXES; at++)
        for (int i = 0; i < sizes->of[at].count; i++)
            for (int before = 0; before < i; before++)
                if (is_same(&sizes->of[at], at == SWEEP_MACHINE, before, i))
                    return fail(ERR_USAGE, "--vary: %s %s is there twice", axes[at].name,
                                sizes->of[at].values[i]);
    return OK;
}

Status plan_axes_read(PlanAxes *out, const Options *options) {
    *out = (PlanAxes){0};
    for (int i = 0; i < options->vary.count; i++) TRY(read_axis(out, options->vary.items[i]));
    if (out->of[SWEEP_DEVICES].varies && plan_is_given(options, "data_parallel_size"))
        return fail(ERR_USAGE, "--vary gpus: d follows from the number of devices: leave out "
                               "--data-parallel-size");
    for (int axis = SWEEP_SEQUENCE; axis < NUM_SWEEP_AXES; axis++)
        for (int i = 0; i < out->of[axis].count; i++) {
            Options trial = {0};
            int at[NUM_SWEEP_AXES] = {-1, -1, -1, -1};
            at[axis] = i;
            TRY(parse_with(&trial, options, out, at));
            out->of[axis].numbers[i] = axis == SWEEP_DEVICES ? trial.gpus
                                       : axis == SWEEP_BATCH ? trial.global_batch_size
                                                             : trial.seq_length;
            options_destroy(&trial);
        }
    return check_repeats(out);
}

// The first value of what the command line itself does not say.
static int first_unless_given(const PlanAxes *sizes, const Options *options, int axis) {
    return sizes->of[axis].varies && !plan_is_given(options, axes[axis].field) ? 0 : -1;
}

Status plan_axes_base(const PlanAxes *sizes, const Options *options, Options *base) {
    int at[NUM_SWEEP_AXES];
    for (int axis = 0; axis < NUM_SWEEP_AXES; axis++) at[axis] = first_unless_given(sizes, options, axis);
    at[SWEEP_SEQUENCE] = -1; // a model brings its own
    return parse_with(base, options, sizes, at);
}

static void add_number(SweepAxis *axis, double number, int most) {
    if (axis->count == MAX_SWEEP_VALUES || number < 1 || number > most || number != (int)number) return;
    snprintf(axis->values[axis->count], MAX_SWEEP_WORD, "%d", (int)number);
    axis->numbers[axis->count++] = (int)number;
}

void plan_axes_fill(PlanAxes *sizes, const PlanJob *job, bool around) {
    static const double scales[] = {1.0 / 8, 1.0 / 4, 1.0 / 2, 1, 2, 4};
    SweepAxis *of = sizes->of;
    bool devices = around && !of[SWEEP_DEVICES].count, batch = around && !of[SWEEP_BATCH].count;
    if (!of[SWEEP_MACHINE].count)
        snprintf(of[SWEEP_MACHINE].values[of[SWEEP_MACHINE].count++], MAX_SWEEP_WORD, "%s",
                 job->options->machine);
    if (!of[SWEEP_SEQUENCE].count) add_number(&of[SWEEP_SEQUENCE], job->model.sequence, INT32_MAX);
    for (int i = 2; i < 5 && batch; i++)
        add_number(&of[SWEEP_BATCH], job->space.batch * scales[i], INT32_MAX);
    for (int i = 0; i < 6 && devices; i++)
        add_number(&of[SWEEP_DEVICES], job->space.devices * scales[i], MAX_DEVICES);
    if (!of[SWEEP_BATCH].count) add_number(&of[SWEEP_BATCH], job->space.batch, INT32_MAX);
    if (!of[SWEEP_DEVICES].count) add_number(&of[SWEEP_DEVICES], job->space.devices, MAX_DEVICES);
}

// ---- the cells ----------------------------------------------------------------------------------

typedef struct {
    Options options;
    PlanJob job;
} SweepJob;

struct PlanSweepRun {
    PlanSweep sweep;
    SweepJob *jobs; // of each machine and sequence
    int num_jobs;
};

// Answers as the verb would: the best configuration, or the one that was asked about.
static Status answer(PlanCache *cache, PlanJob *job, int devices, int batch, SweepCell *cell) {
    Status status = plan_job_ask(job, devices, batch);
    cell->space = job->space;
    if (status == OK && job->given)
        status = predict(cache, &job->costs, &job->model, &job->config, &cell->best);
    else if (status == OK)
        status = plan_search_best(cache, &job->costs, &job->model, &job->space, &cell->best);
    cell->report = plan_job_report(job);
    cell->report.space = &cell->space;
    cell->report.chosen = status == OK ? &cell->best : NULL;
    if (status == ERR_CONFIG) snprintf(cell->why, sizeof cell->why, "%s", fail_message());
    return status == ERR_CONFIG ? OK : status;
}

static Status answer_all(PlanCache *cache, const PlanAxes *sizes, SweepJob *job, const char *machine,
                         PlanSweep *sweep) {
    const SweepAxis *batches = &sizes->of[SWEEP_BATCH], *devices = &sizes->of[SWEEP_DEVICES];
    for (int b = 0; b < batches->count; b++)
        for (int d = 0; d < devices->count; d++) {
            SweepCell *cell = &sweep->cells[sweep->count++];
            cell->machine = machine;
            TRY(answer(cache, &job->job, devices->numbers[d], batches->numbers[b], cell));
        }
    return OK;
}

// Opens the job of a machine and a sequence on the first of the other sizes, if the command line has none.
static Status open_job(PlanSweepRun *run, const Options *from, const PlanAxes *sizes, int machine,
                       int sequence) {
    SweepJob *job = &run->jobs[run->num_jobs];
    int at[NUM_SWEEP_AXES] = {
        [SWEEP_MACHINE] = machine,
        [SWEEP_SEQUENCE] = sizes->of[SWEEP_SEQUENCE].varies ? sequence : -1,
        [SWEEP_BATCH] = first_unless_given(sizes, from, SWEEP_BATCH),
        [SWEEP_DEVICES] = first_unless_given(sizes, from, SWEEP_DEVICES),
    };
    TRY(parse_with(&job->options, from, sizes, at));
    Status status = plan_job_open(&job->job, &job->options);
    if (status == OK)
        run->num_jobs++;
    else
        options_destroy(&job->options);
    return status == OK
               ? OK
               : fail(status, "--vary: with %s and %s tokens: %s", sizes->of[SWEEP_MACHINE].values[machine],
                      sizes->of[SWEEP_SEQUENCE].values[sequence], fail_message());
}

static Status run_all(PlanSweepRun *run, PlanCache *cache, const Options *from, const PlanAxes *sizes) {
    for (int m = 0; m < sizes->of[SWEEP_MACHINE].count; m++)
        for (int s = 0; s < sizes->of[SWEEP_SEQUENCE].count; s++) {
            TRY(open_job(run, from, sizes, m, s));
            SweepJob *job = &run->jobs[run->num_jobs - 1];
            TRY(answer_all(cache, sizes, job, job->options.machine, &run->sweep));
        }
    plan_sweep_front(&run->sweep);
    return OK;
}

Status plan_sweep_open(PlanSweepRun **out, PlanCache *cache, const Options *from, const PlanAxes *sizes) {
    size_t cells = 1, jobs = (size_t)sizes->of[SWEEP_MACHINE].count * (size_t)sizes->of[SWEEP_SEQUENCE].count;
    for (int axis = 0; axis < NUM_SWEEP_AXES; axis++) cells *= (size_t)sizes->of[axis].count;
    *out = NULL;
    if (cells > MAX_SWEEP_CELLS)
        return fail(ERR_USAGE, "--vary asks %zu questions: at most %d are possible; give fewer values", cells,
                    MAX_SWEEP_CELLS);
    PlanSweepRun *run = calloc(1, sizeof *run);
    CHECK(run, "no memory for a sweep");
    run->sweep.cells = calloc(cells, sizeof *run->sweep.cells);
    run->jobs = calloc(jobs, sizeof *run->jobs);
    CHECK(run->sweep.cells && run->jobs, "no memory for %zu questions", cells);
    *out = run;
    return run_all(run, cache, from, sizes);
}

const PlanSweep *plan_sweep_of(const PlanSweepRun *run) { return &run->sweep; }

void plan_sweep_close(PlanSweepRun *run) {
    if (!run) return;
    for (int i = 0; i < run->num_jobs; i++) {
        plan_job_close(&run->jobs[i].job);
        options_destroy(&run->jobs[i].options);
    }
    free(run->jobs);
    free(run->sweep.cells);
    free(run);
}
