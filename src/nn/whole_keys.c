// Gives a rank's queries the keys and values of whole sequences, and takes their gradients home.
#include "nn/shared_attention.h"

static int64_t key_columns(AttentionShape shape) { return 2 * shape.groups * shape.head_size; }

// Returns the keys and values of all positions, kv [cT, 2G/t * D], in scratch memory.
static Tensor gather_keys(Context *c, const Microbatch *mb, AttentionShape shape, Tensor qkv) {
    int64_t cols = key_columns(shape), rows = mb->from_ranks.cols;
    Tensor all = tensor_take(c->scratch, "keys and values", rows, cols, qkv.dtype);
    ArenaMark mark = arena_mark(c->scratch);
    Tensor gathered = tensor_take(c->scratch, "gathered keys and values", rows, cols, qkv.dtype);
    Tensor own = tensor_rows(gathered, qkv.rows * context_rank(c, ROLE_CONTEXT), qkv.rows);
    take_keys(c, shape, qkv, own);
    cp_show(c, own);
    comm_all_gather(context_group(c, ROLE_CONTEXT), c->stream, own, gathered);
    reorder_rows(c, mb->from_ranks, gathered, all);
    arena_release(c->scratch, mark);
    return all;
}

// Sums dkv [cT, 2G/t * D] over the ranks, in their order, and joins this rank's share with dq [T, N/t * D].
static void scatter_key_gradients(Context *c, const Microbatch *mb, AttentionShape shape, Tensor dq,
                                  Tensor dkv, Tensor dqkv) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor parts =
        tensor_take(c->scratch, "gradients of keys and values by rank", dkv.rows, dkv.cols, dkv.dtype);
    Tensor own = tensor_rows(parts, dqkv.rows * context_rank(c, ROLE_CONTEXT), dqkv.rows);
    reorder_rows(c, mb->to_ranks, dkv, parts);
    cp_show(c, parts);
    comm_reduce_scatter(context_group(c, ROLE_CONTEXT), c->stream, parts, own, REDUCE_SUM);
    join_gradients(c, shape, dq, own, dqkv);
    arena_release(c->scratch, mark);
}

static void forward(Context *c, const Microbatch *mb, AttentionForward call) {
    ArenaMark mark = arena_mark(c->scratch);
    AttentionPiece piece;
    call.kv = gather_keys(c, mb, call.shape, call.qkv);
    for (int i = 0; attention_piece(c, mb, call.shape, i, &piece); i++)
        attention_forward(c->device, c->stream, forward_of_piece(call, &piece));
    arena_release(c->scratch, mark);
}

static void backward(Context *c, const Microbatch *mb, AttentionBackward call) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor dqkv = call.dqkv;
    AttentionPiece piece;
    call.kv = gather_keys(c, mb, call.shape, call.qkv);
    call.dqkv = tensor_take(c->scratch, "gradient of queries", call.dout.rows, call.dout.cols, dqkv.dtype);
    call.dkv = tensor_take(c->scratch, "gradient of keys and values", call.kv.rows, call.kv.cols, dqkv.dtype);
    device_zero(c->device, c->stream, call.dkv);
    for (int i = 0; attention_piece(c, mb, call.shape, i, &piece); i++)
        attention_backward(c->device, c->stream, backward_of_piece(call, &piece));
    scatter_key_gradients(c, mb, call.shape, call.dqkv, call.dkv, dqkv);
    arena_release(c->scratch, mark);
}

const AttentionWay by_whole_keys = {forward, backward};
