// Experts on several ranks. Forwards have the same bits wherever the experts are, on the reference device, and with
// leaves all steps have, on any device and in any number of rounds; without them steps agree within rounding. This holds
// for every recipe of few bits. Nothing else that changes a run, such as its schedule, changes a bit, in one round or in
// many; and memory is what was predicted where all tokens go to one expert.
#include "harness.h"
#include "runs.h"
#include "train/internal.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 4, GLOBAL_BATCH = 16, STEPS = 4 };

typedef struct {
    int t, d, p, etp, ep;
    bool sequence_parallel;
} Where;

static Grid grid_of(const Where *at) {
    Grid grid = GRID(at->t, at->d, at->p);
    grid.size[AXIS_ETP] = at->etp, grid.size[AXIS_EP] = at->ep;
    return grid;
}

static RunPlan plan_of(const Where *at, const char *device, RunModel model) {
    RunPlan plan = {.spec = run_spec(grid_of(at), "1f1b", 1, LAYERS, GLOBAL_BATCH),
                    .steps = STEPS,
                    .lr = 3e-3,
                    .transport = "threads",
                    .finished = run_expect_predicted_memory};
    run_make_model(&plan.spec, model);
    plan.spec.mode.sequence_parallel = at->sequence_parallel;
    plan.spec.device = device;
    return plan;
}

static RunPlan plan_on(const Where *at, const char *device) { return plan_of(at, device, RUN_EXPERTS); }

// The recipes of few bits, and none.
enum { NO_RECIPE = NUM_RECIPES };

static void use_recipe(RunPlan *plan, int recipe) {
    ModelMode *mode = &plan->spec.mode;
    if (recipe == NO_RECIPE) return;
    mode->dtype = BF16;
    mode->recipe = (ScalingRecipe)recipe;
    mode->float8 = recipe == RECIPE_NVFP4 ? FLOAT4_E2M1 : FLOAT8_HYBRID;
    mode->delayed = (DelayedScaling){.history = 2};
}

// Scales of tensors that are transformed first are made of all rows of an expert, which travel in one round.
static bool has_one_round(int recipe) { return recipe == RECIPE_NVFP4; }

static const char *name_of(const Where *at) {
    static _Thread_local char name[80];
    snprintf(name, sizeof name, "t%d d%d p%d etp%d ep%d%s", at->t, at->d, at->p, at->etp, at->ep,
             at->sequence_parallel ? " sequence parallel" : "");
    return name;
}

static bool run_at(const Where *at, RunPlan plan, RunResult *result) {
    return run_or_complain(&plan, name_of(at), result);
}

// ---- where experts are ------------------------------------------------------------------------------------

// Of grids with the same tensors and data, those that follow the first of a row.
static const Where places[][4] = {
    {{1, 4, 1, 1, 1, false}, {1, 4, 1, 1, 2, false}, {1, 4, 1, 1, 4, false}},
    {{2, 2, 1, 2, 1, false}, {2, 2, 1, 2, 2, false}},
    {{2, 2, 1, 2, 1, true}, {2, 2, 1, 2, 2, true}},
    {{2, 2, 1, 1, 1, true}, {2, 2, 1, 1, 2, true}, {2, 2, 1, 1, 4, true}},
    {{1, 4, 2, 1, 1, false}, {1, 4, 2, 1, 4, false}},
};
enum { NUM_PLACES = sizeof places / sizeof *places };

// Each recipe has one of the rows.
static bool is_with(int recipe, int row) { return recipe == NO_RECIPE || (recipe + 1) % NUM_PLACES == row; }

// Without a rate nothing is trained, so that every step is another forward of the same model.
static void forwards_of(RunModel model, int recipe) {
    for (int i = 0; i < NUM_PLACES; i += harness_short() ? 3 : 1) {
        RunResult first, result;
        if (!is_with(recipe, i)) continue;
        for (int k = 0; k < 4 && places[i][k].t; k++) {
            const Where *at = &places[i][k];
            for (int slot = 0; slot < (k && !has_one_round(recipe) ? 2 : 1); slot++) {
                RunPlan plan = plan_of(at, "reference", model);
                use_recipe(&plan, recipe);
                plan.lr = 0;
                plan.spec.mode.dispatch_slot = slot ? 3 : 0;
                if (!run_at(at, plan, k ? &result : &first)) return;
                for (int step = 0; step < STEPS && k; step++)
                    EXPECT(result.loss[step] == first.loss[step],
                           "%s, recipe %d, slot %d: loss %.9g, not %.9g", name_of(at), recipe, slot,
                           (double)result.loss[step], (double)first.loss[step]);
            }
        }
    }
}

static void forwards_have_the_same_bits(void) {
    forwards_of(RUN_EXPERTS, NO_RECIPE);
    forwards_of(RUN_BIASED_EXPERTS, NO_RECIPE);
    for (int recipe = 0; recipe < NUM_RECIPES; recipe++)
        forwards_of(recipe == RECIPE_DELAYED ? RUN_BIASED_EXPERTS : RUN_EXPERTS, recipe);
}

// Codes of few bits change with the last bit of what they are made of.
static void expect_near_with(const RunResult *got, const RunResult *want, const Where *at, int slot,
                             int recipe) {
    double loss = recipe == NO_RECIPE ? 1e-5 : 1e-3, norm = recipe == NO_RECIPE ? 1e-4 : 1e-2;
    for (int step = 0; step < STEPS; step++)
        EXPECT(fabs((double)got->loss[step] / (double)want->loss[step] - 1) < loss * (step + 1) &&
                   fabs(got->norm[step] / want->norm[step] - 1) < norm * (step + 1),
               "%s, slot %d, step %d: loss %.9g, not %.9g, norm %.9g, not %.9g", name_of(at), slot, step,
               (double)got->loss[step], (double)want->loss[step], got->norm[step], want->norm[step]);
}

static void expect_near(const RunResult *got, const RunResult *want, const Where *at, int slot) {
    expect_near_with(got, want, at, slot, NO_RECIPE);
}

// Also in many rounds, whose rows the backward sends again.
static void steps_of(RunModel model, int recipe) {
    for (int i = 0; i < NUM_PLACES; i += harness_short() ? 3 : 1) {
        RunResult first, result;
        if (!is_with(recipe, i)) continue;
        for (int k = 0; k < 4 && places[i][k].t; k++)
            for (int slot = 0; slot < (k && !has_one_round(recipe) ? 2 : 1); slot++) {
                RunPlan plan = plan_of(&places[i][k], "cpu", model);
                use_recipe(&plan, recipe);
                plan.spec.mode.dispatch_slot = slot ? 3 : 0;
                if (!run_at(&places[i][k], plan, k ? &result : &first)) return;
                if (k) expect_near_with(&result, &first, &places[i][k], slot, recipe);
            }
    }
}

static void steps_agree(void) {
    steps_of(RUN_EXPERTS, NO_RECIPE);
    steps_of(RUN_BIASED_EXPERTS, NO_RECIPE);
    for (int recipe = 0; recipe < NUM_RECIPES; recipe++)
        steps_of(recipe == RECIPE_DELAYED ? RUN_BIASED_EXPERTS : RUN_EXPERTS, recipe);
}

static void steps_with_leaves_of(RunModel model, int recipe) {
    static const Where all[] = {{1, 1, 1, 1, 1, false}, {1, 2, 1, 1, 2, false}, {1, 4, 1, 1, 2, false},
                                {1, 4, 1, 1, 4, false}, {1, 4, 1, 1, 1, false}, {1, 2, 2, 1, 2, false}};
    RunResult first, result;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (harness_short() && i > 0 && i != 1 + (size_t)recipe % 5)
            continue; // each recipe has one of the others
        RunPlan plan = plan_of(&all[i], "cpu", model);
        use_recipe(&plan, recipe);
        plan.spec.virtual_data = 8;
        plan.spec.sharding = i == 2 ? SHARD_OPTIMIZER : SHARD_NOTHING;
        plan.spec.mode.dispatch_slot = i % 2 && !has_one_round(recipe) ? 3 : 0; // in many rounds, too
        if (!run_at(&all[i], plan, i ? &result : &first)) return;
        if (i) run_expect_same_bits(&first, &result, name_of(&all[i]));
    }
}

static void leaves_keep_all_bits(void) {
    steps_with_leaves_of(RUN_EXPERTS, NO_RECIPE);
    steps_with_leaves_of(RUN_BIASED_EXPERTS, NO_RECIPE);
    for (int recipe = 0; recipe < NUM_RECIPES; recipe++)
        steps_with_leaves_of(recipe % 2 ? RUN_BIASED_EXPERTS : RUN_EXPERTS, recipe);
}

// Without this the grids would agree even if experts took no part in few bits. A delayed scale follows from earlier steps,
// so the last step is compared.
static void experts_take_few_bits(void) {
    static const Where at = {1, 2, 1, 1, 2, false};
    for (int recipe = 0; recipe < NUM_RECIPES; recipe++) {
        RunResult own, wide;
        RunPlan plan = plan_on(&at, "cpu");
        use_recipe(&plan, recipe);
        plan.spec.shape.shared_ffn = 0; // these are linear layers like any other
        if (!run_at(&at, plan, &own)) return;
        plan.spec.mode.wide_experts = true;
        if (!run_at(&at, plan, &wide)) return;
        EXPECT(own.loss[STEPS - 1] != wide.loss[STEPS - 1], "recipe %d: experts stay in bf16", recipe);
    }
}

// ---- what changes nothing ---------------------------------------------------------------------------------

static void nothing_else_changes_a_bit_of(int recipe) {
    static const Where at = {1, 4, 1, 1, 2, false}, two = {1, 2, 2, 1, 2, false},
                       four = {1, 4, 2, 1, 2, false};
    for (int slot = harness_short(); slot < (has_one_round(recipe) ? 1 : 2); slot++) {
        RunResult first, result;
        for (int way = 0; way < 6; way++) {
            RunPlan plan = plan_on(&at, "cpu");
            use_recipe(&plan, recipe);
            plan.spec.mode.dispatch_slot = slot ? 5 : 0;
            plan.spec.overlap_gradients = plan.spec.overlap_weights = way == 1;
            if (way == 1) plan.spec.sharding = SHARD_OPTIMIZER;
            if (way == 2) plan.spec.mode.recompute = RECOMPUTE_UNIFORM, plan.spec.mode.recompute_layers = 1;
            if (way == 3) plan.check_comm = true;
            if (way == 4) plan.spec.device = "check";
            if (way == 5) plan.spec.sharding = SHARD_VALUES;
            if (!run_at(&at, plan, way ? &result : &first)) return;
            if (way) run_expect_same_bits(&first, &result, name_of(&at));
        }
        for (int way = 0; way < 4; way++) {
            static const char *const schedules[] = {"1f1b", "zb-h1", "gpipe", "paired"};
            RunPlan plan = plan_on(&two, "cpu");
            use_recipe(&plan, recipe);
            plan.spec.mode.dispatch_slot = slot ? 5 : 0;
            plan.spec.schedule = schedules[way];
            if (!run_at(&two, plan, way ? &result : &first)) return;
            if (way) run_expect_same_bits(&first, &result, schedules[way]);
        }
        // A weight half needs the weights where it computes rows of later rounds again.
        for (int way = 0; way < 2; way++) {
            RunPlan plan = plan_on(&four, "cpu");
            use_recipe(&plan, recipe);
            plan.spec.mode.dispatch_slot = slot ? 5 : 0;
            plan.spec.schedule = "zb-h1";
            plan.spec.shape.layers = plan.spec.split.layers = 2 * LAYERS; // more than the window holds
            plan.spec.sharding = way ? SHARD_VALUES : SHARD_NOTHING;
            if (!run_at(&four, plan, way ? &result : &first)) return;
            if (way) run_expect_same_bits(&first, &result, "zb-h1 with shards of values");
        }
    }
}

static void nothing_else_changes_a_bit(void) {
    nothing_else_changes_a_bit_of(NO_RECIPE);
    nothing_else_changes_a_bit_of(RECIPE_TENSORWISE);
}

// A forward beside a backward, whose rows travel meanwhile: on every grid, in many rounds, and with whatever else
// changes no bit.
static void pairs_change_no_bit(void) {
    static const Where all[] = {
        {1, 4, 1, 1, 2, false}, {2, 2, 1, 1, 4, true}, {1, 2, 2, 1, 2, false}, {2, 2, 1, 2, 2, false}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int way = 0; way < 10; way++) {
            if (harness_short() && way % 4 != (int)i) continue;
            RunResult apart, paired;
            RunPlan plan = plan_on(&all[i], way == 4 ? "check" : "cpu");
            plan.spec.mode.dispatch_slot = way == 1 ? 5 : 0;
            if (way == 2) plan.spec.mode.recompute = RECOMPUTE_UNIFORM, plan.spec.mode.recompute_layers = 1;
            if (way == 3) plan.spec.sharding = SHARD_OPTIMIZER;
            if (way == 3) plan.spec.overlap_gradients = plan.spec.overlap_weights = true;
            if (way == 5) plan.check_comm = true;
            if (way == 6) plan.spec.shape.experts_period = 2, plan.spec.shape.experts_layers = 1;
            if (way == 7) plan.spec.mode.recompute = RECOMPUTE_SELECTIVE;
            if (way >= 8) use_recipe(&plan, way == 8 ? RECIPE_TENSORWISE : RECIPE_DELAYED);
            if (!run_at(&all[i], plan, &apart)) return;
            plan.spec.schedule = "paired";
            if (!run_at(&all[i], plan, &paired)) return;
            run_expect_same_bits(&apart, &paired, name_of(&all[i]));
            if (all[i].p == 1) continue;
            plan.spec.num_chunks = 2;
            if (!run_at(&all[i], plan, &paired)) return;
            run_expect_same_bits(&apart, &paired, "two chunks");
        }
}

static size_t run_bytes(const EngineSpec *spec) {
    EngineMemory memory = {0};
    EXPECT_OK(engine_measure(spec, 0, &memory, NULL));
    return memory.run;
}

// Whole experts on tensor ranks have replicas, which cut them, also where nothing else of the model has any.
static void experts_are_cut_where_they_alone_have_replicas(void) {
    static const Where at = {2, 1, 1, 1, 1, true};
    RunResult first, result;
    RunPlan plan = plan_on(&at, "cpu");
    if (!run_at(&at, plan, &first)) return;
    size_t whole = run_bytes(&plan.spec);
    for (Sharding sharding = SHARD_OPTIMIZER; sharding < NUM_SHARDINGS; sharding++) {
        plan.spec.sharding = sharding;
        if (!run_at(&at, plan, &result)) return;
        run_expect_same_bits(&first, &result, sharding_names[sharding]);
    }
    plan.spec.sharding = SHARD_OPTIMIZER;
    EXPECT(run_bytes(&plan.spec) < whole, "%zu bytes, whole %zu", run_bytes(&plan.spec), whole);
}

// ---- losses of routers ------------------------------------------------------------------------------------

enum { NUM_LOADS = LAYERS * (4 + NUM_LOAD_SUMS) };

static void keep_loads(Engine *engine, void *self) {
    const ExpertLoads *loads = engine_expert_loads(engine);
    run_expect_predicted_memory(engine, NULL);
    if (engine_context(engine)->groups.topology.rank == 0)
        memcpy(self, loads->sums, NUM_LOADS * sizeof *loads->sums);
}

static void expect_loads(const double *got, const double *want, double room, const char *name) {
    for (int i = 0; i < NUM_LOADS; i++)
        EXPECT(fabs(got[i] - want[i]) <= room * fabs(want[i]), "%s: number %d of the loads is %.9g, not %.9g",
               name, i, got[i], want[i]);
}

static RunPlan plan_with_losses(const Where *at, bool by_sequence, double *loads) {
    RunPlan plan = plan_on(at, "cpu");
    plan.spec.mode.router = (RouterTraining){.balance = 0.5f, .z = 0.01f, .by_sequence = by_sequence};
    plan.spec.shape.shared_gate = by_sequence;
    plan.finished = keep_loads, plan.self = loads;
    return plan;
}

// Also where the loss is per token, and tokens are masked; with jitter, and with capacities.
static void losses_mean_the_same_on_every_grid(void) {
    static const Where all[] = {{1, 1, 1, 1, 1, false}, {1, 4, 1, 1, 4, false}, {2, 1, 1, 2, 1, true},
                                {2, 2, 1, 1, 2, true},  {2, 1, 1, 2, 1, false}, {1, 1, 2, 1, 1, false},
                                {1, 2, 1, 1, 2, false}};
    for (int way = 0; way < 4; way += harness_short() ? 3 : 1) {
        RunResult first, result;
        double loads[2][NUM_LOADS];
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            RunPlan plan = plan_with_losses(&all[i], way & 1, loads[i > 0]);
            plan.spec.per_token = plan.spec.masked = way & 2;
            bool cuts = i + 1 == sizeof all / sizeof *all;
            if (cuts) plan.spec.grid.size[AXIS_CP] = plan.spec.mode.context_ranks = 2;
            if (cuts) plan.spec.grid.size[AXIS_DP] = 1, plan.spec.num_microbatches *= 2;
            if (way & 2) plan.spec.mode.router.jitter = 0.1f;
            if (way == 3 && cuts) break; // capacities are of whole sequences
            if (way == 3) plan.spec.mode.router.capacity = 1, plan.spec.mode.microbatch = 2;
            if (way == 3) plan.spec.num_microbatches /= 2;
            if (!run_at(&all[i], plan, i ? &result : &first)) return;
            if (!i) continue;
            expect_near(&result, &first, &all[i], 0);
            expect_loads(loads[1], loads[0], 1e-4, name_of(&all[i]));
        }
    }
}

static void losses_keep_bits(void) {
    static const Where at = {1, 2, 2, 1, 2, false}, alone = {1, 1, 2, 1, 1, false};
    RunResult first, result;
    double loads[2][NUM_LOADS];
    for (int way = 0; way < 5; way++) {
        RunPlan plan = plan_with_losses(way == 4 ? &alone : &at, true, loads[way > 0]);
        plan.spec.virtual_data = 8;
        plan.spec.mode.router.capacity = 1.2f, plan.spec.mode.router.jitter = 0.1f;
        if (way == 1) plan.spec.mode.recompute = RECOMPUTE_UNIFORM, plan.spec.mode.recompute_layers = 1;
        if (way == 2) plan.spec.schedule = "zb-h1";
        if (way == 3) plan.spec.device = "check";
        if (!run_at(&at, plan, way ? &result : &first)) return;
        if (!way) continue;
        run_expect_same_bits(&first, &result, "losses of routers");
        expect_loads(loads[1], loads[0], way == 4 ? 1e-12 : 0, "losses of routers");
    }
}

// ---- biases -----------------------------------------------------------------------------------------------

// They follow whole numbers, so nothing changes a bit of them, nor of what follows.
static void biases_keep_bits(void) {
    static const Where all[] = {
        {1, 1, 1, 1, 1, false}, {1, 2, 1, 1, 2, false}, {1, 4, 1, 1, 2, false}, {1, 2, 2, 1, 2, false}};
    RunResult first, result, without;
    for (int way = 0; way < 8; way++) {
        const Where *at = &all[way < 4 ? way : way & 1];
        RunPlan plan = plan_on(at, way == 7 ? "check" : "cpu");
        plan.spec.virtual_data = 8;
        plan.spec.shape.router_sigmoid = plan.spec.shape.router_bias = true;
        plan.spec.bias_rate = 0.05f;
        plan.spec.sharding = way == 2 ? SHARD_OPTIMIZER : way == 5 ? SHARD_VALUES : SHARD_NOTHING;
        if (way == 3) plan.spec.schedule = "zb-h1";
        if (way == 6) plan.spec.mode.recompute = RECOMPUTE_UNIFORM, plan.spec.mode.recompute_layers = 1;
        if (way == 4) plan.spec.shape.router_bias = false;
        if (!run_at(at, plan, way == 0 ? &first : way == 4 ? &without : &result)) return;
        if (way && way != 4) run_expect_same_bits(&first, &result, name_of(at));
    }
    EXPECT(without.loss[0] == first.loss[0] && without.loss[STEPS - 1] != first.loss[STEPS - 1],
           "biases change nothing after a step");
}

// ---- the worst routing ------------------------------------------------------------------------------------

// Equal logits: every token goes to the experts with the lowest numbers, which are on one rank. Master weights follow,
// since those of bf16 hold what the values lack.
static void make_routers_equal(Engine *engine, void *self) {
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    (void)self;
    for (int i = 0; i < params->count; i++) {
        const Param *param = params->items[i];
        if (param->chunk < 0 || !strstr(param->spec.name, "router")) continue;
        float *zeros = calloc((size_t)tensor_count(param->value), sizeof *zeros);
        CHECK(zeros, "no memory");
        device_zero(c->device, c->stream, param->value);
        optimizer_write_master(engine_optimizer(engine), param, zeros);
        free(zeros);
    }
}

static void worst_routing_fits(void) {
    static const Where all[] = {{1, 4, 1, 1, 2, false}, {1, 4, 1, 1, 4, false}, {2, 2, 1, 2, 2, true}};
    enum { PLACES = sizeof all / sizeof *all };
    for (size_t i = 0; i < (4 + NUM_RECIPES) * PLACES; i++) {
        const Where *at = &all[i % PLACES];
        size_t way = i / PLACES;
        if (harness_short() && way % PLACES != i % PLACES) continue;
        RunPlan plan = plan_on(at, way & 1 || way == 4 ? "check" : "cpu");
        RunResult result;
        plan.opened = make_routers_equal;
        if (way & 2) plan.spec.mode.recompute = RECOMPUTE_UNIFORM, plan.spec.mode.recompute_layers = 1;
        use_recipe(&plan, way < 4 ? NO_RECIPE : (int)way - 4);
        if (!run_at(at, plan, &result)) return;
        EXPECT(isfinite(result.loss[STEPS - 1]), "%s, way %zu: loss %g", name_of(at), way,
               (double)result.loss[STEPS - 1]);
    }
}

// ---- what is refused --------------------------------------------------------------------------------------

static void wrong_grids_are_refused(void) {
    static const struct {
        Where at;
        int virtual_data;
        bool audits;
        const char *message;
    } cases[] = {
        {{1, 8, 1, 1, 8, false},
         0,
         false,
         "4 experts do not divide over --expert-model-parallel-size 8: use 4"},
        {{1, 4, 1, 1, 3, false}, 0, false, "does not divide the 4 ranks of a pipeline stage: use 2"},
        {{2, 2, 1, 1, 2, false}, 0, false, "use 2, or add --sequence-parallel"},
        {{1, 4, 1, 4, 1, false},
         0,
         false,
         "--expert-tensor-parallel-size 4 with --tensor-model-parallel-size 1: use 1"},
        {{2, 2, 1, 1, 2, true},
         4,
         false,
         "--virtual-data-parallel needs --expert-tensor-parallel-size 2, not 1"},
        {{1, 2, 1, 1, 2, false}, 0, true, "--audit-interval"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RunPlan plan = plan_on(&cases[i].at, "cpu");
        RunResult result;
        plan.spec.virtual_data = cases[i].virtual_data;
        plan.spec.audits = cases[i].audits;
        Status status = run_plan(&plan, &result);
        EXPECT(status == ERR_CONFIG && strstr(fail_message(), cases[i].message), "case %zu: %s", i,
               fail_message());
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"forwards_have_the_same_bits", forwards_have_the_same_bits},
                       {"experts_take_few_bits", experts_take_few_bits},
                       {"steps_agree", steps_agree},
                       {"leaves_keep_all_bits", leaves_keep_all_bits},
                       {"nothing_else_changes_a_bit", nothing_else_changes_a_bit},
                       {"pairs_change_no_bit", pairs_change_no_bit},
                       {"experts_are_cut_where_they_alone_have_replicas",
                        experts_are_cut_where_they_alone_have_replicas},
                       {"losses_mean_the_same_on_every_grid", losses_mean_the_same_on_every_grid},
                       {"losses_keep_bits", losses_keep_bits},
                       {"biases_keep_bits", biases_keep_bits},
                       {"worst_routing_fits", worst_routing_fits},
                       {"wrong_grids_are_refused", wrong_grids_are_refused},
                       {0}},
        argc, argv);
}
