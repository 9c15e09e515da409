// Chooses the way in which ranks that share sequences compute attention.
#include "nn/shared_attention.h"

static const AttentionWay *way_of(const Context *c) {
    static const AttentionWay *const ways[NUM_CONTEXT_WAYS] = {[CONTEXT_ALL_GATHER] = &by_whole_keys,
                                                               [CONTEXT_ALL_TO_ALL] = &by_whole_heads,
                                                               [CONTEXT_RING] = &by_ring};
    return ways[c->mode.context_way];
}

void shared_attention_forward(Context *c, const Microbatch *mb, AttentionForward call) {
    if (mb->cut)
        way_of(c)->forward(c, mb, call);
    else
        attention_forward(c->device, c->stream, call);
}

void shared_attention_backward(Context *c, const Microbatch *mb, AttentionBackward call) {
    if (mb->cut)
        way_of(c)->backward(c, mb, call);
    else
        attention_backward(c->device, c->stream, call);
}

void reorder_rows(Context *c, Tensor rows, Tensor x, Tensor y) {
    embedding_forward(c->device, c->stream, (EmbeddingForward){.tokens = rows, .table = x, .y = y});
}

// ---- a rank's part of a call --------------------------------------------------------------------------------

bool attention_piece(const Context *c, const Microbatch *mb, AttentionShape shape, int i,
                     AttentionPiece *piece) {
    if (i >= sequence_pieces(mb->cut)) return false;
    SequencePiece at = sequence_piece(mb->cut, context_rank(c, ROLE_CONTEXT), i);
    *piece = (AttentionPiece){shape, at.local * shape.batch, at.count * shape.batch, at.local};
    piece->shape.sequence = at.count, piece->shape.keys = mb->cut->positions;
    piece->shape.first_position = at.first;
    return true;
}

static Tensor rows_of(Tensor x, const AttentionPiece *piece) {
    return x.data ? tensor_rows(x, piece->row, piece->rows) : x;
}

static Tensor tokens_of(Tensor x, const AttentionPiece *piece) {
    return x.data ? tensor_part(x, piece->row, piece->rows) : x;
}

static Tensor stats_of(Tensor stats, const AttentionPiece *piece) {
    int64_t heads = piece->shape.batch * piece->shape.heads, count = piece->shape.sequence;
    Tensor part = tensor_part(stats, heads * piece->before, heads * count);
    part.rows = heads, part.cols = count;
    return part;
}

static Tensor probabilities_of(Tensor probabilities, const AttentionPiece *piece) {
    int64_t heads = piece->shape.batch * piece->shape.heads;
    if (!probabilities.data) return probabilities;
    return tensor_rows(probabilities, heads * piece->before, heads * piece->shape.sequence);
}

AttentionForward forward_of_piece(AttentionForward call, const AttentionPiece *piece) {
    call.qkv = rows_of(call.qkv, piece), call.out = rows_of(call.out, piece);
    call.first_key = tokens_of(call.first_key, piece);
    call.stats = stats_of(call.stats, piece);
    call.probabilities = probabilities_of(call.probabilities, piece);
    call.shape = piece->shape;
    return call;
}

AttentionBackward backward_of_piece(AttentionBackward call, const AttentionPiece *piece) {
    call.dout = rows_of(call.dout, piece), call.out = rows_of(call.out, piece);
    call.qkv = rows_of(call.qkv, piece), call.dqkv = rows_of(call.dqkv, piece);
    call.first_key = tokens_of(call.first_key, piece);
    call.stats = stats_of(call.stats, piece);
    call.probabilities = probabilities_of(call.probabilities, piece);
    call.shape = piece->shape;
    return call;
}

// ---- columns ------------------------------------------------------------------------------------------------

static int64_t per_group(AttentionShape shape) { return shape.heads / shape.groups; }

void take_keys(Context *c, AttentionShape shape, Tensor qkv, Tensor kv) {
    int64_t size = shape.head_size;
    ColumnPiece keys = {.source = SOURCE_A,
                        .terms = 1,
                        .width = 2 * size,
                        .first = per_group(shape) * size,
                        .step = (per_group(shape) + 2) * size};
    arrange_columns(c->device, c->stream,
                    (ArrangeColumns){.a = qkv, .y = kv, .blocks = shape.groups, .pieces = {keys}});
}

void join_gradients(Context *c, AttentionShape shape, Tensor dq, Tensor dkv, Tensor dqkv) {
    int64_t size = shape.head_size, queries = per_group(shape) * size;
    ColumnPiece of_queries = {.source = SOURCE_A, .terms = 1, .width = queries, .step = queries};
    ColumnPiece of_keys = {.source = SOURCE_B, .terms = 1, .width = 2 * size, .step = 2 * size};
    arrange_columns(
        c->device, c->stream,
        (ArrangeColumns){
            .a = dq, .b = dkv, .y = dqkv, .blocks = shape.groups, .pieces = {of_queries, of_keys}});
}
