// How predictions of memory are scored against measured rows, and what is fitted to them.
#include "calibrate/calibrate.h"
#include "plan_fixtures.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static MemoryNeed need(const CostModel *costs, const ModelShape *model, const ParallelConfig *config) {
    MemoryNeed out = {0};
    EXPECT_OK(memory_need(costs, model, config, &out));
    return out;
}

// Runs of all sizes as this machine would do them with these constants.
static void add_rows(const CostModel *costs, PlanRows *rows, bool bytes) {
    for (int i = 0; i < 60; i++) {
        PlanRow row = {.model = gpt_of(8 + 8 * (i % 5), 1024 * (1 + i % 7), 16), .line = i};
        row.config = grid_of(1 << i % 4, 1 << i / 20, 4, 1 << i % 3, 16);
        snprintf(row.machine, sizeof row.machine, "dgx-a100-80gb");
        MemoryNeed n = need(costs, &row.model, &row.config);
        row.step_s = bytes || n.total <= n.capacity;
        row.memory_gb = bytes ? n.total / 1e9 : 0;
        EXPECT_OK(plan_rows_add(rows, &row));
    }
}

static void rows_are_scored(void) {
    Planned place;
    open_plan(&place);
    MemoryScore score;
    double fitted[2];
    for (int bytes = 0; bytes < 2; bytes++) {
        PlanRows rows = {0};
        place.costs.constants.activation_factor = 1.4, place.costs.constants.reserve_gb = 3;
        add_rows(&place.costs, &rows, bytes);
        EXPECT_OK(memory_cross_validate(&place.stack, &rows, 5, &score, fitted));
        EXPECT(score.outcomes == 60 && (bytes || score.right >= 58), "%d of %d", score.right, score.outcomes);
        if (bytes)
            EXPECT(near(fitted[0], 1.4, 1e-9) && near(fitted[1], 3, 1e-9) && score.measured == 60 &&
                       score.within == 60 && score.worst < 1e-9,
                   "fitted %g %g", fitted[0], fitted[1]);
        rows.items[0].guessed = true;
        EXPECT_OK(memory_score(&place.stack, &rows, &score));
        EXPECT(score.outcomes == 59, "a guessed row counts");
        rows.count = 1;
        EXPECT(memory_cross_validate(&place.stack, &rows, 5, &score, fitted) == ERR_DATA, "nothing to fit");
        plan_rows_free(&rows);
    }
    machine_close(&place.machine);
}

// A verdict of each kind: ran or not, said to fit or not.
static void wrong_verdicts_are_told_apart(void) {
    Planned place;
    open_plan(&place);
    PlanRows rows = {0};
    PlanRow small = {
        .model = gpt_of(8, 1024, 16), .config = grid_of(1, 1, 1, 1, 4), .machine = "dgx-a100-80gb"};
    PlanRow large = {
        .model = gpt_of(96, 12288, 96), .config = grid_of(1, 1, 1, 1, 4), .machine = "dgx-a100-80gb"};
    EXPECT_OK(plan_rows_add(&rows, &small));
    EXPECT_OK(plan_rows_add(&rows, &large));
    small.step_s = large.step_s = 1;
    EXPECT_OK(plan_rows_add(&rows, &small));
    EXPECT_OK(plan_rows_add(&rows, &large));
    large.memory_gb = 1, small.memory_gb = 1e6;
    EXPECT_OK(plan_rows_add(&rows, &large));
    EXPECT_OK(plan_rows_add(&rows, &small));
    MemoryScore score;
    EXPECT_OK(memory_score(&place.stack, &rows, &score));
    EXPECT(score.outcomes == 6 && score.right == 3 && score.false_fits == 1 && score.false_alarms == 2,
           "%d: %d right, %d false fits, %d false alarms", score.outcomes, score.right, score.false_fits,
           score.false_alarms);
    EXPECT(score.sure == 6 && score.sure_right == 3, "%d sure, %d right", score.sure, score.sure_right);
    EXPECT(score.measured == 2 && score.within == 0 && score.mape > 1000, "%g %% off", score.mape);
    Text text = {0};
    memory_score_print(&score, &text);
    EXPECT(strstr(text_string(&text), "n 6, right 3 (50.0 %), false fits 1 (16.7 %), false alarms 2"), "%s",
           text_string(&text));
    text_free(&text);
    plan_rows_free(&rows);
    machine_close(&place.machine);
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"rows_are_scored", rows_are_scored},
                                      {"wrong_verdicts_are_told_apart", wrong_verdicts_are_told_apart},
                                      {0}},
                       argc, argv);
}
