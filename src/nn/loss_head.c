// The loss head: final norm, logits and vocabulary-parallel cross-entropy.
#include "nn/declare.h"

LossHead loss_head_declare(const Builder *b) {
    LossHead head = {.vocabulary = b->shape->vocabulary, .cap = b->shape->logit_cap};
    if (b->shape->logits_scaling > 0) head.input_scale = 1 / b->shape->logits_scaling;
    head.norm = norm_declare(b, "decoder.final_layernorm");
    ParamSpec word = word_table_spec(b, "output_layer.weight");
    if (!b->shape->untied) word.tied_to = WORD_TABLE_NAME;
    head.output.weight = params_declare(b->params, word);
    return head;
}

// Each rank has the logits of its own columns.
static void cross_entropy_cut(Context *c, const LossHead *head, Tensor logits, Tensor dlogits, Tensor max,
                              Tensor sums, const Microbatch *mb) {
    int64_t first = word_table_first_row(c, head->output.weight);
    Tensor sum = tensor_rows(sums, 0, 1), target = tensor_rows(sums, 1, 1);
    loss_max(c->device, c->stream,
             (LossMax){.logits = logits, .max = max, .first_col = first, .vocabulary = head->vocabulary});
    tp_all_reduce(c, max, REDUCE_MAX);
    loss_sum(c->device, c->stream,
             (LossSum){.logits = logits,
                       .labels = mb->labels,
                       .max = max,
                       .sum = sum,
                       .target = target,
                       .first_col = first,
                       .vocabulary = head->vocabulary});
    tp_all_reduce(c, sums, REDUCE_SUM);
    loss_finish(c->device, c->stream,
                (LossFinish){.labels = mb->labels,
                             .max = max,
                             .sum = sum,
                             .target = target,
                             .mask = mb->mask,
                             .logits = logits,
                             .dlogits = dlogits,
                             .loss = mb->loss,
                             .first_col = first,
                             .vocabulary = head->vocabulary,
                             .scale = mb->loss_scale});
}

static void cross_entropy_whole(Context *c, const LossHead *head, Tensor logits, Tensor dlogits, Tensor max,
                                Tensor sums, const Microbatch *mb) {
    loss_whole(c->device, c->stream,
               (LossWhole){.logits = logits,
                           .labels = mb->labels,
                           .mask = mb->mask,
                           .dlogits = dlogits,
                           .loss = mb->loss,
                           .max = max,
                           .sum = tensor_rows(sums, 0, 1),
                           .target = tensor_rows(sums, 1, 1),
                           .vocabulary = head->vocabulary,
                           .scale = mb->loss_scale});
}

// Computes the input of the product for the logits from `hidden`.
static void head_norm(Context *c, const LossHead *head, Tensor hidden, NormStash *norm) {
    norm_apply(c, &head->norm, hidden, norm, c->scratch);
    if (head->input_scale > 0)
        scale(c->device, c->stream, (Scale){.x = norm->y, .y = norm->y, .factor = head->input_scale});
}

static void cap_logits(Context *c, const LossHead *head, Tensor logits) {
    if (head->cap > 0) soft_cap(c->device, c->stream, (SoftCap){.x = logits, .y = logits, .cap = head->cap});
}

// Returns the tensor for the gradient of the logits: they themselves, unless they have another type or are read later.
static Tensor take_dlogits(Context *c, const LossHead *head, Tensor logits, DType dtype) {
    if (dtype == F32 && !(head->cap > 0)) return logits;
    return tensor_take(c->scratch, "gradient of logits", logits.rows, logits.cols, dtype);
}

// Writes the losses to mb->loss, the margins to mb->margin and the gradient of the logits to `dlogits`.
static void cross_entropy(Context *c, const LossHead *head, Tensor logits, Tensor dlogits,
                          const Microbatch *mb) {
    Tensor max = tensor_take(c->scratch, "loss max", 1, logits.rows, F32);
    Tensor sums = tensor_take(c->scratch, "loss sum and target", 2, logits.rows, F32);
    bool cut = context_ranks(c, ROLE_TENSOR) > 1;
    (cut ? cross_entropy_cut : cross_entropy_whole)(c, head, logits, dlogits, max, sums, mb);
    if (mb->margin.data) device_copy(c->device, c->stream, mb->margin, tensor_rows(sums, 1, 1));
    if (head->cap > 0 && mb->training)
        soft_cap_backward(c->device, c->stream,
                          (SoftCapBackward){.dy = dlogits, .y = logits, .dx = dlogits, .cap = head->cap});
}

void loss_head_predict(Context *c, const LossHead *head, Tensor hidden, const Microbatch *mb, Tensor logits) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor last = tensor_rows(hidden, (mb->sequence - 1) * mb->samples, mb->samples);
    NormStash norm;
    head_norm(c, head, last, &norm);
    column_linear_forward(c, &head->output, norm.y, logits, false);
    cap_logits(c, head, logits);
    arena_release(c->scratch, mark);
}

// Logits exist for a chunk of tokens at a time. Chunks of the vocabulary would need the head's product
// twice, since no gradient is known before a whole row is. Chunks are as equal as possible: a short last chunk would
// read and write dW as often as a long one.
static int64_t chunk_tokens(const Context *c, const LossHead *head, int64_t tokens) {
    int64_t most = device_head_tokens(c->device, head->output.weight->value.cols, head->vocabulary);
    int64_t chunks = (tokens + most - 1) / most;
    return (tokens + chunks - 1) / chunks;
}

static Microbatch chunk_of(const Microbatch *mb, int64_t first, int64_t count) {
    Microbatch chunk = *mb;
    Tensor *cut[] = {&chunk.labels, &chunk.mask, &chunk.loss, &chunk.margin};
    for (int i = 0; i < 4; i++)
        if (cut[i]->data) *cut[i] = tensor_part(*cut[i], first, count);
    return chunk;
}

// Computes the losses of some rows of the norm's output and, in training, this rank's partial sum `dx` of their
// gradient.
static void head_chunk(Context *c, const LossHead *head, Tensor x, Tensor dx, const Microbatch *chunk,
                       Tensor logits_copy) {
    ArenaMark mark = arena_mark(c->scratch);
    int64_t width = head->output.weight->value.rows;
    Tensor logits = tensor_take(c->scratch, "logits", x.rows, width, F32);
    Tensor dlogits = take_dlogits(c, head, logits, x.dtype);
    linear_forward(c, &head->output, x, (Tensor){0}, logits);
    cap_logits(c, head, logits);
    if (logits_copy.data) device_copy(c->device, c->stream, logits_copy, logits);
    cross_entropy(c, head, logits, dlogits, chunk);
    if (chunk->training) {
        linear_input_gradient(c, &head->output, dlogits, dx);
        linear_weight_gradient(c, &head->output, x, dlogits);
    }
    arena_release(c->scratch, mark);
}

// `dnorm` is absent when not training. A chunk has rows of all ranks, so the rows of all chunks are gathered, and their
// gradients summed, at once.
static void head_chunks(Context *c, const LossHead *head, Tensor norm, Tensor dnorm, const Microbatch *mb,
                        Tensor logits_copy) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor x = tp_gather(c, norm), dx = dnorm.data ? tp_reduce_begin(c, dnorm) : dnorm;
    int64_t step = chunk_tokens(c, head, x.rows);
    for (int64_t first = 0; first < x.rows; first += step) {
        int64_t count = x.rows - first < step ? x.rows - first : step;
        Microbatch chunk = chunk_of(mb, first, count);
        head_chunk(c, head, tensor_rows(x, first, count), dx.data ? tensor_rows(dx, first, count) : dx,
                   &chunk, logits_copy.data ? tensor_rows(logits_copy, first, count) : logits_copy);
    }
    if (dnorm.data) tp_reduce_end(c, dx, dnorm);
    arena_release(c->scratch, mark);
}

// Works on all tokens at once, with the operators of a column-parallel linear.
static void head_whole(Context *c, const LossHead *head, Tensor norm, Tensor dnorm, const Microbatch *mb,
                       Tensor logits_copy) {
    ArenaMark mark = arena_mark(c->scratch);
    int64_t tokens = mb->sequence * mb->samples, width = head->output.weight->value.rows;
    Tensor logits = tensor_take(c->scratch, "logits", tokens, width, F32);
    Tensor dlogits = take_dlogits(c, head, logits, norm.dtype);
    column_linear_forward(c, &head->output, norm, logits, false);
    cap_logits(c, head, logits);
    if (logits_copy.data) device_copy(c->device, c->stream, logits_copy, logits);
    cross_entropy(c, head, logits, dlogits, mb);
    if (dnorm.data) column_linear_backward(c, &head->output, BOTH_HALVES, norm, dlogits, dnorm);
    arena_release(c->scratch, mark);
}

void loss_head_apply(Context *c, const LossHead *head, Tensor hidden, const Microbatch *mb,
                     Tensor logits_copy) {
    ArenaMark mark = arena_mark(c->scratch);
    NormStash norm;
    head_norm(c, head, hidden, &norm);
    Tensor dnorm = {0};
    if (mb->training)
        dnorm = tensor_take(c->scratch, "gradient of final norm", hidden.rows, hidden.cols, hidden.dtype);
    if (c->mode.whole_logits)
        head_whole(c, head, norm.y, dnorm, mb, logits_copy);
    else
        head_chunks(c, head, norm.y, dnorm, mb, logits_copy);
    if (mb->training && head->input_scale > 0)
        scale(c->device, c->stream, (Scale){.x = dnorm, .y = dnorm, .factor = head->input_scale});
    if (mb->training) norm_gradient(c, &head->norm, &norm, dnorm, (Tensor){0}, hidden);
    arena_release(c->scratch, mark);
}

ParamCount model_head_parameters(const ModelShape *s, int table_rows) {
    return (ParamCount){.cut = s->untied ? (int64_t)table_rows * s->hidden : 0, .whole = norm_parameters(s)};
}
