// The embedding: tokens and positions to hidden states.
#include "base/half.h"
#include "nn/declare.h"

// In 16 bits the factor is rounded to them, as other programs do.
static float multiplier_of(const Builder *b) {
    float multiplier = b->shape->embedding_multiplier;
    if (b->mode->dtype == BF16) return bf16_to_f32(bf16_of_f32(multiplier));
    return b->mode->dtype == F16 ? f16_to_f32(f16_of_f32(multiplier)) : multiplier;
}

Embedding embedding_declare(const Builder *b) {
    Embedding e = {.hidden_dropout = b->shape->hidden_dropout, .multiplier = multiplier_of(b)};
    e.hidden_key = rng_key(b->shape->seed, "embedding dropout", 0);
    e.word = params_declare(b->params, word_table_spec(b, WORD_TABLE_NAME));
    if (b->shape->position != POSITION_LEARNED) return e;
    ParamSpec position = table_spec(b, "embedding.position_embeddings.weight", b->shape->positions);
    position.reduction = builder_row_reduction(b);
    e.position = params_declare(b->params, position);
    return e;
}

// The positions of this rank's share of the rows.
static Tensor own_positions(const Context *c, const Microbatch *mb) {
    int64_t tokens = mb->samples * mb->sequence;
    return tensor_part(mb->positions, context_first_row(c, tokens), context_rows(c, tokens));
}

// Adds the position of each token, where it has one of its own.
static void add_positions(Context *c, const Embedding *e, Tensor y, const Microbatch *mb) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor rows = tensor_take(c->scratch, "position embeddings of tokens", y.rows, y.cols, y.dtype);
    embedding_forward(
        c->device, c->stream,
        (EmbeddingForward){.tokens = own_positions(c, mb), .table = e->position->value, .y = rows});
    add(c->device, c->stream, (Add){.x = rows, .y = y});
    arena_release(c->scratch, mark);
}

// Part `i` of this rank's share of the rows, with their dropout; false: there is none.
static bool hidden_rows(const Context *c, const Embedding *e, const Microbatch *mb, int i,
                        DropoutRows *rows) {
    return microbatch_rows(c, mb, e->hidden_key, e->hidden_dropout, true, i, rows);
}

void embedding_apply(Context *c, const Embedding *e, Tensor y, const Microbatch *mb) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor partial = tp_reduce_begin(c, y);
    embedding_forward(c->device, c->stream,
                      (EmbeddingForward){.tokens = mb->tokens,
                                         .table = e->word->value,
                                         .y = partial,
                                         .first_row = word_table_first_row(c, e->word)});
    tp_reduce_end(c, partial, y);
    arena_release(c->scratch, mark);
    if (e->multiplier > 0) scale(c->device, c->stream, (Scale){.x = y, .y = y, .factor = e->multiplier});
    bool by_token = e->position && mb->positions.data;
    if (by_token) add_positions(c, e, y, mb);
    DropoutRows rows;
    for (int i = 0; hidden_rows(c, e, mb, i, &rows); i++) {
        Tensor part = tensor_rows(y, rows.row, rows.count);
        position_dropout(c->device, c->stream,
                         (PositionDropout){.x = part,
                                           .position = by_token ? (Tensor){0} : param_value(e->position),
                                           .y = part,
                                           .dropout = rows.dropout});
    }
}

static void dropout_gradient(Context *c, Tensor dy, Dropout dropout) {
    if (dropout.probability > 0 || !device_is_fused(c->device))
        dropout_backward(c->device, c->stream, (DropoutBackward){.dy = dy, .dx = dy, .dropout = dropout});
}

void embedding_gradient(Context *c, const Embedding *e, Tensor dy, const Microbatch *mb) {
    if (e->word->frozen) return;
    DropoutRows rows;
    for (int i = 0; hidden_rows(c, e, mb, i, &rows); i++) {
        Tensor part = tensor_rows(dy, rows.row, rows.count);
        dropout_gradient(c, part, rows.dropout);
        if (e->position && !mb->positions.data)
            position_backward(c->device, c->stream,
                              (PositionBackward){.dy = part,
                                                 .dposition = param_grad(e->position, c->device, c->place),
                                                 .samples = mb->samples,
                                                 .first_row = rows.dropout.first_row});
    }
    if (e->position && mb->positions.data)
        embedding_backward(c->device, c->stream,
                           (EmbeddingBackward){.tokens = own_positions(c, mb),
                                               .dy = dy,
                                               .dtable = param_grad(e->position, c->device, c->place)});
    if (e->multiplier > 0) scale(c->device, c->stream, (Scale){.x = dy, .y = dy, .factor = e->multiplier});
    ArenaMark mark = arena_mark(c->scratch);
    embedding_backward(c->device, c->stream,
                       (EmbeddingBackward){.tokens = mb->tokens,
                                           .dy = tp_gather(c, dy),
                                           .dtable = param_grad(e->word, c->device, c->place),
                                           .first_row = word_table_first_row(c, e->word)});
    arena_release(c->scratch, mark);
}

ParamCount model_embedding_parameters(const ModelShape *s, int table_rows) {
    bool learned = s->position == POSITION_LEARNED;
    return (ParamCount){.cut = (int64_t)table_rows * s->hidden,
                        .whole = learned ? (int64_t)s->positions * s->hidden : 0};
}
