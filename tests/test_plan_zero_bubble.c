// Plans of schedules with split backwards: stages that step without waiting for each other take as long as the longest of
// them is at work, as published.
#include "plan_fixtures.h"

// Bubble rates of Qi 2023, table 5: of the longest rank's time, what is not computing; T_F is 1.
static void longest_ranks_are_as_published(void) {
    static const char *const kinds[] = {"1f1b", "zb-h1", "zb-h2"};
    static const struct {
        int p, m;
        double input, weight, hop, rates[3];
    } rows[] = {{8, 24, 0.9908, 0.6705, 0.0177, {0.2347, 0.1323, 0.0698}},
                {16, 64, 0.9953, 0.7165, 0.0335, {0.2082, 0.1088, 0.0516}},
                {32, 96, 0.9797, 0.7405, 0.0392, {0.2646, 0.1421, 0.0641}}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int kind = 0; kind < 3; kind++) {
            ScheduleSpec spec = {
                .kind = kinds[kind], .ranks = rows[i].p, .chunks = 1, .microbatches = rows[i].m};
            double backward = rows[i].input + rows[i].weight;
            ScheduleCosts costs = {.forward_us = 1,
                                   .backward_us = backward,
                                   .weight_fraction = rows[i].weight / backward,
                                   .hop_us = rows[i].hop};
            Schedule schedule;
            Simulation simulation;
            EXPECT_OK(schedule_order(&schedule, &spec));
            schedule_replay(&schedule, costs, &simulation);
            double rate = 1 - rows[i].m * (1 + backward) / simulation.apart_us;
            EXPECT(fabs(rate - rows[i].rates[kind]) < 2e-4, "%s p %d m %d: a bubble of %.4f, published %.4f",
                   kinds[kind], rows[i].p, rows[i].m, rate, rows[i].rates[kind]);
            simulation_destroy(&simulation, NULL);
            schedule_destroy(&schedule);
        }
}

static Prediction predicted(const CostModel *costs, const ModelShape *model, const char *schedule) {
    PlanCache *cache;
    Prediction p;
    ParallelConfig c = candidate_of(1, 8, 1, 24);
    c.schedule = schedule, c.recompute = RECOMPUTE_NOTHING, c.attention = ATTENTION_FUSED;
    EXPECT_OK(plan_cache_open(&cache));
    EXPECT_OK(predict(cache, costs, model, &c, &p));
    plan_cache_close(cache);
    return p;
}

// In 1F1B the first rank is at work from the first compute to the last one; in ZB-H2 each begins later and ends later.
static void stages_that_step_apart_are_faster(void) {
    Machine machine = plain_machine();
    Stack together = plain_stack(), apart = together;
    ModelShape model = gpt_of(48, 2048, 16);
    apart.steps_apart = true;
    model.vocabulary = 1024; // with a large one the last stage is the longest, and all wait for it
    CostModel waits = ideal_costs(&machine, &together), steps = ideal_costs(&machine, &apart);
    Prediction same = predicted(&waits, &model, "1f1b"), too = predicted(&steps, &model, "1f1b");
    EXPECT(near(same.step_s, too.step_s, 1e-9), "1f1b takes %g s, and %g apart", same.step_s, too.step_s);
    Prediction slow = predicted(&waits, &model, "zb-h2"), fast = predicted(&steps, &model, "zb-h2");
    EXPECT(fast.step_s < slow.step_s && fast.bubble < slow.bubble, "zb-h2 takes %g s, and %g apart",
           slow.step_s, fast.step_s);
    EXPECT(fast.parts.bubble >= -1e-9 && fast.step_s >= fast.parts.compute, "a bubble of %g s",
           fast.parts.bubble);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"longest ranks are as published", longest_ranks_are_as_published},
                       {"stages that step apart are faster", stages_that_step_apart_are_faster},
                       {0}},
        argc, argv);
}
