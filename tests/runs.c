// Runs small models on any grid and compares their losses, norms and parameters.
#include "runs.h"
#include "base/cores.h"
#include "base/half.h"
#include "harness.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

EngineSpec run_spec(Grid grid, const char *schedule, int num_chunks, int layers, int global_batch) {
    EngineSpec spec = {.grid = grid,
                       .schedule = schedule,
                       .num_chunks = num_chunks,
                       .device = harness_device("cpu"),
                       .threads = 1};
    spec.shape = (ModelShape){.layers = layers,
                              .hidden = 32,
                              .heads = 4,
                              .head_size = 8,
                              .ffn = 128,
                              .sequence = 16,
                              .positions = 16,
                              .vocabulary = 67,
                              .hidden_dropout = 0.1f,
                              .attention_dropout = 0.1f,
                              .norm_epsilon = 1e-5f,
                              .init_std = 0.02f,
                              .seed = 1234};
    spec.mode.microbatch = 1;
    spec.mode.padded_vocabulary = padded_vocabulary(67, 8, grid_along(grid, AXIS_TP));
    spec.split.layers = layers;
    spec.num_microbatches = global_batch / grid_along(grid, AXIS_DP);
    spec.adam = (AdamOptions){0.9, 0.95, 1e-8, 1.0};
    spec.bucket_elements = 5000;
    return spec;
}

void run_use_muon(EngineSpec *spec) {
    spec->muon = (MuonOptions){5, 0.95, true, true, "quintic", MUON_SPECTRAL, 0.2};
}

void run_prefer(EngineSpec *spec, const char *loss) {
    spec->preference = (PreferenceRule){preference_loss_named(loss), 0.1, 0.05, 0.5};
    spec->first_keys = spec->positions = true;
}

void run_make_llama(EngineSpec *spec) {
    ModelShape *s = &spec->shape;
    s->activation = ACTIVATION_SWIGLU, s->position = POSITION_ROTARY, s->rotary_base = 10000;
    s->rms_norm = s->no_linear_bias = s->untied = true;
    s->heads = 8, s->head_size = 4, s->groups = 4;
    s->ffn = 96;
}

void run_limit_attention(EngineSpec *spec) {
    ModelShape *s = &spec->shape;
    s->window = 5, s->window_period = 3, s->window_layers = 5; // layers 0, 2, 3, 5, 6
    s->softmax = SOFTMAX_SINKS, s->softmax_scale = 0.5, s->softmax_cap = 1.5;
}

static void make_sandwich(ModelShape *s) {
    s->activation = ACTIVATION_GEGLU, s->norm_place = NORM_SANDWICH, s->norm_offset = true;
    s->qk_norm = QK_NORM_HEAD, s->untied = false;
    s->embedding_multiplier = 5.5f, s->logit_cap = 3, s->softmax_cap = 5, s->softmax_scale = 0.4;
    s->window = 5, s->window_period = 3, s->window_layers = 3;
    s->rotary_base_local = 500, s->no_rope_freq = 4;
}

static void make_parallel(ModelShape *s) {
    s->activation = ACTIVATION_RELU_SQUARED, s->rms_norm = false, s->parallel_block = true;
    s->rotary_columns = 2, s->qkv_bias = true;
    s->residual_multiplier = 0.4f, s->logits_scaling = 2;
}

static void make_post(ModelShape *s) {
    s->norm_place = NORM_POST, s->qk_norm = QK_NORM_ALL;
    s->rope = (Rope){.kind = ROPE_YARN, .factor = 4, .low = 1, .high = 32, .original = 8};
}

static void make_latent(ModelShape *s) {
    s->groups = 0, s->head_size = 6, s->rotary_columns = 2;
    s->q_rank = 12, s->kv_rank = 10, s->value_size = 4, s->latent_epsilon = 1e-6f;
    s->rope = (Rope){.kind = ROPE_YARN,
                     .factor = 4,
                     .low = 1,
                     .high = 32,
                     .original = 8,
                     .attention = 0.9,
                     .mscale_all = 0.7};
}

// Experts in every layer, and shared ones.
static void make_experts(ModelShape *s) {
    s->experts = 4, s->experts_topk = 2, s->expert_ffn = 16, s->shared_ffn = 8;
}

// Biases everywhere, and gates of which some are cut off, as in GPT-OSS.
static void make_biased_experts(ModelShape *s) {
    make_experts(s);
    s->shared_ffn = 0, s->no_linear_bias = false;
    s->activation = ACTIVATION_QUICK_GEGLU, s->glu_offset = 1, s->glu_clamp = 0.1f;
    s->softmax = SOFTMAX_SINKS, s->window = 5, s->window_period = 2, s->window_layers = 1;
    s->rope = (Rope){.kind = ROPE_YARN, .factor = 4, .low = 1, .high = 32, .original = 8, .unrounded = true};
}

const char *const run_model_names[NUM_RUN_MODELS] = {"gpt",  "llama",  "sandwich", "parallel",
                                                     "post", "latent", "experts",  "biased experts"};

void run_make_model(EngineSpec *spec, RunModel model) {
    if (model == RUN_GPT) return;
    run_make_llama(spec);
    if (model == RUN_SANDWICH) make_sandwich(&spec->shape);
    if (model == RUN_PARALLEL) make_parallel(&spec->shape);
    if (model == RUN_POST) make_post(&spec->shape);
    if (model == RUN_LATENT) make_latent(&spec->shape);
    if (model == RUN_EXPERTS) make_experts(&spec->shape);
    if (model == RUN_BIASED_EXPERTS) make_biased_experts(&spec->shape);
}

int32_t run_token(int64_t sample, int64_t position, int vocabulary) {
    uint32_t word = rng_word(rng_key(1234, "tokens", 0), (uint64_t)sample, (uint64_t)position);
    return (int32_t)(word % (uint32_t)vocabulary);
}

// Three of four tokens, of each sample the first.
static float run_mask(int64_t sample, int64_t position) {
    uint32_t word = rng_word(rng_key(1234, "mask", 0), (uint64_t)sample, (uint64_t)position);
    return position == 0 || word % 4 ? 1 : 0;
}

// The first position of the document of a token: a document ends with every token that five divides.
static int64_t document_of(int64_t sample, int64_t position, int vocabulary) {
    while (position > 0 && run_token(sample, position - 1, vocabulary) % 5) position--;
    return position;
}

// A pair: a prompt of two tokens twice, each with an answer; the rest is padding.
static int64_t answer_length(int64_t sample, int answer, int sequence) {
    return (5 + (sample * 7 + answer * 3) % 4) * (sequence < 320 ? sequence / 16 : 20);
}

static int64_t answer_of(int64_t sample, int64_t position, int sequence, bool *trained) {
    int64_t chosen = answer_length(sample, 0, sequence), both = chosen + answer_length(sample, 1, sequence);
    int64_t start = position < chosen ? 0 : position < both ? chosen : both;
    int64_t end = position < chosen ? chosen : position < both ? both : start;
    *trained = position - start >= 1 && position < end - 1;
    return start;
}

// Numbers as a reference model may have them.
static double run_reference(int64_t sample, int answer, int sequence) {
    return -4.2 * (double)(answer_length(sample, answer, sequence) - 2) +
           0.3 * (double)((sample + answer) % 5);
}

static void make_pairs(const EngineSpec *spec, const Context *context, Batch *batch) {
    int64_t m = batch->num_microbatches, b = spec->mode.microbatch, each = (int64_t)spec->shape.sequence * b;
    float *mask = malloc((size_t)(m * each) * sizeof *mask);
    double(*references)[NUM_ANSWERS] = malloc((size_t)(m * b) * sizeof *references);
    int32_t *starts = (int32_t *)(uintptr_t)batch->first_keys,
            *positions = (int32_t *)(uintptr_t)batch->positions;
    Leaves leaves = leaves_of(&context->groups.topology, spec->virtual_data);
    CHECK(mask && references, "no memory for pairs");
    for (int64_t i = 0; i < m * each; i++) {
        int64_t k = i / each, position = i % each / b, column = i % b;
        LeafPlace place = leaves_place(&leaves, batch->num_microbatches, (int)k);
        int64_t sample = batch->consumed + leaves_first_sample(&leaves, place, (int)b) + column;
        bool trained;
        starts[i] = (int32_t)answer_of(sample, position, spec->shape.sequence, &trained);
        positions[i] = (int32_t)position - starts[i];
        mask[i] = trained;
        for (int a = 0; a < NUM_ANSWERS; a++)
            references[k * b + column][a] = run_reference(sample, a, spec->shape.sequence);
    }
    batch->mask = mask;
    batch->references = (const double(*)[NUM_ANSWERS])references;
}

Batch run_batch(const EngineSpec *spec, const Context *context, int64_t consumed, int num_microbatches) {
    const ModelShape *s = &spec->shape;
    int64_t m = num_microbatches, b = spec->mode.microbatch, tokens_each = (int64_t)s->sequence * b;
    int32_t *tokens = malloc((size_t)(m * tokens_each) * sizeof *tokens);
    int32_t *labels = malloc((size_t)(m * tokens_each) * sizeof *labels);
    float *mask = spec->masked ? malloc((size_t)(m * tokens_each) * sizeof *mask) : NULL;
    int32_t *first_keys = malloc((size_t)(m * tokens_each) * sizeof *first_keys);
    int32_t *positions = malloc((size_t)(m * tokens_each) * sizeof *positions);
    Leaves leaves = leaves_of(&context->groups.topology, spec->virtual_data);
    CHECK(tokens && labels && first_keys && positions && !(spec->masked && !mask), "no memory for a batch");
    for (int64_t i = 0; i < m * tokens_each; i++) {
        int64_t k = i / tokens_each, position = i % tokens_each / b, column = i % b;
        LeafPlace place = leaves_place(&leaves, num_microbatches, (int)k);
        int64_t sample = consumed + leaves_first_sample(&leaves, place, (int)b) + column;
        tokens[i] = run_token(sample, position, s->vocabulary);
        labels[i] = run_token(sample, position + 1, s->vocabulary);
        if (mask) mask[i] = spec->first_keys ? (float)(tokens[i] % 5 != 0) : run_mask(sample, position);
        first_keys[i] = (int32_t)document_of(sample, position, s->vocabulary);
        positions[i] = (int32_t)position - first_keys[i];
    }
    Batch batch = {.num_microbatches = (int)m,
                   .consumed = consumed,
                   .tokens = tokens,
                   .labels = labels,
                   .mask = mask,
                   .first_keys = first_keys,
                   .positions = positions};
    if (spec->preference.loss) make_pairs(spec, context, &batch);
    return batch;
}

void run_batch_free(Batch *batch) {
    free((void *)(uintptr_t)batch->tokens);
    free((void *)(uintptr_t)batch->labels);
    free((void *)(uintptr_t)batch->mask);
    free((void *)(uintptr_t)batch->references);
    free((void *)(uintptr_t)batch->first_keys);
    free((void *)(uintptr_t)batch->positions);
    *batch = (Batch){0};
}

// ---- a checksum that no partition changes -----------------------------------------------------------------

static uint64_t element_hash(RngKey key, uint64_t index, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), bits, 0}, out[4];
    philox4x32(counter, key, out);
    return out[0] | (uint64_t)out[1] << 32;
}

// The local share of a value, whatever its type.
static void download(const Param *p, const Context *c, float *out) {
    size_t count = (size_t)tensor_count(p->value);
    if (p->value.dtype == F32) {
        device_download(c->device, c->stream, out, p->value);
        return;
    }
    uint16_t *half = malloc(count * sizeof *half);
    CHECK(half, "no memory for %s", p->spec.name);
    device_download(c->device, c->stream, half, p->value);
    for (size_t i = 0; i < count; i++)
        out[i] = p->value.dtype == BF16 ? bf16_to_f32(half[i]) : f16_to_f32(half[i]);
    free(half);
}

// A tied copy has the hash of the parameter that it copies.
static uint64_t param_hash(const Param *p, const Context *c) {
    RngKey key = rng_key(0, p->spec.tied_to ? p->spec.tied_to : p->spec.name, 0);
    size_t whole_count = (size_t)(p->spec.rows * p->spec.cols), local_count = (size_t)tensor_count(p->value);
    float *whole = calloc(whole_count, sizeof *whole), *local = calloc(local_count, sizeof *local);
    float *marks = calloc(local_count, sizeof *marks), *where = calloc(whole_count, sizeof *where);
    CHECK(whole && local && marks && where, "no memory for %s", p->spec.name);
    for (size_t i = 0; i < local_count; i++) marks[i] = 1;
    download(p, c, local);
    param_unslice(p, local, whole);
    param_unslice(p, marks, where);
    uint64_t sum = 0;
    for (size_t i = 0; i < (size_t)(p->spec.real_rows * p->spec.cols); i++)
        if (where[i] > 0) sum += element_hash(key, i, whole[i]);
    free(whole), free(local), free(marks), free(where);
    return sum;
}

// 16 bits at a time, so that sums of doubles are exact.
static void split_sum(uint64_t sum, double pieces[4]) {
    for (int i = 0; i < 4; i++) pieces[i] = (double)(sum >> 16 * i & 0xFFFF);
}

static void expect_alike(Comm *group, uint64_t sum, const char *what) {
    double ends[8];
    split_sum(sum, ends);
    for (int i = 0; i < 4; i++) ends[4 + i] = -ends[i];
    comm_all_reduce_host(group, ends, 8, REDUCE_MAX);
    for (int i = 0; i < 4; i++) EXPECT(ends[i] == -ends[4 + i], "%s of %s differ", what, comm_name(group));
}

static bool is_tied(const Params *params, const Param *p) {
    for (int i = 0; i < params->count; i++) {
        const char *original = params->items[i]->spec.tied_to;
        if (original && (params->items[i] == p || !strcmp(original, p->spec.name))) return true;
    }
    return false;
}

static void checksum(Engine *engine, Comm *world, double out[4]) {
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    uint64_t counted = 0, all = 0, experts = 0, whole = 0, tied = 0;
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        if (p->chunk < 0) continue;
        unit_acquire(c, p->unit, -1);
        uint64_t hash = param_hash(p, c);
        unit_release(c, p->unit);
        const ReductionInfo *info = &placement_reductions[p->place.reduction];
        bool of_experts = p->spec.experts > 0;
        *(of_experts ? &experts : &all) += hash;
        if (placement_is_replicated(&p->place, ROLE_TENSOR)) whole += hash;
        if (context_group(c, ROLE_ENDS) && is_tied(params, p)) tied += hash;
        if (!p->spec.tied_to && context_rank(c, info->replicas) == 0 && p->place.first) counted += hash;
    }
    expect_alike(context_group(c, ROLE_REPLICAS), all, "parameters");
    expect_alike(context_group(c, ROLE_EXPERT_REPLICAS), experts, "parameters of experts");
    expect_alike(context_group(c, ROLE_TENSOR), whole, "parameters that are not cut");
    if (context_group(c, ROLE_ENDS)) expect_alike(context_group(c, ROLE_ENDS), tied, "tied copies");
    split_sum(counted, out);
    comm_all_reduce_host(world, out, 4, REDUCE_SUM);
    // Carry, modulo 2^64: partial sums differ with the partition, their total does not.
    uint64_t total = 0;
    for (int i = 0; i < 4; i++) total += (uint64_t)out[i] << 16 * i;
    split_sum(total, out);
}

// ---- running ----------------------------------------------------------------------------------------------

typedef struct {
    const RunPlan *plans;
    int count;
    RunResult *results; // [count]
} Job;

static int microbatches_of(const RunPlan *plan, int step) {
    return plan->microbatches ? plan->microbatches[step] : plan->spec.num_microbatches;
}

static float evaluate(const RunPlan *plan, Engine *engine, int64_t consumed) {
    Batch batch = run_batch(&plan->spec, engine_context(engine), consumed, plan->spec.num_microbatches);
    float loss = engine_evaluate(engine, batch);
    run_batch_free(&batch);
    return loss;
}

static void train(const RunPlan *plan, Engine *engine, RunResult *result) {
    int64_t consumed = plan->consumed,
            samples = (int64_t)grid_along(plan->spec.grid, AXIS_DP) * plan->spec.mode.microbatch;
    LossScaler scaler = plan->scaler.scale > 0 ? plan->scaler : loss_scaler(1, 1, 1, 1, false);
    result->steps = plan->steps;
    for (int step = 0; step < plan->steps; step++) {
        int m = microbatches_of(plan, step);
        Batch batch = run_batch(&plan->spec, engine_context(engine), consumed, m);
        StepResult r = engine_train(engine, batch, (StepOptions){plan->lr, 0.1, scaler.scale});
        run_batch_free(&batch);
        const PairMeans *pairs = engine_pair_means(engine);
        if (pairs) result->pairs[step] = *pairs;
        result->loss[step] = r.loss, result->norm[step] = r.grad_norm, result->scale[step] = scaler.scale;
        loss_scaler_update(&scaler, !r.finite);
        if (!plan->same_batch) consumed += m * samples;
        if (plan->evaluates_between || step + 1 == plan->steps)
            result->evaluation[step] = evaluate(plan, engine, consumed);
    }
}

// With the sizes of its smaller batches, which are kept in `smaller`.
static EngineSpec announced(const RunPlan *plan, int smaller[MAX_RUN_STEPS]) {
    EngineSpec spec = plan->spec;
    CHECK(plan->steps <= MAX_RUN_STEPS, "%d steps", plan->steps);
    spec.smaller = smaller, spec.num_smaller = 0;
    for (int step = 0; step < plan->steps; step++)
        if (microbatches_of(plan, step) < spec.num_microbatches)
            smaller[spec.num_smaller++] = microbatches_of(plan, step);
    return spec;
}

static Status run_here(const RunPlan *plan, Comm *world, RunResult *out) {
    int smaller[MAX_RUN_STEPS];
    EngineSpec spec = announced(plan, smaller);
    RunResult result = {.ranks = comm_size(world)};
    Engine *engine;
    TRY(engine_open(&engine, &spec, world));
    if (plan->opened) plan->opened(engine, plan->self);
    train(plan, engine, &result);
    checksum(engine, world, result.checksum);
    if (plan->finished) plan->finished(engine, plan->self);
    if (comm_rank(world) == 0) *out = result;
    engine_close(engine);
    return OK;
}

static Status rank_main(Comm *world, void *arg) {
    const Job *job = arg;
    for (int i = 0; i < job->count; i++) TRY(run_here(&job->plans[i], world, &job->results[i]));
    return OK;
}

Status run_plans(const RunPlan *plans, int count, RunResult *results) {
    Job job = {plans, count, results};
    // On any machine: ranks that share a core do not spin, others have a core each.
    CommOptions options = {.transport = plans->transport,
                           .ranks = grid_size(plans->spec.grid),
                           .timeout_s = 120,
                           .cores = plans->spins ? CORES_MAX : 1,
                           .check = plans->check_comm,
                           .device_transport = harness_device_transport(),
                           .deterministic = true};
    return comm_launch(options, rank_main, &job);
}

Status run_plan(const RunPlan *plan, RunResult *result) { return run_plans(plan, 1, result); }

// ---- expectations -----------------------------------------------------------------------------------------

bool run_or_complain(const RunPlan *plan, const char *name, RunResult *result) {
    Status status = run_plan(plan, result);
    EXPECT(status == OK, "%s: %s", name, fail_message());
    if (status != OK) return false;
    double guess = log(plan->spec.shape.vocabulary);
    EXPECT(fabs((double)result->loss[0] - guess) < 0.1 && result->norm[0] > 0, "%s: first loss %g, norm %g",
           name, (double)result->loss[0], result->norm[0]);
    return true;
}

void run_expect_same_bits(const RunResult *a, const RunResult *b, const char *name) {
    EXPECT(a->steps == b->steps, "%s: %d and %d steps", name, a->steps, b->steps);
    for (int i = 0; i < a->steps; i++) {
        bool both = a->evaluation[i] > 0 && b->evaluation[i] > 0;
        EXPECT(!memcmp(&a->loss[i], &b->loss[i], sizeof(float)), "%s: loss %d is %.9g, not %.9g", name, i,
               (double)b->loss[i], (double)a->loss[i]);
        EXPECT(!memcmp(&a->norm[i], &b->norm[i], sizeof(double)), "%s: norm %d is %.17g, not %.17g", name, i,
               b->norm[i], a->norm[i]);
        EXPECT(a->scale[i] == b->scale[i], "%s: scale %d is %g, not %g", name, i, b->scale[i], a->scale[i]);
        EXPECT(!both || !memcmp(&a->evaluation[i], &b->evaluation[i], sizeof(float)),
               "%s: evaluation %d is %.9g, not %.9g", name, i, (double)b->evaluation[i],
               (double)a->evaluation[i]);
    }
    EXPECT(a->evaluation[a->steps - 1] > 0 && b->evaluation[a->steps - 1] > 0, "%s: no evaluation", name);
    EXPECT(!memcmp(a->checksum, b->checksum, sizeof a->checksum), "%s: parameters differ", name);
}

void run_expect_predicted_memory(Engine *engine, void *self) {
    (void)self;
    const EngineMemory *said = engine_memory(engine);
    EngineMemory used = engine_memory_used(engine);
    EXPECT(used.run == said->run, "run: %zu of %zu bytes", used.run, said->run);
    EXPECT(used.stash == said->stash && used.num_stashes == said->num_stashes,
           "stashes: %d of %zu, not %d of %zu bytes", used.num_stashes, used.stash, said->num_stashes,
           said->stash);
    EXPECT(used.recomputed == said->recomputed && used.num_recomputed == said->num_recomputed,
           "recomputed: %d of %zu, not %d of %zu bytes", used.num_recomputed, used.recomputed,
           said->num_recomputed, said->recomputed);
    EXPECT(used.scratch == said->scratch, "scratch: %zu of %zu bytes", used.scratch, said->scratch);
    EXPECT(used.beside == said->beside, "scratch of a forward in a pair: %zu of %zu bytes", used.beside,
           said->beside);
    EXPECT(used.workspace == said->workspace, "workspace: %zu of %zu bytes", used.workspace, said->workspace);
    EXPECT(used.host == said->host, "the host's memory: %zu of %zu bytes", used.host, said->host);
}

void run_print_bits(const RunResult *result, const char *name) {
    for (int i = 0; i < result->steps; i++)
        printf("%s: step %d: %a %a %a\n", name, i, (double)result->loss[i], result->norm[i],
               (double)result->evaluation[i]);
    printf("%s: parameters: %a %a %a %a\n", name, result->checksum[0], result->checksum[1],
           result->checksum[2], result->checksum[3]);
}
