// Chooses the interval between saves for --save-interval auto.
#include "train/save_plan.h"
#include "base/error.h"
#include "train/goodput.h"
#include <math.h>

enum { DAY_S = 86400, HOUR_S = 3600, RANK_HOURS = 8000, LEAST_STEPS = 3 };

static void read_failures(SavePlan *plan, const char *ledger) {
    Goodput past;
    if (!ledger || goodput_read(&past, ledger) != OK) return;
    plan->past_s = (double)past.wall_us / 1e6;
    plan->failures = past.failures;
    goodput_free(&past);
}

SavePlan save_plan_open(const Options *options, const char *ledger, double checkpoint_bytes, double now_s) {
    SavePlan plan = {.automatic = options->save_interval == INT_AUTO, .opened_s = now_s};
    plan.guess_s = checkpoint_bytes / 200e6;
    plan.prior_s = fmin(DAY_S, (double)RANK_HOURS * HOUR_S / options->shape.world_size);
    if (plan.automatic) read_failures(&plan, ledger);
    return plan;
}

void save_plan_begin(SavePlan *plan, int64_t iteration) {
    plan->saved = iteration;
    plan->failed = false;
}

// The first step takes longer than those after it.
void save_plan_step(SavePlan *plan, double seconds) {
    if (plan->steps++) plan->training_s += seconds;
}

void save_plan_stall(SavePlan *plan, double seconds) { plan->stall_s += seconds; }

void save_plan_saved(SavePlan *plan, int64_t iteration, double stall_s) {
    plan->stall_s += stall_s;
    plan->saves++;
    save_plan_begin(plan, iteration);
}

void save_plan_failed(SavePlan *plan) { plan->failed = true; }

double save_plan_cost_s(const SavePlan *plan) {
    return plan->saves ? plan->stall_s / (double)plan->saves : plan->guess_s;
}

double save_plan_mtbf_s(const SavePlan *plan, double now_s) {
    return (plan->prior_s + plan->past_s + now_s - plan->opened_s) / (1 + (double)plan->failures);
}

bool save_plan_choose(SavePlan *plan, double now_s) {
    if (!plan->automatic || plan->steps < LEAST_STEPS || !(plan->training_s > 0)) return false;
    double cost = save_plan_cost_s(plan), mtbf = save_plan_mtbf_s(plan, now_s);
    double best_s = fmax(cost, fmin(HOUR_S, fmin(mtbf, sqrt(2 * cost * mtbf))));
    double steps = best_s * (double)(plan->steps - 1) / plan->training_s;
    int64_t interval = llround(fmin(1e12, fmax(1, steps)));
    if (fabs((double)(interval - plan->interval)) <= 0.2 * (double)plan->interval) return false;
    plan->interval = interval;
    return true;
}

bool save_plan_is_due(const SavePlan *plan, int64_t iteration) {
    int64_t interval = plan->failed ? (plan->interval + 1) / 2 : plan->interval;
    return plan->automatic && interval && iteration - plan->saved >= interval;
}
