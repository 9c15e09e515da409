#include "runs.h"
#include "base/half.h"
#include <stdlib.h>
#include <string.h>

EngineSpec run_spec(Grid grid, const char *schedule, int num_chunks, int layers, int global_batch) {
    EngineSpec spec = {
        .grid = grid, .schedule = schedule, .num_chunks = num_chunks, .device = "cpu", .threads = 1};
    spec.shape = (ModelShape){.layers = layers,
                              .hidden = 32,
                              .heads = 4,
                              .head_size = 8,
                              .ffn = 128,
                              .sequence = 16,
                              .positions = 16,
                              .vocabulary = 67,
                              .microbatch = 1,
                              .hidden_dropout = 0.1f,
                              .attention_dropout = 0.1f,
                              .norm_epsilon = 1e-5f,
                              .init_std = 0.02f,
                              .seed = 1234};
    spec.shape.padded_vocabulary = padded_vocabulary(67, 8, grid.tp);
    spec.split.layers = layers;
    spec.num_microbatches = global_batch / grid.dp;
    spec.adam = (AdamOptions){0.9, 0.95, 1e-8, 1.0};
    spec.bucket_elements = 5000;
    return spec;
}

void run_make_llama(EngineSpec *spec) {
    ModelShape *s = &spec->shape;
    s->activation = ACTIVATION_SWIGLU, s->position = POSITION_ROTARY, s->rotary_base = 10000;
    s->rms_norm = s->no_linear_bias = s->untied = true;
    s->heads = 8, s->head_size = 4, s->groups = 4;
    s->ffn = 96;
}

int32_t run_token(int64_t sample, int64_t position, int vocabulary) {
    uint32_t word = rng_word(rng_key(1234, "tokens", 0), (uint64_t)sample, (uint64_t)position);
    return (int32_t)(word % (uint32_t)vocabulary);
}

Batch run_batch(const EngineSpec *spec, const Context *context, int64_t consumed) {
    const ModelShape *s = &spec->shape;
    int64_t m = spec->num_microbatches, tokens_each = (int64_t)s->sequence * s->microbatch;
    int32_t *tokens = malloc((size_t)(m * tokens_each) * sizeof *tokens);
    int32_t *labels = malloc((size_t)(m * tokens_each) * sizeof *labels);
    CHECK(tokens && labels, "no memory for a batch");
    for (int64_t k = 0; k < m; k++)
        for (int64_t i = 0; i < tokens_each; i++) {
            int64_t position = i / s->microbatch, column = i % s->microbatch;
            int64_t sample = consumed + (k * spec->grid.dp + context->place.dp) * s->microbatch + column;
            tokens[k * tokens_each + i] = run_token(sample, position, s->vocabulary);
            labels[k * tokens_each + i] = run_token(sample, position + 1, s->vocabulary);
        }
    return (Batch){.num_microbatches = (int)m, .consumed = consumed, .tokens = tokens, .labels = labels};
}

void run_batch_free(Batch *batch) {
    free((void *)(uintptr_t)batch->tokens);
    free((void *)(uintptr_t)batch->labels);
    *batch = (Batch){0};
}

// ---- a checksum that no partition changes
// -------------------------------------------------------------------------

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

static uint64_t param_hash(const Param *p, const Context *c) {
    RngKey key = rng_key(0, p->spec.name, 0);
    size_t whole_count = (size_t)(p->spec.rows * p->spec.cols), local_count = (size_t)tensor_count(p->value);
    float *whole = calloc(whole_count, sizeof *whole), *local = calloc(local_count, sizeof *local);
    float *marks = calloc(local_count, sizeof *marks), *where = calloc(whole_count, sizeof *where);
    CHECK(whole && local && marks && where, "no memory for %s", p->spec.name);
    for (size_t i = 0; i < local_count; i++) marks[i] = 1;
    download(p, c, local);
    param_unslice(p, c->grid.tp, c->place.tp, local, whole);
    param_unslice(p, c->grid.tp, c->place.tp, marks, where);
    uint64_t sum = 0;
    for (size_t i = 0; i < (size_t)(p->spec.real_rows * p->spec.cols); i++)
        if (where[i] > 0) sum += element_hash(key, i, whole[i]);
    free(whole), free(local), free(marks), free(where);
    return sum;
}

static void checksum(Engine *engine, Comm *world, double out[4]) {
    const Context *c = engine_context(engine);
    const Params *params = engine_params(engine);
    uint64_t sum = 0;
    for (int i = 0; i < params->count; i++) {
        const Param *p = params->items[i];
        bool counted = p->chunk >= 0 && !p->spec.tied_to && c->place.dp == 0 &&
                       (p->spec.shard.dim >= 0 || c->place.tp == 0);
        if (counted) sum += param_hash(p, c);
    }
    // 16 bits at a time, so that sums of doubles are exact; the pieces are compared as they are, without
    // carries.
    for (int i = 0; i < 4; i++) out[i] = (double)(sum >> 16 * i & 0xFFFF);
    comm_all_reduce_host(world, out, 4, REDUCE_SUM);
    // Carry, modulo 2^64: partial sums differ with the partition, their total does not.
    uint64_t total = 0;
    for (int i = 0; i < 4; i++) total += (uint64_t)out[i] << 16 * i;
    for (int i = 0; i < 4; i++) out[i] = (double)(total >> 16 * i & 0xFFFF);
}

// ---- running
// -------------------------------------------------------------------------------------------------------

typedef struct {
    const RunPlan *plan;
    RunResult *result;
} Job;

static Status rank_main(Comm *world, void *arg) {
    const Job *job = arg;
    const RunPlan *plan = job->plan;
    RunResult result = {.ranks = comm_size(world)};
    Engine *engine;
    TRY(engine_open(&engine, &plan->spec, world));
    if (plan->opened) plan->opened(engine, plan->self);
    int64_t global_batch =
        (int64_t)plan->spec.num_microbatches * plan->spec.grid.dp * plan->spec.shape.microbatch;
    for (int step = 0; step <= plan->steps; step++) {
        Batch batch =
            run_batch(&plan->spec, engine_context(engine), plan->same_batch ? 0 : step * global_batch);
        if (step < plan->steps) {
            StepResult r = engine_train(
                engine, batch, (StepOptions){plan->lr, 0.1, plan->loss_scale > 0 ? plan->loss_scale : 1});
            result.loss[step] = r.loss, result.norm[step] = r.grad_norm;
        } else {
            result.evaluation = engine_evaluate(engine, batch);
        }
        run_batch_free(&batch);
    }
    checksum(engine, world, result.checksum);
    if (plan->finished) plan->finished(engine, plan->self);
    if (comm_rank(world) == 0) *job->result = result;
    engine_close(engine);
    return OK;
}

Status run_plan(const RunPlan *plan, RunResult *result) {
    Job job = {plan, result};
    CommOptions options = {.transport = plan->transport,
                           .ranks = grid_size(plan->spec.grid),
                           .timeout_s = 120,
                           .check = plan->check_comm,
                           .deterministic = true};
    return comm_launch(options, rank_main, &job);
}
