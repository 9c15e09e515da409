// The attention sublayer: norm, queries, keys and values, the attention core, the output projection.
#include "nn/layers.h"
#include <math.h>

Attention attention_declare(const Builder *b, int layer) {
    const ModelShape *shape = b->shape;
    int64_t groups = model_groups(shape), heads = shape->heads, head_size = shape->head_size;
    Attention a = {.attention_dropout = shape->attention_dropout, .hidden_dropout = shape->hidden_dropout};
    a.attention_key = rng_key(shape->seed, "attention dropout", (uint64_t)layer);
    a.hidden_key = rng_key(shape->seed, "attention output dropout", (uint64_t)layer);
    a.heads_per_group = heads / groups, a.head_size = head_size;
    a.norm = norm_declare(b, part_name(layer, "input_layernorm").text);
    a.qkv = column_linear_declare(b, (LinearSpec){.name = part_name(layer, "self_attention.linear_qkv").text,
                                                  .in = shape->hidden,
                                                  .out = (heads + 2 * groups) * head_size,
                                                  .stddev = shape->init_std,
                                                  .bias = model_has_qkv_bias(shape)});
    a.proj =
        row_linear_declare(b, (LinearSpec){.name = part_name(layer, "self_attention.linear_proj").text,
                                           .in = heads * head_size,
                                           .out = shape->hidden,
                                           .stddev = shape->init_std / sqrtf(2.0f * (float)shape->layers),
                                           .bias = model_has_proj_bias(shape)});
    return a;
}

// Those whose queries, keys and values the local rows of the weight give.
static int64_t local_groups(const Attention *a) {
    return a->qkv.weight->value.rows / ((a->heads_per_group + 2) * a->head_size);
}

void attention_place_cache(Attention *a, Arena *arena, int64_t positions, int64_t samples) {
    int64_t rows = positions * samples, width = local_groups(a) * a->head_size;
    a->keys = tensor_take(arena, "cached keys", rows, width, a->qkv.weight->value.dtype);
    a->values = tensor_take(arena, "cached values", rows, width, a->qkv.weight->value.dtype);
}

static AttentionShape local_shape(const Context *c, const Attention *a, const Microbatch *mb) {
    int64_t groups = local_groups(a);
    int64_t heads = groups * a->heads_per_group;
    return (AttentionShape){.batch = mb->samples,
                            .sequence = mb->sequence,
                            .heads = heads,
                            .groups = groups,
                            .head_size = a->head_size,
                            .first_head = heads * context_rank(c, ROLE_TENSOR)};
}

static Dropout hidden_dropout(const Context *c, const Attention *a, const Microbatch *mb) {
    return microbatch_dropout(c, mb, a->hidden_key, a->hidden_dropout, true);
}

static Dropout attention_dropout(const Context *c, const Attention *a, const Microbatch *mb) {
    return microbatch_dropout(c, mb, a->attention_key, a->attention_dropout, false);
}

static void rotate(Context *c, const Attention *a, Tensor qkv, AttentionShape shape, const Microbatch *mb,
                   bool inverse) {
    if (!a->rotary_table.data) return;
    Tensor table = tensor_rows(a->rotary_table, mb->position, shape.sequence);
    rotary(c->device, c->stream, (Rotary){.table = table, .qkv = qkv, .shape = shape, .inverse = inverse});
}

// ---- the core: scores, softmax, dropout, values -----------------------------------------------------

// What the core keeps for its backward besides its input and output.
static void take_core_stash(const Context *c, AttentionShape shape, AttentionStash *stash, Arena *arena) {
    int64_t heads = shape.batch * shape.heads;
    stash->stats = tensor_take(arena, "attention log-sum-exp", heads, shape.sequence, F32);
    if (c->mode.keep_probabilities)
        stash->probabilities = tensor_take(arena, "attention probabilities", heads * shape.sequence,
                                           shape.sequence, stash->qkv.dtype);
}

static void core_forward(Context *c, const Attention *a, const AttentionStash *stash, AttentionShape shape,
                         const Microbatch *mb) {
    attention_forward(c->device, c->stream,
                      (AttentionForward){.qkv = stash->qkv,
                                         .out = stash->out,
                                         .stats = stash->stats,
                                         .probabilities = stash->probabilities,
                                         .shape = shape,
                                         .dropout = attention_dropout(c, a, mb)});
}

static void core_stashed(Context *c, const Attention *a, AttentionStash *stash, AttentionShape shape,
                         Arena *arena, const Microbatch *mb) {
    bool recomputed = c->mode.recompute == RECOMPUTE_SELECTIVE;
    ArenaMark mark = arena_mark(c->scratch);
    AttentionStash core = *stash;
    take_core_stash(c, shape, &core, recomputed ? c->scratch : arena);
    if (recomputed) core.probabilities = (Tensor){0};
    core_forward(c, a, &core, shape, mb);
    if (!recomputed) *stash = core;
    if (recomputed) arena_release(c->scratch, mark);
}

static void core_cached(Context *c, const Attention *a, const AttentionStash *stash, AttentionShape shape,
                        const Microbatch *mb) {
    int64_t rows = (mb->position + shape.sequence) * shape.batch;
    attention_cached(c->device, c->stream,
                     (AttentionCached){.qkv = stash->qkv,
                                       .out = stash->out,
                                       .keys = tensor_rows(a->keys, 0, rows),
                                       .values = tensor_rows(a->values, 0, rows),
                                       .shape = shape,
                                       .position = mb->position});
}

// The gradient of qkv takes its place.
static void core_backward(Context *c, const Attention *a, const AttentionStash *kept, Tensor dout,
                          const Microbatch *mb) {
    AttentionShape shape = local_shape(c, a, mb);
    AttentionStash stash = *kept;
    if (!stash.stats.data) {
        take_core_stash(c, shape, &stash, c->scratch);
        core_forward(c, a, &stash, shape, mb);
    }
    attention_backward(c->device, c->stream,
                       (AttentionBackward){.dout = dout,
                                           .qkv = stash.qkv,
                                           .out = stash.out,
                                           .stats = stash.stats,
                                           .probabilities = stash.probabilities,
                                           .dqkv = stash.qkv,
                                           .shape = shape,
                                           .dropout = attention_dropout(c, a, mb)});
    rotate(c, a, stash.qkv, shape, mb, true);
}

// ---- the whole half ----------------------------------------------------------------------------------

void attention_apply(Context *c, const Attention *a, Tensor x, Tensor y, AttentionStash *stash, Arena *arena,
                     const Microbatch *mb) {
    AttentionShape shape = local_shape(c, a, mb);
    int64_t tokens = shape.batch * shape.sequence;
    *stash = (AttentionStash){0};
    norm_apply(c, &a->norm, x, &stash->norm, arena);
    stash->qkv = tensor_take(arena, "qkv", tokens, a->qkv.weight->value.rows, x.dtype);
    stash->out = tensor_take(arena, "attention output", tokens, shape.heads * shape.head_size, x.dtype);
    column_linear_forward(c, &a->qkv, stash->norm.y, stash->qkv, true);
    rotate(c, a, stash->qkv, shape, mb, false);
    if (mb->cached)
        core_cached(c, a, stash, shape, mb);
    else
        core_stashed(c, a, stash, shape, arena, mb);
    row_linear_forward(c, &a->proj, stash->out, y);
    bias_dropout_add(c->device, c->stream,
                     (BiasDropoutAdd){.x = y,
                                      .bias = param_value(a->proj.bias),
                                      .residual = x,
                                      .y = y,
                                      .dropout = hidden_dropout(c, a, mb)});
}

static void input_half(Context *c, const Attention *a, Halves halves, const AttentionStash *stash, Tensor dy,
                       Tensor dlast, Tensor dx, const Microbatch *mb) {
    ArenaMark mark = arena_mark(c->scratch);
    dropout_backward(c->device, c->stream,
                     (DropoutBackward){.dy = dy, .dx = dlast, .dropout = hidden_dropout(c, a, mb)});
    Tensor out = stash->out;
    Tensor dout = tensor_take(c->scratch, "gradient of attention output", out.rows, out.cols, out.dtype);
    row_linear_backward(c, &a->proj, halves, out, dlast, dout);
    core_backward(c, a, stash, dout, mb);
    arena_release(c->scratch, mark);
    Tensor dnorm = tensor_take(c->scratch, "gradient of norm", dy.rows, dy.cols, dy.dtype);
    column_linear_backward(c, &a->qkv, halves, stash->norm.y, stash->qkv, dnorm);
    norm_gradient(c, &a->norm, &stash->norm, dnorm, dy, dx);
    arena_release(c->scratch, mark);
}

void attention_gradient(Context *c, const Attention *a, Halves halves, AttentionStash *stash, Tensor dy,
                        Tensor dlast, Tensor dx, const Microbatch *mb) {
    if (halves & INPUT_HALF) {
        input_half(c, a, halves, stash, dy, dlast, dx, mb);
        return;
    }
    row_linear_backward(c, &a->proj, halves, stash->out, dlast, (Tensor){0});
    column_linear_backward(c, &a->qkv, halves, stash->norm.y, stash->qkv, (Tensor){0});
}
