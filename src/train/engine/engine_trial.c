// Runs the trainer's own step on the null device and the null transport: measures its memory or records its operations.
#include "train/engine/engine.h"
#include <stdlib.h>
#include <string.h>

// ---- what runs now ------------------------------------------------------------------------------

static const Instr no_compute = {.op = NUM_SCHEDULE_OPS};

static Instr compute(const Engine *e, ScheduleOp op, int chunk, const Microbatch *mb) {
    return (Instr){.op = (uint8_t)op,
                   .chunk = (uint8_t)chunk,
                   .peer = -1,
                   .microbatch = (int32_t)(mb - e->microbatches)};
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

// The stage of the model. With a listener it also notes which compute runs.
Stage engine_stage(Engine *e) {
    Stage stage = e->stage = gpt_stage(e->gpt);
    e->at = no_compute;
    if (e->audit) stage = audit_stage(e);
    if (e->listener) stage.self = e, stage.forward = noted_forward, stage.backward = noted_backward;
    return stage;
}

static const Instr *compute_now(const Engine *e) { return e->at.op == NUM_SCHEDULE_OPS ? NULL : &e->at; }

static void report_operation(void *self, DeviceOp op, const void *args, OpCount one) {
    const Engine *e = self;
    e->listener->operation(e->listener->self, compute_now(e), op, args, one);
}

static void report_call(void *self, const Comm *group, CommOp op, DType dtype, size_t bytes) {
    const Engine *e = self;
    e->listener->call(e->listener->self, compute_now(e), group, op, dtype, bytes);
}

// ---- measuring and recording ------------------------------------------------------------------

typedef struct {
    const EngineSpec *spec;
    EngineMemory *memory;
    Text *map;          // or NULL
    DeviceCalls *calls; // or NULL
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
    RuntimeMemory arenas = runtime_memory_used(&e->runtime);
    const Arena *beside = pipeline_beside(e->pipeline);
    EngineMemory used = {.run = arenas.run,
                         .stash = pipeline_pool_peak(e->pipeline, BUFFER_STASH),
                         .num_stashes = pipeline_pool_count(e->pipeline, BUFFER_STASH),
                         .recomputed = pipeline_pool_peak(e->pipeline, BUFFER_RECOMPUTED),
                         .num_recomputed = pipeline_pool_count(e->pipeline, BUFFER_RECOMPUTED),
                         .scratch = arenas.scratch,
                         .beside = beside ? beside->peak : 0,
                         .workspace = arenas.workspace,
                         .shared = arenas.shared,
                         .host = arenas.host,
                         .sharers = context_ranks(&e->runtime.context, ROLE_REPLICAS),
                         .flops = counted_flops(e->runtime.device)};
    memcpy(used.pools, e->memory.pools, sizeof used.pools);
    used.total = used.run + used.stash * (size_t)used.num_stashes +
                 used.recomputed * (size_t)used.num_recomputed + used.scratch + used.beside + used.workspace +
                 used.shared / (size_t)used.sharers;
    return used;
}

// Prints the arenas: the fullest stash as the last microbatch left it, and the peak of the scratch, which is empty now.
static void print_arenas(const Engine *e, Text *map) {
    const Arena *stash = pipeline_pool_fullest(e->pipeline, BUFFER_STASH);
    const Arena *recomputed = pipeline_pool_fullest(e->pipeline, BUFFER_RECOMPUTED);
    arena_print(&e->runtime.run, add_line, map);
    if (e->runtime.shared.used) arena_print(&e->runtime.shared, add_line, map);
    if (e->runtime.host_run.used) arena_print(&e->runtime.host_run, add_line, map);
    if (stash) arena_print(stash, add_line, map);
    if (recomputed) arena_print(recomputed, add_line, map);
    arena_print(&e->runtime.scratch, add_line, map);
    if (pipeline_beside(e->pipeline)) arena_print(pipeline_beside(e->pipeline), add_line, map);
}

static Status measure_share(Comm *world, void *arg) {
    const Measurement *job = arg;
    Engine *e = calloc(1, sizeof *e);
    if (!e) return fail(ERR_OS, "no memory for a trial run");
    Status status = engine_open_share(e, job->spec, world, &(EngineMemory){0});
    if (status == OK) {
        Batch largest = {.num_microbatches = job->spec->num_microbatches};
        if (job->calls) device_on_operation(e->runtime.device, device_calls_note, job->calls);
        engine_evaluate(e, largest);
        device_counts_reset(e->runtime.device);
        engine_train(e, largest, (StepOptions){.loss_scale = 1});
        *job->memory = engine_memory_used(e);
        if (job->map) print_arenas(e, job->map);
    }
    engine_close(e);
    return status;
}

Status engine_try(const EngineSpec *spec, int rank, EngineMemory *memory, Text *map, DeviceCalls *calls) {
    *memory = (EngineMemory){0};
    Measurement job = {spec, memory, map, calls};
    return runtime_run_alone(grid_size(spec->grid), rank, measure_share, &job);
}

Status engine_measure(const EngineSpec *spec, int rank, EngineMemory *memory, Text *map) {
    return engine_try(spec, rank, memory, map, NULL);
}

static Status record_share(Comm *world, void *arg) {
    const Recording *job = arg;
    const StepListener *listener = job->listener;
    Engine *e = calloc(1, sizeof *e);
    if (!e) return fail(ERR_OS, "no memory for a recorded run");
    e->listener = listener;
    Status status = engine_open_share(e, job->spec, world, &(EngineMemory){0});
    if (status == OK) {
        listener->opened(listener->self, &e->params);
        device_on_operation(e->runtime.device, report_operation, e);
        comm_on_call(world, report_call, e);
        engine_train(e, (Batch){.num_microbatches = job->spec->num_microbatches},
                     (StepOptions){.loss_scale = 1});
        comm_on_call(world, NULL, NULL);
    }
    engine_close(e);
    return status;
}

Status engine_record(const EngineSpec *spec, int rank, const StepListener *listener) {
    Recording job = {spec, listener};
    return runtime_run_alone(grid_size(spec->grid), rank, record_share, &job);
}
