// The layer norm and the RMS norm.
#include "nn/declare.h"

static Norm declare(const Builder *b, const char *name, int64_t columns, float epsilon) {
    ParamSpec gamma = builder_spec(b, name, "weight"), beta = builder_spec(b, name, "bias");
    gamma.rows = beta.rows = 1;
    gamma.cols = beta.cols = columns;
    gamma.reduction = beta.reduction = builder_row_reduction(b);
    gamma.init = b->shape->norm_offset ? INIT_ZERO : INIT_ONE;
    Norm norm = {.gamma = params_declare(b->params, gamma),
                 .epsilon = epsilon,
                 .offset = b->shape->norm_offset ? 1 : 0};
    if (!b->shape->rms_norm) norm.beta = params_declare(b->params, beta);
    return norm;
}

Norm norm_declare(const Builder *b, const char *name) {
    return declare(b, name, b->shape->hidden, b->shape->norm_epsilon);
}

Norm latent_norm_declare(const Builder *b, const char *name, int64_t columns) {
    float own = b->shape->latent_epsilon;
    return declare(b, name, columns, own > 0 ? own : b->shape->norm_epsilon);
}

int64_t norm_parameters(const ModelShape *s) { return (s->rms_norm ? 1 : 2) * (int64_t)s->hidden; }

void norm_apply(Context *c, const Norm *n, Tensor x, NormStash *stash, Arena *arena) {
    norm_apply_to(c, n, x, tensor_take(arena, "norm output", x.rows, x.cols, x.dtype), stash, arena);
}

void norm_apply_to(Context *c, const Norm *n, Tensor x, Tensor y, NormStash *stash, Arena *arena) {
    *stash = (NormStash){.x = x, .y = y, .rstd = tensor_take(arena, "norm 1/deviation", 1, x.rows, F32)};
    if (n->beta) stash->mean = tensor_take(arena, "norm mean", 1, x.rows, F32);
    norm_forward(c->device, c->stream,
                 (NormForward){.x = x,
                               .gamma = n->gamma->value,
                               .beta = param_value(n->beta),
                               .y = stash->y,
                               .mean = stash->mean,
                               .rstd = stash->rstd,
                               .epsilon = n->epsilon,
                               .offset = n->offset});
}

static void input_gradient(Context *c, const Norm *n, const NormStash *s, Tensor dy, Tensor residual,
                           Tensor dx) {
    norm_backward_input(c->device, c->stream,
                        (NormBackwardInput){.dy = dy,
                                            .x = s->x,
                                            .gamma = n->gamma->value,
                                            .mean = s->mean,
                                            .rstd = s->rstd,
                                            .residual = residual,
                                            .dx = dx,
                                            .offset = n->offset});
}

void norm_gradient(Context *c, const Norm *n, const NormStash *s, Tensor dy, Tensor residual, Tensor dx) {
    if (n->gamma->frozen) {
        input_gradient(c, n, s, dy, residual, dx);
        return;
    }
    GradSum dgamma = param_grad_sum(n->gamma, c->device, c->place), dbeta = {0};
    if (n->beta) dbeta = param_grad_sum(n->beta, c->device, c->place);
    norm_backward(c->device, c->stream,
                  (NormBackward){.dy = dy,
                                 .x = s->x,
                                 .gamma = n->gamma->value,
                                 .mean = s->mean,
                                 .rstd = s->rstd,
                                 .residual = residual,
                                 .dx = dx,
                                 .dgamma = dgamma.sum,
                                 .dbeta = dbeta.sum,
                                 .offset = n->offset,
                                 .accumulate = dgamma.adds});
}
