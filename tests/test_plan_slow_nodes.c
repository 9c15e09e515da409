// Plans on fleets with slow nodes: the prediction is what a simulation of the whole schedule says with the same slowness
// planted, laws hold, and the layers go where they cost least.
#include "layout/simulate.h"
#include "plan/memory.h"
#include "plan_fixtures.h"
#include <stdlib.h>

static Machine machine;
static Stack stack;
static PlanCache *cache;

static CostModel slow_costs(SlowNodes slow) {
    CostModel costs = costs_of(&machine, &stack);
    costs.slow = slow;
    return costs;
}

static CostModel even_costs(void) { return slow_costs((SlowNodes){0}); }

static Prediction predicted(const CostModel *costs, const ModelShape *model, const ParallelConfig *config) {
    Prediction p;
    EXPECT_OK(predict(cache, costs, model, config, &p));
    return p;
}

static double computed_of(const Prediction *p) {
    return p->step_s - p->parts.data - p->parts.optimizer - p->parts.other;
}

// ---- against the simulator ----------------------------------------------------------------------------------

// The times of a microbatch in each stage of an even fleet, as its simulated spans have them.
static void stage_times(const Schedule *schedule, const Simulation *simulation, double *forward_us,
                        double *backward_us) {
    for (int rank = 0; rank < schedule->num_ranks; rank++)
        for (int i = 0; i < schedule->programs[rank].count; i++) {
            const Instr *at = &schedule->programs[rank].instrs[i];
            Span span = simulation->spans[rank][i];
            int stage = at->chunk * schedule->num_ranks + rank;
            if (at->op == OP_FORWARD) forward_us[stage] = span.end_us - span.start_us;
            if (at->op == OP_BACKWARD) backward_us[stage] = span.end_us - span.start_us;
        }
}

// Simulates the pipeline with free messages, and one rank of it `factor` times as slow.
static double simulated_us(const ModelShape *model, const ParallelConfig *config, int slow_rank,
                           double factor) {
    enum { MOST = 64 };
    double forward_us[MOST], backward_us[MOST];
    CostModel costs = even_costs();
    Schedule schedule;
    Simulation simulation;
    int stages = grid_along(config->grid, AXIS_PP) * config->chunks;
    EXPECT_OK(predict_timeline(cache, &costs, model, config, &schedule, &simulation));
    stage_times(&schedule, &simulation, forward_us, backward_us);
    simulation_destroy(&simulation, &schedule);
    for (int stage = 0; stage < stages; stage++)
        if (stage % grid_along(config->grid, AXIS_PP) == slow_rank)
            forward_us[stage] *= factor, backward_us[stage] *= factor;
    schedule_simulate(&schedule,
                      (ScheduleCosts){.stage_forward_us = forward_us, .stage_backward_us = backward_us},
                      &simulation);
    double us = simulation.computed_us;
    simulation_destroy(&simulation, &schedule);
    schedule_destroy(&schedule);
    return us;
}

static void planted_slowness_is_predicted(void) {
    ModelShape model = gpt_of(24, 1024, 16);
    for (int chunks = 1; chunks <= 3; chunks++)
        for (double factor = 1; factor < 2; factor += 0.3) {
            CostModel costs = slow_costs((SlowNodes){1, factor, 1, 1});
            ParallelConfig config = grid_of(1, 4, 16, 1, 16);
            config.chunks = chunks, config.schedule = chunks > 1 ? "interleaved" : "1f1b";
            double best_us = INFINITY, at_us = 0;
            costs.constants.message_us = 0, machine.nic_gbs = 1e9, machine.link_gbs = 1e9;
            Prediction p = predicted(&costs, &model, &config);
            for (int rank = 0; rank < 4; rank++) {
                double us = simulated_us(&model, &config, rank, factor);
                if (us < best_us) best_us = us;
                if (rank == p.config.slow.first) at_us = us;
            }
            EXPECT(near(1e6 * computed_of(&p), at_us, 0.001), "v %d, %.1f times: %.1f us, simulated %.1f",
                   chunks, factor, 1e6 * computed_of(&p), at_us);
            EXPECT(at_us < 1.001 * best_us, "v %d, %.1f times: %.1f us at rank %d, %.1f at the best", chunks,
                   factor, at_us, p.config.slow.first, best_us);
        }
    machine = plain_machine();
}

// ---- laws ---------------------------------------------------------------------------------------------------

static void slower_nodes_cost_more(void) {
    ModelShape model = llama_of(16, 2048, 16);
    ParallelConfig config = grid_of(2, 4, 16, 1, 8);
    CostModel even = even_costs(), alike = slow_costs((SlowNodes){1, 1, 1, 1});
    double even_s = predicted(&even, &model, &config).step_s;
    EXPECT(predicted(&alike, &model, &config).step_s == even_s, "nodes that are as fast cost something");
    for (int what = 0; what < 3; what++) {
        double before_s = even_s;
        for (double factor = 1.5; factor < 20; factor *= 2) {
            SlowNodes slow = {1, what == 0 ? factor : 1, what == 1 ? factor : 1, what == 2 ? factor : 1};
            CostModel costs = slow_costs(slow);
            Prediction p = predicted(&costs, &model, &config);
            EXPECT_OK(predict_slow_nodes(cache, &costs, &model, &p));
            double bound_s;
            EXPECT_OK(predict_bound(cache, &costs, &model, &config, &bound_s, NULL));
            EXPECT(p.step_s > before_s && p.step_s <= factor * even_s, "kind %d, %g times: %g s after %g",
                   what, factor, p.step_s, before_s);
            EXPECT(bound_s <= p.step_s * (1 + 1e-9), "kind %d: a bound of %g s above %g", what, bound_s,
                   p.step_s);
            EXPECT(p.even_s == even_s && p.worst_s >= p.step_s, "kind %d: even %g s, not %g; at worst %g",
                   what, p.even_s, even_s, p.worst_s);
            before_s = p.step_s;
        }
    }
}

// A group of nodes that holds whole replicas' stages sends gradients to nobody else; its stage's neighbours it does.
static void uplinks_count_where_they_are_crossed(void) {
    ModelShape model = llama_of(16, 2048, 16);
    CostModel even = even_costs(), rack = slow_costs((SlowNodes){4, 1, 1, 8});
    ParallelConfig one_stage = grid_of(2, 4, 16, 1, 8), whole = grid_of(2, 1, 64, 1, 8);
    Prediction inside = predicted(&rack, &model, &one_stage), flat = predicted(&even, &model, &one_stage);
    EXPECT(inside.config.slow.count == 1 && near(inside.parts.data, flat.parts.data, 1e-9),
           "a rack with all of a stage: %g s of gradients, not %g", inside.parts.data, flat.parts.data);
    Prediction across = predicted(&rack, &model, &whole), fast = predicted(&even, &model, &whole);
    EXPECT(near(across.parts.data, 8 * fast.parts.data, 1e-9),
           "a quarter of a stage: %g s of gradients, not %g", across.parts.data, 8 * fast.parts.data);
}

// ---- the layers ---------------------------------------------------------------------------------------------

static void fewer_layers_spare_slow_nodes(void) {
    ModelShape model = gpt_of(64, 1024, 16);
    CostModel costs = slow_costs((SlowNodes){1, 2, 1, 1});
    ParallelConfig config = grid_of(1, 8, 8, 1, 64);
    Prediction even = predicted(&costs, &model, &config), spared;
    bool is_found;
    int layers[8], sum = 0;
    EXPECT_OK(predict_fewer_layers(cache, &costs, &model, &even, &spared, &is_found));
    EXPECT(is_found && spared.step_s < 0.7 * even.step_s, "%g s with fewer layers, %g with as many",
           spared.step_s, even.step_s);
    EXPECT_OK(parallel_config_layers(&stack, &model, &spared.config, layers));
    for (int stage = 0; stage < 8; stage++) {
        bool slow = stage == spared.config.slow.first;
        sum += layers[stage];
        EXPECT(slow ? layers[stage] <= 5 : layers[stage] >= 8, "stage %d has %d layers", stage,
               layers[stage]);
    }
    EXPECT(sum == model.layers, "%d layers of %d", sum, model.layers);
    config = grid_of(1, 1, 16, 1, 4);
    even = predicted(&costs, &model, &config);
    EXPECT_OK(predict_fewer_layers(cache, &costs, &model, &even, &spared, &is_found));
    EXPECT(!is_found, "one stage was cut");
}

// With memory for no layer more none goes to other stages.
static void spared_layers_fit(void) {
    ModelShape model = gpt_of(64, 1024, 16);
    ParallelConfig config = grid_of(1, 8, 8, 1, 64);
    CostModel costs = slow_costs((SlowNodes){1, 2, 1, 1});
    Prediction even = predicted(&costs, &model, &config), spared;
    bool is_found;
    machine.usable_gb = even.memory.total * (1 - even.memory.margin) / 1e9 * 1.0001;
    EXPECT_OK(predict_fewer_layers(cache, &costs, &model, &even, &spared, &is_found));
    EXPECT(!is_found, "%.2f GB are found to fit in %.2f", spared.memory.total / 1e9, machine.usable_gb);
    machine = plain_machine();
}

int main(int argc, char **argv) {
    machine = plain_machine();
    stack = plain_stack();
    stack.overlaps_messages = true;
    CHECK(plan_cache_open(&cache) == OK, "%s", fail_message());
    int code = harness_run(
        (const Test[]){{"planted slowness is predicted", planted_slowness_is_predicted},
                       {"slower nodes cost more", slower_nodes_cost_more},
                       {"uplinks count where they are crossed", uplinks_count_where_they_are_crossed},
                       {"fewer layers spare slow nodes", fewer_layers_spare_slow_nodes},
                       {"spared layers fit", spared_layers_fit},
                       {0}},
        argc, argv);
    plan_cache_close(cache);
    return code;
}
