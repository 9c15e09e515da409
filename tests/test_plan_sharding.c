// What a plan knows of weights that are cut over replicas (zero stage 3): gathers behind the computing of layers.
#include "plan_fixtures.h"

static double data_of(const CostModel *costs, const ModelShape *model, const ParallelConfig *config,
                      double *step_s) {
    PlanCache *cache;
    Prediction out = {0};
    EXPECT_OK(plan_cache_open(&cache));
    EXPECT_OK(predict(cache, costs, model, config, &out));
    plan_cache_close(cache);
    *step_s = out.step_s;
    return out.parts.data;
}

static Prediction predicted(const CostModel *costs, const ModelShape *model, const ParallelConfig *config) {
    PlanCache *cache;
    Prediction out = {0};
    EXPECT_OK(plan_cache_open(&cache));
    EXPECT_OK(predict(cache, costs, model, config, &out));
    plan_cache_close(cache);
    return out;
}

// The host's part of the state takes what the slower one of link and memory takes; the device steps and holds the rest.
static void hosts_take_state_and_time(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    ModelShape model = gpt_of(4, 1024, 16);
    char why[200];
    ParallelConfig here = grid_of(1, 1, 2, 1, 2), there = here;
    here.zero_stage = there.zero_stage = 1, here.dtype = there.dtype = BF16, there.offload = 0.5;
    EXPECT(parallel_config_refuse(&model, &machine, &there, why, sizeof why) && strstr(why, "host_link_gbs"),
           "a machine whose hosts are unknown: %s", why);
    machine.host_link_gbs = 10, machine.host_memory_gbs = 1e6;
    EXPECT(!parallel_config_refuse(&model, &machine, &there, why, sizeof why), "%s", why);
    CostModel costs = ideal_costs(&machine, &stack);
    costs.constants.host_efficiency = 1, costs.constants.optimizer_whole_bytes = 0;
    Prediction a = predicted(&costs, &model, &here), link = predicted(&costs, &model, &there);
    double parameters = a.memory.parameters / 2, stepped = parameters / 2;
    EXPECT(near(link.parts.optimizer, a.parts.optimizer / 2 + stepped / 2 * 6 / 10e9, 1e-9),
           "the link: %g s, on the device %g", link.parts.optimizer, a.parts.optimizer);
    EXPECT(near(a.step_s - a.parts.optimizer, link.step_s - link.parts.optimizer, 1e-9),
           "the rest of the step changes");
    machine.host_link_gbs = 1e6, machine.host_memory_gbs = 20; // 10 for each of the two devices
    Prediction memory = predicted(&costs, &model, &there);
    EXPECT(near(memory.parts.optimizer, a.parts.optimizer / 2 + stepped / 2 * 34 / 10e9, 1e-9),
           "the memory: %g s, on the device %g", memory.parts.optimizer, a.parts.optimizer);
    EXPECT(near(link.memory.optimizer, a.memory.optimizer / 2, 1e-9) && a.memory.host == 0,
           "%g bytes of state, of %g", link.memory.optimizer, a.memory.optimizer);
    EXPECT(near(link.memory.total, a.memory.total - a.memory.optimizer / 2, 1e-9) &&
               near(link.memory.host, stepped / 2 * 12, 1e-9),
           "%g bytes of the host for %g parameters", link.memory.host, stepped / 2);
    machine.is_cpu = true;
    EXPECT(parallel_config_refuse(&model, &machine, &there, why, sizeof why), "processors have no host");
}

static ParallelConfig sharded(int microbatches, bool overlap) {
    ParallelConfig config = grid_of(1, 1, 16, 1, microbatches);
    config.zero_stage = 3;
    config.overlap_gradients = overlap;
    return config;
}

// On any network a gather that overlaps costs less than one that does not, and more than what exceeds the computing;
// where both take about as long it costs most beyond that; each microbatch costs the same.
static void gathers_overlap_in_part(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    ModelShape model = gpt_of(4, 1024, 16);
    double ratio_before = INFINITY;
    int num_alike = 0;
    for (double gbs = 0.01; gbs < 1e5; gbs *= 2) {
        machine.nic_gbs = gbs, machine.link_gbs = 8 * gbs;
        CostModel costs = ideal_costs(&machine, &stack);
        ParallelConfig open = sharded(2, false), hidden = sharded(2, true), more = sharded(4, true);
        double open_s, step_s, more_s, whole = data_of(&costs, &model, &open, &open_s);
        double part = data_of(&costs, &model, &hidden, &step_s),
               twice = data_of(&costs, &model, &more, &more_s);
        double computed = open_s - whole; // with the optimizer, which is small
        EXPECT(part < whole && part > 0 && part > 0.999 * (whole - computed), "%g GB/s: %g s of %g behind %g",
               gbs, part, whole, computed);
        EXPECT(near(twice, 2 * part, 1e-9), "%g GB/s: %g s, of twice the microbatches %g", gbs, part, twice);
        EXPECT(part / whole < ratio_before, "%g GB/s: a share of %g, before %g", gbs, part / whole,
               ratio_before);
        ratio_before = part / whole;
        double longer = fmax(whole, computed), both = step_s;
        EXPECT(both > 0.999 * longer && both < 1.5 * longer, "%g GB/s: %g s of %g and %g", gbs, both, whole,
               computed);
        bool alike = whole > 0.5 * computed && whole < 2 * computed;
        num_alike += alike;
        EXPECT(!alike || both > 1.1 * longer, "%g GB/s: %g s of %g and %g", gbs, both, whole, computed);
    }
    EXPECT(num_alike > 0, "computing and gathering never take about as long");
    EXPECT(ratio_before < 1e-3, "on a fast network %g remains", ratio_before);
}

// trireme sums gradients over replicas once in a step, or after each microbatch.
static void sums_of_every_microbatch_take_their_time(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    ModelShape model = gpt_of(4, 1024, 16);
    CostModel costs = ideal_costs(&machine, &stack);
    double data[2][2], step_s;
    stack.is_trireme = true;
    for (int every = 0; every < 2; every++)
        for (int more = 0; more < 2; more++) {
            ParallelConfig config = sharded(more ? 4 : 2, false);
            config.zero_stage = 2, config.reduce_every = every;
            data[every][more] = data_of(&costs, &model, &config, &step_s);
        }
    EXPECT(near(data[0][0], data[0][1], 1e-9), "once: %g s and %g s", data[0][0], data[0][1]);
    double one = data[1][0] - data[0][0];
    EXPECT(one > 0 && near(data[1][1], data[0][0] + 3 * one, 1e-9), "each: %g s and %g s, once %g s",
           data[1][0], data[1][1], data[0][0]);
}

// Where NICs are thin, groups that fit a node spare every microbatch their traffic. Their sums over groups go behind the
// last backward, but for trireme, which makes them at the end.
static void instances_pay_once(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack(), own = stack;
    ModelShape model = gpt_of(4, 1024, 16);
    machine.nic_gbs = 0.05;
    own.is_trireme = true;
    CostModel costs = ideal_costs(&machine, &stack), ours = ideal_costs(&machine, &own);
    ParallelConfig whole = sharded(16, true), groups = whole;
    groups.grid.instances = 2;
    double step_s, all = data_of(&costs, &model, &whole, &step_s),
                   some = data_of(&costs, &model, &groups, &step_s);
    EXPECT(some < 0.5 * all, "%g s in groups of a node, %g s over all", some, all);
    machine.nic_gbs = 1;
    some = data_of(&costs, &model, &groups, &step_s);
    groups.overlap_gradients = false;
    double open = data_of(&costs, &model, &groups, &step_s);
    EXPECT(some < open, "%g s behind backwards, %g s in the open", some, open);
    groups.overlap_gradients = true;
    double at_end = data_of(&ours, &model, &groups, &step_s);
    EXPECT(at_end > some, "trireme sums over groups in %g s, others in %g s", at_end, some);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"gathers overlap in part", gathers_overlap_in_part},
                       {"instances pay once", instances_pay_once},
                       {"hosts_take_state_and_time", hosts_take_state_and_time},
                       {"sums_of_every_microbatch_take_their_time", sums_of_every_microbatch_take_their_time},
                       {0}},
        argc, argv);
}
