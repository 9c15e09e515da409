// Exchanges heads for positions: a rank computes attention to whole sequences with 1/c of its heads, so that each of
// them has the bits of one rank.   Source: Jacobs 2023 (DeepSpeed Ulysses).
#include "nn/shared_attention.h"

// Returns of x [T, C], columns of all heads, the columns [cT, C/c] of this rank's heads for all positions.
//   Collective over cp: one all-to-all.
static Tensor to_heads(Context *c, const Microbatch *mb, const char *name, Tensor x) {
    int64_t rows = mb->from_ranks.cols, cols = x.cols / context_ranks(c, ROLE_CONTEXT);
    Tensor all = tensor_take(c->scratch, name, rows, cols, x.dtype), shares = x;
    ArenaMark mark = arena_mark(c->scratch);
    Tensor sent = tensor_take(c->scratch, "heads to send", rows, cols, x.dtype);
    Tensor got = tensor_take(c->scratch, "heads of each rank", rows, cols, x.dtype);
    shares.rows = rows, shares.cols = cols;
    reorder_rows(c, mb->to_heads, shares, sent);
    cp_show(c, sent);
    comm_all_to_all(context_group(c, ROLE_CONTEXT), c->stream, sent, got);
    reorder_rows(c, mb->from_ranks, got, all);
    arena_release(c->scratch, mark);
    return all;
}

// The reverse: x [cT, C/c] -> y [T, C].
static void from_heads(Context *c, const Microbatch *mb, Tensor x, Tensor y) {
    ArenaMark mark = arena_mark(c->scratch);
    Tensor sent = tensor_take(c->scratch, "positions to send", x.rows, x.cols, x.dtype);
    Tensor got = tensor_take(c->scratch, "positions of each rank", x.rows, x.cols, x.dtype), shares = y;
    reorder_rows(c, mb->to_ranks, x, sent);
    cp_show(c, sent);
    comm_all_to_all(context_group(c, ROLE_CONTEXT), c->stream, sent, got);
    shares.rows = x.rows, shares.cols = x.cols;
    reorder_rows(c, mb->from_heads, got, shares);
    arena_release(c->scratch, mark);
}

static AttentionShape shape_of_heads(const Context *c, AttentionShape shape) {
    int ranks = context_ranks(c, ROLE_CONTEXT);
    shape.heads /= ranks, shape.groups /= ranks, shape.sequence *= ranks;
    shape.first_head += shape.heads * context_rank(c, ROLE_CONTEXT);
    return shape;
}

// This rank's heads of a value for each of them.
static Tensor own_heads(const Context *c, AttentionShape shape, Tensor x) {
    return x.data ? tensor_part(x, shape.heads * context_rank(c, ROLE_CONTEXT), shape.heads) : x;
}

static Tensor with_rows(Tensor x, int64_t rows) {
    if (x.data) x.cols = tensor_count(x) / rows, x.rows = rows;
    return x;
}

static void forward(Context *c, const Microbatch *mb, AttentionForward call) {
    ArenaMark mark = arena_mark(c->scratch);
    AttentionForward whole = call;
    AttentionShape shape = whole.shape = shape_of_heads(c, call.shape);
    int64_t heads = shape.batch * shape.heads;
    whole.out = tensor_take(c->scratch, "attention output of heads", mb->from_ranks.cols,
                            shape.heads * shape.head_size, call.out.dtype);
    whole.qkv = to_heads(c, mb, "queries, keys, values of heads", call.qkv);
    whole.sinks = own_heads(c, shape, call.sinks);
    whole.stats = with_rows(call.stats, heads);
    whole.probabilities = with_rows(call.probabilities, heads * shape.sequence);
    attention_forward(c->device, c->stream, whole);
    from_heads(c, mb, whole.out, call.out);
    arena_release(c->scratch, mark);
}

static void backward(Context *c, const Microbatch *mb, AttentionBackward call) {
    ArenaMark mark = arena_mark(c->scratch);
    AttentionBackward whole = call;
    AttentionShape shape = whole.shape = shape_of_heads(c, call.shape);
    int64_t heads = shape.batch * shape.heads;
    whole.qkv = whole.dqkv = to_heads(c, mb, "queries, keys, values of heads", call.qkv);
    whole.out = to_heads(c, mb, "attention output of heads", call.out);
    whole.dout = to_heads(c, mb, "gradient of attention output of heads", call.dout);
    whole.sinks = own_heads(c, shape, call.sinks), whole.dsinks = own_heads(c, shape, call.dsinks);
    whole.stats = with_rows(call.stats, heads);
    whole.probabilities = with_rows(call.probabilities, heads * shape.sequence);
    attention_backward(c->device, c->stream, whole);
    from_heads(c, mb, whole.dqkv, call.dqkv);
    arena_release(c->scratch, mark);
}

const AttentionWay by_whole_heads = {forward, backward};
