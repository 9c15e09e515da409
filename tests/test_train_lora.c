// Adapters (LoRA) on any grid: the same bits over p, v, d's leaves, schedules, shards and recomputation, rounding alone
// over t. The base stays as it is and takes its values' bytes alone.
#include "harness.h"
#include "runs.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 8, GLOBAL_BATCH = 8, STEPS = 4, RANK = 4 };

static int targets_of(RunModel model, bool fused) {
    int all = lora_all_targets(fused, model != RUN_GPT && model != RUN_PARALLEL);
    return model == RUN_LATENT ? all & ~LORA_HEADS : all;
}

static void add_adapters(EngineSpec *spec, int targets) {
    ModelShape *s = &spec->shape;
    s->lora_rank = RANK, s->lora_alpha = 24, s->lora_dropout = 0.1f, s->lora_sqrt = true;
    s->lora_targets = targets;
}

static RunPlan plan_for(Grid grid, const char *schedule, int chunks, RunModel model, bool fused) {
    RunPlan plan = {.spec = run_spec(grid, schedule, chunks, LAYERS, GLOBAL_BATCH),
                    .steps = STEPS,
                    .lr = 1e-2,
                    .transport = "threads",
                    .finished = run_expect_predicted_memory};
    run_make_model(&plan.spec, model);
    add_adapters(&plan.spec, targets_of(model, fused));
    return plan;
}

// ---- the same bits ------------------------------------------------------------------------------------

typedef struct {
    const char *name, *schedule;
    int p, chunks;
    bool shards, overlaps;
    Recompute recompute;
    int data, virtual_data;
} Way;

static const Way ways[] = {
    {"one rank", "1f1b", 1, 1, false, false, RECOMPUTE_NOTHING, 1, 4},
    {"p2", "1f1b", 2, 1, false, false, RECOMPUTE_NOTHING, 1, 4},
    {"p4 gpipe, selective", "gpipe", 4, 1, false, false, RECOMPUTE_SELECTIVE, 1, 4},
    {"p2 v2, uniform", "interleaved", 2, 2, false, false, RECOMPUTE_UNIFORM, 1, 4},
    {"zero-bubble", "zb-h1", 2, 1, false, false, RECOMPUTE_NOTHING, 1, 4},
    {"zero-bubble v, block", "zb-v", 2, 2, false, false, RECOMPUTE_BLOCK, 1, 4},
    {"d2", "1f1b", 1, 1, false, false, RECOMPUTE_NOTHING, 2, 4},
    {"d4, sharded, overlapped", "1f1b", 1, 1, true, true, RECOMPUTE_NOTHING, 4, 4},
    {"p2 d2, sharded", "zb-h1", 2, 1, true, false, RECOMPUTE_UNIFORM, 2, 4},
};

static RunPlan plan_of_way(const Way *way, RunModel model, DType dtype, int t) {
    RunPlan plan =
        plan_for((Grid)GRID(t, way->data, way->p), way->schedule, way->chunks, model, model == RUN_GPT);
    plan.spec.mode.dtype = dtype;
    plan.spec.mode.recompute = way->recompute, plan.spec.mode.recompute_layers = 1;
    plan.spec.mode.sequence_parallel = t > 1 && model != RUN_GPT;
    plan.spec.sharding = way->shards;
    plan.spec.overlap_gradients = plan.spec.overlap_weights = way->overlaps;
    plan.spec.virtual_data = way->virtual_data;
    return plan;
}

static void same_bits_of(RunModel model, DType dtype, int t) {
    RunResult first, result;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char name[128];
        if (harness_short() && i % 4) continue;
        snprintf(name, sizeof name, "%s %s t%d %s", run_model_names[model], dtype_name(dtype), t,
                 ways[i].name);
        RunPlan plan = plan_of_way(&ways[i], model, dtype, t);
        if (!run_or_complain(&plan, name, &result)) return;
        if (i) run_expect_same_bits(&first, &result, name);
        if (!i) first = result;
    }
    EXPECT(first.loss[STEPS - 1] != first.loss[0], "nothing is learnt");
}

static void no_way_changes_a_bit(void) {
    for (RunModel model = 0; model < NUM_RUN_MODELS; model++) {
        if (harness_short() && model > RUN_LLAMA) continue;
        same_bits_of(model, model % 2 ? BF16 : F32, 1);
    }
    same_bits_of(RUN_LLAMA, F32, 2);
}

static void expect_close(const RunResult *a, const RunResult *b, const char *name) {
    for (int i = 0; i < STEPS; i++) {
        double loss = fabs((double)(a->loss[i] - b->loss[i])) / (double)a->loss[i];
        double norm = fabs(a->norm[i] - b->norm[i]) / a->norm[i];
        EXPECT(loss < 1e-5, "%s: loss %d differs by %.2g", name, i, loss);
        EXPECT(norm < 1e-4, "%s: norm %d differs by %.2g", name, i, norm);
    }
}

static void tensor_ranks_change_rounding_alone(void) {
    for (RunModel model = 0; model < NUM_RUN_MODELS; model++)
        for (int fused = 0; fused < 2; fused++) {
            if (harness_short() && fused != (int)model % 2) continue;
            RunResult one, result;
            RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, model, fused);
            plan.spec.adam.epsilon =
                1e-3; // else the rounding of gradients near zero would become whole steps
            plan.spec.shape.lora_alpha = RANK, plan.spec.shape.lora_sqrt = false, plan.lr = 3e-3;
            if (!run_or_complain(&plan, run_model_names[model], &one)) return;
            for (int way = 0; way < 3; way++) {
                if (harness_short() && way != (int)model / 2 % 3) continue;
                char name[128];
                int t = way ? 4 : 2;
                snprintf(name, sizeof name, "%s, %s, t%d%s", run_model_names[model],
                         fused ? "fused" : "separate", t, way == 2 ? ", sequence parallel" : "");
                plan.spec.grid.size[AXIS_TP] = t;
                plan.spec.mode.padded_vocabulary = padded_vocabulary(67, 8, t);
                plan.spec.mode.sequence_parallel = way == 2;
                if (run_or_complain(&plan, name, &result)) expect_close(&one, &result, name);
            }
        }
}

// ---- gradients ------------------------------------------------------------------------------------------

typedef struct {
    Engine *engine;
    Batch batch;
    const Param *param;
    float *value, *gradient, *moved;
    double norm; // of the gradient
} Slope;

// The loss with the parameter moved by so much along its gradient.
static double loss_at(const Slope *s, double distance) {
    const Context *c = engine_context(s->engine);
    for (int64_t i = 0; i < tensor_count(s->param->value); i++)
        s->moved[i] = s->value[i] + (float)(distance * (double)s->gradient[i] / s->norm);
    device_upload(c->device, c->stream, s->param->value, s->moved);
    return (double)engine_evaluate(s->engine, s->batch);
}

static void expect_slope(Engine *engine, Batch batch, const Param *p) {
    const Context *c = engine_context(engine);
    size_t count = (size_t)tensor_count(p->value);
    float *all = calloc(3 * count, sizeof *all);
    CHECK(all, "no memory for %s", p->spec.name);
    Slope s = {engine, batch, p, all, all + count, all + 2 * count, 0};
    device_download(c->device, c->stream, s.value, p->value);
    device_download(c->device, c->stream, s.gradient, p->grad);
    for (size_t i = 0; i < count; i++) s.norm += (double)s.gradient[i] * (double)s.gradient[i];
    s.norm = sqrt(s.norm);
    double step = 0.02, slope = (loss_at(&s, step) - loss_at(&s, -step)) / (2 * step);
    EXPECT(fabs(slope - s.norm) < 0.02 * s.norm + 2e-5, "%s: a gradient of %g, the loss falls by %g",
           p->spec.name, s.norm, slope);
    device_upload(c->device, c->stream, p->value, s.value);
    free(all);
}

static void expect_slopes(Engine *engine, void *self) {
    const Params *params = engine_params(engine);
    Batch batch = run_batch(engine_spec_of(engine), engine_context(engine), 0, GLOBAL_BATCH);
    engine_gradients(engine, batch, 1);
    for (int i = 0; i < params->count; i++)
        if (!params->items[i]->frozen) expect_slope(engine, batch, params->items[i]), ++*(int *)self;
    run_batch_free(&batch);
}

static void gradients_are_slopes_of_the_loss(void) {
    for (int fused = 0; fused < 2; fused++) {
        RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, RUN_LLAMA, fused);
        int seen = 0;
        RunResult result;
        plan.spec.shape.layers = plan.spec.split.layers = 2;
        plan.spec.shape.hidden_dropout = plan.spec.shape.attention_dropout = plan.spec.shape.lora_dropout = 0;
        plan.spec.shape.lora_alpha = RANK;
        plan.spec.shape.init_std = 0.2f;
        plan.finished = expect_slopes, plan.self = &seen;
        EXPECT(run_plan(&plan, &result) == OK, "%s", fail_message());
        EXPECT(seen == (fused ? 16 : 28), "%d parameters are trained", seen);
    }
}

// ---- what the base takes, and that it stays -------------------------------------------------------------

static uint64_t sum_of_base(Engine *engine) {
    const Params *params = engine_params(engine);
    const Context *c = engine_context(engine);
    uint64_t hash = 0;
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        if (!p->frozen) continue;
        EXPECT(!p->grad.data && !p->spec.adapter, "%s has a gradient", p->spec.name);
        unsigned char *bytes = malloc(tensor_bytes(p->value));
        CHECK(bytes, "no memory for %s", p->spec.name);
        device_download(c->device, c->stream, bytes, p->value);
        for (size_t k = 0; k < tensor_bytes(p->value); k++) hash = hash * 0x9E3779B97F4A7C15u + bytes[k];
        free(bytes);
    }
    return hash;
}

static void keep_sum(Engine *engine, void *self) { *(uint64_t *)self = sum_of_base(engine); }

static void expect_sum(Engine *engine, void *self) {
    EXPECT(sum_of_base(engine) == *(uint64_t *)self, "training changed the base");
}

static void the_base_stays_as_it_is(void) {
    RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, RUN_LLAMA, false);
    uint64_t sum = 0;
    plan.opened = keep_sum, plan.finished = expect_sum, plan.self = &sum;
    RunResult result;
    run_or_complain(&plan, "the base", &result);
    EXPECT(sum, "nothing is frozen");
}

// What is published of a model's work and parameters is what the registry has and the device counts.
static void closed_forms_are_those_of_the_registry(void) {
    for (RunModel model = 0; model < NUM_RUN_MODELS; model++)
        for (int fused = 0; fused < 2; fused++) {
            RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, model, fused);
            const ModelShape *s = &plan.spec.shape;
            int64_t bytes;
            EXPECT(state_bytes(s, &(StateKinds){0}, &bytes) == OK && bytes == 4 * model_adapter_parameters(s),
                   "%s: %lld bytes of adapters", run_model_names[model], (long long)bytes);
        }
}

// The model's work and what the device counts, of adapters for whole matrices, which multiply no zeros. Attention's
// backward multiplies five times, the model's counts four; and the first layer's input needs no gradient, but gets one.
static void the_work_is_that_of_frozen_weights(void) {
    EngineMemory memory = {0};
    EngineSpec spec = run_spec((Grid)GRID(1, 1, 1), "1f1b", 1, LAYERS, GLOBAL_BATCH);
    ModelShape *s = &spec.shape;
    add_adapters(&spec, targets_of(RUN_GPT, true));
    EXPECT(engine_measure(&spec, 0, &memory, NULL) == OK, "%s", fail_message());
    double tokens = (double)GLOBAL_BATCH * s->sequence;
    double core = tokens * LAYERS * 2.0 * s->sequence * s->heads * s->head_size;
    double model = model_flops(s, spec.mode.padded_vocabulary, GLOBAL_BATCH);
    EXPECT(fabs(memory.flops - core - model) < 1e-9 * model,
           "the device counts %.0f FLOPs, the model has %.0f and %.0f", memory.flops, model, core);
}

// Sizes that fill whole blocks: with adapters a run takes what one without a gradient, moments and remainders of the
// base would, and 16 bytes for each element of an adapter.
static void the_base_takes_its_values_alone(void) {
    EngineMemory with = {0}, without = {0};
    EngineSpec spec = run_spec((Grid)GRID(1, 1, 1), "1f1b", 1, LAYERS, GLOBAL_BATCH);
    spec.shape.hidden = 128, spec.shape.ffn = 512, spec.shape.heads = 8, spec.shape.head_size = 16;
    spec.shape.vocabulary = spec.mode.padded_vocabulary = 128;
    spec.shape.untied = true; // a tied table has two gradients
    spec.mode.dtype = BF16;
    EXPECT(engine_measure(&spec, 0, &without, NULL) == OK, "%s", fail_message());
    add_adapters(&spec, targets_of(RUN_GPT, true));
    spec.shape.lora_rank = 64;
    EXPECT(engine_measure(&spec, 0, &with, NULL) == OK, "%s", fail_message());
    ModelShape bare = model_without_adapters(&spec.shape);
    double base = (double)model_parameters(&bare);
    double adapters = LAYERS * 64.0 * (128 + 384 + 128 + 128 + 128 + 512 + 512 + 128);
    double saved = (double)without.run - (double)with.run, expected = 14 * base - 16 * adapters;
    EXPECT(fabs(saved - expected) < 0.002 * expected, "adapters save %.0f bytes of a run, not %.0f", saved,
           expected);
}

// ---- adapters off ---------------------------------------------------------------------------------------

typedef struct {
    float off, on;
} Evaluations;

static void evaluate_both(Engine *engine, void *self) {
    Evaluations *e = self;
    Batch batch = run_batch(engine_spec_of(engine), engine_context(engine), 0, GLOBAL_BATCH);
    e->on = engine_evaluate(engine, batch);
    engine_context(engine)->adapters_off = true;
    e->off = engine_evaluate(engine, batch);
    engine_context(engine)->adapters_off = false;
    run_batch_free(&batch);
}

static void without_adapters_the_model_is_its_base(void) {
    Evaluations before = {0}, after = {0};
    RunPlan plan = plan_for((Grid)GRID(1, 1, 1), "1f1b", 1, RUN_LLAMA, false);
    RunResult result;
    plan.steps = 1, plan.lr = 0;
    plan.finished = evaluate_both, plan.self = &before;
    run_or_complain(&plan, "before training", &result);
    plan.steps = STEPS, plan.lr = 1e-2, plan.self = &after;
    run_or_complain(&plan, "after training", &result);
    EXPECT(before.on == before.off, "adapters that begin at zero change the loss from %g to %g",
           (double)before.off, (double)before.on);
    EXPECT(after.off == before.off && after.on != before.on,
           "off: %g before, %g after; on: %g before, %g after", (double)before.off, (double)after.off,
           (double)before.on, (double)after.on);
}

int main(int argc, char **argv) {
    return harness_run(
        (const Test[]){{"no_way_changes_a_bit", no_way_changes_a_bit},
                       {"tensor_ranks_change_rounding_alone", tensor_ranks_change_rounding_alone},
                       {"gradients_are_slopes_of_the_loss", gradients_are_slopes_of_the_loss},
                       {"the_base_stays_as_it_is", the_base_stays_as_it_is},
                       {"the_base_takes_its_values_alone", the_base_takes_its_values_alone},
                       {"closed_forms_are_those_of_the_registry", closed_forms_are_those_of_the_registry},
                       {"the_work_is_that_of_frozen_weights", the_work_is_that_of_frozen_weights},
                       {"without_adapters_the_model_is_its_base", without_adapters_the_model_is_its_base},
                       {0}},
        argc, argv);
}
