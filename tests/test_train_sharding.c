// Shards of gradients and values: whatever replicas cut, no bit of a run changes, on grids, models and types where one
// may go wrong; a rank takes the bytes that were predicted, and for each parameter those of the formulas.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { GLOBAL_BATCH = 16, STEPS = 3 };

// ---- bits ---------------------------------------------------------------------------------------

typedef struct {
    const char *name;
    int t, d, p, microbatch, layers;
    const char *schedule;
    int chunks;
    RunModel model;
    DType dtype;
    bool muon;
    int expert_ranks;
    const char *device; // NULL: cpu
} Kind;

typedef struct {
    Sharding sharding;
    bool shared, every;
} Way;

static RunPlan plan_of(const Kind *k, Way way) {
    Grid grid = GRID(k->t, k->d, k->p);
    grid.size[AXIS_EP] = k->expert_ranks;
    RunPlan plan = {.spec = run_spec(grid, k->schedule, k->chunks, k->layers, GLOBAL_BATCH),
                    .steps = STEPS,
                    .lr = 3e-3,
                    .transport = "threads",
                    .evaluates_between = true,
                    .scaler = loss_scaler(k->dtype == F16 ? 256 : 1, 1, 1, 1, false),
                    .finished = run_expect_predicted_memory};
    EngineSpec *spec = &plan.spec;
    run_make_model(spec, k->model);
    if (k->muon) run_use_muon(spec), spec->ema_decay = 0.9;
    if (k->device) spec->device = k->device;
    spec->mode.dtype = k->dtype;
    spec->mode.microbatch = k->microbatch;
    spec->num_microbatches /= k->microbatch;
    spec->sharding = way.sharding;
    spec->share_values = way.shared;
    spec->reduce_every = way.every;
    spec->overlap_gradients = way.sharding >= SHARD_GRADIENTS;
    return plan;
}

static void compare(const Kind *k) {
    static const Way ways[] = {{SHARD_OPTIMIZER, false, false},
                               {SHARD_GRADIENTS, false, false},
                               {SHARD_VALUES, false, false},
                               {SHARD_VALUES, true, false}};
    bool shares = k->expert_ranks == 1 && (!k->device || device_is_host(k->device));
    RunResult whole, cut;
    RunPlan plan = plan_of(k, (Way){SHARD_NOTHING, false, false});
    if (!run_or_complain(&plan, k->name, &whole)) return;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char name[120];
        snprintf(name, sizeof name, "%s, %s%s", k->name, sharding_names[ways[i].sharding],
                 ways[i].shared ? ", shared" : "");
        plan = plan_of(k, ways[i]);
        if (ways[i].shared && !shares) continue;
        if (run_or_complain(&plan, name, &cut)) run_expect_same_bits(&whole, &cut, name);
    }
}

static void shards_change_no_bit(void) {
    static const Kind kinds[] = {
        {"one layer", 1, 2, 1, 1, 1, "1f1b", 1, RUN_GPT, F32, false, 1, NULL},
        {"a microbatch a step", 1, 4, 1, 4, 3, "1f1b", 1, RUN_LLAMA, BF16, false, 1, NULL},
        {"a microbatch a step, check", 1, 2, 1, 8, 2, "1f1b", 1, RUN_GPT, F32, false, 1, "check"},
        {"a microbatch a step, tied, on two stages", 1, 2, 2, 8, 4, "1f1b", 1, RUN_GPT, F32, false, 1, NULL},
        {"a microbatch a step, split backwards", 1, 2, 1, 8, 4, "zb-h1", 1, RUN_LLAMA, F32, false, 1, NULL},
        {"a microbatch a step, experts", 1, 4, 1, 4, 3, "1f1b", 1, RUN_EXPERTS, F32, false, 2, NULL},
        {"tensor ranks", 2, 2, 1, 2, 3, "1f1b", 1, RUN_PARALLEL, F16, false, 1, NULL},
        {"tensor ranks, a microbatch a step", 2, 2, 1, 8, 3, "1f1b", 1, RUN_PARALLEL, F16, false, 1, NULL},
        {"chunks", 1, 2, 2, 1, 8, "interleaved", 2, RUN_GPT, BF16, false, 1, NULL},
        {"split backwards", 1, 2, 2, 2, 4, "zb-h1", 1, RUN_SANDWICH, F32, false, 1, NULL},
        {"Muon", 1, 2, 2, 2, 4, "1f1b", 1, RUN_LLAMA, BF16, true, 1, NULL},
        {"Muon, a microbatch a step", 1, 2, 1, 8, 2, "1f1b", 1, RUN_GPT, F32, true, 1, NULL},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) compare(&kinds[i]);
}

// ---- sums of every microbatch -------------------------------------------------------------------

static RunPlan plan_of_sums(const Kind *k, Way way) {
    way.every = true;
    RunPlan plan = plan_of(k, way);
    plan.spec.overlap_gradients = way.shared;
    return plan;
}

// With two data-parallel ranks and two microbatches these sums are those of a tree of four leaves on one rank.
static void sums_of_every_microbatch_are_those_of_a_tree(void) {
    static const Kind two = {"two microbatches", 1, 2, 1, 4, 3, "1f1b", 1, RUN_LLAMA, F32, false, 1, NULL},
                      one = {"leaves", 1, 1, 1, 4, 3, "1f1b", 1, RUN_LLAMA, F32, false, 1, NULL};
    static const Way ways[] = {
        {SHARD_GRADIENTS, false, false}, {SHARD_VALUES, false, false}, {SHARD_VALUES, true, false}};
    RunResult tree, sums;
    RunPlan plan = plan_of(&one, (Way){SHARD_NOTHING, false, false});
    plan.spec.virtual_data = plan.spec.num_microbatches;
    if (!run_or_complain(&plan, one.name, &tree)) return;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        plan = plan_of_sums(&two, ways[i]);
        EXPECT(plan.spec.num_microbatches == 2, "%d microbatches", plan.spec.num_microbatches);
        if (!run_or_complain(&plan, two.name, &sums)) return;
        EXPECT(!memcmp(tree.norm, sums.norm, STEPS * sizeof *tree.norm), "norms %.17g and %.17g",
               tree.norm[STEPS - 1], sums.norm[STEPS - 1]);
        EXPECT(!memcmp(tree.checksum, sums.checksum, sizeof tree.checksum), "checksums %.17g and %.17g",
               tree.checksum[0], sums.checksum[0]);
    }
}

// No schedule, pipeline or strategy changes a bit of them; from other sums they differ by rounding.
static void sums_of_every_microbatch_are_those_of_any_schedule(void) {
    static const Kind kinds[] = {
        {"gpipe", 1, 2, 1, 2, 4, "gpipe", 1, RUN_GPT, F32, false, 1, NULL},
        {"1f1b", 1, 2, 2, 2, 4, "1f1b", 1, RUN_GPT, F32, false, 1, NULL},
        {"interleaved", 1, 2, 2, 2, 4, "interleaved", 2, RUN_GPT, F32, false, 1, NULL},
        {"check", 1, 2, 2, 2, 4, "1f1b", 1, RUN_GPT, F32, false, 1, "check"},
    };
    RunResult first, next, plain;
    RunPlan plan = plan_of(&kinds[0], (Way){SHARD_NOTHING, false, false});
    if (!run_or_complain(&plan, "no shards", &plain)) return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        plan = plan_of_sums(&kinds[i], (Way){i % 2 ? SHARD_VALUES : SHARD_GRADIENTS, false, false});
        EXPECT(plan.spec.num_microbatches == 4, "%d microbatches", plan.spec.num_microbatches);
        if (!run_or_complain(&plan, kinds[i].name, i ? &next : &first)) return;
        if (i && !kinds[i].device) run_expect_same_bits(&first, &next, kinds[i].name);
    }
    for (int i = 0; i < STEPS; i++)
        EXPECT(fabs(first.norm[i] / plain.norm[i] - 1) < 1e-5 && fabsf(first.loss[i] - plain.loss[i]) < 1e-5f,
               "step %d: norm %.9g, not %.9g; loss %.9g, not %.9g", i, first.norm[i], plain.norm[i],
               (double)first.loss[i], (double)plain.loss[i]);
    EXPECT(memcmp(first.norm, plain.norm, STEPS * sizeof *plain.norm) != 0,
           "the sums are those without shards");
}

// ---- bytes --------------------------------------------------------------------------------------

static EngineMemory measured(int layers, int d, int microbatches, Way way) {
    EngineSpec spec = run_spec((Grid)GRID(1, d, 1), "1f1b", 1, layers, microbatches * d);
    EngineMemory memory = {0};
    run_make_llama(&spec);
    spec.shape.hidden = 128, spec.shape.heads = 8, spec.shape.head_size = 16, spec.shape.ffn = 512;
    spec.mode.microbatch = 1, spec.mode.dtype = BF16;
    spec.sharding = way.sharding, spec.share_values = way.shared;
    spec.reduce_every = way.every;
    EngineSpec here = engine_spec_here(&spec, 0);
    EXPECT_OK(engine_measure(&here, 0, &memory, NULL));
    return memory;
}

// The bytes that a parameter of another layer takes.
static double bytes_each(int d, int microbatches, Way way) {
    EngineMemory few = measured(8, d, microbatches, way), many = measured(16, d, microbatches, way);
    EngineMemory plain[2] = {measured(8, 1, microbatches, (Way){SHARD_NOTHING, false, false}),
                             measured(16, 1, microbatches, (Way){SHARD_NOTHING, false, false})};
    double parameters = (double)(plain[1].run - plain[0].run) / 16;
    return ((double)(many.run - few.run) + (double)(many.shared - few.shared) / d) / parameters;
}

static void a_parameter_takes_the_bytes_of_the_formulas(void) {
    for (int d = 2; d <= 8; d *= 2) {
        double n = d;
        const struct {
            Way way;
            int microbatches;
            double expected;
        } rows[] = {{{SHARD_NOTHING, false, false}, 1, 16},
                    {{SHARD_OPTIMIZER, false, false}, 1, 6 + 10 / n},
                    {{SHARD_GRADIENTS, false, false}, 1, 2 + 14 / n},
                    {{SHARD_GRADIENTS, false, false}, 2, 6 + 10 / n},
                    {{SHARD_GRADIENTS, false, true}, 2, 2 + 14 / n},
                    {{SHARD_VALUES, false, true}, 4, 16 / n},
                    {{SHARD_VALUES, false, false}, 1, 16 / n},
                    {{SHARD_VALUES, false, false}, 2, 4 + 12 / n},
                    {{SHARD_VALUES, true, false}, 1, 16 / n},
                    {{SHARD_VALUES, true, false}, 2, 4 + 12 / n}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            double each = bytes_each(d, rows[i].microbatches, rows[i].way);
            EXPECT(fabs(each / rows[i].expected - 1) < 0.01,
                   "d%d %s%s, %d microbatches: %.3f bytes, not %.3f", d, sharding_names[rows[i].way.sharding],
                   rows[i].way.shared ? ", shared" : "", rows[i].microbatches, each, rows[i].expected);
        }
    }
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){
            {"shards_change_no_bit", shards_change_no_bit},
            {"sums_of_every_microbatch_are_those_of_a_tree", sums_of_every_microbatch_are_those_of_a_tree},
            {"sums_of_every_microbatch_are_those_of_any_schedule",
             sums_of_every_microbatch_are_those_of_any_schedule},
            {"a_parameter_takes_the_bytes_of_the_formulas", a_parameter_takes_the_bytes_of_the_formulas},
            {0}},
        argc, argv);
}
