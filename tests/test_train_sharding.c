// Shards of gradients and values: whatever replicas cut, no bit of a run changes, on grids, models and types where one
// may go wrong; a rank takes the bytes that were predicted, and for each parameter those of the formulas.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdio.h>

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
} Kind;

typedef struct {
    Sharding sharding;
    bool shared;
} Way;

static RunPlan plan_of(const Kind *k, Way way) {
    Grid grid = GRID(k->t, k->d, k->p);
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
    spec->mode.dtype = k->dtype;
    spec->mode.microbatch = k->microbatch;
    spec->num_microbatches /= k->microbatch;
    spec->sharding = way.sharding;
    spec->share_values = way.shared;
    spec->overlap_gradients = way.sharding >= SHARD_GRADIENTS;
    return plan;
}

static void compare(const Kind *k) {
    static const Way ways[] = {
        {SHARD_OPTIMIZER, false}, {SHARD_GRADIENTS, false}, {SHARD_VALUES, false}, {SHARD_VALUES, true}};
    RunResult whole, cut;
    RunPlan plan = plan_of(k, (Way){SHARD_NOTHING, false});
    if (!run_or_complain(&plan, k->name, &whole)) return;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char name[120];
        snprintf(name, sizeof name, "%s, %s%s", k->name, sharding_names[ways[i].sharding],
                 ways[i].shared ? ", shared" : "");
        plan = plan_of(k, ways[i]);
        if (run_or_complain(&plan, name, &cut)) run_expect_same_bits(&whole, &cut, name);
    }
}

static void shards_change_no_bit(void) {
    static const Kind kinds[] = {
        {"one layer", 1, 2, 1, 1, 1, "1f1b", 1, RUN_GPT, F32, false},
        {"a microbatch a step", 1, 4, 1, 4, 3, "1f1b", 1, RUN_LLAMA, BF16, false},
        {"a microbatch a step, tied, on two stages", 1, 2, 2, 8, 4, "1f1b", 1, RUN_GPT, F32, false},
        {"tensor ranks", 2, 2, 1, 2, 3, "1f1b", 1, RUN_PARALLEL, F16, false},
        {"chunks", 1, 2, 2, 1, 8, "interleaved", 2, RUN_GPT, BF16, false},
        {"split backwards", 1, 2, 2, 2, 4, "zb-h1", 1, RUN_SANDWICH, F32, false},
        {"Muon", 1, 2, 2, 2, 4, "1f1b", 1, RUN_LLAMA, BF16, true},
        {"Muon, a microbatch a step", 1, 2, 1, 8, 2, "1f1b", 1, RUN_GPT, F32, true},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) compare(&kinds[i]);
}

// ---- bytes --------------------------------------------------------------------------------------

static EngineMemory measured(int layers, int d, int microbatches, Way way) {
    EngineSpec spec = run_spec((Grid)GRID(1, d, 1), "1f1b", 1, layers, microbatches * d);
    EngineMemory memory = {0};
    run_make_llama(&spec);
    spec.shape.hidden = 128, spec.shape.heads = 8, spec.shape.head_size = 16, spec.shape.ffn = 512;
    spec.mode.microbatch = 1, spec.mode.dtype = BF16;
    spec.sharding = way.sharding, spec.share_values = way.shared;
    EngineSpec here = engine_spec_here(&spec, 0);
    EXPECT_OK(engine_measure(&here, 0, &memory, NULL));
    return memory;
}

// The bytes that a parameter of another layer takes.
static double bytes_each(int d, int microbatches, Way way) {
    EngineMemory few = measured(8, d, microbatches, way), many = measured(16, d, microbatches, way);
    EngineMemory plain[2] = {measured(8, 1, microbatches, (Way){SHARD_NOTHING, false}),
                             measured(16, 1, microbatches, (Way){SHARD_NOTHING, false})};
    double parameters = (double)(plain[1].run - plain[0].run) / 16;
    return ((double)(many.run - few.run) + (double)(many.shared - few.shared) / d) / parameters;
}

static void a_parameter_takes_the_bytes_of_the_formulas(void) {
    for (int d = 2; d <= 8; d *= 2) {
        double n = d;
        const struct {
            Way way;
            double expected;
        } rows[] = {{{SHARD_NOTHING, false}, 16},
                    {{SHARD_OPTIMIZER, false}, 6 + 10 / n},
                    {{SHARD_GRADIENTS, false}, 6 + 10 / n},
                    {{SHARD_VALUES, false}, 4 + 12 / n},
                    {{SHARD_VALUES, true}, 4 + 12 / n}};
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            double each = bytes_each(d, 2, rows[i].way);
            EXPECT(fabs(each / rows[i].expected - 1) < 0.01, "d%d %s%s: %.3f bytes, not %.3f", d,
                   sharding_names[rows[i].way.sharding], rows[i].way.shared ? ", shared" : "", each,
                   rows[i].expected);
        }
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"shards_change_no_bit", shards_change_no_bit},
                                      {"a_parameter_takes_the_bytes_of_the_formulas",
                                       a_parameter_takes_the_bytes_of_the_formulas},
                                      {0}},
                       argc, argv);
}
