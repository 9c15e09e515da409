// An Engine: opens and closes one rank's share of a run, and takes its steps.
#include "train/engine/engine.h"
#include "base/trace.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t step_tokens(const Engine *e) { return engine_step_tokens(e); }

// ---- opening ------------------------------------------------------------------------------------

static void take_batches(Engine *e) {
    Arena *run = &e->runtime.run;
    int64_t m = e->spec.num_microbatches, tokens = engine_local_tokens(e);
    bool own_positions = e->spec.positions || (e->cuts && e->spec.shape.position == POSITION_ROTARY),
         rotary = e->spec.shape.position == POSITION_ROTARY,
         learned = e->spec.shape.position == POSITION_LEARNED;
    if (e->first) e->tokens = tensor_take(run, "tokens", m, tokens, I32);
    if (e->spec.first_keys) e->first_keys = tensor_take(run, "first keys", m, engine_first_keys(e), I32);
    sequences_take(e, run);
    if (own_positions && (rotary || (learned && e->first)))
        e->positions = tensor_take(run, "positions of tokens", m, tokens, I32);
    if (!e->last) return;
    e->labels = tensor_take(run, "labels", m, tokens, I32);
    e->losses = tensor_take(run, "losses", m, tokens, F32);
    if (e->spec.masked) e->mask = tensor_take(run, "loss mask", m, tokens, F32);
}

static Status open_model(Engine *e) {
    Context *c = &e->runtime.context;
    Arena *run = &e->runtime.run;
    int stages[SCHEDULE_MAX_CHUNKS], v = e->spec.num_chunks;
    e->leaves = leaves_of(&c->groups.topology, e->spec.virtual_data);
    e->params.leaves = e->leaves.count;
    // In a tree of leaves the tokens of each rank that sends rows to this one's experts have leaves of their own.
    c->mode.experts_apart = e->leaves.tree && context_ranks(c, ROLE_EXPERT) > 1;
    e->params.sources = c->mode.experts_apart ? context_ranks(c, ROLE_EXPERT) : 1;
    e->params.matrices_apart = e->spec.muon.iterations > 0;
    e->params.sharding = engine_sharding(&e->spec);
    e->params.cut_grads = engine_cuts_gradients(&e->spec);
    if (e->spec.share_values) e->params.shared = &e->runtime.shared;
    for (int i = 0; i < v; i++) stages[i] = schedule_stage(&e->schedule, context_rank(c, ROLE_PIPELINE), i);
    TRY(gpt_create(&e->gpt, &e->spec.shape, e->spec.split, c, &e->schedule, &e->params));
    params_place(&e->params, run, &c->groups.topology, e->spec.mode.dtype, stages, v);
    TRY(gpt_place(e->gpt, run));
    TRY(amax_open(&e->amax, &e->spec.mode, &e->params, run));
    c->amax = &e->amax;
    TRY(expert_loads_open(&e->loads, &e->spec.shape, &e->params));
    c->loads = &e->loads;
    take_batches(e);
    sequences_upload_orders(e);
    TRY(buckets_create(&e->buckets, c, &e->params, e->spec.bucket_elements));
    OptimizerOptions optimizer = {e->spec.adam,
                                  e->spec.muon,
                                  e->spec.ema_decay,
                                  {e->spec.offload, e->runtime.host, &e->runtime.host_run}};
    TRY(optimizer_create(&e->optimizer, c, e->runtime.world, &e->params, &e->buckets, run, optimizer));
    TRY(grad_reducer_create(&e->reducer, c, &e->params, &e->buckets, e->spec.overlap_gradients,
                            e->spec.overlap_weights, e->leaves.tree));
    if (e->params.sharding == SHARD_VALUES) {
        TRY(window_create(&e->window, c, &e->params, &e->buckets, run));
        e->reducer.window = &e->window;
    }
    if (e->params.cut_grads) {
        TRY(grad_window_create(&e->grad_window, c, &e->params, &e->buckets, run));
        e->reducer.grad_window = &e->grad_window;
    }
    c->watch = grad_reducer_watch(&e->reducer);
    PipelineSpec pipeline = {.schedule = &e->schedule,
                             .stage = engine_stage(e),
                             .arena = run,
                             .stash_bytes = e->memory.stash,
                             .recomputed_bytes = e->memory.recomputed,
                             .beside_bytes = e->memory.beside,
                             .measuring = runtime_is_measuring(&e->runtime),
                             .scatter_gather = e->spec.scatter_gather};
    memcpy(pipeline.capacity, e->memory.pools, sizeof pipeline.capacity);
    return pipeline_create(&e->pipeline, c, &pipeline);
}

// Finds the sizes of pools for the smaller batches of the run and for its audits, where these may need more than the
// largest one.
static Status find_pools(Engine *e) {
    const EngineSpec *spec = &e->spec;
    bool grow = schedule_kind(spec->schedule)->pools_grow;
    for (int i = 0; i < spec->num_smaller + spec->audits && !grow; i++) {
        Schedule schedule;
        int m = i < spec->num_smaller ? spec->smaller[i] : audit_microbatches(spec);
        ScheduleSpec one = engine_schedule_spec(spec, m);
        TRY(schedule_create(&schedule, &one));
        for (BufferKind kind = 0; kind < NUM_BUFFER_KINDS; kind++) {
            int size = schedule_pool(&schedule, context_rank(&e->runtime.context, ROLE_PIPELINE), kind);
            if (size > e->memory.pools[kind]) e->memory.pools[kind] = size;
        }
        schedule_destroy(&schedule);
    }
    return OK;
}

static bool take_pairs(Engine *e) {
    size_t m = (size_t)e->spec.num_microbatches, b = (size_t)e->spec.mode.microbatch;
    if (!e->spec.preference.loss || !e->last) return true;
    e->pairs = calloc(m, sizeof *e->pairs);
    e->outcomes = calloc(m * b, sizeof *e->outcomes);
    e->pair_room = malloc(3 * (size_t)step_tokens(e) * sizeof *e->pair_room);
    return e->pairs && e->outcomes && e->pair_room;
}

Status engine_open_share(Engine *e, const EngineSpec *spec, Comm *world, const EngineMemory *memory) {
    bool measuring = !memory->total;
    e->spec = *spec;
    e->memory = *memory;
    TRY(engine_check_experts(spec)); // the same on all ranks
    ScheduleSpec schedule = engine_schedule_spec(spec, spec->num_microbatches);
    TRY(schedule_create(&e->schedule, &schedule)); // the same on all ranks
    Topology topology = schedule_topology(&e->schedule, spec->grid, comm_rank(world));
    e->first = topology_is_first(&topology), e->last = topology_is_last(&topology);
    RuntimeMemory arenas = {memory->run, memory->scratch, memory->workspace, memory->shared, memory->host};
    RuntimeSpec runtime = {.topology = topology,
                           .roles = ALL_ROLES,
                           .device = spec->device,
                           .threads = spec->threads,
                           .ranks_per_gpu = spec->ranks_per_gpu,
                           .algorithms = spec->algorithms,
                           .mode = spec->mode,
                           .on_host = spec->offload > 0,
                           .memory = measuring ? NULL : &arenas};
    TRY(runtime_open(&e->runtime, &runtime, world));
    e->microbatches = calloc((size_t)spec->num_microbatches, sizeof *e->microbatches);
    e->host_losses = malloc((size_t)(spec->num_microbatches * step_tokens(e)) * sizeof *e->host_losses);
    if (!e->microbatches || !e->host_losses || !take_pairs(e))
        return fail(ERR_OS, "no memory for %d microbatches", spec->num_microbatches);
    TRY(sequences_create(e));
    if (measuring) TRY(find_pools(e));
    if (spec->audits) TRY(audit_create(e));
    return open_model(e);
}

void engine_close(Engine *e) {
    if (!e) return;
    if (e->reducer.gathering) grad_reducer_gather_wait(&e->reducer);
    window_destroy(&e->window);
    grad_window_destroy(&e->grad_window);
    pipeline_destroy(e->pipeline);
    grad_reducer_destroy(&e->reducer);
    amax_close(&e->amax);
    expert_loads_close(&e->loads);
    optimizer_destroy(&e->optimizer);
    buckets_destroy(&e->buckets);
    gpt_destroy(e->gpt);
    params_free(&e->params);
    schedule_destroy(&e->smaller[1]);
    schedule_destroy(&e->smaller[0]);
    schedule_destroy(&e->schedule);
    runtime_close(&e->runtime);
    audit_destroy(e);
    sequences_destroy(e);
    free(e->microbatches);
    free(e->host_losses);
    free(e->pairs);
    free(e->outcomes);
    free(e->pair_room);
    free(e);
}

static Status open_share(Engine *e, const EngineSpec *spec, Comm *world, const EngineMemory *memory,
                         const DeviceCalls *calls) {
    TRY(comm_agree(world, engine_open_share(e, spec, world, memory)));
    groups_name_rank(&e->runtime.context.groups);
    TRY(comm_agree(world, device_prepare(e->runtime.device, calls)));
    TRY(comm_agree(world, pipeline_connect(e->pipeline)));
    return comm_agree(world, context_connect(&e->runtime.context));
}

Status engine_open_empty(Engine **out, const EngineSpec *spec, Comm *world) {
    EngineSpec here = engine_spec_here(spec, comm_rank_here(world));
    here.share_values = here.share_values && engine_replicas_share_machines(here.grid, world);
    EngineMemory memory;
    DeviceCalls calls = {0};
    Engine *e = *out = calloc(1, sizeof *e);
    Status status = e ? engine_try(&here, comm_rank(world), &memory, NULL, &calls)
                      : fail(ERR_OS, "no memory for the engine");
    status = comm_agree(world, status);
    if (status == OK) status = open_share(e, &here, world, &memory, &calls);
    device_calls_free(&calls);
    if (status == OK) return OK;
    engine_close(e);
    *out = NULL;
    return status;
}

Status engine_init(Engine *e) {
    return comm_agree(e->runtime.world, params_init(&e->params, e->runtime.device, e->spec.shape.seed,
                                                    optimizer_write_master, &e->optimizer));
}

Status engine_open(Engine **out, const EngineSpec *spec, Comm *world) {
    TRY(engine_open_empty(out, spec, world));
    Status status = engine_init(*out);
    if (status == OK) return OK;
    engine_close(*out);
    *out = NULL;
    return status;
}

// ---- a step -------------------------------------------------------------------------------------

static Tensor row_or_absent(Tensor all, int row) { return all.data ? tensor_rows(all, row, 1) : (Tensor){0}; }

// Uses the schedule for m microbatches. The schedule of a smaller batch is kept until another one replaces it.
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

static void upload_batch(Engine *e, const Batch *batch) {
    int m = batch->num_microbatches;
    sequences_cut(e, batch);
    sequences_upload(e, e->tokens, m, batch->tokens);
    sequences_upload(e, e->labels, m, batch->labels);
    sequences_upload(e, e->first_keys, m, batch->first_keys);
    sequences_upload(e, e->positions, m, e->spec.positions ? batch->positions : NULL);
    sequences_upload(e, e->mask, m, batch->mask);
}

void engine_upload(Engine *e, const Batch *batch) {
    use_microbatches(e, batch->num_microbatches);
    upload_batch(e, batch);
}

// The pairs of microbatch k; NULL where there are none here.
static const PairBatch *pairs_of(Engine *e, const Batch *batch, int k) {
    int b = e->spec.mode.microbatch;
    if (!e->pairs) return NULL;
    e->pairs[k] =
        (PairBatch){.rule = e->spec.preference,
                    .samples = b,
                    .mask = batch->mask ? batch->mask + k * step_tokens(e) : NULL,
                    .starts = batch->mask ? batch->first_keys + k * step_tokens(e) : NULL,
                    .reference = batch->references ? batch->references + (size_t)k * (size_t)b : NULL,
                    .room = e->pair_room,
                    .outcomes = e->outcomes + (size_t)k * (size_t)b};
    return &e->pairs[k];
}

void engine_set_microbatch(Engine *e, const Batch *batch, int k, const InStep *at) {
    int b = e->spec.mode.microbatch, d = context_ranks(&e->runtime.context, ROLE_DATA);
    e->microbatches[k] = (Microbatch){
        .tokens = row_or_absent(e->tokens, k),
        .labels = row_or_absent(e->labels, k),
        .mask = row_or_absent(e->mask, k),
        .first_key = row_or_absent(e->first_keys, k),
        .positions = row_or_absent(e->positions, k),
        .loss = row_or_absent(e->losses, k),
        .pairs = pairs_of(e, batch, k),
        .loss_scale = (float)(at->loss_scale / (engine_counted_tokens(e, batch, k) * at->microbatches * d)),
        .router_scale = (float)(at->loss_scale * e->router_share / (at->microbatches * d)),
        .first_sample = batch->consumed + leaves_first_sample(at->leaves, at->place, b),
        .samples = b,
        .place = at->place,
        .sequence = e->spec.shape.sequence / context_ranks(&e->runtime.context, ROLE_CONTEXT),
        .training = at->training,
    };
    sequences_set(e, k, &e->microbatches[k]);
}

static void load_batch(Engine *e, const Batch *batch, bool training, double loss_scale) {
    int m = batch->num_microbatches;
    engine_upload(e, batch);
    amax_begin(&e->amax, e->runtime.device, e->runtime.context.stream);
    expert_loads_begin(&e->loads);
    e->router_share = engine_router_share(e, batch);
    for (int k = 0; k < m; k++) {
        InStep at = {&e->leaves, leaves_place(&e->leaves, m, k), m, loss_scale, training};
        engine_set_microbatch(e, batch, k, &at);
    }
}

static DeviceMark phase_start(const Engine *e) {
    return trace_on() ? device_mark(e->runtime.device, e->runtime.context.stream) : (DeviceMark){0};
}

// From `start` to where the device's stream is now, for which it waits.
static void trace_phase(const Engine *e, const char *name, DeviceMark start) {
    if (!trace_on()) return;
    DeviceMark end = phase_start(e);
    device_mark_read(e->runtime.device, &start), device_mark_read(e->runtime.device, &end);
    trace_add_phase(name, start.wall_s, end.wall_s, -1);
}

// A parameter that no backward has reached would keep the gradient of the last step.
static void check_grads(const Params *params) {
    for (int i = 0; i < params->count; i++)
        CHECK(!params->items[i]->grad_uninitialized, "no backward made a gradient of %s",
              params->items[i]->spec.name);
}

StepResult engine_gradients(Engine *e, Batch batch, double loss_scale) {
    load_batch(e, &batch, true, loss_scale);
    if (!e->grads_zeroed) params_zero_grads(&e->params, e->runtime.device);
    e->grads_zeroed = true;
    if (!e->listener) params_begin_grads(&e->params);
    audit_begin_step(e);
    pipeline_train(e->pipeline, e->microbatches, &e->reducer);
    audit_end_step(e);
    check_grads(&e->params);
    DeviceMark start = phase_start(e);
    grad_reducer_finish(&e->reducer);
    trace_phase(e, "finish gradients", start);
    int data_ranks = context_ranks(&e->runtime.context, ROLE_DATA);
    expert_loads_end(&e->loads, e->runtime.world, batch.num_microbatches * data_ranks);
    StepResult result = {.loss = (float)engine_mean_loss(e, &batch)};
    result.grad_norm = optimizer_grad_norm(&e->optimizer, engine_gradient_scale(e, &batch, loss_scale));
    result.finite = isfinite(result.loss) && isfinite(result.grad_norm);
    result.differs = audit_differs(e);
    return result;
}

StepResult engine_train(Engine *e, Batch batch, StepOptions options) {
    StepResult result = engine_gradients(e, batch, options.loss_scale);
    DeviceMark start = phase_start(e);
    if (result.finite && !result.differs) {
        optimizer_step(&e->optimizer, result.grad_norm, engine_gradient_scale(e, &batch, options.loss_scale),
                       options.lr, options.weight_decay);
        grad_reducer_gather(&e->reducer);
        expert_biases_step(&e->loads, e->runtime.device, e->runtime.context.stream, e->spec.bias_rate);
        amax_end(&e->amax, e->runtime.device, e->runtime.context.stream, e->runtime.world);
    }
    trace_phase(e, "optimizer", start);
    return result;
}

float engine_evaluate(Engine *e, Batch batch) {
    load_batch(e, &batch, false, 1);
    pipeline_evaluate(e->pipeline, e->microbatches);
    return (float)engine_mean_loss(e, &batch);
}

const ExpertLoads *engine_expert_loads(const Engine *e) { return e->loads.layers ? &e->loads : NULL; }

const PairMeans *engine_pair_means(const Engine *e) {
    return e->spec.preference.loss ? &e->pair_means : NULL;
}

const PairOutcome *engine_pair_outcomes(const Engine *e) { return e->outcomes; }

const EngineMemory *engine_memory(const Engine *e) { return &e->memory; }

const Params *engine_params(Engine *e) {
    grad_reducer_gather_wait(&e->reducer);
    return &e->params;
}

void engine_values_change(Engine *e) {
    if (!e->reducer.window) return;
    // Others may still use what this rank is about to write.
    if (e->params.shared) comm_barrier(context_group(&e->runtime.context, ROLE_REPLICAS));
    window_forget(e->reducer.window);
}

const EngineSpec *engine_spec_of(const Engine *e) { return &e->spec; }
const Schedule *engine_schedule(const Engine *e) { return &e->schedule; }
Context *engine_context(Engine *e) { return &e->runtime.context; }
Gpt *engine_model(Engine *e) { return e->gpt; }
Optimizer *engine_optimizer(Engine *e) { return &e->optimizer; }
int64_t engine_optimizer_steps(const Engine *e) { return e->optimizer.steps; }
PipelineTimes engine_times(Engine *e) { return pipeline_times(e->pipeline); }
