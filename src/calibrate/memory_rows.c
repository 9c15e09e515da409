// Scores predictions of memory against measured rows: whether a run fits, and how many bytes it takes. Chooses the
// two constants that no source states from a grid of values, because a count of wrong verdicts has no gradient.
#include "calibrate/calibrate.h"
#include "calibrate/row_predict.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- rows ----------------------------------------------------------------------------------------

typedef struct {
    const Stack *stack;
    const PlanRows *rows;
    Machine machine; // of the previous row: most rows have the same
    bool open;
} Rows;

static void close_rows(Rows *r) {
    if (r->open) machine_close(&r->machine);
}

static bool tells_memory(const PlanRow *row) { return *row->machine && !row->guessed; }

static Status machine_of(Rows *r, const PlanRow *row) {
    if (r->open && !strcmp(r->machine.name, row->machine)) return OK;
    close_rows(r);
    r->open = false;
    TRY(machine_open(&r->machine, row->machine));
    r->open = true;
    return OK;
}

// Computes the memory of row i, with the two constants in `choice` instead of the stack's unless it is NULL.
static Status need_of_row(Rows *r, int i, const double choice[2], MemoryNeed *need) {
    const PlanRow *row = &r->rows->items[i];
    TRY(machine_of(r, row));
    CostModel costs = {
        .machine = &r->machine, .stack = r->stack, .constants = constants_of(&r->machine, r->stack)};
    if (choice) costs.constants.activation_factor = choice[0], costs.constants.reserve_gb = choice[1];
    stack_apply_variant(r->stack, row->kernel, &costs.constants);
    ParallelConfig config = row_config(r->stack, row);
    return memory_need(&costs, &row->model, &config, need);
}

// ---- scores --------------------------------------------------------------------------------------

static void add_outcome(const MemoryNeed *need, bool fitted, MemoryScore *score) {
    bool fits = need->total <= need->capacity;
    Verdict verdict = memory_verdict(need);
    score->outcomes++;
    score->right += fits == fitted;
    score->false_fits += fits && !fitted;
    score->false_alarms += !fits && fitted;
    if (verdict == FITS_PERHAPS) return;
    score->sure++;
    score->sure_right += (verdict == FITS) == fitted;
}

static int rising(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sets the statistics of errors [score->measured], in percent; sorts them.
static void sum_errors(double *errors, MemoryScore *score) {
    int n = score->measured;
    if (!n) return;
    qsort(errors, (size_t)n, sizeof *errors, rising);
    for (int i = 0; i < n; i++) {
        score->mape += errors[i] / n;
        score->within += errors[i] <= 10;
    }
    score->median = (errors[(n - 1) / 2] + errors[n / 2]) / 2;
    score->p90 = errors[(9 * n + 9) / 10 - 1];
    score->worst = errors[n - 1];
}

// Scores all rows. choices [rows]: the two constants of each row; NULL: the stack's.
static Status score_rows(Rows *r, const double (*choices)[2], MemoryScore *score) {
    double *errors = calloc((size_t)r->rows->count + 1, sizeof *errors);
    if (!errors) return fail(ERR_OS, "no memory for %d rows", r->rows->count);
    Status status = OK;
    *score = (MemoryScore){0};
    for (int i = 0; i < r->rows->count; i++) {
        const PlanRow *row = &r->rows->items[i];
        MemoryNeed need;
        if (!tells_memory(row)) continue;
        status = need_of_row(r, i, choices ? choices[i] : NULL, &need);
        if (status != OK) break;
        add_outcome(&need, row->step_s > 0, score);
        if (row->memory_gb > 0)
            errors[score->measured++] = 100 * fabs(need.total / (1e9 * row->memory_gb) - 1);
    }
    sum_errors(errors, score);
    free(errors);
    return status;
}

Status memory_score(const Stack *stack, const PlanRows *rows, MemoryScore *score) {
    Rows *r = calloc(1, sizeof *r);
    if (!r) return fail(ERR_OS, "no memory for a machine");
    *r = (Rows){.stack = stack, .rows = rows};
    Status status = score_rows(r, NULL, score);
    close_rows(r);
    free(r);
    return status;
}

void memory_score_print(const MemoryScore *s, Text *out) {
    if (s->outcomes)
        text_add(out,
                 "memory: n %d, right %d (%.1f %%), false fits %d (%.1f %%), false alarms %d; outside of the "
                 "margin %d, right %d\n",
                 s->outcomes, s->right, 100.0 * s->right / s->outcomes, s->false_fits,
                 100.0 * s->false_fits / s->outcomes, s->false_alarms, s->sure, s->sure_right);
    if (s->measured)
        text_add(out,
                 "memory in bytes: n %d, MAPE %.1f %%, median %.1f, p90 %.1f, max %.1f; within 10 %%: %d\n",
                 s->measured, s->mape, s->median, s->p90, s->worst, s->within);
}

// ---- the two constants ---------------------------------------------------------------------------

enum { FACTORS = 21, RESERVES = 49, CHOICES = FACTORS * RESERVES };

static void choice_at(int choice, double out[2]) {
    out[0] = 0.8 + 0.05 * (choice % FACTORS);
    out[1] = 0.25 * (choice / FACTORS);
}

typedef struct {
    Rows rows;
    int *fold;           // [rows]
    float *losses;       // [CHOICES][rows]
    double (*chosen)[2]; // [rows] constants, for score_rows
    double usual[2];
} Search;

// The loss of a row: a wrong verdict counts as much as an error of 10 % in bytes.
static double loss_of(const MemoryNeed *need, const PlanRow *row) {
    if (row->memory_gb > 0) return 10 * fabs(log(need->total / (1e9 * row->memory_gb)));
    return (need->total <= need->capacity) != (row->step_s > 0);
}

static Status find_losses(Search *s) {
    int count = s->rows.rows->count;
    for (int choice = 0; choice < CHOICES; choice++) {
        double values[2];
        choice_at(choice, values);
        for (int i = 0; i < count; i++) {
            MemoryNeed need;
            if (s->fold[i] < 0) continue;
            TRY(need_of_row(&s->rows, i, values, &need));
            s->losses[(size_t)choice * (size_t)count + (size_t)i] =
                (float)loss_of(&need, &s->rows.rows->items[i]);
        }
    }
    return OK;
}

// Many choices have equally good verdicts. This pull towards the usual values decides among them: one right verdict
// more is worth a factor of e in one constant, or 5 GB in the other.
static double pull(const Search *s, const double values[2]) {
    return fabs(log(values[0] / s->usual[0])) + 0.2 * fabs(values[1] - s->usual[1]);
}

// Writes the choice with the smallest loss over all rows but those of `fold`.
static void choose(const Search *s, int fold, double best[2]) {
    int count = s->rows.rows->count;
    double least = INFINITY;
    for (int choice = 0; choice < CHOICES; choice++) {
        double values[2];
        choice_at(choice, values);
        double loss = pull(s, values);
        for (int i = 0; i < count; i++)
            if (s->fold[i] >= 0 && s->fold[i] != fold)
                loss += (double)s->losses[(size_t)choice * (size_t)count + (size_t)i];
        if (loss >= least) continue;
        least = loss;
        memcpy(best, values, sizeof values);
    }
}

// Near copies share a fold, whether they fitted or not.
static Status find_folds(Search *s, int folds, int *used) {
    const PlanRows *rows = s->rows.rows;
    PlanRows copy = {0};
    double *taken = calloc((size_t)rows->count + 1, sizeof *taken);
    Status status = taken ? OK : fail(ERR_OS, "no memory for %d rows", rows->count);
    for (int i = 0; i < rows->count && status == OK; i++) {
        PlanRow row = rows->items[i];
        row.step_s = 1;
        taken[i] = tells_memory(&rows->items[i]);
        status = plan_rows_add(&copy, &row);
    }
    if (status == OK) *used = calibration_folds(K_FOLDS, folds, &copy, taken, s->fold);
    if (status == OK && *used < 2)
        status = fail(ERR_DATA, "memory: %d fold of %d rows; two or more configurations are needed", *used,
                      rows->count);
    plan_rows_free(&copy);
    free(taken);
    return status;
}

static Status cross_validate(Search *s, int folds, MemoryScore *score, double fitted[2]) {
    int used = 0;
    TRY(find_folds(s, folds, &used));
    TRY(find_losses(s));
    for (int fold = 0; fold < used; fold++) {
        double best[2];
        choose(s, fold, best);
        for (int i = 0; i < s->rows.rows->count; i++)
            if (s->fold[i] == fold) memcpy(s->chosen[i], best, sizeof best);
    }
    choose(s, -1, fitted);
    return score_rows(&s->rows, (const double(*)[2])s->chosen, score);
}

static double usual(const char *name) { return constant_table[constant_find(name)].usual; }

Status memory_cross_validate(const Stack *stack, const PlanRows *rows, int folds, MemoryScore *score,
                             double fitted[2]) {
    size_t n = (size_t)rows->count + 1;
    Search *s = calloc(1, sizeof *s);
    if (!s) return fail(ERR_OS, "no memory for a machine");
    *s = (Search){.rows = {.stack = stack, .rows = rows},
                  .fold = calloc(n, sizeof *s->fold),
                  .losses = calloc(n * CHOICES, sizeof *s->losses),
                  .chosen = calloc(n, sizeof *s->chosen),
                  .usual = {usual("activation_factor"), usual("reserve_gb")}};
    bool taken = s->fold && s->losses && s->chosen;
    Status status =
        taken ? cross_validate(s, folds, score, fitted) : fail(ERR_OS, "no memory for %zu rows", n);
    close_rows(&s->rows);
    free(s->chosen);
    free(s->losses);
    free(s->fold);
    free(s);
    return status;
}
