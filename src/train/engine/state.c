// A rank's parameters and moments as rectangles of global tensors, and their reading from a source.
#include "base/half.h"
#include "train/engine/engine.h"
#include <stdlib.h>
#include <string.h>

// ---- out ----------------------------------------------------------------------------------------

typedef struct {
    const Engine *engine;
    Context *context;
    bool moments, copied;
    EngineState *state;
    int capacity; // of slices; 0: they are only counted
    int64_t used; // elements of the copy so far
} Gathering;

// The replicas that keep a part share the work of saving it. Returns the first element that replica k saves, the start
// of a row where there are enough rows.
static int64_t duty(const OwnedPart *part, int k) {
    int64_t width = part->param->value.cols, at = part->count * k / part->copies;
    return k < part->copies && part->count >= width * part->copies ? at / width * width : at;
}

// The elements of a slice in the device's memory: F32, or the remainders beside bf16 values.
struct OnDevice {
    Device *device;
    Stream *stream;
    Tensor numbers, values;
};

static void download(const Slice *slice, int64_t at, int64_t count, float *to) {
    enum { BLOCK = 1 << 16 };
    const struct OnDevice *from = slice->source;
    Device *device = from->device;
    Stream *stream = from->stream;
    if (from->numbers.dtype == F32) {
        device_download(device, stream, to, tensor_part(from->numbers, at, count));
        return;
    }
    uint16_t *halves = malloc(2 * BLOCK * sizeof *halves);
    CHECK(halves, "no memory for %d elements of %s", BLOCK, slice->tensor);
    for (int64_t done = 0, some; done < count; done += some) {
        some = count - done < BLOCK ? count - done : BLOCK;
        device_download(device, stream, halves, tensor_part(from->values, at + done, some));
        device_download(device, stream, halves + BLOCK, tensor_part(from->numbers, at + done, some));
        for (int64_t i = 0; i < some; i++) to[done + i] = bf16_join(halves[i], halves[BLOCK + i]);
    }
    free(halves);
}

// The place of a part's numbers: on the device, or in a copy on the host.
typedef struct {
    struct OnDevice on_device;
    const float *floats;
    const uint16_t *value_halves, *remainder_halves;
} Numbers;

static void point_to(Slice *slice, const Gathering *g, int at, const Numbers *n, PlacementRect rect,
                     int64_t begin) {
    int64_t first = rect.local - begin, extent = (rect.rows - 1) * rect.stride + rect.cols;
    if (n->floats)
        slice->data = n->floats + first;
    else if (n->value_halves)
        slice->values = n->value_halves + first, slice->remainders = n->remainder_halves + first;
    else {
        struct OnDevice *source = &g->state->sources[at];
        *source = n->on_device;
        source->numbers = tensor_part(source->numbers, first, extent);
        if (source->values.data) source->values = tensor_part(source->values, first, extent);
        slice->read = download;
        slice->source = source;
    }
}

static void add_rects(Gathering *g, const OwnedPart *part, StateTensor which, const Numbers *numbers) {
    const ParamSpec *spec = &part->param->spec;
    PlacementRects rects = placement_rects(&part->param->place, part->begin, part->count);
    for (PlacementRect rect; placement_next_rect(&rects, &rect);) {
        g->state->bytes += rect.rows * rect.cols * (int64_t)sizeof(float);
        int at = g->state->count++;
        if (!g->capacity) continue;
        CHECK(at < g->capacity, "more slices than were counted");
        Slice *slice = &g->state->items[at];
        *slice = (Slice){.rows = spec->real_rows,
                         .cols = spec->cols,
                         .rect = {rect.row, rect.col, rect.rows, rect.cols},
                         .stride = rect.stride};
        point_to(slice, g, at, numbers, rect, part->begin);
        state_tensor_name(which, spec->name, slice->tensor);
    }
}

// A copy holds values and remainders one after the other, in the space of as many floats.
static Numbers numbers_of(Gathering *g, const OwnedPart *part, Tensor owned, Tensor value) {
    int64_t count = tensor_count(owned);
    bool halves = owned.dtype != F32;
    if (!g->copied)
        return (Numbers){.on_device = {part->device, part->stream, owned, halves ? value : (Tensor){0}}};
    float *copy = g->state->memory + g->used;
    uint16_t *first = (uint16_t *)copy;
    g->used += count;
    if (halves) device_download(part->device, part->stream, first, value);
    device_download(part->device, part->stream, halves ? (void *)(first + count) : copy, owned);
    return halves ? (Numbers){.value_halves = first, .remainder_halves = first + count}
                  : (Numbers){.floats = copy};
}

// What `m` of a part is: Muon keeps no second moment beside it.
static StateTensor first_moment(const OwnedPart *part) {
    return part->v.data ? STATE_EXP_AVG : STATE_MOMENTUM;
}

// One rank's copy of what several hold is enough; a tied copy is its original.
static Status gather_part(void *self, const OwnedPart *whole) {
    Gathering *g = self;
    if (whole->param->spec.tied_to || !whole->param->place.first) return OK;
    int64_t from = duty(whole, whole->copy), to = duty(whole, whole->copy + 1);
    OwnedPart part = {.param = whole->param, .begin = whole->begin + from, .count = to - from};
    Tensor all[NUM_STATE_TENSORS] = {[STATE_WEIGHT] = whole->main, [STATE_EMA] = whole->ema};
    if (g->moments) all[first_moment(whole)] = whole->m, all[STATE_EXP_AVG_SQ] = whole->v;
    for (StateTensor t = 0; t < NUM_STATE_TENSORS; t++) {
        if (part.count <= 0 || !all[t].data) continue;
        Numbers numbers = {0};
        if (g->capacity)
            numbers = numbers_of(g, whole, tensor_part(all[t], from, part.count),
                                 tensor_part(whole->value, from, part.count));
        else
            g->used += part.count;
        add_rects(g, &part, t, &numbers);
    }
    return OK;
}

Status state_bytes(const ModelShape *shape, const StateKinds *kinds, int64_t *bytes) {
    WeightSpec *weights;
    int count;
    *bytes = 0;
    TRY(model_weights(shape, &weights, &count));
    for (int i = 0; i < count; i++) {
        if (weights[i].is_frozen) continue;
        if (weights[i].is_by_rule) {
            *bytes += weights[i].rows * weights[i].cols * (int64_t)sizeof(float);
            continue;
        }
        int moments = kinds->muon && weights[i].is_hidden_matrix ? 1 : 2;
        int tensors = 1 + (kinds->moments ? moments : 0) + kinds->ema;
        *bytes += weights[i].rows * weights[i].cols * (int64_t)sizeof(float) * tensors;
    }
    free(weights);
    return OK;
}

Status spec_state_bytes(const EngineSpec *spec, bool moments, int64_t *bytes) {
    StateKinds kinds = {moments, spec->muon.iterations > 0, spec->ema_decay > 0};
    TRY(state_bytes(&spec->shape, &kinds, bytes));
    if (moments && amax_is_wanted(&spec->mode))
        *bytes += amax_rows(&spec->shape) * (1 + spec->mode.delayed.history) * (int64_t)sizeof(float);
    return OK;
}

// The history of delayed scaling is the same on all ranks; rank 0 saves it. A row is what scales are made of, then the
// steps.
static Status gather_amax(Gathering *g, Engine *e) {
    const AmaxHistory *amax = &e->amax;
    int64_t rows = amax->rows, steps = amax->rule.history, cols = 1 + steps;
    if (!g->moments || !rows || comm_rank(e->runtime.world) != 0) return OK;
    g->state->bytes += rows * cols * (int64_t)sizeof(float);
    int at = g->state->count++;
    if (!g->capacity) return OK;
    free(g->state->amax);
    float *to = g->state->amax = malloc((size_t)(rows * cols) * sizeof *to);
    if (!to)
        return fail(ERR_OS, "no memory for %lld magnitudes of delayed scaling", (long long)(rows * cols));
    for (int64_t i = 0; i < rows; i++, to += cols) {
        to[0] = amax->largest[i];
        memcpy(to + 1, amax->history + i * steps, (size_t)steps * sizeof *to);
    }
    g->state->items[at] = (Slice){
        .tensor = STATE_AMAX_NAME, .rows = rows, .cols = cols, .rect = {0, 0, rows, cols}, .stride = cols};
    g->state->items[at].data = g->state->amax;
    return OK;
}

// Parameters that no optimizer steps: every replica has the whole of them.
static Status gather_by_rule(Gathering *g) {
    const Params *params = g->engine->optimizer.params;
    for (int i = 0; i < params->count && !params->adapters_only; i++) {
        const Param *p = params->items[i];
        if (!p->spec.by_rule || p->chunk < 0) continue;
        OwnedPart whole = {.param = p,
                           .count = param_local_count(p),
                           .device = g->context->device,
                           .stream = g->context->stream,
                           .value = p->value,
                           .main = p->value,
                           .copies = context_ranks(g->context, ROLE_REPLICAS),
                           .copy = context_rank(g->context, ROLE_REPLICAS)};
        TRY(gather_part(g, &whole));
    }
    return OK;
}

static Status take_copy(EngineState *state, int64_t elements) {
    if (state->capacity >= elements) return OK;
    free(state->memory);
    state->capacity = elements;
    state->memory = calloc((size_t)elements + 1, sizeof *state->memory);
    if (state->memory) return OK;
    state->capacity = 0;
    return fail(ERR_OS, "no memory for a copy of %lld bytes of parameters and moments (--async-save)",
                (long long)elements * 4);
}

Status engine_state(Engine *engine, bool moments, bool copied, EngineState *state) {
    Optimizer *optimizer = engine_optimizer(engine);
    Gathering g = {.engine = engine,
                   .context = engine_context(engine),
                   .moments = moments,
                   .copied = copied,
                   .state = state};
    state->count = 0, state->bytes = 0;
    TRY(optimizer_visit(optimizer, gather_part, &g));
    TRY(gather_amax(&g, engine));
    TRY(gather_by_rule(&g));
    if (copied) TRY(take_copy(state, g.used));
    free(state->items);
    free(state->sources);
    state->items = calloc((size_t)state->count + 1, sizeof *state->items);
    state->sources = calloc((size_t)state->count + 1, sizeof *state->sources);
    if (!state->items || !state->sources)
        return fail(ERR_OS, "no memory for %d slices of a checkpoint", state->count);
    g.capacity = state->count + 1, g.used = 0;
    state->count = 0, state->bytes = 0;
    TRY(optimizer_visit(optimizer, gather_part, &g));
    TRY(gather_amax(&g, engine));
    return gather_by_rule(&g);
}

void engine_state_free(EngineState *state) {
    free(state->items);
    free(state->sources);
    free(state->memory);
    free(state->amax);
    *state = (EngineState){0};
}

// ---- and back -----------------------------------------------------------------------------------

typedef struct {
    ModelSource *source;
    bool moments, ema;
    float *buffer; // for one part
    int64_t capacity;
} Reading;

static Status read_moment(Reading *r, const OwnedPart *part, StateTensor which, Tensor moment) {
    Checkpoint *checkpoint = model_source_checkpoint(r->source);
    const ParamSpec *spec = &part->param->spec;
    char name[160];
    state_tensor_name(which, spec->tied_to ? spec->tied_to : spec->name, name);
    int tensor = checkpoint_find(checkpoint, name);
    if (tensor < 0) return fail(ERR_DATA, "%s: no tensor %s", checkpoint_folder(checkpoint), name);
    PlacementRects rects = placement_rects(&part->param->place, part->begin, part->count);
    memset(r->buffer, 0, (size_t)part->count * sizeof *r->buffer);
    for (PlacementRect at; placement_next_rect(&rects, &at);) {
        Rect rect = {at.row, at.col, at.rows, at.cols};
        TRY(checkpoint_read(checkpoint, tensor, rect, r->buffer + (at.local - part->begin), at.stride));
    }
    device_upload(part->device, part->stream, moment, r->buffer);
    return OK;
}

static Status read_moments(void *self, const OwnedPart *part) {
    Reading *r = self;
    if (part->count > r->capacity) {
        free(r->buffer);
        r->capacity = part->count;
        r->buffer = malloc((size_t)part->count * sizeof *r->buffer);
        if (!r->buffer) return fail(ERR_OS, "no memory for %lld moments", (long long)part->count);
    }
    if (r->ema) TRY(read_moment(r, part, STATE_EMA, part->ema));
    if (!r->moments) return OK;
    TRY(read_moment(r, part, first_moment(part), part->m));
    return part->v.data ? read_moment(r, part, STATE_EXP_AVG_SQ, part->v) : OK;
}

// Returns the tensor of the history of delayed scaling in a source, where this run has one, or -1.
static int find_amax(const Engine *e, ModelSource *source) {
    Checkpoint *checkpoint = model_source_checkpoint(source);
    return e->amax.rows && checkpoint ? checkpoint_find(checkpoint, STATE_AMAX_NAME) : -1;
}

bool engine_knows_amax(const Engine *e, ModelSource *source) {
    int tensor = find_amax(e, source);
    return tensor < 0 || checkpoint_tensor(model_source_checkpoint(source), tensor).rows == e->amax.rows;
}

// Reads the history of delayed scaling, or as many of its steps as both have. It is empty where a source has none, or
// one of other products.
static Status read_amax(Engine *e, ModelSource *source) {
    AmaxHistory *amax = &e->amax;
    Checkpoint *checkpoint = model_source_checkpoint(source);
    int tensor = find_amax(e, source);
    if (!amax->rows) return OK;
    amax_forget(amax);
    if (tensor < 0 || !engine_knows_amax(e, source)) return OK;
    CheckpointTensor found = checkpoint_tensor(checkpoint, tensor);
    int64_t steps = amax->rule.history, both = found.cols - 1 < steps ? found.cols - 1 : steps;
    if (both < 1)
        return fail(ERR_DATA, "%s: %s is [%lld, %lld], without any step", checkpoint_folder(checkpoint),
                    STATE_AMAX_NAME, (long long)found.rows, (long long)found.cols);
    Rect all = {0, 1, amax->rows, both}, first = {0, 0, amax->rows, 1};
    TRY(checkpoint_read(checkpoint, tensor, first, amax->largest, 1));
    return checkpoint_read(checkpoint, tensor, all, amax->history, steps);
}

// Adapters begin with their initial values beside a model that has none.
typedef struct {
    WeightReader weights;
    InitialValues initial;
    bool has_adapters;
} Values;

static Status read_values(void *self, const Param *p, float *local) {
    Values *values = self;
    if (p->spec.adapter && !values->has_adapters) return param_init(&values->initial, p, local);
    return weight_reader_fill(&values->weights, p, local);
}

Status engine_read(Engine *engine, ModelSource *source, bool moments, bool ema, int64_t optimizer_steps) {
    Optimizer *optimizer = engine_optimizer(engine);
    Context *c = engine_context(engine);
    Checkpoint *checkpoint = model_source_checkpoint(source);
    Reading reading = {.source = source, .moments = moments};
    reading.ema =
        ema && optimizer->options.ema_decay > 0 && checkpoint && checkpoint_keeps(checkpoint, STATE_EMA);
    Values values = {model_source_reader(source),
                     {c->device, engine_spec_of(engine)->shape.seed},
                     model_source_info(source)->shape.lora_rank > 0};
    engine_values_change(engine);
    Status status = params_fill(engine_params(engine), c->device, read_values, &values,
                                optimizer_write_master, optimizer);
    if (status == OK && (moments || reading.ema)) status = optimizer_visit(optimizer, read_moments, &reading);
    if (status == OK && moments) status = read_amax(engine, source);
    if (status == OK && moments) optimizer->steps = optimizer_steps;
    free(reading.buffer);
    return status;
}
