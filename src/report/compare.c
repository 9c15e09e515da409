// Compares two predictions: the parts of a step that make the difference, relative to the winner's time.
#include "report/plan_report.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    const char *name;
    double seconds; // that the other prediction has more
} Difference;

enum { NUM_DIFFERENCES = 8 };

static int by_size(const void *a, const void *b) {
    double x = fabs(((const Difference *)a)->seconds), y = fabs(((const Difference *)b)->seconds);
    return (x < y) - (x > y);
}

static bool has_axis(const ParallelConfig *a, const ParallelConfig *b, Axis axis) {
    return grid_along(a->grid, axis) > 1 || grid_along(b->grid, axis) > 1;
}

const char *messages_word(const ParallelConfig *a, const ParallelConfig *b) {
    if (!has_axis(a, b, AXIS_CP)) return "tensor-parallel messages";
    return has_axis(a, b, AXIS_TP) ? "messages over t and c" : "context-parallel messages";
}

void plan_compare(const Prediction *winner, const Prediction *other, Text *out) {
    const Breakdown *w = &winner->parts, *o = &other->parts;
    Difference differences[NUM_DIFFERENCES] = {
        {"computing", o->compute - o->recompute - w->compute + w->recompute},
        {"recomputation", o->recompute - w->recompute},
        {messages_word(&winner->config, &other->config), o->tensor - w->tensor},
        {"tokens to their experts", o->experts - w->experts},
        {"messages between stages", o->stages - w->stages},
        {"waiting for other stages", o->bubble - w->bubble},
        {"reducing gradients", o->data - w->data},
        {"optimizer and host", o->optimizer + o->other - w->optimizer - w->other},
    };
    qsort(differences, NUM_DIFFERENCES, sizeof differences[0], by_size);
    double change = 100 * (other->step_s / winner->step_s - 1);
    text_add(out, "%.1f %% %s:", fabs(change), change < 0 ? "faster" : "slower");
    for (int i = 0, num_printed = 0; i < NUM_DIFFERENCES; i++) {
        double percent = 100 * differences[i].seconds / winner->step_s;
        if (fabs(percent) < 0.3) break;
        text_add(out, "%s %s %+.1f %%", num_printed++ ? "," : "", differences[i].name, percent);
    }
}
