// Context parallelism: sequences over c ranks have the losses of whole ones, whichever way ranks share attention. The
// first step has the same bits, for any c, model and way to run it, but in a ring, which adds up queries' keys in another
// order; later ones differ by the rounding of sums over ranks. Memory is what was predicted.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <string.h>

enum { LAYERS = 4, GLOBAL_BATCH = 8, STEPS = 3 };

typedef struct {
    const char *name;
    RunModel model;
    bool documents, masked, per_token, limited, probabilities, sharded, lora, float8;
    int microbatch, t, p;
    DType dtype;
    Recompute recompute;
} Way;

static const Way ways[] = {
    {.name = "gpt", .model = RUN_GPT, .microbatch = 2},
    {.name = "gpt with documents, masked", .documents = true, .masked = true, .per_token = true},
    {.name = "llama, unequal means", .model = RUN_LLAMA, .documents = true, .masked = true, .microbatch = 2},
    {.name = "sandwich, t 2, sequence parallel", .model = RUN_SANDWICH, .t = 2, .sharded = true},
    {.name = "post, selective, p 2", .model = RUN_POST, .p = 2, .t = 2, .recompute = RECOMPUTE_SELECTIVE},
    {.name = "parallel, all recomputed", .model = RUN_PARALLEL, .recompute = RECOMPUTE_UNIFORM},
    {.name = "limited, probabilities kept", .limited = true, .probabilities = true, .microbatch = 2},
    {.name = "limited llama in bf16", .model = RUN_LLAMA, .limited = true, .documents = true, .dtype = BF16},
    {.name = "8 bits", .dtype = BF16, .float8 = true, .microbatch = 8},
    {.name = "latents", .model = RUN_LATENT, .documents = true, .microbatch = 2},
    {.name = "adapters", .model = RUN_LLAMA, .lora = true, .microbatch = 2},
};

static RunPlan plan_of(const Way *way, int c) {
    Grid grid = GRID(way->t ? way->t : 1, 1, way->p ? way->p : 1);
    grid.size[AXIS_CP] = c;
    RunPlan plan = {.spec = run_spec(grid, "1f1b", 1, LAYERS, GLOBAL_BATCH),
                    .steps = STEPS,
                    .lr = 3e-3,
                    .transport = "threads",
                    .finished = run_expect_predicted_memory};
    EngineSpec *spec = &plan.spec;
    run_make_model(spec, way->model);
    if (way->limited) run_limit_attention(spec);
    spec->mode.microbatch = way->microbatch ? way->microbatch : 1;
    spec->num_microbatches /= spec->mode.microbatch;
    spec->mode.dtype = way->dtype;
    spec->mode.context_ranks = c;
    spec->mode.sequence_parallel = way->t > 1;
    spec->mode.keep_probabilities = way->probabilities;
    spec->mode.recompute = way->recompute, spec->mode.recompute_layers = 1;
    spec->first_keys = spec->positions = way->documents;
    spec->masked = way->masked, spec->per_token = way->per_token;
    spec->sharding = way->sharded ? SHARD_OPTIMIZER : SHARD_NOTHING;
    if (way->float8) spec->mode.float8 = FLOAT8_HYBRID, spec->mode.recipe = RECIPE_TENSORWISE;
    if (way->lora) spec->shape.lora_rank = 3, spec->shape.lora_alpha = 6, spec->shape.lora_dropout = 0.2f;
    if (way->lora) spec->shape.lora_targets = LORA_QKV | LORA_PROJ | LORA_FC1 | LORA_FC2;
    return plan;
}

// Ranks that exchange heads have as many of them; a ring keeps no probabilities.
static bool possible(const RunPlan *plan) {
    const ModelShape *shape = &plan->spec.shape;
    int groups = model_groups(shape), t = grid_along(plan->spec.grid, AXIS_TP);
    if (plan->spec.mode.context_way == CONTEXT_RING && plan->spec.mode.keep_probabilities) return false;
    return plan->spec.mode.context_way != CONTEXT_ALL_TO_ALL ||
           groups / t % grid_along(plan->spec.grid, AXIS_CP) == 0;
}

static void compare(const Way *way, const RunResult *one, int c, ContextWay share) {
    static const char *const shares[NUM_CONTEXT_WAYS] = {"all_gather", "a2a", "p2p"};
    RunResult result;
    char name[120];
    RunPlan plan = plan_of(way, c);
    plan.spec.mode.context_way = share;
    double tolerance = way->dtype == F32 ? 1e-5 : 2e-2;
    snprintf(name, sizeof name, "%s, c %d, %s", way->name, c, shares[share]);
    if (!possible(&plan)) return;
    if (!run_or_complain(&plan, name, &result)) return;
    EXPECT(share == CONTEXT_RING || !memcmp(&one->loss[0], &result.loss[0], sizeof result.loss[0]),
           "%s: the first loss is %.9g, not %.9g", name, (double)result.loss[0], (double)one->loss[0]);
    for (int i = 0; i < STEPS; i++) {
        double loss = fabs((double)(one->loss[i] - result.loss[i])) / (double)one->loss[i];
        double norm = fabs(one->norm[i] - result.norm[i]) / one->norm[i];
        EXPECT(loss <= tolerance, "%s: loss %d differs by %.2g", name, i, loss);
        EXPECT(norm <= tolerance, "%s: norm %d differs by %.2g", name, i, norm);
    }
}

static void cuts_change_rounding_alone(void) {
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        RunPlan plan = plan_of(&ways[i], 1);
        RunResult one;
        if (!run_or_complain(&plan, ways[i].name, &one)) return;
        for (int c = 2; c <= (ways[i].t ? 2 : 8); c *= 2)
            for (ContextWay share = 0; share < NUM_CONTEXT_WAYS; share++)
                if (!harness_short() || c == 2) compare(&ways[i], &one, c, share);
    }
}

int main(int argc, char **argv) {
    return harness_run((const Test[]){{"cuts change rounding alone", cuts_change_rounding_alone}, {0}}, argc,
                       argv);
}
