// The loss head: final norm, logits and vocabulary-parallel cross-entropy.
#include "nn/declare.h"
#include "nn/shared_attention.h"

LossHead loss_head_declare(const Builder *b) {
    LossHead head = {.vocabulary = b->shape->vocabulary, .cap = b->shape->logit_cap};
    if (b->shape->logits_scaling > 0) head.input_scale = 1 / b->shape->logits_scaling;
    head.norm = norm_declare(b, "decoder.final_layernorm");
    ParamSpec word = word_table_spec(b, "output_layer.weight");
    if (!b->shape->untied) word.tied_to = WORD_TABLE_NAME;
    head.output.weight = params_declare(b->params, word);
    return head;
}

// The parts of each label's probability, F32 [1, T]: the largest logit, the sum of exp(logit - max), and the label's
// logit less max.
typedef struct {
    Tensor max, sum, target;
} LossParts;

// Each rank has the logits of its own columns. sum and target are then this rank's share of their sums over tp.
static void begin_loss(Context *c, const LossHead *head, Tensor logits, Tensor labels, LossParts parts) {
    int64_t first = word_table_first_row(c, head->output.weight);
    loss_max(
        c->device, c->stream,
        (LossMax){.logits = logits, .max = parts.max, .first_col = first, .vocabulary = head->vocabulary});
    tp_all_reduce(c, parts.max, REDUCE_MAX);
    loss_sum(c->device, c->stream,
             (LossSum){.logits = logits,
                       .labels = labels,
                       .max = parts.max,
                       .sum = parts.sum,
                       .target = parts.target,
                       .first_col = first,
                       .vocabulary = head->vocabulary});
}

static void finish_loss(Context *c, const LossHead *head, Tensor logits, Tensor dlogits, LossParts parts,
                        const Microbatch *mb) {
    loss_finish(c->device, c->stream,
                (LossFinish){.labels = mb->labels,
                             .max = parts.max,
                             .sum = parts.sum,
                             .target = parts.target,
                             .mask = mb->mask,
                             .logits = logits,
                             .dlogits = dlogits,
                             .loss = mb->loss,
                             .first_col = word_table_first_row(c, head->output.weight),
                             .vocabulary = head->vocabulary,
                             .scale = mb->loss_scale});
}

static void cross_entropy_cut(Context *c, const LossHead *head, Tensor logits, Tensor dlogits, Tensor max,
                              Tensor sums, const Microbatch *mb) {
    LossParts parts = {max, tensor_rows(sums, 0, 1), tensor_rows(sums, 1, 1)};
    begin_loss(c, head, logits, mb->labels, parts);
    tp_all_reduce(c, sums, REDUCE_SUM);
    finish_loss(c, head, logits, dlogits, parts, mb);
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

// The gradient of logits that were capped becomes that of the logits before.
static void uncap_gradient(Context *c, const LossHead *head, Tensor logits, Tensor dlogits) {
    if (head->cap > 0)
        soft_cap_backward(c->device, c->stream,
                          (SoftCapBackward){.dy = dlogits, .y = logits, .dx = dlogits, .cap = head->cap});
}

// Writes the losses to mb->loss, the margins to mb->margin and the gradient of the logits to `dlogits`.
static void cross_entropy(Context *c, const LossHead *head, Tensor logits, Tensor dlogits,
                          const Microbatch *mb) {
    Tensor max = tensor_take(c->scratch, "loss max", 1, logits.rows, F32);
    Tensor sums = tensor_take(c->scratch, "loss sum and target", 2, logits.rows, F32);
    bool cut = context_ranks(c, ROLE_TENSOR) > 1;
    (cut ? cross_entropy_cut : cross_entropy_whole)(c, head, logits, dlogits, max, sums, mb);
    if (mb->margin.data) device_copy(c->device, c->stream, mb->margin, tensor_rows(sums, 1, 1));
    if (mb->training) uncap_gradient(c, head, logits, dlogits);
}

void loss_head_predict(Context *c, const LossHead *head, Tensor hidden, const Microbatch *mb, Tensor logits) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor last = tensor_rows(hidden, (mb->sequence - 1) * mb->samples, mb->samples);
    NormStash norm;
    head_norm(c, head, last, &norm);
    column_linear_forward(c, &head->output, NULL, norm.y, logits, false);
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

static Tensor take_logits(Context *c, const LossHead *head, int64_t rows) {
    return tensor_take(c->scratch, "logits", rows, head->output.weight->value.rows, F32);
}

static void chunk_logits(Context *c, const LossHead *head, Tensor x, Tensor logits) {
    linear_forward(c, &head->output, x, (Tensor){0}, logits);
    cap_logits(c, head, logits);
}

static void chunk_gradients(Context *c, const LossHead *head, Tensor x, Tensor dlogits, Tensor dx) {
    linear_input_gradient(c, &head->output, dlogits, dx);
    if (!head->output.weight->frozen) linear_weight_gradient(c, &head->output, x, dlogits);
}

// Computes the losses of some rows of the norm's output and, in training, this rank's partial sum `dx` of their
// gradient.
static void head_chunk(Context *c, const LossHead *head, Tensor x, Tensor dx, const Microbatch *chunk,
                       Tensor logits_copy) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor logits = take_logits(c, head, x.rows);
    Tensor dlogits = take_dlogits(c, head, logits, x.dtype);
    chunk_logits(c, head, x, logits);
    if (logits_copy.data) device_copy(c->device, c->stream, logits_copy, logits);
    cross_entropy(c, head, logits, dlogits, chunk);
    if (chunk->training) chunk_gradients(c, head, x, dlogits, dx);
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
    column_linear_forward(c, &head->output, NULL, norm, logits, false);
    cap_logits(c, head, logits);
    if (logits_copy.data) device_copy(c->device, c->stream, logits_copy, logits);
    cross_entropy(c, head, logits, dlogits, mb);
    if (dnorm.data) column_linear_backward(c, &head->output, NULL, BOTH_HALVES, norm, dlogits, dnorm);
    arena_release(c->scratch, mark);
}

// ---- losses of pairs ----------------------------------------------------------------------------

// The rows of the head's input, their gradient, and what is known of their probabilities.
typedef struct {
    Tensor x, dx;   // [T, H]; dx is absent when not training
    Tensor parts;   // F32 [3, T]: LossParts
    Tensor weights; // F32 [1, T]: of each label's cross-entropy in the loss
    Tensor logits;  // of all rows, where these are one chunk; else absent
    int64_t step;   // rows of a chunk
} PairHead;

static LossParts parts_of(const PairHead *p, int64_t first, int64_t count) {
    LossParts parts;
    Tensor *rows[] = {&parts.max, &parts.sum, &parts.target};
    for (int i = 0; i < 3; i++) *rows[i] = tensor_part(tensor_rows(p->parts, i, 1), first, count);
    return parts;
}

// Chunks of prompts and padding alone have no part in the loss; of cut sequences they are not looked for.
static bool chunk_trains(const Microbatch *mb, int64_t first, int64_t count) {
    return mb->cut || pairs_train(mb->pairs, first, count);
}

static void pairs_forward(Context *c, const LossHead *head, const PairHead *p, const Microbatch *mb) {
    device_zero(c->device, c->stream, p->parts);
    for (int64_t first = 0; first < p->x.rows; first += p->step) {
        ArenaMark mark = arena_mark(c->scratch);
        int64_t count = p->x.rows - first < p->step ? p->x.rows - first : p->step;
        if (!chunk_trains(mb, first, count)) continue;
        Tensor logits = p->logits.data ? p->logits : take_logits(c, head, count);
        chunk_logits(c, head, tensor_rows(p->x, first, count), logits);
        begin_loss(c, head, logits, tensor_part(mb->labels, first, count), parts_of(p, first, count));
        arena_release(c->scratch, mark);
    }
    tp_all_reduce(c, tensor_rows(p->parts, 1, 2), REDUCE_SUM);
}

// Returns values of the tokens of whole sequences, of this rank's [1, T]: those themselves where they are not cut.
static Tensor whole_values(Context *c, const Microbatch *mb, Tensor own) {
    if (!mb->cut) return own;
    int64_t tokens = mb->from_ranks.cols;
    Tensor gathered = tensor_take(c->scratch, "values of tokens by rank", tokens, 1, F32);
    Tensor whole = tensor_take(c->scratch, "values of tokens", tokens, 1, F32), flat = gathered;
    flat.rows = 1, flat.cols = tokens;
    comm_all_gather(context_group(c, ROLE_CONTEXT), c->stream, own, flat);
    reorder_rows(c, mb->from_ranks, gathered, whole);
    return whole;
}

// The reverse, for values that every rank has.
static void take_own_values(Context *c, const Microbatch *mb, const float *values, Tensor own) {
    if (!mb->cut) {
        device_upload(c->device, c->stream, own, values);
        return;
    }
    Tensor whole = tensor_take(c->scratch, "values of tokens", mb->to_ranks.cols, 1, F32), mine = own;
    Tensor order = tensor_part(mb->to_ranks, own.cols * context_rank(c, ROLE_CONTEXT), own.cols);
    mine.rows = own.cols, mine.cols = 1;
    device_upload(c->device, c->stream, whole, values);
    reorder_rows(c, order, whole, mine);
}

// The loss needs both sums over all tokens of a pair, on whichever cp rank, before any weight is known.
static void pairs_weigh(Context *c, const PairHead *p, const Microbatch *mb) {
    ArenaMark mark = arena_mark(c->scratch);
    int64_t tokens = mb->cut ? mb->from_ranks.cols : p->x.rows;
    float *sums = mb->pairs->room, *targets = sums + tokens, *weights = targets + tokens;
    device_download(c->device, c->stream, sums, whole_values(c, mb, tensor_rows(p->parts, 1, 1)));
    device_download(c->device, c->stream, targets, whole_values(c, mb, tensor_rows(p->parts, 2, 1)));
    pairs_compute(mb->pairs, tokens, sums, targets, weights);
    take_own_values(c, mb, weights, p->weights);
    arena_release(c->scratch, mark);
}

// Logits of several chunks are computed again.
static void pairs_backward(Context *c, const LossHead *head, const PairHead *p, const Microbatch *mb) {
    for (int64_t first = 0; first < p->x.rows; first += p->step) {
        ArenaMark mark = arena_mark(c->scratch);
        int64_t count = p->x.rows - first < p->step ? p->x.rows - first : p->step;
        Tensor x = tensor_rows(p->x, first, count), dx = tensor_rows(p->dx, first, count);
        if (!chunk_trains(mb, first, count)) {
            device_zero(c->device, c->stream, dx);
            continue;
        }
        Tensor logits = p->logits.data ? p->logits : take_logits(c, head, count);
        Tensor dlogits = take_dlogits(c, head, logits, x.dtype);
        Microbatch chunk = chunk_of(mb, first, count);
        chunk.mask = tensor_part(p->weights, first, count);
        if (!p->logits.data) chunk_logits(c, head, x, logits);
        finish_loss(c, head, logits, dlogits, parts_of(p, first, count), &chunk);
        uncap_gradient(c, head, logits, dlogits);
        chunk_gradients(c, head, x, dlogits, dx);
        arena_release(c->scratch, mark);
    }
}

static void head_pairs(Context *c, const LossHead *head, Tensor norm, Tensor dnorm, const Microbatch *mb) {
    ArenaMark mark = arena_mark(c->scratch);
    PairHead p = {.x = tp_gather(c, norm), .dx = dnorm.data ? tp_reduce_begin(c, dnorm) : dnorm};
    p.step = c->mode.whole_logits ? p.x.rows : chunk_tokens(c, head, p.x.rows);
    p.parts = tensor_take(c->scratch, "loss max, sum and target", 3, p.x.rows, F32);
    p.weights = tensor_take(c->scratch, "weights of losses", 1, p.x.rows, F32);
    if (p.step >= p.x.rows) p.logits = take_logits(c, head, p.x.rows);
    pairs_forward(c, head, &p, mb);
    pairs_weigh(c, &p, mb);
    if (dnorm.data) pairs_backward(c, head, &p, mb);
    if (dnorm.data) tp_reduce_end(c, p.dx, dnorm);
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
    if (mb->pairs)
        head_pairs(c, head, norm.y, dnorm, mb);
    else if (c->mode.whole_logits)
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
