// Predictions: the parts of a step add up, pipelines have the published bubble, the closed form is a bound,
// and steps scale with batch and machine as they must.
#include "harness.h"
#include "plan_fixtures.h"
#include <string.h>

static Machine machine;
static Stack stack;
static PlanCache *cache;

static Prediction predicted(const CostModel *costs, const ModelShape *model, const ParallelConfig *config) {
    Prediction p = {0};
    EXPECT_OK(predict(cache, costs, model, config, &p));
    return p;
}

static double sum_of(const Breakdown *b) {
    return b->compute + b->tensor + b->stages + b->bubble + b->data + b->optimizer + b->other;
}

// ---- random candidates ------------------------------------------------------------------------------------

// GPTs and Llamas with grouped keys and values, of layers that do not divide by p.
static ModelShape random_model(uint64_t *random) {
    static const int layers[] = {8, 12, 13, 30}, heads[] = {8, 16, 24};
    int l = layers[draw(random, 4)], n = heads[draw(random, 3)];
    ModelShape model = draw(random, 2) ? gpt_of(l, 64 * n, n) : llama_of(l, 128 * n, n);
    model.sequence = model.positions = 256 << draw(random, 3);
    return model;
}

static ParallelConfig random_candidate(uint64_t *random) {
    static const int sizes[] = {1, 1, 2, 3, 4, 8};
    int d = sizes[draw(random, 6)], p = sizes[draw(random, 6)], t = 1 << draw(random, 4);
    ParallelConfig c = candidate_of(t, p, d, 1);
    do c.schedule = schedule_kinds[draw(random, num_schedule_kinds)]->name;
    while (schedule_kind(c.schedule)->pairs); // for experts
    int required = schedule_kind_chunks(schedule_kind(c.schedule));
    c.chunks = required ? required : 2 + draw(random, 3);
    c.microbatch = 1 << draw(random, 3);
    c.batch = grid_along(c.grid, AXIS_DP) * c.microbatch * (1 + draw(random, 24));
    c.grid.size[AXIS_CP] = 1 << draw(random, 8) / 6;
    c.recompute = (Recompute)draw(random, 3);
    c.attention = draw(random, 2) ? ATTENTION_FUSED : ATTENTION_UNFUSED;
    c.sequence_parallel = draw(random, 2);
    c.zero_stage = draw(random, 2);
    c.scatter_gather = draw(random, 2);
    c.overlap_gradients = draw(random, 2);
    c.overlap_tensor = draw(random, 2);
    return c;
}

// Programs that overlap, gather and balance in all ways.
enum { STACKS = 16 };
static Stack stacks[STACKS];

static void open_stacks(void) {
    for (int i = 0; i < STACKS; i++) {
        stacks[i] = plain_stack();
        stacks[i].overlaps_messages = i & 1, stacks[i].overlaps_backward = i & 2;
        stacks[i].gathers_logits = i & 4, stacks[i].balances_stages = i & 8;
    }
}

typedef void Law(const CostModel *costs, const ModelShape *model, const ParallelConfig *config);

// Of those that are not refused.
static void on_random_candidates(Law *law) {
    uint64_t random = 11;
    int possible = 0;
    for (int i = 0; i < (harness_short() ? 300 : 3000); i++) {
        char why[200];
        CostModel costs = costs_of(&machine, &stacks[draw(&random, STACKS)]);
        ModelShape model = random_model(&random);
        ParallelConfig c = random_candidate(&random);
        if (parallel_config_refuse(&model, &machine, &c, why, sizeof why)) continue;
        possible++;
        law(&costs, &model, &c);
    }
    EXPECT(possible > 50, "%d candidates are possible", possible);
}

#define CANDIDATE_FORMAT "t %d p %d d %d c %d v %d b %d B %d %s"
#define CANDIDATE_VALUES(c)                                                                                  \
    grid_along((c)->grid, AXIS_TP), grid_along((c)->grid, AXIS_PP), grid_along((c)->grid, AXIS_DP),          \
        grid_along((c)->grid, AXIS_CP), (c)->chunks, (c)->microbatch, (c)->batch, (c)->schedule

// ---- parts and bounds -------------------------------------------------------------------------------------

static void adds_up(const CostModel *costs, const ModelShape *model, const ParallelConfig *c) {
    Prediction p = predicted(costs, model, c);
    const Breakdown *b = &p.parts;
    EXPECT(p.step_s > 0 && near(sum_of(b), p.step_s, 1e-12), "%g of %g s: " CANDIDATE_FORMAT, sum_of(b),
           p.step_s, CANDIDATE_VALUES(c));
    double least = fmin(fmin(fmin(b->compute - b->recompute, b->recompute), fmin(b->tensor, b->stages)),
                        fmin(fmin(b->bubble, b->data), fmin(b->optimizer, b->other)));
    EXPECT(least >= -1e-9 * p.step_s, "%g s is a part: " CANDIDATE_FORMAT, least, CANDIDATE_VALUES(c));
    EXPECT(p.low_s < p.step_s && p.step_s < p.high_s, "from %g to %g", p.low_s, p.high_s);
    EXPECT(p.mfu > 0 && p.mfu < 1 && p.hfu < 1, "of the peak: %g, %g", p.mfu, p.hfu);
}

static void parts_add_up(void) { on_random_candidates(adds_up); }

static void is_bounded(const CostModel *costs, const ModelShape *model, const ParallelConfig *c) {
    double bound_s;
    MemoryNeed memory;
    Prediction p = predicted(costs, model, c);
    EXPECT_OK(predict_bound(cache, costs, model, c, &bound_s, &memory));
    EXPECT(bound_s <= p.step_s * (1 + 1e-9), "bound %.9g above %.9g: " CANDIDATE_FORMAT, bound_s, p.step_s,
           CANDIDATE_VALUES(c));
    EXPECT(bound_s > 0.3 * p.step_s, "bound %g of %g: " CANDIDATE_FORMAT, bound_s, p.step_s,
           CANDIDATE_VALUES(c));
    EXPECT(memory.total == p.memory.total && memory.rank == p.memory.rank, "memory: " CANDIDATE_FORMAT,
           CANDIDATE_VALUES(c));
}

static void bounds_are_below(void) { on_random_candidates(is_bounded); }

// What was asked before, and of which site, leaves nothing behind.
static void is_the_same_afresh(const CostModel *costs, const ModelShape *model, const ParallelConfig *c) {
    PlanCache *shared = cache;
    Prediction before = predicted(costs, model, c), after;
    EXPECT_OK(plan_cache_open(&cache));
    after = predicted(costs, model, c);
    plan_cache_close(cache);
    cache = shared;
    EXPECT(!memcmp(&before.parts, &after.parts, sizeof before.parts) && before.step_s == after.step_s,
           "%.17g, afresh %.17g: " CANDIDATE_FORMAT, before.step_s, after.step_s, CANDIDATE_VALUES(c));
}

static void caches_change_nothing(void) { on_random_candidates(is_the_same_afresh); }

static void sites_share_a_cache(void) {
    ModelShape model = gpt_of(8, 1024, 16);
    ParallelConfig c = candidate_of(2, 2, 1, 4);
    CostModel costs = costs_of(&machine, &stack), slow = costs;
    slow.constants.tile_efficiency /= 2;
    double first = predicted(&costs, &model, &c).step_s;
    EXPECT(predicted(&slow, &model, &c).step_s > first, "other constants");
    EXPECT(predicted(&costs, &model, &c).step_s == first, "and back");
}

// ---- pipelines --------------------------------------------------------------------------------------------

// Stages that take the same, but for a vocabulary next to nothing, and messages that take no time.
static void bubbles_are_as_published(void) {
    Machine linked = machine;
    linked.link_gbs = linked.nic_gbs = 1e9;
    CostModel costs = ideal_costs(&linked, &stack);
    ModelShape model = gpt_of(32, 4096, 32);
    model.vocabulary = 128;
    static const struct {
        const char *schedule;
        int p, v, m;
    } cases[] = {{"gpipe", 4, 1, 8},       {"1f1b", 4, 1, 8},        {"1f1b", 8, 1, 8},
                 {"1f1b", 16, 1, 5},       {"interleaved", 4, 2, 8}, {"interleaved", 4, 8, 4},
                 {"interleaved", 8, 4, 16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ParallelConfig c = candidate_of(1, cases[i].p, 1, cases[i].m);
        c.chunks = cases[i].v, c.schedule = cases[i].schedule;
        Prediction p = predicted(&costs, &model, &c);
        double expected = (grid_along(c.grid, AXIS_PP) - 1.0) / (c.chunks * cases[i].m);
        EXPECT(near(p.bubble, expected, 0.02), "%g, not %g: " CANDIDATE_FORMAT, p.bubble, expected,
               CANDIDATE_VALUES(&c));
        EXPECT(near(p.parts.bubble / (p.parts.compute + p.parts.tensor), expected, 0.02),
               "waiting %g s of %g", p.parts.bubble, p.parts.compute);
    }
}

static void timelines_are_what_is_predicted(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(12, 1024, 16);
    static const char *const kinds[] = {"1f1b", "interleaved", "zb-h1", "zb-v"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        ParallelConfig c = candidate_of(2, 3, 2, 9);
        c.schedule = kinds[i], c.chunks = i % 2 ? 2 : 1;
        Schedule schedule;
        Simulation simulation;
        const Breakdown b = predicted(&costs, &model, &c).parts;
        double replayed = b.compute + b.tensor + b.stages + b.bubble;
        EXPECT_OK(predict_timeline(cache, &costs, &model, &c, &schedule, &simulation));
        EXPECT(near(simulation.total_us / 1e6, replayed, 1e-9), "%s: %g s drawn, %g predicted", kinds[i],
               simulation.total_us / 1e6, replayed);
        simulation_destroy(&simulation, &schedule);
        schedule_destroy(&schedule);
    }
}

// A rank of two, at work without a pause, waits for a message each way of each microbatch, or for none.
static void messages_hold_ranks_up(void) {
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = gpt_of(12, 1024, 16);
    ParallelConfig c = candidate_of(8, 2, 1, 16);
    double message_s = price_message(&costs, &c, true, 2.0 * model.sequence * model.hidden);
    double stages = predicted(&costs, &model, &c).parts.stages;
    EXPECT(stages >= 16 * message_s && stages <= 2 * 16 * message_s * (1 + 1e-9), "%g s of messages of %g s",
           stages, message_s);
    costs.stack = &stacks[1];
    EXPECT(stacks[1].overlaps_messages && predicted(&costs, &model, &c).parts.stages == 0, "overlapped");
}

// With one microbatch every edge is crossed once each way and nothing hides it: the edges that leave a node, one of 7, or
// 2 of the 14 of a V, pay for the network, the others do not.
static void edges_pay_for_where_they_are(void) {
    Machine one = machine, pairs = machine;
    one.devices_per_node = 16, one.nics = 8, pairs.devices_per_node = 2, pairs.nics = 1;
    CostModel costs = ideal_costs(&machine, &stacks[1]), inside = ideal_costs(&one, &stacks[1]),
              across = ideal_costs(&pairs, &stacks[1]);
    ModelShape model = gpt_of(16, 1024, 16);
    model.untied = true;
    for (int way = 0; way < 2; way++) {
        ParallelConfig c = candidate_of(2, 8, 1, 1);
        c.schedule = way ? "zb-v" : "1f1b", c.chunks = 1 + way;
        double least = predicted(&inside, &model, &c).step_s, most = predicted(&across, &model, &c).step_s,
               share = (predicted(&costs, &model, &c).step_s - least) / (most - least);
        EXPECT(most > least && near(share, 1.0 / 7, 1e-6), "%s: %g of the edges, from %g to %g s", c.schedule,
               share, least, most);
    }
}

// Both ends of a V are on one rank: its two tables are one, and nothing is summed between the ends.
static void a_v_has_both_ends_on_one_rank(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(12, 1024, 16);
    ParallelConfig c = candidate_of(1, 3, 1, 6);
    EXPECT(predicted(&costs, &model, &c).parts.data > 0, "ends apart sum a tied table's gradients");
    model.untied = true;
    EXPECT(predicted(&costs, &model, &c).parts.data == 0, "not those of two tables");
    model.untied = false, c.schedule = "zb-v", c.chunks = 2;
    EXPECT(predicted(&costs, &model, &c).parts.data == 0, "a V");
}

// The ends of a pipeline are on different nodes though a stage is less than one.
static void tied_tables_are_summed_between_nodes(void) {
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = gpt_of(16, 1024, 16);
    ParallelConfig inside = candidate_of(2, 4, 1, 4), across = candidate_of(2, 8, 1, 8);
    double a = predicted(&costs, &model, &inside).parts.data,
           b = predicted(&costs, &model, &across).parts.data;
    EXPECT(near(b / a, machine.link_gbs * 8 / (machine.nics * machine.nic_gbs), 1e-6), "%g and %g s", a, b);
}

// ---- recomputation ----------------------------------------------------------------------------------------

// A middle stage's first compute of a kind.
static double span_us(const CostModel *costs, const ModelShape *model, const ParallelConfig *c,
                      ScheduleOp op) {
    Schedule schedule;
    Simulation simulation;
    double us = 0;
    EXPECT_OK(predict_timeline(cache, costs, model, c, &schedule, &simulation));
    for (int i = 0; i < schedule.programs[1].count && us == 0; i++) {
        Span span = simulation.spans[1][i];
        if (schedule.programs[1].instrs[i].op == op) us = span.end_us - span.start_us;
    }
    simulation_destroy(&simulation, &schedule);
    schedule_destroy(&schedule);
    return us;
}

static void recomputation_costs_one_forward(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape models[] = {gpt_of(6, 1024, 16), llama_of(6, 1024, 16)};
    for (int i = 0; i < 4; i++) {
        const ModelShape *model = &models[i % 2];
        ParallelConfig again = candidate_of(2, 3, 1, 6), kept = again;
        again.attention = kept.attention = i / 2 ? ATTENTION_FUSED : ATTENTION_UNFUSED;
        kept.recompute = RECOMPUTE_NOTHING;
        double forward = span_us(&costs, model, &again, OP_FORWARD);
        double more =
            span_us(&costs, model, &again, OP_BACKWARD) - span_us(&costs, model, &kept, OP_BACKWARD);
        EXPECT(forward > 0 && near(forward, more, 1e-9), "%g us, a forward %g", more, forward);
        kept.grid.size[AXIS_PP] = again.grid.size[AXIS_PP] = 1;
        Breakdown a = predicted(&costs, model, &again).parts, k = predicted(&costs, model, &kept).parts;
        EXPECT(near(a.compute - k.compute, a.recompute, 1e-9) && k.recompute == 0,
               "%g s more, of which %g are computed again", a.compute - k.compute, a.recompute);
    }
}

static void flops_are_the_model_s(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(24, 4096, 32);
    ParallelConfig c = candidate_of(1, 2, 2, 4);
    Prediction again = predicted(&costs, &model, &c);
    c.recompute = RECOMPUTE_NOTHING;
    Prediction kept = predicted(&costs, &model, &c);
    EXPECT(near(kept.hardware_flops, kept.model_flops, 0.02), "%g and %g", kept.hardware_flops,
           kept.model_flops);
    double layers = kept.model_flops - 6.0 * model.vocabulary * model.hidden * model.sequence * c.batch;
    EXPECT(near(again.hardware_flops, kept.hardware_flops + layers / 3, 0.02), "%g more, not %g",
           again.hardware_flops - kept.hardware_flops, layers / 3);
    EXPECT(near(kept.tflops * 1e12 * kept.step_s * 4, kept.hardware_flops, 1e-9), "%g TFLOP/s", kept.tflops);
}

// Ranks that share a sequence do together what one does with all of it; attention that is computed again is
// counted.
static void flops_count_whole_sequences(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(8, 1024, 16);
    model.sequence = model.positions = 8192;
    ParallelConfig c = candidate_of(2, 2, 1, 4);
    double counted[3];
    for (int i = 0; i < 3; i++) {
        c.recompute = (Recompute)i;
        c.grid.size[AXIS_CP] = 1;
        double whole = counted[i] = predicted(&costs, &model, &c).hardware_flops;
        c.grid.size[AXIS_CP] = 4;
        double shared = predicted(&costs, &model, &c).hardware_flops;
        EXPECT(near(whole, shared, 1e-3), "recompute %d: %g over 4 ranks, %g on one", i, shared, whole);
    }
    double attention = 4.0 * model.layers * c.batch * model.sequence * model.sequence * model.hidden;
    EXPECT(near(counted[RECOMPUTE_SELECTIVE] - counted[RECOMPUTE_NOTHING], attention, 1e-6),
           "%g more, not %g", counted[RECOMPUTE_SELECTIVE] - counted[RECOMPUTE_NOTHING], attention);
}

// ---- scaling ----------------------------------------------------------------------------------------------

static void batches_add_microbatches(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(12, 1024, 16);
    for (int p = 1; p <= 4; p++) {
        Prediction by[3];
        for (int i = 0; i < 3; i++) {
            ParallelConfig c = candidate_of(2, p, 2, 32 * (i + 1));
            by[i] = predicted(&costs, &model, &c);
        }
        double first = by[1].step_s - by[0].step_s, second = by[2].step_s - by[1].step_s;
        double busy = by[0].parts.compute + by[0].parts.tensor;
        EXPECT(near(first, second, 1e-6), "p %d: %g s more, then %g", p, first, second);
        EXPECT(p > 1 ? first >= busy * (1 - 1e-9) : near(first, busy, 1e-9), "p %d: %g s more, busy for %g",
               p, first, busy);
        EXPECT(near(by[0].parts.data, by[2].parts.data, 1e-12), "the reduction is once a step");
    }
}

// As many samples for each rank: what is computed stays, what is reduced does not shrink.
static void replicas_compute_the_same(void) {
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = gpt_of(12, 1024, 16);
    double data = 0, compute = 0;
    for (int d = 1; d <= 64; d *= 2) {
        ParallelConfig c = candidate_of(2, 1, d, 8);
        costs.constants.straggler = 0;
        Breakdown parts = predicted(&costs, &model, &c).parts;
        EXPECT(d == 1 || near(parts.compute, compute, 1e-12), "d %d: %g s, %g before", d, parts.compute,
               compute);
        EXPECT(parts.data >= data, "d %d: %g s of reductions, %g before", d, parts.data, data);
        compute = parts.compute, data = parts.data;
    }
}

// What no rank keeps whole is moved for every microbatch.
static void zero_stages_move_more(void) {
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = gpt_of(12, 1024, 16);
    double data[4], m = 6;
    for (int stage = 0; stage < 4; stage++) {
        ParallelConfig c = candidate_of(1, 1, 16, (int)m);
        c.zero_stage = stage;
        data[stage] = predicted(&costs, &model, &c).parts.data;
    }
    EXPECT(near(data[0], data[1], 1e-9), "%g s, %g in halves", data[0], data[1]);
    EXPECT(near(data[2], (m + 1) / 2 * data[0], 1e-9), "stage 2: %g s for %g", data[2], data[0]);
    EXPECT(near(data[3], 3 * m / 2 * data[0], 1e-9), "stage 3: %g s for %g", data[3], data[0]);
}

// Nine in ten rows, all rows, another machine.
static void intervals_widen(void) {
    Stack measured = stack;
    measured.accuracy = (Accuracy){.count = 9, .p90 = 5, .worst = 10, .most_gpus = 8, .most_tp = 8};
    Machine elsewhere = machine;
    snprintf(elsewhere.name, sizeof elsewhere.name, "elsewhere");
    ModelShape model = gpt_of(12, 1024, 16);
    ParallelConfig small = candidate_of(1, 1, 8, 1), large = candidate_of(1, 1, 16, 1);
    CostModel here = costs_of(&machine, &measured), there = costs_of(&elsewhere, &measured);
    Prediction p[] = {predicted(&here, &model, &small), predicted(&here, &model, &large),
                      predicted(&there, &model, &small)};
    static const double shares[] = {0.05, 0.1, 0.2};
    for (int i = 0; i < 3; i++)
        EXPECT(near(p[i].high_s / p[i].step_s, 1 + shares[i], 1e-9), "%d: %g to %g s", i, p[i].low_s,
               p[i].high_s);
}

static void machines_refuse_what_they_cannot(void) {
    ModelShape model = gpt_of(12, 1024, 16);
    ParallelConfig c = candidate_of(1, 1, 16, 1);
    Machine narrow = machine, alone = machine, cpu = machine;
    char why[200];
    narrow.peak_tflops[F16] = 0, alone.nics = 0, cpu.is_cpu = true;
    EXPECT(!parallel_config_refuse(&model, &machine, &c, why, sizeof why), "%s", why);
    EXPECT(parallel_config_refuse(&model, &narrow, &c, why, sizeof why) && strstr(why, "f16"), "no f16");
    EXPECT(parallel_config_refuse(&model, &alone, &c, why, sizeof why) && strstr(why, "8 devices"),
           "no NICs");
    EXPECT(parallel_config_refuse(&model, &cpu, &c, why, sizeof why) && strstr(why, "8 devices"),
           "no network");
    c = candidate_of(1, 1, 4, 1);
    c.grid.size[AXIS_CP] = 2;
    EXPECT(!parallel_config_refuse(&model, &alone, &c, why, sizeof why), "%s", why);
    EXPECT(!parallel_config_refuse(&model, &cpu, &c, why, sizeof why), "%s", why);
}

static void machines_twice_as_fast_take_half(void) {
    Machine fast = machine;
    for (int i = 0; i < NUM_DTYPES; i++) fast.peak_tflops[i] *= 2;
    fast.memory_gbs *= 2, fast.link_gbs *= 2, fast.nic_gbs *= 2;
    CostModel costs = ideal_costs(&machine, &stack), faster = ideal_costs(&fast, &stack);
    ModelShape model = llama_of(12, 1024, 16);
    ParallelConfig c = candidate_of(2, 3, 4, 6);
    double one = predicted(&costs, &model, &c).step_s, half = predicted(&faster, &model, &c).step_s;
    EXPECT(near(one, 2 * half, 1e-9), "%g and %g s", one, half);
}

enum { BETTER = 4 };
static Machine better[BETTER]; // in one part each

static void open_machines(void) {
    for (int i = 0; i < BETTER; i++) better[i] = plain_machine();
    better[0].peak_tflops[F16] *= 1.5;
    better[1].memory_gbs *= 1.5;
    better[2].link_gbs *= 1.5;
    better[3].nic_gbs *= 1.5;
}

static void is_never_slower_on(const CostModel *costs, const ModelShape *model, const ParallelConfig *c) {
    double before = predicted(costs, model, c).step_s;
    for (int i = 0; i < BETTER; i++) {
        CostModel other = *costs;
        other.machine = &better[i];
        double after = predicted(&other, model, c).step_s;
        EXPECT(after <= before * (1 + 1e-9), "%g s, %g with better part %d: " CANDIDATE_FORMAT, before, after,
               i, CANDIDATE_VALUES(c));
    }
}

static void better_machines_are_never_slower(void) { on_random_candidates(is_never_slower_on); }

// A reduction that its window hides in part, with the stragglers of several nodes: a faster machine has a
// smaller window, and the reduction shows by no more than the window shrinks.
static void windows_shrink_as_their_computes_do(void) {
    for (int i = 0; i < STACKS * 2 * 4; i++) {
        CostModel costs = costs_of(&machine, &stacks[i / 8]);
        ModelShape model = i & 1 ? llama_of(8, 2048, 16) : gpt_of(12, 512, 8);
        ParallelConfig c = candidate_of(2, 1, 3, 1);
        c.grid.size[AXIS_CP] = 2, c.overlap_gradients = true;
        c.zero_stage = i / 2 % 4;
        is_never_slower_on(&costs, &model, &c);
        for (c.grid.size[AXIS_PP] = 2; grid_along(c.grid, AXIS_PP) <= 4; c.grid.size[AXIS_PP] += 2)
            is_never_slower_on(&costs, &model, &c);
    }
}

// Slower by a layer's work, whatever the schedule makes of it.
static void layers_take_time(void) {
    CostModel costs = costs_of(&machine, &stack);
    double before = 0;
    for (int layers = 4; layers <= 24; layers++) {
        ModelShape model = gpt_of(layers, 1024, 16);
        ParallelConfig c = candidate_of(2, 4, 1, 8);
        double step_s = predicted(&costs, &model, &c).step_s;
        EXPECT(step_s > before, "%d layers: %g s, %g with one less", layers, step_s, before);
        before = step_s;
    }
}

int main(int argc, char **argv) {
    machine = plain_machine();
    stack = plain_stack();
    open_stacks();
    open_machines();
    CHECK(plan_cache_open(&cache) == OK, "%s", fail_message());
    int code = harness_run(
        (const Test[]){{"parts_add_up", parts_add_up},
                       {"bounds_are_below", bounds_are_below},
                       {"caches_change_nothing", caches_change_nothing},
                       {"sites_share_a_cache", sites_share_a_cache},
                       {"bubbles_are_as_published", bubbles_are_as_published},
                       {"timelines_are_what_is_predicted", timelines_are_what_is_predicted},
                       {"messages_hold_ranks_up", messages_hold_ranks_up},
                       {"edges_pay_for_where_they_are", edges_pay_for_where_they_are},
                       {"a_v_has_both_ends_on_one_rank", a_v_has_both_ends_on_one_rank},
                       {"tied_tables_are_summed_between_nodes", tied_tables_are_summed_between_nodes},
                       {"recomputation_costs_one_forward", recomputation_costs_one_forward},
                       {"flops_are_the_model_s", flops_are_the_model_s},
                       {"flops_count_whole_sequences", flops_count_whole_sequences},
                       {"batches_add_microbatches", batches_add_microbatches},
                       {"replicas_compute_the_same", replicas_compute_the_same},
                       {"zero_stages_move_more", zero_stages_move_more},
                       {"intervals_widen", intervals_widen},
                       {"machines_refuse_what_they_cannot", machines_refuse_what_they_cannot},
                       {"machines_twice_as_fast_take_half", machines_twice_as_fast_take_half},
                       {"better_machines_are_never_slower", better_machines_are_never_slower},
                       {"windows_shrink_as_their_computes_do", windows_shrink_as_their_computes_do},
                       {"layers_take_time", layers_take_time},
                       {0}},
        argc, argv);
    plan_cache_close(cache);
    return code;
}
