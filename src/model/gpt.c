#include "model/model.h"
#include <stdlib.h>

typedef struct {
    Attention attention;
    Mlp mlp;
} Layer;

typedef struct {
    Tensor x, middle; // input of the attention half and of the mlp half
    AttentionStash attention;
    MlpStash mlp;
} LayerStash;

typedef struct {
    int first_layer, num_layers;
    bool first, last; // of the whole model
} Chunk;

struct Gpt {
    ModelShape shape;
    Context *context;
    Layer *layers; // of the whole model; those of other ranks are declared and never run
    Embedding embedding;
    LossHead head;
    Chunk *chunks;
    int num_chunks;
    Tensor logits;
};

static int most_layers(const Gpt *gpt) {
    int most = 0;
    for (int c = 0; c < gpt->num_chunks; c++)
        if (gpt->chunks[c].num_layers > most) most = gpt->chunks[c].num_layers;
    return most;
}

// ---- declaration -----------------------------------------------------------------------------------

// The stages in the model's order; a rank keeps the ranges of its own.
static void declare_stage(Gpt *gpt, LayerSplit split, const Schedule *schedule, int stage, Params *params) {
    int rank = gpt->context->place.pp, last_stage = schedule->num_ranks * schedule->num_chunks - 1;
    Chunk chunk = {.first = stage == 0, .last = stage == last_stage};
    layer_range(split, schedule->num_ranks, schedule->num_chunks, stage, &chunk.first_layer,
                &chunk.num_layers);
    if (chunk.first) gpt->embedding = embedding_declare(params, stage, &gpt->shape);
    for (int i = 0; i < chunk.num_layers; i++) {
        int number = chunk.first_layer + i;
        Layer *layer = &gpt->layers[number];
        layer->attention = attention_declare(params, number, stage, &gpt->shape);
        layer->mlp = mlp_declare(params, number, stage, &gpt->shape);
    }
    if (chunk.last) gpt->head = loss_head_declare(params, stage, &gpt->shape);
    for (int c = 0; c < gpt->num_chunks; c++)
        if (schedule_stage(schedule, rank, c) == stage) gpt->chunks[c] = chunk;
}

Status gpt_create(Gpt **out, const ModelShape *shape, LayerSplit split, Context *context,
                  const Schedule *schedule, Params *params) {
    Gpt *gpt = *out = calloc(1, sizeof *gpt);
    if (!gpt) return fail(ERR_OS, "no memory for the model");
    *gpt = (Gpt){.shape = *shape, .context = context, .num_chunks = schedule->num_chunks};
    gpt->layers = calloc((size_t)shape->layers, sizeof *gpt->layers);
    gpt->chunks = calloc((size_t)gpt->num_chunks, sizeof *gpt->chunks);
    if (!gpt->layers || !gpt->chunks) return fail(ERR_OS, "no memory for %d layers", shape->layers);
    for (int stage = 0; stage < schedule->num_ranks * schedule->num_chunks; stage++)
        declare_stage(gpt, split, schedule, stage, params);
    return OK;
}

void gpt_destroy(Gpt *gpt) {
    if (!gpt) return;
    free(gpt->layers);
    free(gpt->chunks);
    free(gpt);
}

void gpt_keep_logits(Gpt *gpt, Tensor logits) { gpt->logits = logits; }

// ---- one chunk, forward -------------------------------------------------------------------------------

static void forward(void *self, int chunk_index, Slot *slot, const Microbatch *mb) {
    Gpt *gpt = self;
    Context *c = gpt->context;
    const Chunk *chunk = &gpt->chunks[chunk_index];
    LayerStash *stash = slot->layers;
    Tensor x = slot->input;
    if (chunk->first) embedding_apply(c, &gpt->embedding, x, mb);
    for (int i = 0; i < chunk->num_layers; i++) {
        const Layer *layer = &gpt->layers[chunk->first_layer + i];
        bool end = i + 1 == chunk->num_layers;
        Tensor middle =
            tensor_take(&slot->stash, "hidden between the halves of a layer", x.rows, x.cols, F32);
        Tensor y =
            end ? slot->output : tensor_take(&slot->stash, "hidden between layers", x.rows, x.cols, F32);
        stash[i] = (LayerStash){.x = x, .middle = middle};
        attention_apply(c, &layer->attention, x, middle, &stash[i].attention, &slot->stash, mb);
        mlp_apply(c, &layer->mlp, middle, y, &stash[i].mlp, &slot->stash, mb);
        x = y;
    }
    if (chunk->last) loss_head_apply(c, &gpt->head, slot->output, mb, gpt->logits);
}

// ---- one chunk, backward ------------------------------------------------------------------------------

// Both halves of one layer's backward; dy and dx may be the same tensor.
static void backward_layer(Context *c, const Layer *layer, const LayerStash *stash, Tensor dy, Tensor dx,
                           const Microbatch *mb) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dmiddle = tensor_take(c->scratch, "gradient between the halves of a layer", dy.rows, dy.cols, F32);
    ArenaMark half = arena_mark(c->scratch);
    MlpGrads mlp;
    mlp_backward_input(c, &layer->mlp, &stash->mlp, dy, dmiddle, &mlp, c->scratch, mb);
    mlp_backward_weight(c, &layer->mlp, &stash->mlp, &mlp);
    arena_release(c->scratch, half);
    AttentionGrads attention;
    attention_backward_input(c, &layer->attention, &stash->attention, dmiddle, dx, &attention, c->scratch,
                             mb);
    attention_backward_weight(c, &layer->attention, &stash->attention, &attention);
    arena_release(c->scratch, mark);
}

// The gradient flows through slot->output, which every layer replaces by that of its own input; the first
// layer of the chunk leaves it where it is sent from.
static void backward(void *self, int chunk_index, Slot *slot, const Microbatch *mb) {
    Gpt *gpt = self;
    Context *c = gpt->context;
    const Chunk *chunk = &gpt->chunks[chunk_index];
    const LayerStash *stash = slot->layers;
    for (int i = chunk->num_layers - 1; i >= 0; i--) {
        bool leaves = i == 0 && !chunk->first;
        backward_layer(c, &gpt->layers[chunk->first_layer + i], &stash[i], slot->output,
                       leaves ? slot->input_gradient : slot->output, mb);
    }
    if (chunk->first) embedding_gradient(c, &gpt->embedding, slot->output, mb);
}

Stage gpt_stage(Gpt *gpt) {
    return (Stage){.self = gpt,
                   .num_chunks = gpt->num_chunks,
                   .tokens = (int64_t)gpt->shape.sequence * gpt->shape.microbatch,
                   .hidden = gpt->shape.hidden,
                   .slot_layers_bytes = (size_t)most_layers(gpt) * sizeof(LayerStash),
                   .forward = forward,
                   .backward = backward};
}
