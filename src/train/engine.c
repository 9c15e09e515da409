#include "train/train.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct Engine {
    Comm *world;
    EngineSpec spec;
    EngineMemory memory;
    Device *device;
    Context context;
    Schedule schedule;
    Arena run, scratch;
    Params params;
    Gpt *gpt;
    Pipeline *pipeline;
    GradReducer reducer;
    Optimizer optimizer;
    Tensor tokens, labels, mask, losses; // [m, T]
    Microbatch *microbatches;
    float *host_losses;
    bool first, last; // this rank holds the first, the last stage
};

static int64_t step_tokens(const Engine *e) {
    return (int64_t)e->spec.shape.sequence * e->spec.shape.microbatch;
}

// ---- opening ------------------------------------------------------------------------------------

static Status split(Comm *world, Grid grid, const char *name, unsigned axes, Comm **group) {
    int *ranks = malloc((size_t)grid_size(grid) * sizeof *ranks);
    if (!ranks) return fail(ERR_OS, "no memory for the ranks of group %s", name);
    int n = grid_group(grid, comm_rank(world), axes, ranks);
    Status status = comm_split(world, name, ranks, n, group);
    free(ranks);
    return status;
}

static Status open_groups(Engine *e, Comm *world) {
    Context *c = &e->context;
    Grid grid = e->spec.grid;
    c->grid = grid;
    c->place = grid_place(grid, comm_rank(world));
    TRY(split(world, grid, "tp", 1u << AXIS_TP, &c->tp));
    TRY(split(world, grid, "dp", 1u << AXIS_DP, &c->dp));
    TRY(split(world, grid, "pp", 1u << AXIS_PP, &c->pp));
    TRY(split(world, grid, "model", 1u << AXIS_TP | 1u << AXIS_PP, &c->model));
    e->first = c->place.pp == 0;
    e->last = c->place.pp == grid.pp - 1;
    int ends[2];
    if (grid.pp > 1 && (e->first || e->last))
        TRY(comm_split(world, "embedding", ends, grid_embedding_group(grid, comm_rank(world), ends),
                       &c->embedding));
    return OK;
}

static void take_batches(Engine *e) {
    int64_t m = e->spec.num_microbatches, tokens = step_tokens(e);
    if (e->first) e->tokens = tensor_take(&e->run, "tokens", m, tokens, I32);
    if (!e->last) return;
    e->labels = tensor_take(&e->run, "labels", m, tokens, I32);
    e->losses = tensor_take(&e->run, "losses", m, tokens, F32);
    if (e->spec.masked) e->mask = tensor_take(&e->run, "loss mask", m, tokens, F32);
}

static Status open_model(Engine *e) {
    int stages[256], v = e->spec.num_chunks;
    LayerSplit split = {e->spec.shape.layers, e->spec.first_layers, e->spec.last_layers};
    CHECK(v <= 256, "%d chunks", v);
    for (int c = 0; c < v; c++) stages[c] = schedule_stage(&e->schedule, e->context.place.pp, c);
    TRY(gpt_create(&e->gpt, &e->spec.shape, split, &e->context, &e->schedule, &e->params));
    params_place(&e->params, &e->run, e->spec.grid.tp, stages, v);
    take_batches(e);
    TRY(optimizer_create(&e->optimizer, &e->context, &e->params, &e->run, e->spec.adam));
    TRY(grad_reducer_create(&e->reducer, &e->context, &e->params, e->spec.bucket_elements));
    return pipeline_create(&e->pipeline, &e->context, &e->schedule, gpt_stage(e->gpt), &e->run,
                           e->memory.slot);
}

// `memory` all zero: measure. The caller closes the engine when this fails.
static Status open_share(Engine *e, const EngineSpec *spec, Comm *world, const EngineMemory *memory) {
    bool measuring = !memory->total;
    e->spec = *spec;
    e->memory = *memory;
    DeviceOptions device = {
        .kind = spec->device, .threads = spec->threads, .workspace_bytes = memory->workspace};
    if (measuring) device.kind = "null", device.stands_for = spec->device;
    e->world = world;
    TRY(open_groups(e, world)); // first: it is collective, and what follows can fail on one rank alone
    TRY(device_open(&e->device, device));
    comm_use_device(world, e->device);
    e->context.device = e->device;
    e->context.stream = device_stream(e->device);
    e->context.scratch = &e->scratch;
    TRY(schedule_create(&e->schedule, spec->schedule, spec->grid.pp, spec->num_chunks,
                        spec->num_microbatches));
    if (measuring) {
        arena_open_measuring(&e->run, "run");
        arena_open_measuring(&e->scratch, "scratch");
    } else {
        TRY(arena_open(&e->run, "run", device_memory(e->device), memory->run));
        TRY(arena_open(&e->scratch, "scratch", device_memory(e->device), memory->scratch));
    }
    e->microbatches = calloc((size_t)spec->num_microbatches, sizeof *e->microbatches);
    e->host_losses = calloc((size_t)(spec->num_microbatches * step_tokens(e)), sizeof *e->host_losses);
    if (!e->microbatches || !e->host_losses)
        return fail(ERR_OS, "no memory for %d microbatches", spec->num_microbatches);
    return open_model(e);
}

void engine_close(Engine *e) {
    if (!e) return;
    pipeline_destroy(e->pipeline);
    grad_reducer_destroy(&e->reducer);
    optimizer_destroy(&e->optimizer);
    gpt_destroy(e->gpt);
    params_free(&e->params);
    arena_close(&e->scratch);
    arena_close(&e->run);
    schedule_destroy(&e->schedule);
    comm_close(e->context.embedding);
    comm_close(e->context.model);
    comm_close(e->context.pp);
    comm_close(e->context.dp);
    comm_close(e->context.tp);
    if (e->world) comm_use_device(e->world, NULL);
    device_close(e->device);
    free(e->microbatches);
    free(e->host_losses);
    free(e);
}

// ---- measuring: the trainer's own step on the null device and the null network ------------------

typedef struct {
    const EngineSpec *spec;
    EngineMemory *memory;
    Text *map; // or NULL
} Measurement;

static double counted_flops(const Device *device) {
    const OpCount *counts = device_counts(device);
    double flops = 0;
    for (int op = 0; op < NUM_DEVICE_OPS; op++) flops += counts[op].flops;
    return flops;
}

static void add_line(void *text, const char *line) { text_add(text, "%s\n", line); }

EngineMemory engine_memory_used(const Engine *e) {
    EngineMemory used = {.run = e->run.peak,
                         .slot = pipeline_slot_peak(e->pipeline),
                         .num_slots = pipeline_slot_count(e->pipeline),
                         .scratch = e->scratch.peak,
                         .workspace = device_workspace_peak(e->device),
                         .flops = counted_flops(e->device)};
    used.total = used.run + used.slot * (size_t)used.num_slots + used.scratch + used.workspace;
    return used;
}

static Status measure_share(Comm *world, void *arg) {
    const Measurement *job = arg;
    Engine *e = calloc(1, sizeof *e);
    if (!e) return fail(ERR_OS, "no memory for a trial run");
    Status status = open_share(e, job->spec, world, &(EngineMemory){0});
    if (status == OK) {
        engine_evaluate(e, (Batch){0});
        device_counts_reset(e->device);
        engine_train(e, (Batch){0}, 0, 0);
        *job->memory = engine_memory_used(e);
        if (job->map) arena_print(&e->run, add_line, job->map);
    }
    engine_close(e);
    return status;
}

Status engine_measure(const EngineSpec *spec, int rank, EngineMemory *memory, Text *map) {
    *memory = (EngineMemory){0};
    Measurement job = {spec, memory, map};
    CommOptions options = {
        .transport = "null", .ranks = grid_size(spec->grid), .null_rank = rank, .timeout_s = 60};
    return comm_launch(options, measure_share, &job);
}

static Status open_and_fill(Engine *e, const EngineSpec *spec, Comm *world, const EngineMemory *memory) {
    TRY(comm_agree(world, open_share(e, spec, world, memory)));
    Rank *rank = rank_current();
    rank->tp = e->context.place.tp, rank->dp = e->context.place.dp, rank->pp = e->context.place.pp;
    return comm_agree(
        world, params_init(&e->params, e->device, spec->shape.seed, spec->grid.tp, e->context.place.tp));
}

Status engine_open(Engine **out, const EngineSpec *spec, Comm *world) {
    EngineMemory memory;
    Engine *e = *out = calloc(1, sizeof *e);
    Status status =
        e ? engine_measure(spec, comm_rank(world), &memory, NULL) : fail(ERR_OS, "no memory for the engine");
    status = comm_agree(world, status);
    if (status == OK) status = open_and_fill(e, spec, world, &memory);
    if (status == OK) return OK;
    engine_close(e);
    *out = NULL;
    return status;
}

// ---- a step -------------------------------------------------------------------------------------

static double counted_tokens(const Engine *e, const Batch *batch, int microbatch) {
    int64_t tokens = step_tokens(e);
    if (!batch->mask) return (double)tokens;
    double count = 0;
    for (int64_t i = 0; i < tokens; i++) count += (double)batch->mask[microbatch * tokens + i];
    return count > 0 ? count : 1;
}

static Tensor row_or_absent(Tensor all, int row) { return all.data ? tensor_rows(all, row, 1) : (Tensor){0}; }

static void load_batch(Engine *e, const Batch *batch, bool training) {
    const Context *c = &e->context;
    int m = e->spec.num_microbatches, b = e->spec.shape.microbatch, d = e->spec.grid.dp;
    if (e->first) device_upload(e->device, c->stream, e->tokens, batch->tokens);
    if (e->last) device_upload(e->device, c->stream, e->labels, batch->labels);
    if (e->mask.data) device_upload(e->device, c->stream, e->mask, batch->mask);
    for (int k = 0; k < m; k++)
        e->microbatches[k] = (Microbatch){
            .tokens = row_or_absent(e->tokens, k),
            .labels = row_or_absent(e->labels, k),
            .mask = row_or_absent(e->mask, k),
            .loss = row_or_absent(e->losses, k),
            .loss_scale = (float)(1 / (counted_tokens(e, batch, k) * m * d)),
            .first_sample = batch->consumed + (int64_t)k * b * d + (int64_t)c->place.dp * b,
            .samples = b,
            .training = training,
        };
}

// The mean over microbatches and data ranks of each microbatch's mean, known to the last stage, told to all.
static double mean_loss(Engine *e, const Batch *batch) {
    const Context *c = &e->context;
    int m = e->spec.num_microbatches;
    double sum = 0;
    rank_doing("mean loss");
    if (e->last) {
        int64_t tokens = step_tokens(e);
        device_download(e->device, c->stream, e->host_losses, e->losses);
        for (int k = 0; k < m; k++) {
            double one = 0;
            for (int64_t i = 0; i < tokens; i++) one += (double)e->host_losses[k * tokens + i];
            sum += one / counted_tokens(e, batch, k);
        }
        comm_all_reduce_host(c->dp, &sum, 1, REDUCE_SUM);
    }
    comm_broadcast_host(c->pp, &sum, sizeof sum, e->spec.grid.pp - 1);
    return sum / (m * e->spec.grid.dp);
}

StepResult engine_gradients(Engine *e, Batch batch) {
    load_batch(e, &batch, true);
    params_zero_grads(&e->params, e->device);
    pipeline_train(e->pipeline, e->microbatches, &e->reducer);
    grad_reducer_finish(&e->reducer);
    StepResult result = {.loss = (float)mean_loss(e, &batch),
                         .grad_norm = optimizer_grad_norm(&e->optimizer)};
    result.finite = isfinite(result.loss) && isfinite(result.grad_norm);
    return result;
}

StepResult engine_train(Engine *e, Batch batch, double lr, double weight_decay) {
    StepResult result = engine_gradients(e, batch);
    if (result.finite) optimizer_step(&e->optimizer, result.grad_norm, lr, weight_decay);
    return result;
}

float engine_evaluate(Engine *e, Batch batch) {
    load_batch(e, &batch, false);
    pipeline_evaluate(e->pipeline, e->microbatches);
    return (float)mean_loss(e, &batch);
}

const EngineMemory *engine_memory(const Engine *e) { return &e->memory; }
const Params *engine_params(const Engine *e) { return &e->params; }
const Schedule *engine_schedule(const Engine *e) { return &e->schedule; }
Context *engine_context(Engine *e) { return &e->context; }
Gpt *engine_model(Engine *e) { return e->gpt; }
PipelineTimes engine_times(const Engine *e) { return pipeline_times(e->pipeline); }
