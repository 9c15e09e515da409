#include "nn/nn.h"
#include <math.h>
#include <stdio.h>

Attention attention_declare(Params *params, int layer, int stage, const ModelShape *shape) {
    char prefix[64], name[96];
    int64_t width = (int64_t)shape->heads * shape->head_size;
    snprintf(prefix, sizeof prefix, "decoder.layers.%d", layer);
    Attention a = {.attention_dropout = shape->attention_dropout, .hidden_dropout = shape->hidden_dropout};
    a.attention_key = rng_key(shape->seed, "attention dropout", (uint64_t)layer);
    a.hidden_key = rng_key(shape->seed, "attention output dropout", (uint64_t)layer);
    a.sequence = shape->sequence, a.head_size = shape->head_size;
    snprintf(name, sizeof name, "%s.input_layernorm", prefix);
    a.norm = norm_declare(params, name, stage, shape);
    snprintf(name, sizeof name, "%s.self_attention.linear_qkv", prefix);
    a.qkv = column_linear_declare(params, name, stage, shape->hidden, 3 * width, shape->init_std);
    snprintf(name, sizeof name, "%s.self_attention.linear_proj", prefix);
    a.proj = row_linear_declare(params, name, stage, width, shape->hidden,
                                shape->init_std / sqrtf(2.0f * (float)shape->layers));
    return a;
}

// The local heads are those whose q, k and v the local rows of the weight give.
static AttentionShape local_shape(const Context *c, const Attention *a, const Microbatch *mb) {
    int64_t heads = a->qkv.bias->value.cols / (3 * a->head_size);
    return (AttentionShape){mb->samples, a->sequence, heads, a->head_size, heads * c->place.tp};
}

void attention_apply(Context *c, const Attention *a, Tensor x, Tensor y, AttentionStash *stash, Arena *arena,
                     const Microbatch *mb) {
    AttentionShape shape = local_shape(c, a, mb);
    int64_t tokens = x.rows, width = shape.heads * shape.head_size;
    norm_apply(c, &a->norm, x, &stash->norm, arena);
    stash->qkv = tensor_take(arena, "qkv", tokens, 3 * width, F32);
    stash->out = tensor_take(arena, "attention output", tokens, width, F32);
    stash->stats =
        tensor_take(arena, "attention log-sum-exp", shape.batch * shape.heads, shape.sequence, F32);
    column_linear_forward(c, &a->qkv, stash->norm.y, stash->qkv, true);
    attention_forward(
        c->device, c->stream,
        (AttentionForward){.qkv = stash->qkv,
                           .out = stash->out,
                           .stats = stash->stats,
                           .shape = shape,
                           .dropout = microbatch_dropout(mb, a->attention_key, a->attention_dropout)});
    row_linear_forward(c, &a->proj, stash->out, y);
    bias_dropout_add(c->device, c->stream,
                     (BiasDropoutAdd){.x = y,
                                      .bias = a->proj.bias->value,
                                      .residual = x,
                                      .y = y,
                                      .dropout = microbatch_dropout(mb, a->hidden_key, a->hidden_dropout)});
}

void attention_backward_input(Context *c, const Attention *a, const AttentionStash *stash, Tensor dy,
                              Tensor dx, AttentionGrads *grads, Arena *keep, const Microbatch *mb) {
    Tensor qkv = stash->qkv, out = stash->out;
    grads->dproj = tensor_take(keep, "gradient of proj", dy.rows, dy.cols, F32);
    grads->dqkv = tensor_take(keep, "gradient of qkv", qkv.rows, qkv.cols, F32);
    grads->dnorm = tensor_take(keep, "gradient of norm", dy.rows, dy.cols, F32);
    dropout_backward(c->device, c->stream,
                     (DropoutBackward){.dy = dy,
                                       .dx = grads->dproj,
                                       .dropout = microbatch_dropout(mb, a->hidden_key, a->hidden_dropout)});
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dout = tensor_take(c->scratch, "gradient of attention output", out.rows, out.cols, F32);
    row_linear_backward_input(c, &a->proj, grads->dproj, dout);
    attention_backward(
        c->device, c->stream,
        (AttentionBackward){.dout = dout,
                            .qkv = qkv,
                            .out = out,
                            .stats = stash->stats,
                            .dqkv = grads->dqkv,
                            .shape = local_shape(c, a, mb),
                            .dropout = microbatch_dropout(mb, a->attention_key, a->attention_dropout)});
    arena_release(c->scratch, mark);
    column_linear_backward_input(c, &a->qkv, grads->dqkv, grads->dnorm);
    norm_input_gradient(c, &a->norm, &stash->norm, grads->dnorm, dy, dx);
}

void attention_backward_weight(Context *c, const Attention *a, const AttentionStash *stash,
                               const AttentionGrads *grads) {
    linear_backward_weight(c, &a->proj, stash->out, grads->dproj);
    linear_backward_weight(c, &a->qkv, stash->norm.y, grads->dqkv);
    norm_weight_gradient(c, &a->norm, &stash->norm, grads->dnorm);
}
