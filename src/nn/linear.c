#include "nn/layers.h"
#include <stdio.h>

// ---- declaring -------------------------------------------------------------------------------------

static ParamSpec named(const Builder *b, const char *prefix, const char *suffix) {
    ParamSpec spec = {.stage = b->stage, .shard = {.dim = -1}};
    int length = snprintf(spec.name, sizeof spec.name, "%s.%s", prefix, suffix);
    CHECK(length < (int)sizeof spec.name, "the parameter name %s.%s is too long", prefix, suffix);
    return spec;
}

PartName part_name(int layer, const char *part) {
    PartName name;
    int length = snprintf(name.text, sizeof name.text, "decoder.layers.%d.%s", layer, part);
    CHECK(length < (int)sizeof name.text, "the name of %s of layer %d is too long", part, layer);
    return name;
}

static Param *declare_weight(const Builder *b, LinearSpec linear, Shard shard) {
    ParamSpec weight = named(b, linear.name, "weight");
    weight.rows = linear.out, weight.cols = linear.in;
    weight.shard = shard;
    weight.init = INIT_NORMAL, weight.stddev = linear.stddev;
    weight.decay = true;
    return params_declare(b->params, weight);
}

Linear column_linear_declare(const Builder *b, LinearSpec linear) {
    Linear l = {.weight = declare_weight(b, linear, (Shard){0, linear.blocks})};
    if (!linear.bias) return l;
    ParamSpec bias = named(b, linear.name, "bias");
    bias.rows = 1, bias.cols = linear.out;
    bias.shard = (Shard){1, linear.blocks};
    l.bias = params_declare(b->params, bias);
    return l;
}

Linear row_linear_declare(const Builder *b, LinearSpec linear) {
    Linear l = {.weight = declare_weight(b, linear, (Shard){.dim = 1})};
    if (!linear.bias) return l;
    ParamSpec bias = named(b, linear.name, "bias");
    bias.rows = 1, bias.cols = linear.out;
    bias.partial = b->sequence_parallel;
    l.bias = params_declare(b->params, bias);
    return l;
}

// ---- the conjugate operators -----------------------------------------------------------------------

static bool cut(const Context *c) { return c->mode.sequence_parallel && c->grid.tp > 1; }

int64_t context_rows(const Context *c, int64_t rows) { return cut(c) ? rows / c->grid.tp : rows; }

int64_t context_first_row(const Context *c, int64_t rows) {
    return cut(c) ? rows / c->grid.tp * c->place.tp : 0;
}

Tensor context_whole(Context *c, Tensor share) {
    if (!cut(c)) return share;
    Tensor all = tensor_take(c->scratch, "gathered rows", share.rows * c->grid.tp, share.cols, share.dtype);
    comm_all_gather(c->tp, c->stream, share, all);
    return all;
}

Tensor context_summand(Context *c, Tensor result) {
    if (!cut(c)) return result;
    return tensor_take(c->scratch, "rows to scatter", result.rows * c->grid.tp, result.cols, result.dtype);
}

void context_sum(Context *c, Tensor mine, Tensor result) {
    if (cut(c))
        comm_reduce_scatter(c->tp, c->stream, mine, result);
    else
        comm_all_reduce(c->tp, c->stream, result, REDUCE_SUM);
}

Dropout microbatch_dropout(const Context *c, const Microbatch *mb, RngKey key, float probability, bool cut) {
    int64_t tokens = mb->samples * mb->sequence;
    return (Dropout){.key = key,
                     .probability = mb->training ? probability : 0.0f,
                     .first_sample = mb->first_sample,
                     .samples = mb->samples,
                     .first_row = mb->position * mb->samples + (cut ? context_first_row(c, tokens) : 0)};
}

// ---- products --------------------------------------------------------------------------------------

void linear_forward(Context *c, const Linear *l, Tensor x, Tensor bias, Tensor y) {
    matmul(c->device, c->stream,
           (Matmul){.a = x, .b = l->weight->value, .bias = bias, .d = y, .transpose_b = true});
}

void linear_input_gradient(Context *c, const Linear *l, Tensor dy, Tensor dx) {
    matmul(c->device, c->stream, (Matmul){.a = dy, .b = l->weight->value, .d = dx});
}

void linear_weight_gradient(Context *c, const Linear *l, Tensor x, Tensor dy) {
    bool adds = !l->weight->begins;
    l->weight->begins = false;
    matmul(c->device, c->stream,
           (Matmul){.a = dy, .b = x, .d = l->weight->grad, .transpose_a = true, .accumulate = adds});
}

static void bias_gradient(Context *c, const Linear *l, Tensor dy) {
    if (l->bias)
        column_sum(c->device, c->stream, (ColumnSum){.x = dy, .sum = param_grad(l->bias, c->device)});
}

void column_linear_forward(Context *c, const Linear *l, Tensor x, Tensor y, bool with_bias) {
    ArenaMark mark = arena_mark(c->scratch);
    linear_forward(c, l, context_whole(c, x), with_bias ? param_value(l->bias) : (Tensor){0}, y);
    arena_release(c->scratch, mark);
}

void column_linear_backward(Context *c, const Linear *l, Halves halves, Tensor x, Tensor dy, Tensor dx) {
    ArenaMark mark = arena_mark(c->scratch);
    if (halves & INPUT_HALF) {
        Tensor mine = context_summand(c, dx);
        linear_input_gradient(c, l, dy, mine);
        context_sum(c, mine, dx);
        bias_gradient(c, l, dy);
        arena_release(c->scratch, mark);
    }
    if (halves & WEIGHT_HALF) linear_weight_gradient(c, l, context_whole(c, x), dy);
    arena_release(c->scratch, mark);
}

void row_linear_forward(Context *c, const Linear *l, Tensor x, Tensor y) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor mine = context_summand(c, y);
    linear_forward(c, l, x, (Tensor){0}, mine);
    context_sum(c, mine, y);
    arena_release(c->scratch, mark);
}

void row_linear_backward(Context *c, const Linear *l, Halves halves, Tensor x, Tensor dy, Tensor dx) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor all = context_whole(c, dy);
    if (halves & INPUT_HALF) {
        linear_input_gradient(c, l, all, dx);
        bias_gradient(c, l, dy);
    }
    if (halves & WEIGHT_HALF) linear_weight_gradient(c, l, x, all);
    arena_release(c->scratch, mark);
}

// ---- norm ------------------------------------------------------------------------------------------

Norm norm_declare(const Builder *b, const char *name) {
    ParamSpec gamma = named(b, name, "weight"), beta = named(b, name, "bias");
    gamma.rows = beta.rows = 1;
    gamma.cols = beta.cols = b->shape->hidden;
    gamma.partial = beta.partial = b->sequence_parallel;
    gamma.init = INIT_ONE;
    Norm norm = {.gamma = params_declare(b->params, gamma), .epsilon = b->shape->norm_epsilon};
    if (!b->shape->rms_norm) norm.beta = params_declare(b->params, beta);
    return norm;
}

void norm_apply(Context *c, const Norm *n, Tensor x, NormStash *stash, Arena *arena) {
    *stash = (NormStash){.x = x,
                         .y = tensor_take(arena, "norm output", x.rows, x.cols, x.dtype),
                         .rstd = tensor_take(arena, "norm 1/deviation", 1, x.rows, F32)};
    if (n->beta) stash->mean = tensor_take(arena, "norm mean", 1, x.rows, F32);
    norm_forward(c->device, c->stream,
                 (NormForward){.x = x,
                               .gamma = n->gamma->value,
                               .beta = param_value(n->beta),
                               .y = stash->y,
                               .mean = stash->mean,
                               .rstd = stash->rstd,
                               .epsilon = n->epsilon});
}

void norm_gradient(Context *c, const Norm *n, const NormStash *s, Tensor dy, Tensor residual, Tensor dx) {
    norm_backward_weight(c->device, c->stream,
                         (NormBackwardWeight){.dy = dy,
                                              .x = s->x,
                                              .mean = s->mean,
                                              .rstd = s->rstd,
                                              .dgamma = param_grad(n->gamma, c->device),
                                              .dbeta = param_grad(n->beta, c->device)});
    norm_backward_input(c->device, c->stream,
                        (NormBackwardInput){.dy = dy,
                                            .x = s->x,
                                            .gamma = n->gamma->value,
                                            .mean = s->mean,
                                            .rstd = s->rstd,
                                            .residual = residual,
                                            .dx = dx});
}
