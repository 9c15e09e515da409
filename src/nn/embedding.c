#include "nn/nn.h"

static const char word_name[] = "embedding.word_embeddings.weight";

static ParamSpec table(const char *name, int stage, const ModelShape *shape, int64_t rows) {
    ParamSpec spec = {.stage = stage, .rows = rows, .cols = shape->hidden, .shard = {-1}};
    snprintf(spec.name, sizeof spec.name, "%s", name);
    spec.init = INIT_NORMAL, spec.stddev = shape->init_std;
    spec.decay = true;
    return spec;
}

static ParamSpec word_table(const char *name, int stage, const ModelShape *shape) {
    ParamSpec spec = table(name, stage, shape, shape->padded_vocabulary);
    spec.shard.dim = 0;
    spec.real_rows = shape->vocabulary;
    return spec;
}

Embedding embedding_declare(Params *params, int stage, const ModelShape *shape) {
    ParamSpec position = table("embedding.position_embeddings.weight", stage, shape, shape->positions);
    Embedding e = {.hidden_dropout = shape->hidden_dropout};
    e.hidden_key = rng_key(shape->seed, "embedding dropout", 0);
    e.word = params_declare(params, word_table(word_name, stage, shape));
    e.position = params_declare(params, position);
    return e;
}

static int64_t first_local_row(const Context *c, const Param *word) { return word->value.rows * c->place.tp; }

void embedding_apply(Context *c, const Embedding *e, Tensor y, const Microbatch *mb) {
    embedding_forward(
        c->device, c->stream,
        (EmbeddingForward){
            .tokens = mb->tokens, .table = e->word->value, .y = y, .first_row = first_local_row(c, e->word)});
    comm_all_reduce(c->tp, c->stream, y, REDUCE_SUM);
    position_dropout(c->device, c->stream,
                     (PositionDropout){.x = y,
                                       .position = e->position->value,
                                       .y = y,
                                       .dropout = microbatch_dropout(mb, e->hidden_key, e->hidden_dropout)});
}

void embedding_gradient(Context *c, const Embedding *e, Tensor dy, const Microbatch *mb) {
    dropout_backward(c->device, c->stream,
                     (DropoutBackward){.dy = dy,
                                       .dx = dy,
                                       .dropout = microbatch_dropout(mb, e->hidden_key, e->hidden_dropout)});
    position_backward(c->device, c->stream,
                      (PositionBackward){.dy = dy, .dposition = e->position->grad, .samples = mb->samples});
    embedding_backward(c->device, c->stream,
                       (EmbeddingBackward){.tokens = mb->tokens,
                                           .dy = dy,
                                           .dtable = e->word->grad,
                                           .first_row = first_local_row(c, e->word)});
}

// ---- final norm, head, loss ----------------------------------------------------------------------------

LossHead loss_head_declare(Params *params, int stage, const ModelShape *shape) {
    LossHead head = {.vocabulary = shape->vocabulary};
    head.norm = norm_declare(params, "decoder.final_layernorm", stage, shape);
    ParamSpec word = word_table("output_layer.weight", stage, shape);
    word.tied_to = word_name;
    head.word = params_declare(params, word);
    return head;
}

// Leaves the losses in mb->loss and the gradient of the logits in `logits`.
static void cross_entropy(Context *c, const LossHead *head, Tensor logits, const Microbatch *mb) {
    int64_t tokens = logits.rows, first = first_local_row(c, head->word);
    Tensor max = tensor_take(c->scratch, "loss max", 1, tokens, F32);
    Tensor sums = tensor_take(c->scratch, "loss sum and target", 2, tokens, F32);
    Tensor sum = tensor_rows(sums, 0, 1), target = tensor_rows(sums, 1, 1);
    loss_max(c->device, c->stream,
             (LossMax){.logits = logits, .max = max, .first_col = first, .vocabulary = head->vocabulary});
    comm_all_reduce(c->tp, c->stream, max, REDUCE_MAX);
    loss_sum(c->device, c->stream,
             (LossSum){.logits = logits,
                       .labels = mb->labels,
                       .max = max,
                       .sum = sum,
                       .target = target,
                       .first_col = first,
                       .vocabulary = head->vocabulary});
    comm_all_reduce(c->tp, c->stream, sums, REDUCE_SUM);
    loss_finish(c->device, c->stream,
                (LossFinish){.labels = mb->labels,
                             .max = max,
                             .sum = sum,
                             .target = target,
                             .mask = mb->mask,
                             .logits = logits,
                             .loss = mb->loss,
                             .first_col = first,
                             .vocabulary = head->vocabulary,
                             .scale = mb->loss_scale});
}

// From the gradient of the logits to the head's weight gradients and the gradient of `hidden`, which it
// replaces.
static void head_gradient(Context *c, const LossHead *head, const NormStash *norm, Tensor dlogits,
                          Tensor hidden) {
    Tensor dy = tensor_take(c->scratch, "gradient of final norm", hidden.rows, hidden.cols, F32);
    matmul(c->device, c->stream, (Matmul){.a = dlogits, .b = head->word->value, .d = dy});
    comm_all_reduce(c->tp, c->stream, dy, REDUCE_SUM);
    matmul(
        c->device, c->stream,
        (Matmul){.a = dlogits, .b = norm->y, .d = head->word->grad, .transpose_a = true, .accumulate = true});
    norm_weight_gradient(c, &head->norm, norm, dy);
    norm_input_gradient(c, &head->norm, norm, dy, (Tensor){0}, dy);
    device_copy(c->device, c->stream, hidden, dy);
}

void loss_head_apply(Context *c, const LossHead *head, Tensor hidden, const Microbatch *mb,
                     Tensor logits_copy) {
    ArenaMark mark = arena_mark(c->scratch);
    NormStash norm;
    norm_apply(c, &head->norm, hidden, &norm, c->scratch);
    Tensor logits = tensor_take(c->scratch, "logits", hidden.rows, head->word->value.rows, F32);
    matmul(c->device, c->stream,
           (Matmul){.a = norm.y, .b = head->word->value, .d = logits, .transpose_b = true});
    if (logits_copy.data) device_copy(c->device, c->stream, logits_copy, logits);
    cross_entropy(c, head, logits, mb);
    if (mb->training) head_gradient(c, head, &norm, logits, hidden);
    arena_release(c->scratch, mark);
}
