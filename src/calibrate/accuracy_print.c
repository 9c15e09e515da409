// Prints predictions beside measured rows, error statistics, and the constants of a calibration.
#include "calibrate/calibrate.h"
#include <math.h>
#include <string.h>

// ---- rows ---------------------------------------------------------------------------------------

static void print_time(double seconds, const char *none, Text *out) {
    if (seconds > 0)
        text_add(out, " %10.*f", seconds < 1 ? 5 : seconds < 100 ? 3 : 1, seconds);
    else
        text_add(out, " %10s", none);
}

static void print_row(const PlanRow *row, double predicted_s, Text *out) {
    const ParallelConfig *c = &row->config;
    text_add(out, "%-24s %5.0f %3d %3d %3d %4d %4d%c", row->id, (double)grid_size(c->grid),
             grid_along(c->grid, AXIS_TP), grid_along(c->grid, AXIS_PP), c->chunks,
             grid_along(c->grid, AXIS_DP), c->microbatch, row->guessed ? '*' : ' ');
    print_time(row->step_s, "no room", out);
    print_time(predicted_s, "refused", out);
    if (row->step_s > 0 && predicted_s > 0) text_add(out, " %+7.1f", 100 * (predicted_s / row->step_s - 1));
    text_add(out, "\n");
}

static void print_count(const char *before, int count, const char *what, Text *out) {
    if (count) text_add(out, "%s %d row%s %s\n", before, count, count == 1 ? "" : "s", what);
}

void accuracy_print(const PlanRows *rows, const double *predicted_s, AccuracyTerms terms, Text *out) {
    text_add(out, "%-24s %5s %3s %3s %3s %4s %4s  %10s %10s %7s\n", "row", "GPUs", "t", "p", "v", "d", "b",
             "measured s", "predicted", "error %");
    int guessed = 0, without_room = 0, refused = 0;
    for (int i = 0; i < rows->count; i++) {
        const PlanRow *row = &rows->items[i];
        print_row(row, predicted_s[i], out);
        guessed += row->guessed;
        without_room += row->step_s <= 0;
        refused += row->step_s > 0 && predicted_s[i] <= 0;
    }
    print_count("*", guessed, "whose source leaves something open, filled by the rule", out);
    print_count("left out:", without_room, "that did not fit", out);
    print_count("left out:", refused, "whose configuration is refused", out);
    ErrorSummary summary = error_summary(rows, predicted_s);
    accuracy_line(&summary, terms, out);
}

void accuracy_line(const ErrorSummary *s, AccuracyTerms terms, Text *out) {
    if (!s->count) {
        text_add(out, "n 0: nothing was both measured and predicted\n");
        return;
    }
    text_add(out, "n %d", s->count);
    if (terms.num_free) text_add(out, ", %d free constants", terms.num_free);
    if (terms.protocol) text_add(out, ", %s", terms.protocol);
    text_add(out, ": MAPE %.1f %%, median %.1f, p90 %.1f, max %.1f, bias %+.1f", s->mape, s->median, s->p90,
             s->worst, s->bias);
    if (!isnan(s->naive)) text_add(out, "; naive %.1f %%, skill %.2f", s->naive, s->skill);
    text_add(out, "\n");
}

// ---- constants ----------------------------------------------------------------------------------

static const char *bound_of(const ConstantInfo *info, double value) {
    if (value <= info->lowest * (1 + 1e-9)) return "  at its lower bound";
    return value >= info->highest * (1 - 1e-9) ? "  at its upper bound" : "";
}

void calibration_print(const Calibration *calibration, const CalibrationResult *result, Text *out) {
    Constants prior = calibration->priors, fitted = result->constants, low = result->lowest,
              high = result->highest;
    text_add(out, "%-28s %10s %10s   %-23s %s\n", "constant", "before", "fitted", "over the folds", "unit");
    for (int i = 0; i < num_constants; i++) {
        if (!calibration->is_free[i]) continue;
        const ConstantInfo *info = &constant_table[i];
        double value = *constant_at(&fitted, i);
        text_add(out, "%-28s %10.4g %10.4g   %10.4g - %-10.4g %s%s\n", info->name, *constant_at(&prior, i),
                 value, *constant_at(&low, i), *constant_at(&high, i), info->unit, bound_of(info, value));
    }
    char protocol[32];
    protocol_name(calibration->protocol, result->num_folds, protocol);
    accuracy_line(&result->summary, (AccuracyTerms){protocol, result->num_free}, out);
}
