// Compares two predictions: the parts of a step that make the difference, relative to the winner's time.
#include "report/plan_report.h"
#include <math.h>
#include <stdlib.h>

typedef struct {
    const char *name;
    double seconds; // that the other prediction has more
} Difference;

enum { NUM_DIFFERENCES = 7 };

static int by_size(const void *a, const void *b) {
    double x = fabs(((const Difference *)a)->seconds), y = fabs(((const Difference *)b)->seconds);
    return (x < y) - (x > y);
}

void plan_compare(const Prediction *winner, const Prediction *other, Text *out) {
    const Breakdown *w = &winner->parts, *o = &other->parts;
    Difference differences[NUM_DIFFERENCES] = {
        {"computing", o->compute - o->recompute - w->compute + w->recompute},
        {"recomputation", o->recompute - w->recompute},
        {"tensor-parallel messages", o->tensor - w->tensor},
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
