// Plans of models with experts: the recorded work is the trainer's, messages have the published volumes, parameters and
// memory are cut over the ranks that share experts, and what cannot be run is refused with values that can.
#include "plan/memory.h"
#include "plan_fixtures.h"
#include <string.h>

enum { EXPERTS = 8, TOPK = 2, WIDTH = 64 };

static ModelShape mixture(void) {
    ModelShape model = llama_of(4, 64, 4);
    model.sequence = model.positions = 32, model.vocabulary = 256;
    model.groups = 4;
    model.experts = EXPERTS, model.experts_topk = TOPK, model.expert_ffn = WIDTH, model.shared_ffn = 32;
    return model;
}

// Layers 2 and 3 of four have experts, the others an MLP.
static ModelShape half_dense(void) {
    ModelShape model = mixture();
    model.experts_period = 4, model.experts_layers = 12;
    return model;
}

static ParallelConfig config_of(int tp, int ep, int etp, int dp) {
    ParallelConfig c = {.grid = GRID(tp, dp, 1),
                        .chunks = 1,
                        .microbatch = 2,
                        .batch = 2 * dp,
                        .schedule = "1f1b",
                        .dtype = BF16};
    c.grid.size[AXIS_EP] = ep, c.grid.size[AXIS_ETP] = etp;
    c.sequence_parallel = tp > 1;
    return c;
}

static double part_flops(const Work *w, ModelPart part) {
    return work_flops(&w->forward[part]) + work_flops(&w->backward[part]);
}

// ---- work ---------------------------------------------------------------------------------------

static double measured_flops(const ModelShape *model, const ParallelConfig *c) {
    EngineSpec spec = {
        .grid = c->grid,
        .shape = *model,
        .mode = {.microbatch = c->microbatch, .dtype = c->dtype, .sequence_parallel = c->sequence_parallel},
        .split = {.layers = model->layers},
        .schedule = "1f1b",
        .num_chunks = 1,
        .num_microbatches = 1,
        .adam = {0.9, 0.95, 1e-8, 1},
        .bucket_elements = 5000,
        .device = "reference",
        .threads = 1};
    EngineMemory measured;
    spec.mode.padded_vocabulary =
        padded_vocabulary(model->vocabulary, VOCABULARY_DIVISOR, grid_along(c->grid, AXIS_TP));
    EXPECT_OK(engine_measure(&spec, 0, &measured, NULL));
    return measured.flops;
}

static void parts_add_up_to_a_step(void) {
    const ModelShape models[] = {mixture(), half_dense()};
    const ParallelConfig configs[] = {config_of(1, 1, 1, 1), config_of(1, 4, 1, 4), config_of(2, 4, 1, 2),
                                      config_of(2, 2, 2, 2)};
    for (size_t i = 0; i < 8; i++) {
        const ModelShape *model = &models[i % 2];
        ParallelConfig c = configs[i / 2];
        int dense = model_dense_layers(model, 0, model->layers);
        for (int grouped = 0; grouped < 2; grouped++) {
            Work work;
            c.groups_experts = grouped;
            EXPECT_OK(work_record(&work, model, &c));
            double flops = part_flops(&work, PART_EMBEDDING) + part_flops(&work, PART_HEAD) +
                           (model->layers - dense) * part_flops(&work, PART_LAYER) +
                           dense * part_flops(&work, PART_DENSE);
            double step = measured_flops(model, &c);
            EXPECT(near(flops, step, 1e-12), "way %zu, grouped %d: %.0f flops, a step %.0f", i, grouped,
                   flops, step);
            work_free(&work);
        }
    }
    ModelShape half = half_dense(), all = mixture(), plain = llama_of(4, 64, 4);
    EXPECT(model_dense_layers(&half, 0, 4) == 2 && model_dense_layers(&half, 1, 2) == 1, "two dense layers");
    EXPECT(!model_dense_layers(&all, 0, 4) && !model_dense_layers(&plain, 0, 4), "all layers are alike");
}

static int items_of(const WorkList *list, int kind, int op, double *bytes, double *products) {
    int count = 0;
    *bytes = *products = 0;
    for (int i = 0; i < list->count; i++) {
        const WorkItem *item = &list->items[i];
        if (item->kind != kind || item->op != op || (kind == WORK_COLLECTIVE && item->dtype != BF16))
            continue;
        count++, *bytes += item->bytes, *products += (double)item->batch;
    }
    return count;
}

// Each direction sends k rows of a token to the experts and back: 2 k T H numbers, where none is left room for.
static void tokens_travel_as_published(void) {
    ModelShape model = mixture();
    double bytes, products, tokens = 2 * model.sequence, rows = TOPK * tokens * model.hidden * 2;
    ParallelConfig c = config_of(1, 4, 1, 4);
    Work work;
    c.groups_experts = true;
    EXPECT_OK(work_record(&work, &model, &c));
    for (int backward = 0; backward < 2; backward++) {
        const WorkList *list = backward ? &work.backward[PART_LAYER] : &work.forward[PART_LAYER];
        int count = items_of(list, WORK_COLLECTIVE, COMM_ALL_TO_ALL, &bytes, &products);
        EXPECT(count == 2 && bytes == 2 * rows, "%d all-to-alls of %.0f bytes, not 2 of %.0f", count, bytes,
               rows);
    }
    EXPECT(work.expert_parameters == EXPERTS / 4 * 3 * WIDTH * model.hidden, "%lld parameters of experts",
           (long long)work.expert_parameters);
    work_free(&work);
}

// The products of a rank's experts are one item each: two in the forward, four in the backward.
static void experts_are_one_kernel(void) {
    ModelShape model = mixture();
    ParallelConfig c = config_of(1, 1, 1, 1);
    Work apart, grouped;
    double bytes, apart_products, products;
    model.shared_ffn = 0;
    EXPECT_OK(work_record(&apart, &model, &c));
    c.groups_experts = true;
    EXPECT_OK(work_record(&grouped, &model, &c));
    int count = items_of(&apart.forward[PART_LAYER], WORK_OP, OP_MATMUL, &bytes, &apart_products);
    int joined = items_of(&grouped.forward[PART_LAYER], WORK_OP, OP_MATMUL, &bytes, &products);
    EXPECT(count == 3 + 2 * EXPERTS && joined == 3 + 2, "%d products, %d of them when joined", count, joined);
    EXPECT(products == apart_products, "%.0f products joined, %.0f apart", products, apart_products);
    count = items_of(&apart.backward[PART_LAYER], WORK_OP, OP_MATMUL, &bytes, &apart_products);
    joined = items_of(&grouped.backward[PART_LAYER], WORK_OP, OP_MATMUL, &bytes, &products);
    EXPECT(count - joined == 4 * (EXPERTS - 1) && products == apart_products,
           "%d products backward, joined %d", count, joined);
    work_free(&apart), work_free(&grouped);
}

// ---- prices -------------------------------------------------------------------------------------

// Sent once to each rank, a token with 8 of 128 experts goes to 5.339 of 8 ranks on average.
static void tokens_are_sent_once(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = mixture();
    const double bytes = 8e6;
    ParallelConfig c = config_of(1, 8, 1, 8), wide = config_of(1, 64, 1, 64);
    model.experts = 128, model.experts_topk = 8;
    double each = price_dispatch(&costs, &model, &c, bytes),
           far = price_dispatch(&costs, &model, &wide, bytes);
    stack.dispatches_once = true;
    double once = price_dispatch(&costs, &model, &c, bytes),
           far_once = price_dispatch(&costs, &model, &wide, bytes);
    ParallelConfig pairs = c;
    pairs.sends_pairs = true;
    EXPECT(price_dispatch(&costs, &model, &pairs, bytes) == each, "pairs that travel by themselves");
    EXPECT(near(once / each, 5.339 / 8, 1e-3), "once takes %g of each", once / each);
    EXPECT(near(each, bytes * 7 / 8 / 200e9, 1e-9), "7/8 of %g bytes at the link's rate: %g s", bytes, each);
    // Of 56 of 64 pairs in other nodes, once for each of the nodes but the own one.
    EXPECT(near(far_once / far, 5.339 / 8, 1e-3), "between nodes once takes %g of each", far_once / far);
    // In 4 of 8 groups a token has 64 experts, and none of the 16 of a rank in an open group with 48/64 * 47/63 ... 41/57.
    model.router_groups = 8, model.router_open_groups = 4;
    double none = 1;
    for (int i = 0; i < 8; i++) none *= (48.0 - i) / (64 - i);
    double limited = price_dispatch(&costs, &model, &c, bytes);
    EXPECT(near(limited / each, 4 * (1 - none) / 8, 1e-9), "in open groups %g of each", limited / each);
    // Groups that are all open are none.
    model.router_open_groups = 8;
    EXPECT(near(price_dispatch(&costs, &model, &c, bytes), once, 1e-9), "in all groups");
    model.router_groups = model.router_open_groups = 64;
    EXPECT(near(price_dispatch(&costs, &model, &c, bytes), once, 1e-9), "in all of many groups");
}

static Prediction predicted(const CostModel *costs, const ModelShape *model, const ParallelConfig *c) {
    PlanCache *cache;
    Prediction p;
    EXPECT_OK(plan_cache_open(&cache));
    EXPECT_OK(predict(cache, costs, model, c, &p));
    plan_cache_close(cache);
    return p;
}

static void the_fullest_rank_decides(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = mixture();
    ParallelConfig c = config_of(1, 4, 1, 4);
    c.groups_experts = true;
    Prediction even = predicted(&costs, &model, &c);
    costs.constants.expert_imbalance = 2;
    Prediction uneven = predicted(&costs, &model, &c);
    costs.constants.expert_imbalance = 1, costs.constants.expert_exposed = 0;
    Prediction hidden = predicted(&costs, &model, &c);
    costs.constants.routing_ms = 100;
    Prediction waits = predicted(&costs, &model, &c);
    EXPECT(even.parts.experts > 0 && near(uneven.parts.experts, 2 * even.parts.experts, 1e-9),
           "twice the tokens take %g s, not twice %g", uneven.parts.experts, even.parts.experts);
    EXPECT(uneven.parts.compute > even.parts.compute, "nor do their products take longer");
    EXPECT(hidden.parts.experts == 0 && near(even.step_s - even.parts.experts, hidden.step_s, 1e-9),
           "hidden messages take %g s", hidden.parts.experts);
    double waited = waits.parts.compute - 4 * 2 * 0.1; // and what a forward does before it has rows
    EXPECT(waited > 0 && waited < hidden.parts.compute, "4 layers wait for 0.1 s twice, and for %g", waited);
}

// Computing hides as many messages as it takes time, but for a smallest part of them.
static void computing_hides_messages(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = mixture();
    ParallelConfig c = config_of(1, 4, 1, 4);
    c.groups_experts = true;
    Prediction open = predicted(&costs, &model, &c);
    costs.constants.fused_attention_efficiency /= 1e3; // computing takes longer than messages
    costs.constants.expert_exposed = 0.1;
    Prediction hidden = predicted(&costs, &model, &c);
    EXPECT(near(hidden.parts.experts, 0.1 * open.parts.experts, 1e-9), "a tenth is exposed, not %g of %g s",
           hidden.parts.experts, open.parts.experts);
    machine.link_gbs /= 1e6;
    Prediction longest = predicted(&costs, &model, &c);
    EXPECT(longest.parts.experts > 0.9 * 1e6 * open.parts.experts, "messages of %g s are hidden",
           1e6 * open.parts.experts - longest.parts.experts);
}

// The host launches a product for each of a rank's 2 experts, 2 in a forward and 4 in a backward.
static void the_host_launches_each_expert(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = mixture();
    ParallelConfig c = config_of(1, 4, 1, 4);
    c.groups_experts = true, model.shared_ffn = 0;
    double device_s = predicted(&costs, &model, &c).step_s;
    costs.constants.expert_launch_us = 1e4;
    double launched_s = predicted(&costs, &model, &c).step_s - 4 * 2 * (2 + 4) * 0.01;
    EXPECT(launched_s > 0 && launched_s < device_s, "beside 48 launches of 10 ms a step takes %g s",
           launched_s);
}

// After a forward's routing the host launches what works on rows, and the device waits; attention comes on top. Before a
// backward the host has run ahead.
static void a_forward_waits_for_the_host(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = mixture();
    ParallelConfig c = config_of(1, 1, 1, 1);
    c.groups_experts = true;
    costs.constants.fused_attention_efficiency /= 1e6;
    Prediction free = predicted(&costs, &model, &c);
    double routing_s = 0.05 * free.step_s / 4;
    costs.constants.routing_ms = 1e3 * routing_s;
    Prediction waits = predicted(&costs, &model, &c);
    EXPECT(near(waits.step_s - free.step_s, 4 * routing_s, 0.02), "%g s longer, of 4 waits of %g",
           waits.step_s - free.step_s, routing_s);
}

static void biases_cost_passes(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = mixture();
    ParallelConfig c = config_of(1, 1, 1, 1);
    c.groups_experts = true;
    for (int has = 0; has < 2; has++) {
        model.mlp_bias = has;
        costs.constants.biased_passes = 1;
        double once = predicted(&costs, &model, &c).step_s;
        costs.constants.biased_passes = 30;
        double often = predicted(&costs, &model, &c).step_s;
        EXPECT((often > 1.01 * once) == has, "with%s biases a step takes %g s, not %g", has ? "" : "out",
               often, once);
    }
}

// A step of pairs takes less time than one of others, and no less than its computes; what is not hidden is what the
// messages cost.
static void pairs_hide_messages(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = mixture();
    PlanCache *cache;
    ParallelConfig c = config_of(1, 4, 1, 4);
    c.groups_experts = true, c.batch = 16 * grid_along(c.grid, AXIS_DP) * c.microbatch;
    Prediction apart = predicted(&costs, &model, &c);
    c.schedule = schedule_kind_paired()->name;
    Prediction paired = predicted(&costs, &model, &c);
    double bound;
    EXPECT_OK(plan_cache_open(&cache));
    EXPECT_OK(predict_bound(cache, &costs, &model, &c, &bound, NULL));
    plan_cache_close(cache);
    EXPECT(near(paired.parts.compute, apart.parts.compute, 1e-9), "computes take %g s, not %g",
           paired.parts.compute, apart.parts.compute);
    // The first forward and the last backward are alone.
    EXPECT(paired.parts.experts < apart.parts.experts &&
               paired.parts.experts >= apart.parts.experts / 16 * (1 - 1e-9),
           "messages cost %g s of %g", paired.parts.experts, apart.parts.experts);
    EXPECT(near(apart.step_s - paired.step_s, apart.parts.experts - paired.parts.experts, 1e-9),
           "a step takes %g s instead of %g", paired.step_s, apart.step_s);
    EXPECT(bound <= paired.step_s, "a bound of %g s for a step of %g", bound, paired.step_s);
}

// ---- memory -------------------------------------------------------------------------------------

static void experts_share_memory(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = half_dense();
    MemoryNeed whole, cut;
    ParallelConfig c = config_of(1, 1, 1, 8);
    EXPECT_OK(memory_need(&costs, &model, &c, &whole));
    EXPECT(near(whole.parameters, 2.0 * (double)model_parameters(&model), 1e-9),
           "%g bytes of %lld parameters", whole.parameters, (long long)model_parameters(&model));
    c.grid.size[AXIS_EP] = 8;
    EXPECT_OK(memory_need(&costs, &model, &c, &cut));
    double experts = 2.0 * EXPERTS * 3 * WIDTH * model.hidden;
    EXPECT(near(whole.parameters - cut.parameters, 2 * experts * 7 / 8, 1e-9), "8 ranks save %g bytes of %g",
           whole.parameters - cut.parameters, 2 * experts);
    // Each rank has its own experts: a distributed optimizer cuts only what has replicas.
    c.zero_stage = 1;
    double state = cut.optimizer;
    EXPECT_OK(memory_need(&costs, &model, &c, &cut));
    double own = 2 * experts / 8 / 2 * 14;
    EXPECT(near(cut.optimizer, (state - own) / 8 + own, 1e-9), "%g bytes of optimizer, of %g", cut.optimizer,
           state);
}

static void own_memory_has_experts(void) {
    Planned place;
    ModelShape model = mixture();
    MemoryNeed all, some;
    ParallelConfig c = config_of(1, 1, 1, 4);
    EXPECT_OK(machine_open(&place.machine, "dgx-h100"));
    EXPECT_OK(stack_open(&place.stack, "trireme-cuda"));
    place.costs = costs_of(&place.machine, &place.stack);
    EXPECT_OK(memory_exact(&place.costs, &model, &c, &all));
    c.grid.size[AXIS_EP] = 4;
    EXPECT_OK(memory_exact(&place.costs, &model, &c, &some));
    EXPECT(some.total < all.total, "experts over 4 ranks take %g bytes, on each rank %g", some.total,
           all.total);
    machine_close(&place.machine);
}

// ---- search -------------------------------------------------------------------------------------

static SearchSpace space_of(int devices) {
    return (SearchSpace){.devices = devices,
                         .batch = 32,
                         .sequence_parallel = -1,
                         .zero_stage = -1,
                         .fused_attention = 1,
                         .recompute = RECOMPUTE_NOTHING,
                         .dtype = BF16};
}

static double best_of(const CostModel *costs, const ModelShape *model, const SearchSpace *space,
                      ParallelConfig *best) {
    PlanCache *cache;
    PlanResult result;
    EXPECT_OK(plan_cache_open(&cache));
    bool found = plan_search(cache, costs, model, space, 1, &result) == OK;
    double step_s = found ? result.best[0].step_s : INFINITY;
    if (found && best) *best = result.best[0].config;
    plan_result_free(&result);
    plan_cache_close(cache);
    return step_s;
}

// What the search finds is the best of what it finds for each choice of c, ep and sharding.
static void searches_try_all_choices(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    stack.shards_weights = true;
    CostModel costs = costs_of(&machine, &stack);
    ModelShape model = mixture();
    model.hidden = 1024, model.head_size = 256, model.expert_ffn = model.ffn = 1024, model.shared_ffn = 0;
    model.sequence = model.positions = 16384;
    for (int way = 0; way < 2; way++) {
        SearchSpace space = space_of(16);
        ParallelConfig best;
        machine.usable_gb = way ? 9 : 80;
        double least = INFINITY, all = best_of(&costs, &model, &space, &best);
        for (int i = 0; i < 3 * 4 * 4; i++) {
            SearchSpace one = space;
            one.grid.size[AXIS_CP] = 1 << i % 3, one.grid.size[AXIS_EP] = 1 << i / 3 % 4;
            one.zero_stage = i / 12;
            // Behind a pipeline weights are cut where that is asked for alone.
            if (one.zero_stage > 1) one.grid.size[AXIS_PP] = 1;
            least = fmin(least, best_of(&costs, &model, &one, NULL));
        }
        EXPECT(isfinite(all) && all == least, "way %d: a search finds %g s, one by one %g s", way, all,
               least);
        EXPECT(!way || grid_along(best.grid, AXIS_EP) > 1 || best.zero_stage, "9 GB hold everything whole");
    }
}

// Without a schedule the search takes pairs where they are faster, and only where ranks share experts.
static void searches_try_pairs(void) {
    Machine machine = plain_machine();
    Stack stack = plain_stack();
    CostModel costs = ideal_costs(&machine, &stack);
    ModelShape model = mixture();
    for (int ep = 1; ep <= 4; ep *= 4) {
        SearchSpace space = space_of(8);
        ParallelConfig best;
        space.grid.size[AXIS_EP] = ep, space.batch = 64, space.microbatch = 1;
        double all = best_of(&costs, &model, &space, &best), others = INFINITY;
        space.schedule = schedule_kind_paired()->name;
        double pairs = ep > 1 ? best_of(&costs, &model, &space, NULL) : INFINITY;
        for (int chunks = 1; chunks <= 2; chunks++) {
            space.schedule = schedule_kind_default(chunks)->name;
            others = fmin(others, best_of(&costs, &model, &space, NULL));
        }
        EXPECT(ep == 1 || pairs < others, "pairs take %g s, others %g s", pairs, others);
        EXPECT(all == fmin(pairs, others), "ep %d: a search finds %g s, pairs take %g s, others %g s", ep,
               all, pairs, others);
        EXPECT(!strcmp(best.schedule, schedule_kind_paired()->name) == (pairs < others), "ep %d: %s", ep,
               best.schedule);
    }
}

// ---- rules --------------------------------------------------------------------------------------

static ParallelConfig paired(ParallelConfig c) {
    c.schedule = schedule_kind_paired()->name;
    return c;
}

static void refusals_name_what_works(void) {
    Machine machine = plain_machine();
    ModelShape model = mixture(), dense = llama_of(4, 64, 4);
    struct {
        const ModelShape *model;
        ParallelConfig c;
        const char *expected; // NULL: it is possible
    } cases[] = {{&model, config_of(1, 4, 1, 4), NULL},
                 {&model, config_of(2, 4, 1, 2), NULL},
                 {&dense, config_of(1, 2, 1, 2), "needs a model with experts"},
                 {&model, config_of(1, 3, 1, 3), "does not divide the 8 experts: use 1"},
                 {&model, config_of(1, 8, 1, 4), "does not divide the 4 ranks of a stage: use ep = 4"},
                 {&model, paired(config_of(1, 4, 1, 4)), NULL},
                 {&model, paired(config_of(1, 1, 1, 4)), "use ep = 2 or more, or 1f1b"},
                 {&model, config_of(4, 2, 2, 2), "use etp = 4, or 1 with sequence parallelism"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char why[200] = "";
        const char *refused = parallel_config_refuse(cases[i].model, &machine, &cases[i].c, why, sizeof why);
        EXPECT(!refused == !cases[i].expected && (!refused || strstr(refused, cases[i].expected)),
               "case %zu: %s", i, why);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"parts add up to a step", parts_add_up_to_a_step},
                                      {"tokens travel as published", tokens_travel_as_published},
                                      {"experts are one kernel", experts_are_one_kernel},
                                      {"tokens are sent once", tokens_are_sent_once},
                                      {"the fullest rank decides", the_fullest_rank_decides},
                                      {"computing hides messages", computing_hides_messages},
                                      {"the host launches each expert", the_host_launches_each_expert},
                                      {"a forward waits for the host", a_forward_waits_for_the_host},
                                      {"biases cost passes", biases_cost_passes},
                                      {"pairs hide messages", pairs_hide_messages},
                                      {"experts share memory", experts_share_memory},
                                      {"own memory has experts", own_memory_has_experts},
                                      {"searches try all choices", searches_try_all_choices},
                                      {"searches try pairs", searches_try_pairs},
                                      {"refusals name what works", refusals_name_what_works},
                                      {0}},
                       argc, argv);
}
