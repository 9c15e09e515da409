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

static void find_chunks(Gpt *gpt, const Schedule *schedule) {
    int last_stage = schedule->num_ranks * schedule->num_chunks - 1;
    for (int c = 0; c < gpt->num_chunks; c++) {
        Chunk *chunk = &gpt->chunks[c];
        int stage = schedule_stage(schedule, gpt->context->place.pp, c);
        int per_stage = gpt->shape.layers / (last_stage + 1);
        *chunk = (Chunk){stage * per_stage, per_stage, stage == 0, stage == last_stage};
    }
}

static void declare(Gpt *gpt, const Schedule *schedule, Params *params) {
    int num_stages = schedule->num_ranks * schedule->num_chunks, per_stage = gpt->shape.layers / num_stages;
    gpt->embedding = embedding_declare(params, 0, &gpt->shape);
    for (int layer = 0; layer < gpt->shape.layers; layer++) {
        int stage = layer / per_stage;
        gpt->layers[layer].attention = attention_declare(params, layer, stage, &gpt->shape,
                                                         gpt->context->grid.tp, gpt->context->place.tp);
        gpt->layers[layer].mlp = mlp_declare(params, layer, stage, &gpt->shape);
    }
    gpt->head = loss_head_declare(params, num_stages - 1, &gpt->shape);
}

Status gpt_create(Gpt **out, const ModelShape *shape, Context *context, const Schedule *schedule,
                  Params *params) {
    Gpt *gpt = *out = calloc(1, sizeof *gpt);
    if (!gpt) return fail(ERR_OS, "no memory for the model");
    *gpt = (Gpt){.shape = *shape, .context = context, .num_chunks = schedule->num_chunks};
    gpt->layers = calloc((size_t)shape->layers, sizeof *gpt->layers);
    gpt->chunks = calloc((size_t)gpt->num_chunks, sizeof *gpt->chunks);
    if (!gpt->layers || !gpt->chunks) return fail(ERR_OS, "no memory for %d layers", shape->layers);
    find_chunks(gpt, schedule);
    declare(gpt, schedule, params);
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

// The gradient flows through slot->output, which every layer replaces by that of its own input; the first layer of the
// chunk leaves it where it is sent from.
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
