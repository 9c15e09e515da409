// The norms of queries and keys.
#include "nn/qk_norm.h"
#include "nn/declare.h"

// A gamma that all heads share has a part of its gradient on every tp rank, which has some of the heads.
static Param *declare_gamma(const Builder *b, int layer, const char *name, int64_t heads) {
    const ModelShape *s = b->shape;
    bool all = s->qk_norm == QK_NORM_ALL;
    ParamSpec gamma = builder_spec(b, part_name(layer, name).text, "weight");
    gamma.rows = 1, gamma.cols = (all ? heads : 1) * s->head_size;
    if (all)
        gamma.cut.dim = 1;
    else
        gamma.reduction = REDUCTION_PARTIAL;
    gamma.init = s->norm_offset ? INIT_ZERO : INIT_ONE;
    return params_declare(b->params, gamma);
}

QkNorms qk_norm_declare(const Builder *b, int layer) {
    const ModelShape *s = b->shape;
    if (s->qk_norm == QK_NORM_NONE) return (QkNorms){0};
    return (QkNorms){.query = declare_gamma(b, layer, "self_attention.q_layernorm", s->heads),
                     .key = declare_gamma(b, layer, "self_attention.k_layernorm", model_groups(s)),
                     .all = s->qk_norm == QK_NORM_ALL,
                     .epsilon = s->norm_epsilon,
                     .offset = s->norm_offset ? 1 : 0};
}

int64_t qk_norm_parameters(const ModelShape *s, bool cut) {
    if (s->qk_norm == QK_NORM_NONE || cut != (s->qk_norm == QK_NORM_ALL)) return 0;
    return (cut ? (int64_t)s->heads + model_groups(s) : 2) * s->head_size;
}

static void sum_over_ranks(Context *c, Tensor sums) {
    if (context_ranks(c, ROLE_TENSOR) > 1) tp_all_reduce(c, sums, REDUCE_SUM);
}

void qk_norm_apply(Context *c, const QkNorms *n, Tensor qkv, AttentionShape shape, QkNormStash *stash,
                   Arena *arena) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor sums = {0};
    stash->normed = tensor_take(arena, "normalised queries, keys", qkv.rows, qkv.cols, qkv.dtype);
    stash->rstd =
        tensor_take(arena, "queries' and keys' 1/deviation", qkv.rows, shape.heads + shape.groups, F32);
    if (arena == c->scratch) mark = arena_mark(c->scratch);
    if (n->all) {
        sums = tensor_take(c->scratch, "sums of squares of queries and keys", qkv.rows, 2, F32);
        qk_sums(c->device, c->stream, (QkSums){.qkv = qkv, .sums = sums, .shape = shape});
        sum_over_ranks(c, sums);
    }
    qk_norm_forward(c->device, c->stream,
                    (QkNormForward){.qkv = qkv,
                                    .query_gamma = n->query->value,
                                    .key_gamma = n->key->value,
                                    .sums = sums,
                                    .y = stash->normed,
                                    .rstd = stash->rstd,
                                    .shape = shape,
                                    .ranks = context_ranks(c, ROLE_TENSOR),
                                    .epsilon = n->epsilon,
                                    .offset = n->offset});
    arena_release(c->scratch, mark);
}

// The weights come first: dqkv may take the place of the others.
void qk_norm_gradient(Context *c, const QkNorms *n, Tensor qkv, AttentionShape shape,
                      const QkNormStash *stash, Tensor dnormed, Tensor dqkv) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor sums = {0};
    if (!n->query->frozen)
        qk_norm_backward_weight(
            c->device, c->stream,
            (QkNormBackwardWeight){.dy = dnormed,
                                   .qkv = qkv,
                                   .rstd = stash->rstd,
                                   .dquery_gamma = param_grad(n->query, c->device, c->place),
                                   .dkey_gamma = param_grad(n->key, c->device, c->place),
                                   .shape = shape});
    if (n->all) {
        sums = tensor_take(c->scratch, "sums of gradients of queries and keys", qkv.rows, 2, F32);
        qk_sums(c->device, c->stream,
                (QkSums){.qkv = qkv,
                         .dy = dnormed,
                         .query_gamma = n->query->value,
                         .key_gamma = n->key->value,
                         .rstd = stash->rstd,
                         .sums = sums,
                         .shape = shape,
                         .offset = n->offset});
        sum_over_ranks(c, sums);
    }
    qk_norm_backward_input(c->device, c->stream,
                           (QkNormBackwardInput){.dy = dnormed,
                                                 .qkv = qkv,
                                                 .query_gamma = n->query->value,
                                                 .key_gamma = n->key->value,
                                                 .rstd = stash->rstd,
                                                 .sums = sums,
                                                 .dx = dqkv,
                                                 .shape = shape,
                                                 .ranks = context_ranks(c, ROLE_TENSOR),
                                                 .offset = n->offset});
    arena_release(c->scratch, mark);
}
