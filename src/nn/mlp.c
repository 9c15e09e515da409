// The MLP sublayer: norm, fc1, activation, fc2.
#include "nn/layers.h"
#include <math.h>

Mlp mlp_declare(const Builder *b, int layer) {
    const ModelShape *shape = b->shape;
    bool gated = shape->activation == ACTIVATION_SWIGLU;
    Mlp m = {.activation = shape->activation, .hidden_dropout = shape->hidden_dropout};
    m.hidden_key = rng_key(shape->seed, "mlp output dropout", (uint64_t)layer);
    m.norm = norm_declare(b, part_name(layer, "pre_mlp_layernorm").text);
    m.fc1 = column_linear_declare(b, (LinearSpec){.name = part_name(layer, "mlp.linear_fc1").text,
                                                  .in = shape->hidden,
                                                  .out = (gated ? 2 : 1) * (int64_t)shape->ffn,
                                                  .stddev = shape->init_std,
                                                  .bias = model_has_mlp_bias(shape),
                                                  .blocks = gated ? 2 : 1});
    m.fc2 = row_linear_declare(b, (LinearSpec){.name = part_name(layer, "mlp.linear_fc2").text,
                                               .in = shape->ffn,
                                               .out = shape->hidden,
                                               .stddev = shape->init_std / sqrtf(2.0f * (float)shape->layers),
                                               .bias = model_has_mlp_bias(shape)});
    return m;
}

static Dropout hidden_dropout(const Context *c, const Mlp *m, const Microbatch *mb) {
    return microbatch_dropout(c, mb, m->hidden_key, m->hidden_dropout, true);
}

static void activate(Context *c, const Mlp *m, const MlpStash *s) {
    Tensor bias = param_value(m->fc1.bias);
    if (m->activation == ACTIVATION_SWIGLU)
        swiglu_forward(c->device, c->stream, (SwigluForward){.x = s->fc1, .bias = bias, .y = s->activated});
    else
        bias_gelu_forward(
            c->device, c->stream,
            (BiasGeluForward){
                .x = s->fc1, .bias = bias, .y = s->activated, .exact = m->activation == ACTIVATION_GELU_ERF});
}

// The gradient of fc1's output takes its place.
static void activation_gradient(Context *c, const Mlp *m, const MlpStash *s, Tensor dy) {
    Tensor bias = param_value(m->fc1.bias);
    if (m->activation == ACTIVATION_SWIGLU)
        swiglu_backward(c->device, c->stream,
                        (SwigluBackward){.dy = dy, .x = s->fc1, .bias = bias, .dx = s->fc1});
    else
        bias_gelu_backward(c->device, c->stream,
                           (BiasGeluBackward){.dy = dy,
                                              .x = s->fc1,
                                              .bias = bias,
                                              .dx = s->fc1,
                                              .exact = m->activation == ACTIVATION_GELU_ERF});
}

void mlp_apply(Context *c, const Mlp *m, Tensor x, Tensor y, MlpStash *stash, Arena *arena,
               const Microbatch *mb) {
    int64_t tokens = mb->sequence * mb->samples;
    norm_apply(c, &m->norm, x, &stash->norm, arena);
    stash->fc1 = tensor_take(arena, "fc1 output", tokens, m->fc1.weight->value.rows, x.dtype);
    stash->activated = tensor_take(arena, "activation output", tokens, m->fc2.weight->value.cols, x.dtype);
    column_linear_forward(c, &m->fc1, stash->norm.y, stash->fc1, false);
    activate(c, m, stash);
    row_linear_forward(c, &m->fc2, stash->activated, y);
    bias_dropout_add(c->device, c->stream,
                     (BiasDropoutAdd){.x = y,
                                      .bias = param_value(m->fc2.bias),
                                      .residual = x,
                                      .y = y,
                                      .dropout = hidden_dropout(c, m, mb)});
}

static void input_half(Context *c, const Mlp *m, Halves halves, const MlpStash *stash, Tensor dy,
                       Tensor dlast, Tensor dx, const Microbatch *mb) {
    ArenaMark mark = arena_mark(c->scratch);
    dropout_backward(c->device, c->stream,
                     (DropoutBackward){.dy = dy, .dx = dlast, .dropout = hidden_dropout(c, m, mb)});
    Tensor y = stash->activated;
    Tensor dy_activated = tensor_take(c->scratch, "gradient of activation output", y.rows, y.cols, y.dtype);
    row_linear_backward(c, &m->fc2, halves, y, dlast, dy_activated);
    activation_gradient(c, m, stash, dy_activated);
    arena_release(c->scratch, mark);
    Tensor dnorm = tensor_take(c->scratch, "gradient of norm", dy.rows, dy.cols, dy.dtype);
    column_linear_backward(c, &m->fc1, halves, stash->norm.y, stash->fc1, dnorm);
    norm_gradient(c, &m->norm, &stash->norm, dnorm, dy, dx);
    arena_release(c->scratch, mark);
}

void mlp_gradient(Context *c, const Mlp *m, Halves halves, MlpStash *stash, Tensor dy, Tensor dlast,
                  Tensor dx, const Microbatch *mb) {
    if (halves & INPUT_HALF) {
        input_half(c, m, halves, stash, dy, dlast, dx, mb);
        return;
    }
    row_linear_backward(c, &m->fc2, halves, stash->activated, dlast, (Tensor){0});
    column_linear_backward(c, &m->fc1, halves, stash->norm.y, stash->fc1, (Tensor){0});
}
