// The front of a sweep, and the sweep as a table.
#include "report/plan_sweep.h"
#include "report/plan_words.h"
#include <string.h>

// ---- the front ----------------------------------------------------------------------------------

// Returns whether it fits and has time and money.
static bool competes(const PlanReport *a) {
    bool fits = a->chosen && memory_verdict(&a->chosen->memory) != FITS_NOT;
    return fits && a->tokens > 0 && a->price > 0;
}

// Cells of other batches or sequences train another run.
static bool are_rivals(const PlanReport *a, const PlanReport *b) {
    return competes(b) && a->space->batch == b->space->batch && a->model->sequence == b->model->sequence;
}

static bool beats(const PlanReport *a, const PlanReport *b) {
    double seconds = plan_report_seconds(a, a->chosen->step_s),
           dollars = plan_report_dollars(a, a->chosen->step_s);
    double other_s = plan_report_seconds(b, b->chosen->step_s),
           others = plan_report_dollars(b, b->chosen->step_s);
    return seconds <= other_s && dollars <= others && (seconds < other_s || dollars < others);
}

static bool is_beaten(const PlanSweep *sweep, const PlanReport *a) {
    for (int i = 0; i < sweep->count; i++) {
        const PlanReport *b = &sweep->cells[i].report;
        if (are_rivals(a, b) && beats(b, a)) return true;
    }
    return false;
}

void plan_sweep_front(PlanSweep *sweep) {
    for (int i = 0; i < sweep->count; i++) {
        const PlanReport *a = &sweep->cells[i].report;
        sweep->cells[i].on_front = competes(a) && !is_beaten(sweep, a);
    }
}

// ---- the table ----------------------------------------------------------------------------------

// Adds a column of so many characters: what `add_value` writes, to the right.
static void add_column(int width, void (*add_value)(double value, Text *out), double value, Text *out) {
    Text text = {0};
    if (value > 0)
        add_value(value, &text);
    else
        text_add(&text, "-");
    text_add(out, " %*s", width, text_string(&text));
    text_free(&text);
}

static void add_dollars(double value, Text *out) {
    text_add(out, "$");
    add_short(value, out);
}

static void add_run_columns(const PlanReport *a, Text *out) {
    double step_s = a->chosen->step_s;
    if (a->tokens <= 0) return;
    add_column(13, add_duration, plan_report_seconds(a, step_s), out);
    add_column(9, add_dollars, plan_report_dollars(a, step_s), out);
    add_column(9, add_energy, plan_report_kwh(a, step_s), out);
}

static bool has_column(const PlanSweep *sweep, int rare) {
    for (int i = 0; i < sweep->count; i++) {
        const Prediction *p = sweep->cells[i].report.chosen;
        if (p && grid_along(p->config.grid, rare_axes[rare].axis) > 1) return true;
    }
    return false;
}

static void print_cell(const PlanSweep *sweep, const SweepCell *cell, Text *out) {
    static const char *const fits[] = {"", "?", "!"};
    const PlanReport *a = &cell->report;
    text_add(out, "%c %-16s %7d %6d %7d", cell->on_front ? '*' : ' ', cell->machine, a->space->devices,
             a->space->batch, a->model->sequence);
    if (!a->chosen) {
        text_add(out, "  %s\n", cell->why);
        return;
    }
    const Prediction *p = a->chosen;
    const Grid grid = p->config.grid;
    add_column(8, add_step, p->step_s, out);
    text_add(out, "%c %5.1f %5.1f%-1s %3d %3d %5d", plan_report_extrapolates(a, p) ? '~' : ' ', 100 * p->mfu,
             p->memory.total / 1e9, fits[memory_verdict(&p->memory)], grid_along(grid, AXIS_TP),
             grid_along(grid, AXIS_PP), grid_along(grid, AXIS_DP));
    for (int i = 0; i < NUM_RARE_AXES; i++)
        if (has_column(sweep, i)) text_add(out, " %3d", grid_along(grid, rare_axes[i].axis));
    text_add(out, " %3d %3d", p->config.chunks, p->config.microbatch);
    add_run_columns(a, out);
    text_add(out, "\n");
}

static void print_meaning(const PlanSweep *sweep, Text *out) {
    bool time = false, money = false;
    for (int i = 0; i < sweep->count; i++) {
        time = time || sweep->cells[i].report.tokens > 0;
        money = money || competes(&sweep->cells[i].report);
    }
    text_add(
        out,
        "\n~: extrapolated, outside of what the constants were measured on; GB: of the fullest, `?` may fit, `!` does not");
    if (time) text_add(out, "; energy: at most, by data sheets");
    if (money)
        text_add(out,
                 ".\n*: of its batch and sequence, none is as fast for less money, or faster for as much");
    else if (time)
        text_add(out, ".\nWith --price, or machine=NAME@PRICE, there is a front of time against money");
    else
        text_add(out, ".\nWith --tokens there are time, money and energy of the run");
    text_add(out, ".\n");
}

void plan_sweep_print(const PlanSweep *sweep, Text *out) {
    text_add(out, "  %-16s %7s %6s %7s %8s  %5s %5s  %3s %3s %5s", "machine", "devices", "batch", "seq",
             "step", "MFU %", "GB", "t", "p", "d");
    for (int i = 0; i < NUM_RARE_AXES; i++)
        if (has_column(sweep, i)) text_add(out, " %3s", rare_axes[i].name);
    text_add(out, " %3s %3s", "v", "b");
    if (sweep->count && sweep->cells[0].report.tokens > 0)
        text_add(out, " %13s %9s %9s", "time", "cost", "energy");
    text_add(out, "\n");
    for (int i = 0; i < sweep->count; i++) print_cell(sweep, &sweep->cells[i], out);
    print_meaning(sweep, out);
}
