// Chooses the interval between saves for --save-interval auto and --memory-save-interval auto.
#include "train/save_plan.h"
#include "base/error.h"
#include "train/goodput.h"
#include <math.h>

enum { DAY_S = 86400, HOUR_S = 3600, RANK_HOURS = 8000, LEAST_STEPS = 3 };

// Reads the ledger once for all plans.
static void read_failures(SavePlan plans[NUM_SAVE_TARGETS], bool in_memory, const char *ledger) {
    Goodput past;
    if (!ledger || goodput_read(&past, ledger) != OK) return;
    for (int target = 0; target < NUM_SAVE_TARGETS; target++) {
        plans[target].past_s = (double)past.wall_us / 1e6;
        plans[target].failures = past.failures - (target == TO_DISK && in_memory ? past.survived : 0);
    }
    goodput_free(&past);
}

void save_plans_open(SavePlan plans[NUM_SAVE_TARGETS], const Options *o, const char *ledger,
                     double checkpoint_bytes, double now_s) {
    const struct {
        int64_t interval;
        const char *option;
        double bytes_per_s; // before a save has been measured
    } targets[NUM_SAVE_TARGETS] = {[TO_DISK] = {o->save_interval, "--save-interval", 200e6},
                                   [TO_MEMORY] = {o->memory_save_interval, "--memory-save-interval", 2e9}};
    bool any = false;
    for (int target = 0; target < NUM_SAVE_TARGETS; target++) {
        bool automatic = targets[target].interval == INT_AUTO;
        plans[target] = (SavePlan){.option = automatic ? targets[target].option : NULL,
                                   .guess_s = checkpoint_bytes / targets[target].bytes_per_s,
                                   .prior_s = fmin(DAY_S, (double)RANK_HOURS * HOUR_S / o->shape.world_size),
                                   .opened_s = now_s};
        any = any || automatic;
    }
    if (any) read_failures(plans, o->memory_save_interval != INT_UNSET, ledger);
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
    double passed_s = plan->past_s + now_s - plan->opened_s;
    return plan->failures ? (plan->prior_s / 100 + passed_s) / (double)plan->failures
                          : plan->prior_s + passed_s;
}

bool save_plan_choose(SavePlan *plan, double now_s) {
    if (!plan->option || plan->steps < LEAST_STEPS || !(plan->training_s > 0)) return false;
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
    return plan->option && interval && iteration - plan->saved >= interval;
}
