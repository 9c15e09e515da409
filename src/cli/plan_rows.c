// Measured rows: how far a stack's predictions are from them, and a stack's constants fitted to them.
#include "base/file.h"
#include "calibrate/calibrate.h"
#include "calibrate/row_predict.h"
#include "cli/plan_verb.h"
#include "formats/formats.h"
#include "layout/kinds.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { USUAL_FOLDS = 5 };

// The rows, and the program and machines that predict them.
typedef struct {
    const Options *options;
    PlanRows rows;
    Stack stack;
    bool chose_stack; // the rows name one that is not known
    RowPredictor predictor;
    Constants constants, priors; // of the stack on the machine of the first row
    double *predicted_s;         // [rows]
} RowsJob;

// ---- reading ------------------------------------------------------------------------------------

static Status add_csv(PlanRows *rows, const char *path) {
    PlanRows more;
    TRY(plan_rows_read(&more, path));
    Status status = OK;
    for (int i = 0; i < more.count && status == OK; i++) status = plan_rows_add(rows, &more.items[i]);
    plan_rows_free(&more);
    return status;
}

static bool ends_in(const char *path, const char *ending) {
    size_t length = strlen(path), size = strlen(ending);
    return length > size && !strcmp(path + length - size, ending);
}

static Status read_rows(RowsJob *job, const StringList *files) {
    for (int i = 0; i < files->count; i++) {
        const char *path = files->items[i];
        TRY(plan_names_run(path) ? plan_add_run(&job->rows, job->options, path) : add_csv(&job->rows, path));
    }
    if (!job->rows.count) return fail(ERR_DATA, "%s: no rows that can be predicted", files->items[0]);
    return OK;
}

// ---- whose constants ----------------------------------------------------------------------------

// Without --stack, a calibration on a machine starts from the stack that is chosen for plans on it.
static Status stack_of_machine(RowsJob *job) {
    Machine machine;
    TRY(plan_machine(job->options, &machine));
    Status status = plan_stack(job->options, &machine, &job->stack);
    machine_close(&machine);
    return status;
}

// The stack that plans on the machine of the first row take.
static Status stack_of_rows(RowsJob *job) {
    const PlanRow *first = &job->rows.items[0];
    RunKind run = {.low = first->config.factors != FACTORS_WHOLE, .experts = first->model.experts > 0};
    Machine machine;
    TRY(machine_open(&machine, job->options->machine ? job->options->machine : first->machine));
    Status status = stack_for(&job->stack, &machine, run);
    machine_close(&machine);
    job->chose_stack = true;
    return status;
}

// Finds the stack: that of --stack, or the one that all rows name, or where that is not known the one for such runs on
// their machine.
static Status find_stack(RowsJob *job) {
    const PlanRow *first = &job->rows.items[0];
    if (job->options->stack) return plan_stack(job->options, NULL, &job->stack);
    if (job->options->machine && job->options->calibrate.count) return stack_of_machine(job);
    for (int i = 1; i < job->rows.count; i++)
        if (strcmp(job->rows.items[i].stack, first->stack))
            return fail(ERR_USAGE, "the rows are of several stacks, %s and %s: --stack NAME chooses one",
                        first->stack, job->rows.items[i].stack);
    if (stack_open(&job->stack, first->stack) == OK) return OK;
    if (*first->machine || job->options->machine) return stack_of_rows(job);
    return fail(ERR_USAGE, "%s; --stack NAME chooses one", fail_message());
}

// --machine replaces the machine of every row.
static Status find_machines(RowsJob *job) {
    const char *name = job->options->machine;
    if (name && strlen(name) >= MAX_NAME)
        return fail(ERR_USAGE, "--machine %s: a path of rows has at most %d bytes", name, MAX_NAME - 1);
    for (int i = 0; name && i < job->rows.count; i++) strcpy(job->rows.items[i].machine, name);
    return OK;
}

static Status find_constants(RowsJob *job) {
    const PlanRow *first = &job->rows.items[0];
    Machine machine;
    if (!*first->machine)
        return fail(ERR_DATA,
                    "row %s: no machine with the GPU %s is known; --machine FILE.yaml describes one",
                    first->id, first->gpu);
    TRY(machine_open(&machine, first->machine));
    job->constants = constants_of(&machine, &job->stack);
    job->priors = priors_of(&machine, &job->stack);
    machine_close(&machine);
    return OK;
}

static Status job_open(RowsJob *job, const StringList *files) {
    TRY(read_rows(job, files));
    TRY(find_stack(job));
    TRY(find_machines(job));
    TRY(find_constants(job));
    job->predicted_s = calloc((size_t)job->rows.count, sizeof *job->predicted_s);
    if (!job->predicted_s) return fail(ERR_OS, "no memory for %d rows", job->rows.count);
    return row_predictor_open(&job->predictor, &job->stack);
}

static void job_close(RowsJob *job) {
    row_predictor_close(&job->predictor);
    free(job->predicted_s);
    plan_rows_free(&job->rows);
}

// ---- predicting ---------------------------------------------------------------------------------

// Returns whether the user says which rows are left out of a fit. The default is one row at a time.
static bool holds_out(const Options *o) { return o->loo || o->leave_model_out || o->folds != INT_UNSET; }

static Protocol protocol_of(const Options *o) {
    if (o->folds != INT_UNSET) return K_FOLDS;
    return o->leave_model_out ? LEAVE_MODEL_OUT : LEAVE_ONE_OUT;
}

static Calibration calibration_of(RowsJob *job, Protocol protocol, int folds) {
    return (Calibration){.predict = row_predict_step,
                         .self = &job->predictor,
                         .priors = job->priors,
                         .is_free = job->stack.is_free,
                         .protocol = protocol,
                         .folds = folds};
}

static Status check_free(const RowsJob *job) {
    for (int i = 0; i < num_constants; i++)
        if (job->stack.is_free[i]) return OK;
    return fail(ERR_CONFIG, "the stack %s has no free constants: its file names them, as in priors: {%s: %g}",
                job->stack.name, constant_table[0].name, constant_table[0].usual);
}

static Status predict_as_is(RowsJob *job) {
    for (int i = 0; i < job->rows.count; i++)
        TRY(row_predict_step(&job->predictor, &job->constants, &job->rows.items[i], &job->predicted_s[i]));
    return OK;
}

static Status predict_held_out(RowsJob *job, const Calibration *calibration, AccuracyTerms *terms,
                               char protocol[32]) {
    CalibrationResult result;
    TRY(check_free(job));
    TRY(calibrate(calibration, &job->rows, &result));
    memcpy(job->predicted_s, result.held_out, (size_t)job->rows.count * sizeof *job->predicted_s);
    protocol_name(calibration->protocol, result.num_folds, protocol);
    *terms = (AccuracyTerms){protocol, result.num_free};
    calibration_free(&result);
    return OK;
}

// Scores the predictions of memory. With --folds each row is left out of the fit that predicts it.
static Status score_memory(const RowsJob *job, MemoryScore *score) {
    double fitted[2];
    *score = (MemoryScore){0};
    if (job->options->folds == INT_UNSET) return memory_score(&job->stack, &job->rows, score);
    Status status = memory_cross_validate(&job->stack, &job->rows, job->options->folds, score, fitted);
    return status == ERR_DATA ? OK : status; // nothing is known of their memory
}

// ---- telling ------------------------------------------------------------------------------------

static void print_rows(const RowsJob *job, AccuracyTerms terms, const MemoryScore *score, Text *out) {
    text_add(out, "stack %s, constants %s\n", job->stack.name,
             terms.protocol ? "fitted to the other rows" : "as in its file");
    if (job->chose_stack)
        text_add(
            out,
            "the rows' own, \"%s\", is not known: this one is for such runs on %s; --stack takes another\n",
            job->rows.items[0].stack, job->rows.items[0].machine);
    text_add(out, "\n");
    accuracy_print(&job->rows, job->predicted_s, terms, out);
    if (score->outcomes + score->measured) memory_score_print(score, out);
}

static void json_row(const PlanRow *row, double predicted_s, Text *out) {
    text_add(out, "{\"id\": ");
    json_add_string(out, row->id, strlen(row->id));
    text_add(out, ", \"line\": %d, \"measured_s\": ", row->line);
    json_add_double(out, row->step_s);
    text_add(out, ", \"predicted_s\": ");
    json_add_double(out, predicted_s);
    text_add(out, ", \"guessed\": %s}", row->guessed ? "true" : "false");
}

static void json_rows(const RowsJob *job, AccuracyTerms terms, const MemoryScore *score, Text *out) {
    ErrorSummary s = error_summary(&job->rows, job->predicted_s);
    const struct {
        const char *key;
        double value;
    } numbers[] = {{"mape", s.mape}, {"median", s.median}, {"p90", s.p90},    {"worst", s.worst},
                   {"bias", s.bias}, {"naive", s.naive},   {"skill", s.skill}};
    text_add(out, "{\"stack\": ");
    json_add_string(out, job->stack.name, strlen(job->stack.name));
    text_add(out, ", \"protocol\": \"%s\", \"free_constants\": %d, \"count\": %d",
             terms.protocol ? terms.protocol : "", terms.num_free, s.count);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        text_add(out, ", \"%s\": ", numbers[i].key);
        json_add_double(out, numbers[i].value);
    }
    text_add(out,
             ", \"memory\": {\"outcomes\": %d, \"right\": %d, \"false_fits\": %d, \"false_alarms\": %d, "
             "\"measured\": %d, \"within\": %d}, \"rows\": [",
             score->outcomes, score->right, score->false_fits, score->false_alarms, score->measured,
             score->within);
    for (int i = 0; i < job->rows.count; i++) {
        if (i) text_add(out, ",\n");
        json_row(&job->rows.items[i], job->predicted_s[i], out);
    }
    text_add(out, "]}\n");
}

static Status predict_and_tell(RowsJob *job) {
    const Options *o = job->options;
    char protocol[32];
    AccuracyTerms terms = {0};
    MemoryScore score;
    Text text = {0};
    Calibration calibration = calibration_of(job, protocol_of(o), o->folds);
    TRY(holds_out(o) ? predict_held_out(job, &calibration, &terms, protocol) : predict_as_is(job));
    TRY(score_memory(job, &score));
    if (o->json)
        json_rows(job, terms, &score, &text);
    else
        print_rows(job, terms, &score, &text);
    fputs(text_string(&text), stdout);
    text_free(&text);
    return OK;
}

Status plan_on_rows(const Options *options) {
    RowsJob job = {.options = options};
    Status status = job_open(&job, &options->rows);
    if (status == OK) status = predict_and_tell(&job);
    job_close(&job);
    return status;
}

// ---- calibrating --------------------------------------------------------------------------------

// Writes the names of the files, as many as there is room for.
static void name_rows(const StringList *files, char *to, size_t size) {
    size_t length = 0;
    for (int i = 0; i < files->count && length < size; i++) {
        const char *name = strrchr(files->items[i], '/');
        length += (size_t)snprintf(to + length, size - length, "%s%s", i ? ", " : "",
                                   name ? name + 1 : files->items[i]);
    }
}

static void today(char date[16]) {
    time_t now = time(NULL);
    struct tm parts;
    gmtime_r(&now, &parts);
    strftime(date, 16, "%Y-%m-%d", &parts);
}

static Status write_stack(RowsJob *job, const Calibration *calibration, const CalibrationResult *result) {
    Stack *stack = &job->stack;
    Constants fitted = result->constants;
    Text text = {0};
    for (int i = 0; i < num_constants; i++) {
        if (!stack->is_free[i]) continue;
        *constant_at(&stack->constants, i) = *constant_at(&fitted, i);
        stack->set[i] = true;
    }
    stack->inherits_accuracy = false;
    stack->accuracy = calibration_accuracy(calibration, &job->rows, result);
    name_rows(&job->options->calibrate, stack->accuracy.rows, sizeof stack->accuracy.rows);
    today(stack->accuracy.date);
    stack_print(stack, &text);
    Status status = file_write(job->options->output, text_string(&text), text.size);
    text_free(&text);
    if (status != OK) return fail(status, "--output %s", fail_message());
    printf("wrote %s\n", job->options->output);
    return OK;
}

// Prints the errors of the stack as it is.
static Status tell_before(RowsJob *job) {
    Text text = {0};
    TRY(predict_as_is(job));
    ErrorSummary summary = error_summary(&job->rows, job->predicted_s);
    text_add(&text, "before, with the constants of %s:\n", job->stack.name);
    accuracy_line(&summary, (AccuracyTerms){0}, &text);
    text_add(&text, "after, on rows that the fit has not seen:\n");
    fputs(text_string(&text), stdout);
    text_free(&text);
    return OK;
}

// Prints the errors of one protocol, the `first` after those before any fit; with `whole` also the constants, and
// writes --output.
static Status fit_and_tell(RowsJob *job, Protocol protocol, int folds, bool first, bool whole) {
    CalibrationResult result;
    Calibration calibration = calibration_of(job, protocol, folds);
    Text text = {0};
    TRY(calibrate(&calibration, &job->rows, &result));
    char name[32];
    protocol_name(protocol, result.num_folds, name);
    Status status = first ? tell_before(job) : OK;
    if (whole)
        calibration_print(&calibration, &result, &text);
    else
        accuracy_line(&result.summary, (AccuracyTerms){name, result.num_free}, &text);
    fputs(text_string(&text), stdout);
    text_free(&text);
    if (status == OK && whole && job->options->output) status = write_stack(job, &calibration, &result);
    calibration_free(&result);
    return status;
}

// Runs both protocols unless the user names one: leaving out single rows gives errors that are too small when rows
// are near copies.
static Status fit_and_tell_all(RowsJob *job) {
    const Options *o = job->options;
    TRY(check_free(job));
    bool both = !holds_out(o);
    if (both) TRY(fit_and_tell(job, K_FOLDS, USUAL_FOLDS, true, false));
    return fit_and_tell(job, protocol_of(o), o->folds, !both, true);
}

Status plan_calibration(const Options *options) {
    RowsJob job = {.options = options};
    if (!options->stack && !options->machine)
        return fail(ERR_USAGE, "--calibrate fits the free constants of a stack: --stack NAME or FILE.yaml is "
                               "required, or --machine NAME, whose stack is taken");
    if (options->output && !ends_in(options->output, ".yaml"))
        return fail(ERR_USAGE, "--output %s: the name of a stack's file ends in .yaml", options->output);
    if (options->output && file_exists(options->output))
        return fail(ERR_CREATE, "--output %s exists; an existing one is never replaced", options->output);
    Status status = job_open(&job, &options->calibrate);
    if (status == OK) status = fit_and_tell_all(&job);
    job_close(&job);
    return status;
}
