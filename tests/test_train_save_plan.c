// --save-interval auto and --memory-save-interval auto: the interval by Young's formula, its bounds, what it learns, and when it changes.
#include "base/text.h"
#include "harness.h"
#include "train/save_plan.h"
#include <math.h>
#include <stdio.h>

static SavePlan plan_of(int ranks, double bytes) {
    Options o = {
        .save_interval = INT_AUTO, .memory_save_interval = INT_UNSET, .shape = {.world_size = ranks}};
    SavePlan plans[NUM_SAVE_TARGETS];
    save_plans_open(plans, &o, NULL, bytes, 100);
    return plans[TO_DISK];
}

static void take_steps(SavePlan *plan, int steps, double seconds) {
    for (int i = 0; i < steps; i++) save_plan_step(plan, seconds);
}

static void expect_interval(const SavePlan *plan, double seconds, double step_s, const char *what) {
    double want = seconds / step_s;
    EXPECT(fabs((double)plan->interval - want) <= 0.5 + 1e-9 * want, "%s: %lld steps instead of %.1f", what,
           (long long)plan->interval, want);
}

static void young_and_its_bounds(void) {
    // cost, step, failures, hours that have passed, the time between saves
    const struct {
        double cost_s, step_s, past_s;
        int failures;
        double best_s;
        const char *what;
    } rows[] = {
        {2, 0.5, 0, 0, 587.878, "sqrt(2 * 2 s * 1 day)"},
        {2, 0.5, 86400 * 8.99, 9, 587.878, "nine days with nine failures"},
        {10, 1, 86400 * 1.99, 20, 415.692, "a failure every 2.4 h"},
        {300, 10, 0, 0, 3600, "at most an hour"},
        {2, 0.5, 60 * 10, 10, 24.200, "ten in ten minutes: what was expected before hardly counts"},
        {40, 0.25, 85536, 8640, 28.28427, "a failure every 10 s: at least the cost"},
        {4, 0.25, 85536, 8640, 8.94427, "a failure every 10 s, cheap saves"},
        {8, 0.25, 85536, 8640, 10, "at most the time between failures"},
        {1e-6, 100, 0, 0, 100, "at least one step"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        SavePlan plan = plan_of(4, 1e9);
        plan.past_s = rows[i].past_s, plan.failures = rows[i].failures;
        save_plan_begin(&plan, 0);
        take_steps(&plan, 5, rows[i].step_s);
        save_plan_saved(&plan, 5, rows[i].cost_s);
        EXPECT(save_plan_choose(&plan, 100), "%s: nothing is chosen", rows[i].what);
        expect_interval(&plan, rows[i].best_s > rows[i].cost_s ? rows[i].best_s : rows[i].cost_s,
                        rows[i].step_s, rows[i].what);
    }
}

static void before_anything_is_known(void) {
    SavePlan plan = plan_of(4, 400e6); // 2 s at 200 MB/s
    save_plan_begin(&plan, 50);
    EXPECT(!save_plan_is_due(&plan, 1000000), "due before a step is known");
    save_plan_step(&plan, 30); // the first step does not count
    EXPECT(!save_plan_choose(&plan, 100), "chosen after one step");
    take_steps(&plan, 4, 0.5);
    EXPECT(save_plan_choose(&plan, 100), "chosen after five");
    expect_interval(&plan, sqrt(2 * 2 * 86400.0), 0.5, "by the size of the checkpoint");
    EXPECT(!save_plan_is_due(&plan, 49 + plan.interval) && save_plan_is_due(&plan, 50 + plan.interval),
           "due");
    save_plan_saved(&plan, 50 + plan.interval, 2);
    EXPECT(!save_plan_is_due(&plan, 51 + plan.interval), "due again");
    int64_t failed = 50 + 2 * plan.interval, half = plan.interval - plan.interval / 2;
    save_plan_saved(&plan, failed, 2);
    save_plan_failed(&plan);
    EXPECT(!save_plan_is_due(&plan, failed + half - 1) && save_plan_is_due(&plan, failed + half),
           "due after a failure");
    save_plan_begin(&plan, 20); // a rewind
    EXPECT(!save_plan_is_due(&plan, 19 + plan.interval) && save_plan_is_due(&plan, 20 + plan.interval),
           "due after a rewind");
    SavePlan wide = plan_of(8000, 400e6); // of 8,000 ranks one fails every hour
    EXPECT(fabs(save_plan_mtbf_s(&wide, 100) - 3600) < 1e-9 &&
               fabs(save_plan_mtbf_s(&wide, 3700) - 7200) < 1e-9,
           "%g s between failures", save_plan_mtbf_s(&wide, 100));
}

static void small_changes_are_none(void) {
    SavePlan plan = plan_of(4, 400e6);
    take_steps(&plan, 5, 0.5);
    EXPECT(save_plan_choose(&plan, 100), "at first");
    save_plan_saved(&plan, 10, 2.2); // a tenth more: a twentieth in the interval
    EXPECT(!save_plan_choose(&plan, 100), "a small change");
    save_plan_stall(&plan, 10);
    EXPECT(save_plan_choose(&plan, 100), "a large change");
    expect_interval(&plan, sqrt(2 * 12.2 * 86400.0), 0.5, "stalls of a save that goes on count");
    Options other = {.save_interval = 7, .memory_save_interval = INT_AUTO, .shape = {.world_size = 1}};
    SavePlan plans[NUM_SAVE_TARGETS];
    save_plans_open(plans, &other, NULL, 4e9, 0);
    for (int i = 0; i < NUM_SAVE_TARGETS; i++) take_steps(&plans[i], 5, 1);
    EXPECT(!save_plan_choose(&plans[TO_DISK], 1) && !save_plan_is_due(&plans[TO_DISK], 1000),
           "only with auto");
    EXPECT(save_plan_choose(&plans[TO_MEMORY], 0), "in memory alone");
    expect_interval(&plans[TO_MEMORY], sqrt(2 * 2 * 86400.0), 1, "2 GB/s in memory");
}

// Two starts that were killed, in a day; the run went on from memory once.
static void failures_come_from_the_ledger(void) {
    static const char *const lines[] = {
        "{\"at\": \"2026-11-24T00:00:00.000Z\", \"mono_s\": 0, \"event\": \"opening\"}",
        "{\"at\": \"2026-11-24T00:00:00.000Z\", \"mono_s\": 5, \"event\": \"opening\"}",
        ("{\"at\": \"2026-11-24T00:00:00.000Z\", \"mono_s\": 6, \"event\": \"loaded\", "
         "\"from\": \"memory\", \"iteration\": 2}"),
        "{\"at\": \"2026-11-24T00:00:00.000Z\", \"mono_s\": 86400, \"event\": \"opening\"}"};
    const char *path = harness_path("ledger.jsonl");
    FILE *file = fopen(path, "w");
    for (int i = 0; i < 4; i++) fprintf(file, "%s\n", lines[i]);
    fclose(file);
    const struct {
        int64_t in_memory, failures;
        double mtbf_s;
    } rows[] = {{INT_UNSET, 2, 43632}, {10, 1, 87264}};
    for (int i = 0; i < 2; i++) {
        Options o = {
            .save_interval = INT_AUTO, .memory_save_interval = rows[i].in_memory, .shape = {.world_size = 1}};
        SavePlan plans[NUM_SAVE_TARGETS], *plan = &plans[TO_DISK];
        save_plans_open(plans, &o, path, 1e9, 100);
        EXPECT(plan->failures == rows[i].failures &&
                   fabs(save_plan_mtbf_s(plan, 100) - rows[i].mtbf_s) < 1e-9,
               "%lld failures, one in %g s", (long long)plan->failures, save_plan_mtbf_s(plan, 100));
        EXPECT(plans[TO_MEMORY].failures == 2, "both are failures for the memory");
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"young_and_its_bounds", young_and_its_bounds},
                                      {"before_anything_is_known", before_anything_is_known},
                                      {"small_changes_are_none", small_changes_are_none},
                                      {"failures_come_from_the_ledger", failures_come_from_the_ledger},
                                      {0}},
                       argc, argv);
}
