#include "base/trace.h"
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
    Schedule schedule;   // of the largest batch
    Schedule smaller[2]; // of the last two smaller batches; `newer` is the index of the last
    int newer;
    Arena run, scratch;
    Params params;
    Gpt *gpt;
    Pipeline *pipeline;
    Buckets buckets;
    GradReducer reducer;
    Optimizer optimizer;
    Tensor tokens, labels, mask, losses; // [m, T]
    Microbatch *microbatches;
    float *host_losses;
    bool first, last;  // this rank holds the first, the last stage
    bool grads_zeroed; // by the first step: before it they take no memory beside initial values on the host
    // Of a recorded step; NULL: nobody listens.
    const StepListener *listener;
    Stage stage; // the model's
    Instr at;    // the compute that runs; op NUM_SCHEDULE_OPS: none
};

static int64_t step_tokens(const Engine *e) {
    return (int64_t)e->spec.shape.sequence * e->spec.mode.microbatch;
}

// ---- opening ------------------------------------------------------------------------------------

static void take_batches(Engine *e) {
    int64_t m = e->spec.num_microbatches, tokens = step_tokens(e);
    if (e->first) e->tokens = tensor_take(&e->run, "tokens", m, tokens, I32);
    if (!e->last) return;
    e->labels = tensor_take(&e->run, "labels", m, tokens, I32);
    e->losses = tensor_take(&e->run, "losses", m, tokens, F32);
    if (e->spec.masked) e->mask = tensor_take(&e->run, "loss mask", m, tokens, F32);
}

// ---- listening to a step ------------------------------------------------------------------------

static const Instr no_compute = {.op = NUM_SCHEDULE_OPS};

static Instr compute(const Engine *e, ScheduleOp op, int chunk, const Microbatch *mb) {
    return (Instr){(uint8_t)op, (uint8_t)chunk, -1, (int32_t)(mb - e->microbatches)};
}

static void noted_forward(void *self, int chunk, Slot *slot, const Microbatch *mb) {
    Engine *e = self;
    e->at = compute(e, OP_FORWARD, chunk, mb);
    e->stage.forward(e->stage.self, chunk, slot, mb);
    e->at = no_compute;
}

static void noted_backward(void *self, int chunk, Slot *slot, const Microbatch *mb, Halves halves,
                           bool final) {
    static const ScheduleOp ops[] = {
        [INPUT_HALF] = OP_BACKWARD_INPUT, [WEIGHT_HALF] = OP_BACKWARD_WEIGHT, [BOTH_HALVES] = OP_BACKWARD};
    Engine *e = self;
    e->at = compute(e, ops[halves], chunk, mb);
    e->stage.backward(e->stage.self, chunk, slot, mb, halves, final);
    e->at = no_compute;
}

// The model's, which notes what runs as long as somebody listens.
static Stage engine_stage(Engine *e) {
    Stage stage = e->stage = gpt_stage(e->gpt);
    e->at = no_compute;
    if (e->listener) stage.self = e, stage.forward = noted_forward, stage.backward = noted_backward;
    return stage;
}

static const Instr *compute_now(const Engine *e) { return e->at.op == NUM_SCHEDULE_OPS ? NULL : &e->at; }

static void tell_operation(void *self, DeviceOp op, const void *args, OpCount one) {
    const Engine *e = self;
    e->listener->operation(e->listener->self, compute_now(e), op, args, one);
}

static void tell_call(void *self, const Comm *group, CommOp op, DType dtype, size_t bytes) {
    const Engine *e = self;
    e->listener->call(e->listener->self, compute_now(e), group, op, dtype, bytes);
}

// ---- opening, all of it -------------------------------------------------------------------------

static Status open_model(Engine *e) {
    int stages[SCHEDULE_MAX_CHUNKS], v = e->spec.num_chunks;
    for (int c = 0; c < v; c++)
        stages[c] = schedule_stage(&e->schedule, context_rank(&e->context, ROLE_PIPELINE), c);
    TRY(gpt_create(&e->gpt, &e->spec.shape, e->spec.split, &e->context, &e->schedule, &e->params));
    params_place(&e->params, &e->run, e->spec.grid, e->spec.mode.dtype, stages, v);
    TRY(gpt_place(e->gpt, &e->run));
    take_batches(e);
    TRY(buckets_create(&e->buckets, &e->context, &e->params, e->spec.bucket_elements,
                       e->spec.shard_optimizer));
    TRY(optimizer_create(&e->optimizer, &e->context, e->world, &e->params, &e->buckets, &e->run,
                         e->spec.adam));
    TRY(grad_reducer_create(&e->reducer, &e->context, &e->params, &e->buckets, e->spec.overlap_gradients,
                            e->spec.overlap_weights));
    e->context.watch = grad_reducer_watch(&e->reducer);
    PipelineSpec pipeline = {.schedule = &e->schedule,
                             .stage = engine_stage(e),
                             .arena = &e->run,
                             .stash_bytes = e->memory.stash,
                             .recomputed_bytes = e->memory.recomputed,
                             .measuring = !e->memory.total,
                             .scatter_gather = e->spec.scatter_gather};
    memcpy(pipeline.capacity, e->memory.pools, sizeof pipeline.capacity);
    return pipeline_create(&e->pipeline, &e->context, &pipeline);
}

// What the pools of the run's smaller batches need, where that may be more than the largest one's.
static Status find_pools(Engine *e) {
    const EngineSpec *spec = &e->spec;
    bool grow = schedule_kind(spec->schedule)->pools_grow;
    for (int i = 0; i < spec->num_smaller && !grow; i++) {
        Schedule schedule;
        ScheduleSpec one = engine_schedule_spec(spec, spec->smaller[i]);
        TRY(schedule_create(&schedule, &one));
        for (Hold hold = 0; hold < NUM_HOLDS; hold++) {
            int size = schedule_pool(&schedule, context_rank(&e->context, ROLE_PIPELINE), hold);
            if (size > e->memory.pools[hold]) e->memory.pools[hold] = size;
        }
        schedule_destroy(&schedule);
    }
    return OK;
}

static void poll(void *world) { comm_poll(world); }

// `memory` all zero: measure. The caller closes the engine when this fails.
static Status open_share(Engine *e, const EngineSpec *spec, Comm *world, const EngineMemory *memory) {
    bool measuring = !memory->total;
    e->spec = *spec;
    e->memory = *memory;
    DeviceOptions device = {
        .kind = spec->device, .threads = spec->threads, .workspace_bytes = memory->workspace};
    if (measuring) device.kind = "null", device.stands_for = spec->device;
    e->world = world;
    ScheduleSpec schedule = engine_schedule_spec(spec, spec->num_microbatches);
    TRY(grid_check(spec->grid));
    TRY(schedule_create(&e->schedule, &schedule)); // the same on all ranks
    Topology topology = schedule_topology(&e->schedule, spec->grid, comm_rank(world));
    e->first = topology_is_first(&topology), e->last = topology_is_last(&topology);
    // First: it is collective, and what follows can fail on one rank alone.
    TRY(groups_open(&e->context.groups, world, topology, ALL_ROLES));
    TRY(device_open(&e->device, device));
    comm_use_device(world, e->device);
    device_on_launch(e->device, poll, world);
    e->context.device = e->device;
    e->context.stream = device_stream(e->device);
    e->context.scratch = &e->scratch;
    e->context.mode = spec->mode;
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
    if (measuring) TRY(find_pools(e));
    return open_model(e);
}

void engine_close(Engine *e) {
    if (!e) return;
    if (e->reducer.gathering) grad_reducer_gather_wait(&e->reducer);
    pipeline_destroy(e->pipeline);
    grad_reducer_destroy(&e->reducer);
    optimizer_destroy(&e->optimizer);
    buckets_destroy(&e->buckets);
    gpt_destroy(e->gpt);
    params_free(&e->params);
    arena_close(&e->scratch);
    arena_close(&e->run);
    schedule_destroy(&e->smaller[1]);
    schedule_destroy(&e->smaller[0]);
    schedule_destroy(&e->schedule);
    groups_close(&e->context.groups);
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

typedef struct {
    const EngineSpec *spec;
    const StepListener *listener;
} Recording;

static double counted_flops(const Device *device) {
    const OpCount *counts = device_counts(device);
    double flops = 0;
    for (int op = 0; op < NUM_DEVICE_OPS; op++) flops += counts[op].flops;
    return flops;
}

static void add_line(void *text, const char *line) { text_add(text, "%s\n", line); }

EngineMemory engine_memory_used(const Engine *e) {
    EngineMemory used = {.run = e->run.peak,
                         .stash = pipeline_pool_peak(e->pipeline, HOLD_STASH),
                         .num_stashes = pipeline_pool_count(e->pipeline, HOLD_STASH),
                         .recomputed = pipeline_pool_peak(e->pipeline, HOLD_RECOMPUTED),
                         .num_recomputed = pipeline_pool_count(e->pipeline, HOLD_RECOMPUTED),
                         .scratch = e->scratch.peak,
                         .workspace = device_workspace_peak(e->device),
                         .flops = counted_flops(e->device)};
    memcpy(used.pools, e->memory.pools, sizeof used.pools);
    used.total = used.run + used.stash * (size_t)used.num_stashes +
                 used.recomputed * (size_t)used.num_recomputed + used.scratch + used.workspace;
    return used;
}

// What the last microbatch left in the fullest stash; of the scratch, which is empty by now, the peak.
static void print_arenas(const Engine *e, Text *map) {
    const Arena *stash = pipeline_pool_fullest(e->pipeline, HOLD_STASH);
    const Arena *recomputed = pipeline_pool_fullest(e->pipeline, HOLD_RECOMPUTED);
    arena_print(&e->run, add_line, map);
    if (stash) arena_print(stash, add_line, map);
    if (recomputed) arena_print(recomputed, add_line, map);
    arena_print(&e->scratch, add_line, map);
}

static Status measure_share(Comm *world, void *arg) {
    const Measurement *job = arg;
    Engine *e = calloc(1, sizeof *e);
    if (!e) return fail(ERR_OS, "no memory for a trial run");
    Status status = open_share(e, job->spec, world, &(EngineMemory){0});
    if (status == OK) {
        Batch largest = {.num_microbatches = job->spec->num_microbatches};
        engine_evaluate(e, largest);
        device_counts_reset(e->device);
        engine_train(e, largest, (StepOptions){.loss_scale = 1});
        *job->memory = engine_memory_used(e);
        if (job->map) print_arenas(e, job->map);
    }
    engine_close(e);
    return status;
}

static Status launch_alone(const EngineSpec *spec, int rank, RankMain *rank_main, void *job) {
    CommOptions options = {
        .transport = "null", .ranks = grid_size(spec->grid), .null_rank = rank, .timeout_s = 60};
    return comm_launch(options, rank_main, job);
}

Status engine_measure(const EngineSpec *spec, int rank, EngineMemory *memory, Text *map) {
    *memory = (EngineMemory){0};
    Measurement job = {spec, memory, map};
    return launch_alone(spec, rank, measure_share, &job);
}

static Status record_share(Comm *world, void *arg) {
    const Recording *job = arg;
    const StepListener *listener = job->listener;
    Engine *e = calloc(1, sizeof *e);
    if (!e) return fail(ERR_OS, "no memory for a recorded run");
    e->listener = listener;
    Status status = open_share(e, job->spec, world, &(EngineMemory){0});
    if (status == OK) {
        listener->opened(listener->self, &e->params);
        device_on_operation(e->device, tell_operation, e);
        comm_on_call(world, tell_call, e);
        engine_train(e, (Batch){.num_microbatches = job->spec->num_microbatches},
                     (StepOptions){.loss_scale = 1});
        comm_on_call(world, NULL, NULL);
    }
    engine_close(e);
    return status;
}

Status engine_record(const EngineSpec *spec, int rank, const StepListener *listener) {
    Recording job = {spec, listener};
    return launch_alone(spec, rank, record_share, &job);
}

static Status open_and_fill(Engine *e, const EngineSpec *spec, Comm *world, const EngineMemory *memory) {
    TRY(comm_agree(world, open_share(e, spec, world, memory)));
    groups_name_rank(&e->context.groups);
    return comm_agree(
        world, params_init(&e->params, e->device, spec->shape.seed, grid_along(spec->grid, AXIS_TP),
                           context_rank(&e->context, ROLE_TENSOR), optimizer_write_main, &e->optimizer));
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

// The schedule of a smaller batch is kept until another smaller one comes.
static void use_microbatches(Engine *e, int m) {
    CHECK(m > 0 && m <= e->spec.num_microbatches, "%d microbatches, 1 to %d are possible", m,
          e->spec.num_microbatches);
    Schedule *next = m == e->spec.num_microbatches ? &e->schedule : &e->smaller[e->newer];
    if (m != next->num_microbatches) {
        e->newer = !e->newer; // the pipeline may still hold the other
        next = &e->smaller[e->newer];
        schedule_destroy(next);
        ScheduleSpec spec = engine_schedule_spec(&e->spec, m);
        Status made = schedule_create(next, &spec);
        CHECK(made == OK, "%d microbatches: %s", m, fail_message());
    }
    Status status = pipeline_use(e->pipeline, next);
    CHECK(status == OK, "%d microbatches: %s", m, fail_message());
}

static Tensor first_rows(Tensor all, int rows) { return tensor_rows(all, 0, rows); }

static void upload_batch(Engine *e, const Batch *batch) {
    Stream *stream = e->context.stream;
    int m = batch->num_microbatches;
    if (e->first) device_upload(e->device, stream, first_rows(e->tokens, m), batch->tokens);
    if (e->last) device_upload(e->device, stream, first_rows(e->labels, m), batch->labels);
    if (e->mask.data) device_upload(e->device, stream, first_rows(e->mask, m), batch->mask);
}

static void load_batch(Engine *e, const Batch *batch, bool training, double loss_scale) {
    int m = batch->num_microbatches, b = e->spec.mode.microbatch, d = context_ranks(&e->context, ROLE_DATA);
    use_microbatches(e, m);
    upload_batch(e, batch);
    for (int k = 0; k < m; k++)
        e->microbatches[k] = (Microbatch){
            .tokens = row_or_absent(e->tokens, k),
            .labels = row_or_absent(e->labels, k),
            .mask = row_or_absent(e->mask, k),
            .loss = row_or_absent(e->losses, k),
            .loss_scale = (float)(loss_scale / (counted_tokens(e, batch, k) * m * d)),
            .first_sample =
                batch->consumed + (int64_t)k * b * d + (int64_t)context_rank(&e->context, ROLE_DATA) * b,
            .samples = b,
            .sequence = e->spec.shape.sequence,
            .training = training,
        };
}

// The mean over microbatches and data ranks of each microbatch's mean, known to the last stage, told to all.
static double mean_loss(Engine *e, const Batch *batch) {
    const Context *c = &e->context;
    int m = batch->num_microbatches;
    double sum = 0;
    rank_doing("mean loss");
    if (e->last) {
        int64_t tokens = step_tokens(e);
        device_download(e->device, c->stream, e->host_losses, first_rows(e->losses, m));
        for (int k = 0; k < m; k++) {
            double one = 0;
            for (int64_t i = 0; i < tokens; i++) one += (double)e->host_losses[k * tokens + i];
            sum += one / counted_tokens(e, batch, k);
        }
        comm_all_reduce_host(context_group(c, ROLE_DATA), &sum, 1, REDUCE_SUM);
    }
    comm_broadcast_host(context_group(c, ROLE_PIPELINE), &sum, sizeof sum, c->groups.topology.ends[1]);
    return sum / (m * context_ranks(c, ROLE_DATA));
}

static void trace_phase(const char *name, double start_s) {
    if (!trace_on()) return;
    trace_add((TraceEvent){.start_s = start_s,
                           .end_s = clock_s(),
                           .name = name,
                           .chunk = -1,
                           .microbatch = -1,
                           .peer = -1,
                           .row = TRACE_STEP});
}

// A parameter that no backward has passed would keep the last step's gradient.
static void check_grads(const Params *params) {
    for (int i = 0; i < params->count; i++)
        CHECK(!params->items[i]->begins, "no backward made a gradient of %s", params->items[i]->spec.name);
}

StepResult engine_gradients(Engine *e, Batch batch, double loss_scale) {
    load_batch(e, &batch, true, loss_scale);
    if (!e->grads_zeroed) params_zero_grads(&e->params, e->device);
    e->grads_zeroed = true;
    if (!e->listener) params_begin_grads(&e->params);
    pipeline_train(e->pipeline, e->microbatches, &e->reducer);
    check_grads(&e->params);
    double start = clock_s();
    grad_reducer_finish(&e->reducer);
    trace_phase("finish gradients", start);
    StepResult result = {.loss = (float)mean_loss(e, &batch),
                         .grad_norm = optimizer_grad_norm(&e->optimizer, loss_scale)};
    result.finite = isfinite(result.loss) && isfinite(result.grad_norm);
    return result;
}

StepResult engine_train(Engine *e, Batch batch, StepOptions options) {
    StepResult result = engine_gradients(e, batch, options.loss_scale);
    double start = clock_s();
    if (result.finite) {
        optimizer_step(&e->optimizer, result.grad_norm, options.loss_scale, options.lr, options.weight_decay);
        grad_reducer_gather(&e->reducer);
    }
    trace_phase("optimizer", start);
    return result;
}

float engine_evaluate(Engine *e, Batch batch) {
    load_batch(e, &batch, false, 1);
    pipeline_evaluate(e->pipeline, e->microbatches);
    return (float)mean_loss(e, &batch);
}

const EngineMemory *engine_memory(const Engine *e) { return &e->memory; }

const Params *engine_params(Engine *e) {
    grad_reducer_gather_wait(&e->reducer);
    return &e->params;
}

const EngineSpec *engine_spec_of(const Engine *e) { return &e->spec; }
const Schedule *engine_schedule(const Engine *e) { return &e->schedule; }
Context *engine_context(Engine *e) { return &e->context; }
Gpt *engine_model(Engine *e) { return e->gpt; }
Optimizer *engine_optimizer(Engine *e) { return &e->optimizer; }
int64_t engine_optimizer_steps(const Engine *e) { return e->optimizer.steps; }
PipelineTimes engine_times(const Engine *e) { return pipeline_times(e->pipeline); }
