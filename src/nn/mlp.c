#include "nn/nn.h"
#include <math.h>
#include <stdio.h>

Mlp mlp_declare(Params *params, int layer, int stage, const ModelShape *shape) {
    char prefix[64], name[96];
    snprintf(prefix, sizeof prefix, "decoder.layers.%d", layer);
    Mlp m = {.hidden_dropout = shape->hidden_dropout};
    m.hidden_key = rng_key(shape->seed, "mlp output dropout", (uint64_t)layer);
    snprintf(name, sizeof name, "%s.pre_mlp_layernorm", prefix);
    m.norm = norm_declare(params, name, stage, shape);
    snprintf(name, sizeof name, "%s.mlp.linear_fc1", prefix);
    m.fc1 = column_linear_declare(params, name, stage, shape->hidden, shape->ffn, shape->init_std);
    snprintf(name, sizeof name, "%s.mlp.linear_fc2", prefix);
    m.fc2 = row_linear_declare(params, name, stage, shape->ffn, shape->hidden,
                               shape->init_std / sqrtf(2.0f * (float)shape->layers));
    return m;
}

void mlp_apply(Context *c, const Mlp *m, Tensor x, Tensor y, MlpStash *stash, Arena *arena,
               const Microbatch *mb) {
    int64_t width = m->fc1.bias->value.cols;
    norm_apply(c, &m->norm, x, &stash->norm, arena);
    stash->fc1 = tensor_take(arena, "fc1 output", x.rows, width, F32);
    stash->gelu = tensor_take(arena, "gelu output", x.rows, width, F32);
    column_linear_forward(c, &m->fc1, stash->norm.y, stash->fc1, false);
    bias_gelu_forward(c->device, c->stream,
                      (BiasGeluForward){.x = stash->fc1, .bias = m->fc1.bias->value, .y = stash->gelu});
    row_linear_forward(c, &m->fc2, stash->gelu, y);
    bias_dropout_add(c->device, c->stream,
                     (BiasDropoutAdd){.x = y,
                                      .bias = m->fc2.bias->value,
                                      .residual = x,
                                      .y = y,
                                      .dropout = microbatch_dropout(mb, m->hidden_key, m->hidden_dropout)});
}

void mlp_backward_input(Context *c, const Mlp *m, const MlpStash *stash, Tensor dy, Tensor dx,
                        MlpGrads *grads, Arena *keep, const Microbatch *mb) {
    Tensor fc1 = stash->fc1;
    grads->dfc2 = tensor_take(keep, "gradient of fc2", dy.rows, dy.cols, F32);
    grads->dfc1 = tensor_take(keep, "gradient of fc1", fc1.rows, fc1.cols, F32);
    grads->dnorm = tensor_take(keep, "gradient of norm", dy.rows, dy.cols, F32);
    dropout_backward(c->device, c->stream,
                     (DropoutBackward){.dy = dy,
                                       .dx = grads->dfc2,
                                       .dropout = microbatch_dropout(mb, m->hidden_key, m->hidden_dropout)});
    row_linear_backward_input(c, &m->fc2, grads->dfc2, grads->dfc1);
    bias_gelu_backward(
        c->device, c->stream,
        (BiasGeluBackward){.dy = grads->dfc1, .x = fc1, .bias = m->fc1.bias->value, .dx = grads->dfc1});
    column_linear_backward_input(c, &m->fc1, grads->dfc1, grads->dnorm);
    norm_input_gradient(c, &m->norm, &stash->norm, grads->dnorm, dy, dx);
}

void mlp_backward_weight(Context *c, const Mlp *m, const MlpStash *stash, const MlpGrads *grads) {
    linear_backward_weight(c, &m->fc2, stash->gelu, grads->dfc2);
    linear_backward_weight(c, &m->fc1, stash->norm.y, grads->dfc1);
    norm_weight_gradient(c, &m->norm, &stash->norm, grads->dnorm);
}
