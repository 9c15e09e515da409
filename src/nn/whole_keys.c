// Gives a rank's queries the keys and values of whole sequences, and takes their gradients home.
#include "nn/whole_keys.h"

bool attention_piece(const Context *c, const Microbatch *mb, AttentionShape shape, int i,
                     AttentionPiece *piece) {
    *piece = (AttentionPiece){shape, 0, shape.sequence * shape.batch, 0};
    if (!mb->cut) return i == 0;
    if (i >= sequence_pieces(mb->cut)) return false;
    SequencePiece at = sequence_piece(mb->cut, context_rank(c, ROLE_CONTEXT), i);
    piece->shape.sequence = at.count, piece->shape.keys = mb->cut->positions;
    piece->shape.first_position = at.first;
    piece->row = at.local * shape.batch, piece->rows = at.count * shape.batch;
    piece->before = at.local;
    return true;
}

Tensor piece_of_tokens(Tensor x, const AttentionPiece *piece) {
    return x.data ? tensor_part(x, piece->row, piece->rows) : x;
}

Tensor piece_of_rows(Tensor x, const AttentionPiece *piece) {
    return x.data ? tensor_rows(x, piece->row, piece->rows) : x;
}

Tensor piece_of_stats(Tensor stats, const AttentionPiece *piece) {
    int64_t heads = piece->shape.batch * piece->shape.heads, count = piece->shape.sequence;
    Tensor part = tensor_part(stats, heads * piece->before, heads * count);
    part.rows = heads, part.cols = count;
    return part;
}

Tensor piece_of_probabilities(Tensor probabilities, const AttentionPiece *piece) {
    int64_t heads = piece->shape.batch * piece->shape.heads;
    if (!probabilities.data) return probabilities;
    return tensor_rows(probabilities, heads * piece->before, heads * piece->shape.sequence);
}

static int64_t per_group(AttentionShape shape) { return shape.heads / shape.groups; }
static int64_t key_columns(AttentionShape shape) { return 2 * shape.groups * shape.head_size; }

// The rows of x in the order of `rows`.
static void reorder(Context *c, Tensor rows, Tensor x, Tensor y) {
    embedding_forward(c->device, c->stream, (EmbeddingForward){.tokens = rows, .table = x, .y = y});
}

Tensor gather_keys(Context *c, const Microbatch *mb, AttentionShape shape, Tensor qkv) {
    if (!mb->cut) return (Tensor){0};
    int64_t size = shape.head_size, cols = key_columns(shape), rows = mb->from_ranks.cols;
    Tensor all = tensor_take(c->scratch, "keys and values", rows, cols, qkv.dtype);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor gathered = tensor_take(c->scratch, "gathered keys and values", rows, cols, qkv.dtype);
    Tensor own = tensor_rows(gathered, qkv.rows * context_rank(c, ROLE_CONTEXT), qkv.rows);
    ColumnPiece keys = {.source = SOURCE_A,
                        .terms = 1,
                        .width = 2 * size,
                        .first = per_group(shape) * size,
                        .step = (per_group(shape) + 2) * size};
    arrange_columns(c->device, c->stream,
                    (ArrangeColumns){.a = qkv, .y = own, .blocks = shape.groups, .pieces = {keys}});
    comm_all_gather(context_group(c, ROLE_CONTEXT), c->stream, own, gathered);
    reorder(c, mb->from_ranks, gathered, all);
    arena_release(c->scratch, mark);
    return all;
}

void scatter_key_gradients(Context *c, const Microbatch *mb, AttentionShape shape, Tensor dq, Tensor dkv,
                           Tensor dqkv) {
    ArenaMark mark = arena_mark(c->scratch);
    int64_t size = shape.head_size, queries = per_group(shape) * size;
    Tensor parts =
        tensor_take(c->scratch, "gradients of keys and values by rank", dkv.rows, dkv.cols, dkv.dtype);
    Tensor own = tensor_rows(parts, dqkv.rows * context_rank(c, ROLE_CONTEXT), dqkv.rows);
    reorder(c, mb->to_ranks, dkv, parts);
    comm_reduce_scatter(context_group(c, ROLE_CONTEXT), c->stream, parts, own, REDUCE_SUM);
    ColumnPiece of_queries = {.source = SOURCE_A, .terms = 1, .width = queries, .step = queries};
    ColumnPiece of_keys = {.source = SOURCE_B, .terms = 1, .width = 2 * size, .step = 2 * size};
    arrange_columns(
        c->device, c->stream,
        (ArrangeColumns){
            .a = dq, .b = own, .y = dqkv, .blocks = shape.groups, .pieces = {of_queries, of_keys}});
    arena_release(c->scratch, mark);
}
