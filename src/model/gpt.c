// A GPT or a Llama: declares its layers, and runs a chunk of them forward and backward.
#include "model/model.h"
#include "nn/sublayer.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    void *sublayers[LAYER_SUBLAYERS]; // their records
    const SublayerKind *kinds[LAYER_SUBLAYERS];
    size_t stash_at[LAYER_SUBLAYERS]; // where their stashes begin
    int unit;                         // of its parameters
} Layer;

// The record of what a layer keeps of a microbatch, followed by the records of its sublayers.
typedef struct {
    // The inputs of the sublayers. They are dead after the input half of their sublayer's backward. Then inputs[i + 1]
    // holds what the weight half of sublayer i needs (SublayerArgs.dlast), and inputs[0] that of the last.
    Tensor inputs[LAYER_SUBLAYERS];
    Tensor saved; // inputs[0] or a share of its rows, kept for recomputation
} LayerStash;

typedef struct {
    int first_layer, num_layers;
    bool first, last; // of the whole model
} Chunk;

// The weight half of a layer's first sublayer that a backward has put off, and what is needed for it.
typedef struct {
    int number; // of the layer
    LayerStash *stash;
    const Microbatch *mb;
    bool final;
} PutOff;

struct Gpt {
    ModelShape shape;
    Context *context;
    Params *params;
    Layer *layers; // of the whole model; those of other ranks are declared and never run
    Embedding embedding;
    LossHead head;
    int embedding_unit, head_unit;
    Chunk *chunks;
    int num_chunks;
    Tensor rotary_table, local_rotary_table; // of layers with a window: absent where it is that of all layers
    Tensor logits;
    PutOff put_off;
    void *records;                   // of the sublayers of all layers
    size_t records_bytes;            // of one layer
    size_t record_at[NUM_SUBLAYERS]; // where a sublayer's begins
    size_t stash_bytes;              // of one layer
    size_t stash_at[NUM_SUBLAYERS];  // where the stash of a sublayer begins
};

static int most_layers(const Gpt *gpt) {
    int most = 0;
    for (int c = 0; c < gpt->num_chunks; c++)
        if (gpt->chunks[c].num_layers > most) most = gpt->chunks[c].num_layers;
    return most;
}

// ---- declaration -----------------------------------------------------------------------------------

static void declare_layer(Gpt *gpt, const Builder *builder, int number) {
    Layer *layer = &gpt->layers[number];
    layer->unit = params_begin_unit(builder->params);
    for (int i = 0; i < LAYER_SUBLAYERS; i++) {
        int kind = model_sublayer(&gpt->shape, number, i);
        layer->sublayers[i] =
            (char *)gpt->records + (size_t)number * gpt->records_bytes + gpt->record_at[kind];
        layer->kinds[i] = sublayer_kinds[kind];
        layer->stash_at[i] = gpt->stash_at[kind];
        layer->kinds[i]->declare(builder, number, layer->sublayers[i]);
    }
}

// Declares the parameters of a stage, on every rank; keeps its range of layers where it is one of this rank's chunks.
static void declare_stage(Gpt *gpt, LayerSplit split, const Schedule *schedule, int stage) {
    int rank = context_rank(gpt->context, ROLE_PIPELINE),
        last_stage = schedule->num_ranks * schedule->num_chunks - 1;
    Chunk chunk = {.first = stage == 0, .last = stage == last_stage};
    Builder builder = {gpt->params, &gpt->shape, &gpt->context->mode, stage};
    layer_range(split, schedule->num_ranks, schedule->num_chunks, stage, &chunk.first_layer,
                &chunk.num_layers);
    if (chunk.first) {
        gpt->embedding_unit = params_begin_unit(gpt->params);
        gpt->embedding = embedding_declare(&builder);
    }
    for (int i = 0; i < chunk.num_layers; i++) declare_layer(gpt, &builder, chunk.first_layer + i);
    if (chunk.last) {
        gpt->head_unit = params_begin_unit(gpt->params);
        gpt->head = loss_head_declare(&builder);
    }
    for (int c = 0; c < gpt->num_chunks; c++)
        if (schedule_stage(schedule, rank, c) == stage) gpt->chunks[c] = chunk;
}

static size_t aligned(size_t bytes) {
    size_t unit = _Alignof(max_align_t);
    return (bytes + unit - 1) / unit * unit;
}

static void lay_out_records(Gpt *gpt) {
    gpt->stash_bytes = aligned(sizeof(LayerStash));
    for (int i = 0; i < NUM_SUBLAYERS; i++) {
        gpt->record_at[i] = gpt->records_bytes;
        gpt->stash_at[i] = gpt->stash_bytes;
        gpt->records_bytes += aligned(sublayer_kinds[i]->self_bytes);
        gpt->stash_bytes += aligned(sublayer_kinds[i]->stash_bytes);
    }
}

Status gpt_create(Gpt **out, const ModelShape *shape, LayerSplit split, Context *context,
                  const Schedule *schedule, Params *params) {
    Gpt *gpt = *out = calloc(1, sizeof *gpt);
    if (!gpt) return fail(ERR_OS, "no memory for the model");
    *gpt = (Gpt){.shape = *shape, .context = context, .params = params, .num_chunks = schedule->num_chunks};
    params->adapters_only = shape->lora_rank > 0;
    lay_out_records(gpt);
    gpt->layers = calloc((size_t)shape->layers, sizeof *gpt->layers);
    gpt->records = calloc((size_t)shape->layers, gpt->records_bytes);
    gpt->chunks = calloc((size_t)gpt->num_chunks, sizeof *gpt->chunks);
    if (!gpt->layers || !gpt->records || !gpt->chunks)
        return fail(ERR_OS, "no memory for %d layers", shape->layers);
    for (int stage = 0; stage < schedule->num_ranks * schedule->num_chunks; stage++)
        declare_stage(gpt, split, schedule, stage);
    return OK;
}

static void fill_rotary(const ModelShape *shape, bool local, float *table) {
    int columns = model_rotary_columns(shape), half = columns / 2;
    double factor = model_rotary_factor(shape, local);
    for (int s = 0; s < shape->sequence; s++, table += columns)
        for (int i = 0; i < half; i++) {
            double angle = s * model_rotary_frequency(shape, i, local);
            table[i] = (float)(cos(angle) * factor), table[half + i] = (float)(sin(angle) * factor);
        }
}

static Status place_rotary(const Gpt *gpt, Arena *arena, bool local, Tensor *table) {
    const ModelShape *shape = &gpt->shape;
    Context *c = gpt->context;
    int64_t rows = shape->sequence, columns = model_rotary_columns(shape);
    *table = tensor_take(arena, "rotary positions", rows, columns, F32);
    // A device that computes nothing does not read the table.
    if (!device_computes(c->device)) return OK;
    float *host = malloc((size_t)(rows * columns) * sizeof *host);
    if (!host) return fail(ERR_OS, "no memory for the table of rotary positions");
    fill_rotary(shape, local, host);
    device_upload(c->device, c->stream, *table, host);
    free(host);
    return OK;
}

Status gpt_place(Gpt *gpt, Arena *arena) {
    const ModelShape *shape = &gpt->shape;
    if (shape->position != POSITION_ROTARY) return OK;
    TRY(place_rotary(gpt, arena, false, &gpt->rotary_table));
    if (!shape->window || !(shape->rotary_base_local > 0)) return OK;
    return place_rotary(gpt, arena, true, &gpt->local_rotary_table);
}

// The rotations of a layer; absent: it has none.
static Tensor layer_rotary_table(const Gpt *gpt, int layer) {
    if (!model_layer_rotates(&gpt->shape, layer)) return (Tensor){0};
    bool local = gpt->local_rotary_table.data && model_window(&gpt->shape, layer);
    return local ? gpt->local_rotary_table : gpt->rotary_table;
}

static void place_layer_cache(const Gpt *gpt, const Layer *layer, Arena *arena, int64_t positions) {
    for (int i = 0; i < LAYER_SUBLAYERS; i++)
        if (layer->kinds[i]->place_cache)
            layer->kinds[i]->place_cache(layer->sublayers[i], arena, positions,
                                         gpt->context->mode.microbatch);
}

void gpt_place_cache(Gpt *gpt, Arena *arena, int64_t positions) {
    for (int c = 0; c < gpt->num_chunks; c++)
        for (int i = 0; i < gpt->chunks[c].num_layers; i++)
            place_layer_cache(gpt, &gpt->layers[gpt->chunks[c].first_layer + i], arena, positions);
}

void gpt_destroy(Gpt *gpt) {
    if (!gpt) return;
    free(gpt->records);
    free(gpt->layers);
    free(gpt->chunks);
    free(gpt);
}

void gpt_keep_logits(Gpt *gpt, Tensor logits) { gpt->logits = logits; }

// ---- recomputation --------------------------------------------------------------------------------------

// Finds the group of layers [*first, *end) of a chunk with which layer `i` is recomputed. Returns false where the layer
// keeps its stash instead.
static bool recomputed(const Gpt *gpt, const Chunk *chunk, int i, int *first, int *end) {
    const ModelMode *mode = &gpt->context->mode;
    int k = mode->recompute_layers;
    *first = i, *end = i + 1;
    if (mode->recompute == RECOMPUTE_BLOCK) return i < k;
    if (mode->recompute != RECOMPUTE_UNIFORM) return false;
    *first = i / k * k;
    *end = *first + k < chunk->num_layers ? *first + k : chunk->num_layers;
    return true;
}

// Returns whether layer i begins a group whose input is kept as shares of its rows. The input of the first group is the
// stage's input, a message that stays where it arrived.
static bool saves_share(const Gpt *gpt, const Chunk *chunk, int i) {
    int first, end;
    bool again = recomputed(gpt, chunk, i, &first, &end) && first == i;
    return again && i > 0 && gpt->context->mode.distribute_saved &&
           context_ranks(gpt->context, ROLE_TENSOR) > 1;
}

// Returns whether the whole input of layer i must outlive the forward.
static bool keeps_input(const Gpt *gpt, const Chunk *chunk, int i) {
    int first, end;
    if (!recomputed(gpt, chunk, i, &first, &end)) return true;
    return first == i && !saves_share(gpt, chunk, i);
}

static Tensor share_of(const Context *c, Tensor x) {
    int64_t rows = x.rows / context_ranks(c, ROLE_TENSOR);
    return tensor_rows(x, rows * context_rank(c, ROLE_TENSOR), rows);
}

// ---- one chunk, forward -------------------------------------------------------------------------------

// The unit of layer i of a chunk, or after its last layer that of the head; -1: there is none.
static int chunk_unit(const Gpt *gpt, const Chunk *chunk, int i) {
    if (i < chunk->num_layers) return gpt->layers[chunk->first_layer + i].unit;
    return chunk->last ? gpt->head_unit : -1;
}

static LayerStash *layer_stash(const Gpt *gpt, const Slot *slot, int i) {
    return (LayerStash *)((char *)slot->layers + (size_t)i * gpt->stash_bytes);
}

// The arguments of a layer's i-th sublayer that forward and backward share.
static SublayerArgs sublayer_args(const Gpt *gpt, int number, LayerStash *stash, int i,
                                  const Microbatch *mb) {
    return (SublayerArgs){.context = gpt->context,
                          .microbatch = mb,
                          .self = gpt->layers[number].sublayers[i],
                          .stash = (char *)stash + gpt->layers[number].stash_at[i],
                          .rotary_table = layer_rotary_table(gpt, number)};
}

// `next` is the unit that is used next, or -1.
static void forward_layer(Gpt *gpt, int number, int next, LayerStash *stash, Tensor x, Tensor y, Arena *arena,
                          const Microbatch *mb) {
    Tensor saved = stash->saved;
    memset(stash, 0, gpt->stash_bytes);
    stash->saved = saved;
    stash->inputs[0] = x;
    unit_acquire(gpt->context, gpt->layers[number].unit, next);
    for (int i = 0; i < LAYER_SUBLAYERS; i++) {
        SublayerArgs args = sublayer_args(gpt, number, stash, i, mb);
        bool last = i + 1 == LAYER_SUBLAYERS;
        if (!last)
            stash->inputs[i + 1] =
                tensor_take(arena, "hidden between the halves of a layer", x.rows, x.cols, x.dtype);
        args.x = stash->inputs[gpt->shape.parallel_block ? 0 : i], args.residual = stash->inputs[i];
        args.y = last ? y : stash->inputs[i + 1];
        args.arena = arena;
        gpt->layers[number].kinds[i]->forward(&args);
    }
    unit_release(gpt->context, gpt->layers[number].unit);
}

// The forward of layer i of a chunk. Of layers that are recomputed later only the input of their group is kept.
static void forward_first(Gpt *gpt, const Chunk *chunk, int i, Slot *slot, Tensor x, Tensor y,
                          const Microbatch *mb) {
    Context *c = gpt->context;
    LayerStash *stash = layer_stash(gpt, slot, i);
    int first, end, next = chunk_unit(gpt, chunk, i + 1);
    *stash = (LayerStash){0};
    if (!recomputed(gpt, chunk, i, &first, &end)) {
        forward_layer(gpt, chunk->first_layer + i, next, stash, x, y, &slot->stash, mb);
        return;
    }
    if (first == i) stash->saved = x;
    if (saves_share(gpt, chunk, i)) {
        Tensor share = share_of(c, x);
        stash->saved =
            tensor_take(&slot->stash, "saved share of a layer's input", share.rows, share.cols, x.dtype);
        device_copy(c->device, c->stream, stash->saved, share);
    }
    ArenaMark mark = arena_mark(c->scratch);
    forward_layer(gpt, chunk->first_layer + i, next, stash, x, y, c->scratch, mb);
    arena_release(c->scratch, mark);
}

// Hidden states that are not kept alternate between two tensors.
static void forward_layers(Gpt *gpt, int chunk_index, Slot *slot, const Microbatch *mb) {
    Context *c = gpt->context;
    const Chunk *chunk = &gpt->chunks[chunk_index];
    Tensor x = slot->input, passing[2];
    for (int i = 0; i < 2 && c->mode.recompute >= RECOMPUTE_UNIFORM; i++)
        passing[i] = tensor_take(c->scratch, "hidden between recomputed layers", x.rows, x.cols, x.dtype);
    for (int i = 0; i < chunk->num_layers; i++) {
        Tensor y;
        if (i + 1 == chunk->num_layers)
            y = slot->output;
        else if (keeps_input(gpt, chunk, i + 1))
            y = tensor_take(&slot->stash, "hidden between layers", x.rows, x.cols, x.dtype);
        else
            y = passing[i % 2];
        forward_first(gpt, chunk, i, slot, x, y, mb);
        x = y;
    }
    if (!chunk->num_layers) device_copy(c->device, c->stream, slot->output, slot->input);
}

static void forward(void *self, int chunk_index, Slot *slot, const Microbatch *mb) {
    Gpt *gpt = self;
    Context *c = gpt->context;
    const Chunk *chunk = &gpt->chunks[chunk_index];
    ArenaMark mark = arena_mark(c->scratch);
    context_use_microbatch(c, mb);
    if (chunk->first) {
        unit_acquire(c, gpt->embedding_unit, chunk_unit(gpt, chunk, 0));
        embedding_apply(c, &gpt->embedding, slot->input, mb);
        unit_release(c, gpt->embedding_unit);
    }
    forward_layers(gpt, chunk_index, slot, mb);
    arena_release(c->scratch, mark);
    if (!chunk->last) return;
    unit_acquire(c, gpt->head_unit, -1);
    if (mb->training) unit_begin(c, gpt->head_unit);
    if (mb->labels.data)
        loss_head_apply(c, &gpt->head, slot->output, mb, gpt->logits);
    else
        loss_head_predict(c, &gpt->head, slot->output, mb, gpt->logits);
    if (mb->training) unit_finish(c, gpt->head_unit, false);
    unit_release(c, gpt->head_unit);
}

// ---- one chunk, backward ------------------------------------------------------------------------------

static void weight_half_of(Gpt *gpt, int number, LayerStash *stash, int i, const Microbatch *mb) {
    SublayerArgs args = sublayer_args(gpt, number, stash, i, mb);
    args.halves = WEIGHT_HALF;
    args.dlast = stash->inputs[(i + 1) % LAYER_SUBLAYERS];
    if (gpt->layers[number].kinds[i]->has_weights) gpt->layers[number].kinds[i]->backward(&args);
}

// In a pair the weights of attention wait until the layer before has sent its rows. What recomputation has made does
// not stay that long.
static bool puts_off(const Gpt *gpt, const Chunk *chunk, int i, Halves halves) {
    int first, end;
    return gpt->context->turn.run && halves == BOTH_HALVES && !recomputed(gpt, chunk, i, &first, &end);
}

static void do_put_off(void *self) {
    Gpt *gpt = self;
    PutOff it = gpt->put_off;
    weight_half_of(gpt, it.number, it.stash, 0, it.mb);
    unit_finish(gpt->context, gpt->layers[it.number].unit, it.final);
}

static void put_off(Gpt *gpt, PutOff work) {
    context_catch_up(gpt->context);
    gpt->put_off = work;
    context_put_off(gpt->context, (ContextCall){do_put_off, gpt});
}

// One layer's backward, dy -> dx, which may be dy; of the first sublayer the halves `first`.
static void backward_layer(Gpt *gpt, int number, LayerStash *stash, Tensor dy, Tensor dx, Halves halves,
                           Halves first, const Microbatch *mb) {
    Context *c = gpt->context;
    if (halves == WEIGHT_HALF) {
        for (int i = LAYER_SUBLAYERS - 1; i >= 0; i--) weight_half_of(gpt, number, stash, i, mb);
        return;
    }
    ArenaMark mark = arena_mark(c->scratch);
    Tensor between =
        tensor_take(c->scratch, "gradient between the halves of a layer", dy.rows, dy.cols, dy.dtype);
    Tensor dlast = tensor_take(c->scratch, "gradient of the mlp's output", dy.rows, dy.cols, dy.dtype);
    for (int i = LAYER_SUBLAYERS - 1; i >= 0; i--) {
        SublayerArgs args = sublayer_args(gpt, number, stash, i, mb);
        bool last = i + 1 == LAYER_SUBLAYERS;
        args.halves = i ? halves : first;
        args.dresidual = last ? dy : between, args.dx = i ? between : dx;
        args.dy = gpt->shape.parallel_block ? dy : args.dresidual;
        args.dlast = last || model_has_post_norm(&gpt->shape) ? dlast : stash->inputs[i + 1];
        gpt->layers[number].kinds[i]->backward(&args);
    }
    // With a norm after it, a sublayer keeps that gradient itself, and its input may still be needed.
    bool apart = !model_has_post_norm(&gpt->shape);
    if (halves == INPUT_HALF && apart && gpt->layers[number].kinds[LAYER_SUBLAYERS - 1]->has_weights)
        device_copy(c->device, c->stream, stash->inputs[0], dlast);
    arena_release(c->scratch, mark);
}

// Runs layers [first, end) of a chunk forward again from the saved input; their stash is allocated from `arena`.
static void recompute_group(Gpt *gpt, const Chunk *chunk, int first, int end, const Slot *slot, Arena *arena,
                            const Microbatch *mb) {
    Context *c = gpt->context;
    Tensor x = layer_stash(gpt, slot, first)->saved;
    if (saves_share(gpt, chunk, first)) {
        Tensor share = x;
        x = tensor_take(arena, "gathered input of a layer", share.rows * context_ranks(c, ROLE_TENSOR),
                        share.cols, share.dtype);
        tp_all_gather(c, share, x);
    }
    c->again = true;
    for (int i = first; i < end; i++) {
        Tensor y = tensor_take(arena, "hidden between layers", x.rows, x.cols, x.dtype);
        int next = i + 1 < end ? chunk_unit(gpt, chunk, i + 1) : -1;
        forward_layer(gpt, chunk->first_layer + i, next, layer_stash(gpt, slot, i), x, y, arena, mb);
        x = y;
    }
    c->again = false;
}

// The unit that the backward of a chunk uses after that of layer i, in a group from `first` on; -1: none. The group
// before it may be computed again from its first layer on.
static int unit_before(const Gpt *gpt, const Chunk *chunk, int first, int i) {
    int before, end;
    if (i == 0) return -1;
    recomputed(gpt, chunk, i - 1, &before, &end);
    return chunk_unit(gpt, chunk, i > first ? i - 1 : before);
}

// The weight half reads no weights, unless it computes later rounds of rows again that other ranks have sent
// (nn/expert_rounds.h). How many rounds there are is not known alike on all ranks that gather the weights.
static bool reads_weights(const Gpt *gpt, int layer, Halves halves) {
    bool sends = context_ranks(gpt->context, ROLE_EXPERT) > 1 && model_layer_has_experts(&gpt->shape, layer);
    return halves & INPUT_HALF || sends;
}

// A recomputed group is allocated from slot->recomputed when a weight half follows later, else from scratch memory.
static void backward_group(Gpt *gpt, int chunk_index, int first, int end, Slot *slot, Halves halves,
                           const Microbatch *mb, bool final) {
    Context *c = gpt->context;
    const Chunk *chunk = &gpt->chunks[chunk_index];
    ArenaMark mark = arena_mark(c->scratch);
    Arena *kept = halves == INPUT_HALF ? slot->recomputed : c->scratch;
    if (halves != WEIGHT_HALF && recomputed(gpt, chunk, first, &first, &end))
        recompute_group(gpt, chunk, first, end, slot, kept, mb);
    for (int i = end - 1; i >= first; i--) {
        int number = chunk->first_layer + i, unit = gpt->layers[number].unit;
        bool leaves = i == 0 && !chunk->first, later = puts_off(gpt, chunk, i, halves);
        bool reads = reads_weights(gpt, number, halves);
        LayerStash *stash = layer_stash(gpt, slot, i);
        if (reads) unit_acquire(c, unit, halves & INPUT_HALF ? unit_before(gpt, chunk, first, i) : -1);
        if (halves & INPUT_HALF) unit_begin(c, unit);
        Tensor dx = leaves ? slot->input_gradient : slot->output_gradient;
        backward_layer(gpt, number, stash, slot->output_gradient, dx, halves, later ? INPUT_HALF : halves,
                       mb);
        if (reads) unit_release(c, unit);
        if (later) put_off(gpt, (PutOff){number, stash, mb, final});
        if (!later && halves & WEIGHT_HALF) unit_finish(c, unit, final);
    }
    arena_release(c->scratch, mark);
}

static void backward(void *self, int chunk_index, Slot *slot, const Microbatch *mb, Halves halves,
                     bool final) {
    Gpt *gpt = self;
    Context *c = gpt->context;
    const Chunk *chunk = &gpt->chunks[chunk_index];
    final = final && halves != INPUT_HALF;
    context_use_microbatch(c, mb);
    if (final && chunk->last) unit_finish(c, gpt->head_unit, true); // forwards have made its gradients
    for (int end = chunk->num_layers, first, group_end; end > 0; end = first) {
        recomputed(gpt, chunk, end - 1, &first, &group_end);
        backward_group(gpt, chunk_index, first, end, slot, halves, mb, final);
    }
    context_catch_up(c);
    if (halves & INPUT_HALF && chunk->first) unit_begin(c, gpt->embedding_unit);
    if (halves & INPUT_HALF && chunk->first)
        embedding_gradient(c, &gpt->embedding, slot->output_gradient, mb);
    else if (halves & INPUT_HALF && !chunk->num_layers)
        device_copy(c->device, c->stream, slot->input_gradient, slot->output_gradient);
    if (halves & WEIGHT_HALF && chunk->first) unit_finish(c, gpt->embedding_unit, final);
}

Stage gpt_stage(Gpt *gpt) {
    int64_t tokens = (int64_t)gpt->shape.sequence / context_ranks(gpt->context, ROLE_CONTEXT) *
                     gpt->context->mode.microbatch;
    return (Stage){.self = gpt,
                   .num_chunks = gpt->num_chunks,
                   .rows = context_rows(gpt->context, tokens),
                   .hidden = gpt->shape.hidden,
                   .dtype = gpt->context->mode.dtype,
                   .slot_layers_bytes = (size_t)most_layers(gpt) * gpt->stash_bytes,
                   // A forward, a backward, and a forward that is computed again send rows and get them back.
                   .most_turns = 6 * most_layers(gpt),
                   .forward = forward,
                   .backward = backward};
}
