#include "nn/nn.h"
#include <stdio.h>

static ParamSpec named(const char *prefix, const char *suffix, int stage) {
    ParamSpec spec = {.stage = stage, .shard = {-1}};
    int length = snprintf(spec.name, sizeof spec.name, "%s.%s", prefix, suffix);
    CHECK(length < (int)sizeof spec.name, "the parameter name %s.%s is too long", prefix, suffix);
    return spec;
}

static Linear declare(Params *params, const char *name, int stage, int64_t in, int64_t out, float stddev,
                      int cut_dim) {
    ParamSpec weight = named(name, "weight", stage), bias = named(name, "bias", stage);
    weight.rows = out, weight.cols = in;
    weight.shard.dim = cut_dim;
    weight.init = INIT_NORMAL, weight.stddev = stddev;
    weight.decay = true;
    bias.rows = 1, bias.cols = out;
    bias.shard.dim = cut_dim == 0 ? 1 : -1; // cut with the output, or whole on every rank
    return (Linear){params_declare(params, weight), params_declare(params, bias)};
}

Linear column_linear_declare(Params *params, const char *name, int stage, int64_t in, int64_t out,
                             float stddev) {
    return declare(params, name, stage, in, out, stddev, 0);
}

Linear row_linear_declare(Params *params, const char *name, int stage, int64_t in, int64_t out,
                          float stddev) {
    return declare(params, name, stage, in, out, stddev, 1);
}

// y = x W^T (+ bias)
static void product_forward(Context *c, const Linear *l, Tensor x, Tensor bias, Tensor y) {
    matmul(c->device, c->stream,
           (Matmul){.a = x, .b = l->weight->value, .bias = bias, .d = y, .transpose_b = true});
}

// dx = dy W
static void product_backward(Context *c, const Linear *l, Tensor dy, Tensor dx) {
    matmul(c->device, c->stream, (Matmul){.a = dy, .b = l->weight->value, .d = dx});
}

void column_linear_forward(Context *c, const Linear *l, Tensor x, Tensor y, bool with_bias) {
    product_forward(c, l, x, with_bias ? l->bias->value : (Tensor){0}, y);
}

void column_linear_backward_input(Context *c, const Linear *l, Tensor dy, Tensor dx) {
    product_backward(c, l, dy, dx);
    comm_all_reduce(c->tp, c->stream, dx, REDUCE_SUM);
}

void row_linear_forward(Context *c, const Linear *l, Tensor x, Tensor y) {
    product_forward(c, l, x, (Tensor){0}, y);
    comm_all_reduce(c->tp, c->stream, y, REDUCE_SUM);
}

void row_linear_backward_input(Context *c, const Linear *l, Tensor dy, Tensor dx) {
    product_backward(c, l, dy, dx);
}

void linear_backward_weight(Context *c, const Linear *l, Tensor x, Tensor dy) {
    matmul(c->device, c->stream,
           (Matmul){.a = dy, .b = x, .d = l->weight->grad, .transpose_a = true, .accumulate = true});
    column_sum(c->device, c->stream, (ColumnSum){.x = dy, .sum = l->bias->grad});
}

Norm norm_declare(Params *params, const char *name, int stage, const ModelShape *shape) {
    ParamSpec gamma = named(name, "weight", stage), beta = named(name, "bias", stage);
    gamma.rows = beta.rows = 1;
    gamma.cols = beta.cols = shape->hidden;
    gamma.init = INIT_ONE;
    return (Norm){params_declare(params, gamma), params_declare(params, beta), shape->norm_epsilon};
}

void norm_apply(Context *c, const Norm *n, Tensor x, NormStash *stash, Arena *arena) {
    *stash = (NormStash){.x = x,
                         .y = tensor_take(arena, "norm output", x.rows, x.cols, F32),
                         .mean = tensor_take(arena, "norm mean", 1, x.rows, F32),
                         .rstd = tensor_take(arena, "norm 1/deviation", 1, x.rows, F32)};
    norm_forward(c->device, c->stream,
                 (NormForward){.x = x,
                               .gamma = n->gamma->value,
                               .beta = n->beta->value,
                               .y = stash->y,
                               .mean = stash->mean,
                               .rstd = stash->rstd,
                               .epsilon = n->epsilon});
}

void norm_input_gradient(Context *c, const Norm *n, const NormStash *s, Tensor dy, Tensor residual,
                         Tensor dx) {
    norm_backward_input(c->device, c->stream,
                        (NormBackwardInput){.dy = dy,
                                            .x = s->x,
                                            .gamma = n->gamma->value,
                                            .mean = s->mean,
                                            .rstd = s->rstd,
                                            .residual = residual,
                                            .dx = dx});
}

void norm_weight_gradient(Context *c, const Norm *n, const NormStash *s, Tensor dy) {
    norm_backward_weight(c->device, c->stream,
                         (NormBackwardWeight){.dy = dy,
                                              .x = s->x,
                                              .mean = s->mean,
                                              .rstd = s->rstd,
                                              .dgamma = n->gamma->grad,
                                              .dbeta = n->beta->grad});
}
