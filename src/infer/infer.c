// Inference on one rank: opens a model, reads its weights, computes logits and losses.
#include "infer/internal.h"
#include "layout/kinds.h"
#include "layout/layers.h"
#include "nn/runtime.h"
#include <stdlib.h>
#include <string.h>

struct Infer {
    InferSpec spec;
    ModelShape shape; // with a sequence of `capacity` positions
    Runtime runtime;
    Schedule schedule; // of one microbatch: which rank has which stage
    Params params;
    Gpt *gpt;
    Stage stage;
    Slot slot;
    Tensor input, output;   // [n * B, H], n: the most positions of a call
    Tensor tokens, labels;  // I32 [1, n * B]; on the first, on the last stage
    Tensor losses, margins; // F32 [1, n * B]; broadcast to every rank
    Tensor logits;          // F32 [B, V/t]; on the last stage
    Tensor gathered;        // F32 [t * B, V/t]; broadcast to every rank
    float *host_logits;     // [t * B, V/t]
    int32_t *history;       // [capacity, B] the tokens so far
    int position;
    bool first, last; // this rank holds the first, the last stage
};

// ---- checks --------------------------------------------------------------------------------

static Status check_cut(const char *what, int size, int tp) {
    if (size % tp == 0) return OK;
    return fail(ERR_CONFIG, "--tensor-model-parallel-size %d does not divide the model's %d %s", tp, size,
                what);
}

static Status check_spec(const ModelShape *shape, const InferSpec *spec, const Comm *world) {
    Grid grid = spec->grid;
    CHECK(spec->batch >= 1 && spec->longest >= 1 && spec->longest <= spec->capacity,
          "%d sequences of %d positions, %d at a time", spec->batch, spec->capacity, spec->longest);
    if (grid_count(grid, ROLE_REPLICAS) != 1 || grid_size(grid) != comm_size(world))
        return fail(ERR_CONFIG,
                    "there are %d ranks, but the model needs --tensor-model-parallel-size %d times "
                    "--pipeline-model-parallel-size %d ranks",
                    comm_size(world), grid_along(grid, AXIS_TP), grid_along(grid, AXIS_PP));
    TRY(check_cut("attention heads", shape->heads, grid_along(grid, AXIS_TP)));
    TRY(check_cut("query groups", model_groups(shape), grid_along(grid, AXIS_TP)));
    TRY(check_cut("columns of the mlp", shape->ffn, grid_along(grid, AXIS_TP)));
    if (shape->position != POSITION_LEARNED || spec->capacity <= shape->positions) return OK;
    return fail(ERR_CONFIG, "%d positions are needed, but the model has learned %d", spec->capacity,
                shape->positions);
}

// ---- opening ----------------------------------------------------------------------------------------

// Divides the layers among the stages as evenly as possible.
static Status create_model(Infer *f) {
    int stages = grid_along(f->spec.grid, AXIS_PP), *counts = malloc((size_t)stages * sizeof *counts);
    if (!counts) return fail(ERR_OS, "no memory for %d stages", stages);
    layer_balance(f->shape.layers, stages, 0, 0, counts);
    LayerSplit layers = {.layers = f->shape.layers, .counts = counts};
    Status status = gpt_create(&f->gpt, &f->shape, layers, &f->runtime.context, &f->schedule, &f->params);
    free(counts);
    return status;
}

static int most_positions(const InferSpec *spec) { return spec->cache ? spec->longest : spec->capacity; }

static void take_tensors(Infer *f) {
    int64_t batch = f->spec.batch, rows = most_positions(&f->spec) * batch;
    int64_t width = f->runtime.context.mode.padded_vocabulary / grid_along(f->spec.grid, AXIS_TP);
    Arena *run = &f->runtime.run;
    DType dtype = f->spec.dtype;
    f->input = tensor_take(run, "stage input", rows, f->shape.hidden, dtype);
    f->output = tensor_take(run, "stage output", rows, f->shape.hidden, dtype);
    if (f->first) f->tokens = tensor_take(run, "tokens", 1, rows, I32);
    if (f->last) f->labels = tensor_take(run, "labels", 1, rows, I32);
    if (f->last) f->logits = tensor_take(run, "logits of the next token", batch, width, F32);
    f->losses = tensor_take(run, "losses", 1, rows, F32);
    f->margins = tensor_take(run, "margins", 1, rows, F32);
    f->gathered = tensor_take(run, "gathered logits", batch * grid_along(f->spec.grid, AXIS_TP), width, F32);
}

static Status open_model(Infer *f) {
    TRY(create_model(f));
    f->params.values_only = true;
    params_place(&f->params, &f->runtime.run, &f->runtime.context.groups.topology, f->spec.dtype,
                 (int[]){context_rank(&f->runtime.context, ROLE_PIPELINE)}, 1);
    TRY(gpt_place(f->gpt, &f->runtime.run));
    if (f->spec.cache) gpt_place_cache(f->gpt, &f->runtime.run, f->spec.capacity);
    take_tensors(f);
    f->stage = gpt_stage(f->gpt);
    f->slot.layers = calloc(1, f->stage.slot_layers_bytes + 1);
    f->host_logits = malloc(tensor_bytes(f->gathered));
    f->history = calloc((size_t)f->spec.capacity * (size_t)f->spec.batch, sizeof *f->history);
    if (f->slot.layers && f->host_logits && f->history) return OK;
    return fail(ERR_OS, "no memory for %d sequences of %d tokens", f->spec.batch, f->spec.capacity);
}

// Opens this rank's share without weights. `memory` NULL: measures. The caller closes it when this fails.
static Status open_share(Infer *f, const ModelShape *shape, const InferSpec *spec, Comm *world,
                         const RuntimeMemory *memory) {
    f->spec = *spec, f->shape = *shape;
    f->shape.sequence = spec->capacity;
    ScheduleSpec schedule = {.kind = schedule_kind_default(1)->name,
                             .ranks = grid_along(spec->grid, AXIS_PP),
                             .chunks = 1,
                             .microbatches = 1};
    TRY(schedule_create(&f->schedule, &schedule)); // the same on all ranks
    Topology topology = schedule_topology(&f->schedule, spec->grid, comm_rank(world));
    f->first = topology_is_first(&topology), f->last = topology_is_last(&topology);
    // All layers of a stage are one group to be recomputed, so that none of them keeps anything for a backward.
    ModelMode mode = {.microbatch = spec->batch,
                      .padded_vocabulary = padded_vocabulary(shape->vocabulary, VOCABULARY_DIVISOR,
                                                             grid_along(spec->grid, AXIS_TP)),
                      .dtype = spec->dtype,
                      .recompute = RECOMPUTE_UNIFORM,
                      .recompute_layers = shape->layers};
    RuntimeSpec runtime = {.topology = topology,
                           .roles = 1u << ROLE_TENSOR | 1u << ROLE_PIPELINE,
                           .device = spec->device,
                           .threads = spec->threads,
                           .ranks_per_gpu = spec->ranks_per_gpu,
                           .algorithms = spec->algorithms,
                           .mode = mode,
                           .memory = memory};
    TRY(runtime_open(&f->runtime, &runtime, world));
    return open_model(f);
}

void infer_close(Infer *f) {
    if (!f) return;
    free(f->history);
    free(f->host_logits);
    free(f->slot.layers);
    gpt_destroy(f->gpt);
    params_free(&f->params);
    schedule_destroy(&f->schedule);
    runtime_close(&f->runtime);
    free(f);
}

// ---- one pass through all stages --------------------------------------------------------------------

static Tensor uploaded(Infer *f, Tensor room, const int32_t *values, int64_t count) {
    Tensor x = tensor_part(room, 0, count);
    device_upload(f->runtime.device, f->runtime.context.stream, x, values);
    return x;
}

static void receive_input(Infer *f) {
    Context *c = &f->runtime.context;
    CommRequest *request = comm_recv(context_group(c, ROLE_PIPELINE), c->stream, f->slot.input,
                                     context_rank(c, ROLE_PIPELINE) - 1, 0);
    comm_wait(context_group(c, ROLE_PIPELINE), c->stream, &request);
}

static void send_output(Infer *f) {
    Context *c = &f->runtime.context;
    CommRequest *request = comm_send(context_group(c, ROLE_PIPELINE), c->stream, f->slot.output,
                                     context_rank(c, ROLE_PIPELINE) + 1, 0);
    comm_wait(context_group(c, ROLE_PIPELINE), c->stream, &request);
}

// Runs n positions of every sequence from `position` on, tokens [n, B]. Then the last stage has the losses of the
// labels, or without labels the logits of the next token.
static void forward(Infer *f, const int32_t *tokens, const int32_t *labels, int position, int n,
                    bool cached) {
    int64_t rows = (int64_t)n * f->spec.batch;
    Microbatch mb = {
        .loss_scale = 1, .samples = f->spec.batch, .sequence = n, .position = position, .cached = cached};
    rank_doing("positions %d to %d", position, position + n - 1);
    f->slot.input = tensor_rows(f->input, 0, rows), f->slot.output = tensor_rows(f->output, 0, rows);
    if (f->first)
        mb.tokens = uploaded(f, f->tokens, tokens, rows);
    else
        receive_input(f);
    if (f->last && labels) {
        mb.labels = uploaded(f, f->labels, labels, rows);
        mb.loss = tensor_part(f->losses, 0, rows);
        mb.margin = tensor_part(f->margins, 0, rows);
    }
    gpt_keep_logits(f->gpt, labels ? (Tensor){0} : f->logits);
    f->stage.forward(f->stage.self, 0, &f->slot, &mb);
    if (!f->last) send_output(f);
}

// ---- measuring, and reading the weights ---------------------------------------------------------------------

typedef struct {
    const ModelShape *shape;
    const InferSpec *spec;
    RuntimeMemory *memory;
} Measurement;

// Makes the calls that need the most memory: the longest one after the most positions, and one with labels.
static Status measure_share(Comm *world, void *arg) {
    const Measurement *job = arg;
    const InferSpec *spec = job->spec;
    Infer *f = calloc(1, sizeof *f);
    if (!f) return fail(ERR_OS, "no memory for a trial run");
    Status status = open_share(f, job->shape, spec, world, NULL);
    if (status == OK) {
        int n = most_positions(spec);
        forward(f, f->history, f->history, 0, spec->longest, false);
        forward(f, f->history, NULL, spec->capacity - n, n, spec->cache);
        if (spec->cache) forward(f, f->history, f->history, spec->capacity - n, n, true);
        *job->memory = runtime_memory_used(&f->runtime);
    }
    infer_close(f);
    return status;
}

static Status measure(const ModelShape *shape, const InferSpec *spec, const Comm *world,
                      RuntimeMemory *memory) {
    TRY(check_spec(shape, spec, world));
    Measurement job = {shape, spec, memory};
    return runtime_run_alone(comm_size(world), comm_rank(world), measure_share, &job);
}

// Every stage sends to the next one.
static Status connect(Infer *f) {
    Context *c = &f->runtime.context;
    int count = context_ranks(c, ROLE_PIPELINE) - 1;
    CommChannel *channels = calloc((size_t)count + 1, sizeof *channels);
    CHECK(channels, "no memory for %d channels", count);
    for (int i = 0; i < count; i++) channels[i] = (CommChannel){i, i + 1, 0};
    Status status = comm_open_channels(context_group(c, ROLE_PIPELINE), channels, count);
    free(channels);
    return status;
}

static Status open_and_fill(Infer *f, const ModelShape *shape, WeightReader reader, const InferSpec *spec,
                            Comm *world, const RuntimeMemory *memory) {
    TRY(comm_agree(world, open_share(f, shape, spec, world, memory)));
    groups_name_rank(&f->runtime.context.groups);
    TRY(comm_agree(world, connect(f)));
    return comm_agree(world,
                      params_fill(&f->params, f->runtime.device, weight_reader_fill, &reader, NULL, NULL));
}

Status infer_open_with(Infer **out, const ModelShape *shape, WeightReader reader, const InferSpec *spec,
                       Comm *world) {
    RuntimeMemory memory;
    Infer *f = *out = calloc(1, sizeof *f);
    Status status = f ? measure(shape, spec, world, &memory) : fail(ERR_OS, "no memory for the model");
    status = comm_agree(world, status);
    if (status == OK) status = open_and_fill(f, shape, reader, spec, world, &memory);
    if (status == OK) return OK;
    infer_close(f);
    *out = NULL;
    return status;
}

Status infer_open(Infer **infer, ModelSource *source, const InferSpec *spec, Comm *world) {
    return infer_open_with(infer, &model_source_info(source)->shape, model_source_reader(source), spec,
                           world);
}

Status infer_choose(Infer *f, ModelSource *source, int adapter, Comm *world) {
    WeightReader reader = model_source_reader(source);
    model_source_choose(source, adapter);
    f->runtime.context.adapters_off = adapter < 0;
    if (adapter < 0) return OK;
    return comm_agree(world,
                      params_fill_adapters(&f->params, f->runtime.device, weight_reader_fill, &reader));
}

const ModelShape *infer_shape(const Infer *f) { return &f->shape; }

// ---- logits and losses ----------------------------------------------------------------------------------------

// Copies a tensor of the last stage to every rank, and to its host memory.
static void broadcast_result(Infer *f, Tensor x, float *host) {
    Context *c = &f->runtime.context;
    comm_broadcast(context_group(c, ROLE_PIPELINE), c->stream, x, context_ranks(c, ROLE_PIPELINE) - 1);
    device_download(f->runtime.device, c->stream, host, x);
}

// Gathers the shares of the vocabulary, and copies whole rows without padding to `logits`.
static void copy_logits(Infer *f, float *logits) {
    Context *c = &f->runtime.context;
    int64_t batch = f->spec.batch, width = f->gathered.cols, vocabulary = f->shape.vocabulary;
    if (f->last) comm_all_gather(context_group(c, ROLE_TENSOR), c->stream, f->logits, f->gathered);
    broadcast_result(f, f->gathered, f->host_logits);
    for (int64_t i = 0; i < f->gathered.rows; i++) {
        int64_t first = i / batch * width, left = vocabulary - first;
        int64_t count = left < width ? left : width;
        if (count > 0 && logits)
            memcpy(logits + i % batch * vocabulary + first, f->host_logits + i * width,
                   (size_t)count * sizeof *logits);
    }
}

static void remember(Infer *f, const int32_t *tokens, int n) {
    CHECK(n >= 1 && n <= f->spec.longest && n <= f->spec.capacity - f->position,
          "%d tokens after %d; %d at a time, %d in all", n, f->position, f->spec.longest, f->spec.capacity);
    size_t batch = (size_t)f->spec.batch;
    memcpy(f->history + (size_t)f->position * batch, tokens, (size_t)n * batch * sizeof *tokens);
}

void infer_next(Infer *f, const int32_t *tokens, int n, float *logits) {
    remember(f, tokens, n);
    if (f->spec.cache)
        forward(f, tokens, NULL, f->position, n, true);
    else
        forward(f, f->history, NULL, 0, f->position + n, false);
    f->position += n;
    copy_logits(f, logits);
}

int infer_position(const Infer *f) { return f->position; }

void infer_rewind(Infer *f, int position) {
    CHECK(position >= 0 && position <= f->position, "back to %d from %d", position, f->position);
    f->position = position;
}

static void give_scores(Infer *f, int64_t count, float *nll, float *margin) {
    broadcast_result(f, tensor_part(f->losses, 0, count), nll);
    if (margin) broadcast_result(f, tensor_part(f->margins, 0, count), margin);
}

void infer_append(Infer *f, const int32_t *tokens, const int32_t *labels, int n, float *nll, float *margin) {
    CHECK(f->spec.cache, "tokens are appended without a cache");
    remember(f, tokens, n);
    forward(f, tokens, labels, f->position, n, true);
    f->position += n;
    if (labels) give_scores(f, (int64_t)n * f->spec.batch, nll, margin);
}

void infer_score(Infer *f, const int32_t *tokens, const int32_t *labels, int n, float *nll, float *margin) {
    CHECK(n >= 1 && n <= f->spec.longest, "%d labels; %d at a time", n, f->spec.longest);
    forward(f, tokens, labels, 0, n, false);
    give_scores(f, (int64_t)n * f->spec.batch, nll, margin);
}
