// Sends keys and values round the ranks that share sequences (layout/ring.h): each computes attention of its queries to
// the block that it has while the next one comes, and joins the results by their log-sum-exps. In the backward the
// gradients of a block go round behind it. A rank never has more than two blocks.
// Sources: Liu 2023 (Ring Attention); Milakov 2018 for the joining.
#include "layout/ring.h"
#include "nn/shared_attention.h"
#include <stdlib.h>

enum { KEYS, SUMS, NUM_TRAFFICS }; // numbers of channels, too

// What moves: two buffers, and the messages under way.
typedef struct {
    Tensor buffers[2];
    CommRequest *send, *receive;
} Traffic;

typedef struct {
    Context *context;
    const Microbatch *microbatch;
    Traffic traffic[NUM_TRAFFICS];
    AttentionBackward call; // dout absent: a forward; dqkv: of the queries; dkv: this rank's share of a block
    bool forward;
} Pass;

static void take_buffers(Context *c, Traffic *traffic, const char *name, Tensor like) {
    for (int i = 0; i < 2; i++)
        traffic->buffers[i] = tensor_take(c->scratch, name, like.rows, like.cols, like.dtype);
}

// The rows of a rank's piece of keys in a block.
static Tensor rows_of(Tensor block, SequencePiece piece, int64_t samples) {
    return tensor_rows(block, piece.local * samples, piece.count * samples);
}

// Whether a window leaves a query of the piece any of the keys.
static bool window_reaches(const Pass *pass, SequencePiece queries, SequencePiece keys) {
    int64_t window = pass->call.rules.window;
    return !window || keys.first + keys.count > queries.first - window + 1;
}

static bool are_visible(const Pass *pass, SequencePiece queries, SequencePiece keys) {
    return keys.first <= queries.first && window_reaches(pass, queries, keys) &&
           sequence_sees(pass->microbatch->cut, queries, keys);
}

// Computes attention of one piece of queries to one of keys. The first call of a piece of queries is to its own keys,
// which every query sees some of; the others go on with its results.
static void attend_to(const Pass *pass, int i, SequencePiece keys, Tensor kv, Tensor dkv, bool first) {
    Context *c = pass->context;
    AttentionPiece piece;
    attention_piece(c, pass->microbatch, pass->call.shape, i, &piece);
    AttentionBackward call = backward_of_piece(pass->call, &piece);
    call.shape.first_kept = keys.first, call.shape.kept = keys.count;
    call.kv = rows_of(kv, keys, call.shape.batch);
    if (pass->forward) {
        attention_forward(c->device, c->stream,
                          (AttentionForward){.qkv = call.qkv,
                                             .kv = call.kv,
                                             .first_key = call.first_key,
                                             .sinks = call.sinks,
                                             .out = call.out,
                                             .stats = call.stats,
                                             .continues = !first,
                                             .shape = call.shape,
                                             .rules = call.rules,
                                             .dropout = call.dropout});
        return;
    }
    call.dkv = rows_of(dkv, keys, call.shape.batch), call.adds = !first;
    if (!first) call.dsinks = (Tensor){0};
    attention_backward(c->device, c->stream, call);
}

static void attend_to_own(const Pass *pass, Tensor kv, Tensor dkv) {
    const SequenceCut *cut = pass->microbatch->cut;
    for (int i = 0; i < sequence_pieces(cut); i++)
        attend_to(pass, i, sequence_piece(cut, context_rank(pass->context, ROLE_CONTEXT), i), kv, dkv, true);
}

// All pieces of queries to all earlier ones of a block.
static void attend_to_block(const Pass *pass, const RingPost *post) {
    const SequenceCut *cut = pass->microbatch->cut;
    int rank = context_rank(pass->context, ROLE_CONTEXT);
    Tensor kv = pass->traffic[KEYS].buffers[post->buffer], dkv = {0};
    bool own = post->block == rank;
    if (!pass->forward) {
        dkv = own ? pass->traffic[SUMS].buffers[0] : pass->call.dkv;
        device_zero(pass->context->device, pass->context->stream, dkv);
    }
    if (own) attend_to_own(pass, kv, dkv);
    for (int i = 0; i < sequence_pieces(cut); i++) {
        SequencePiece queries = sequence_piece(cut, rank, i);
        for (int j = 0; j < sequence_pieces(cut); j++) {
            SequencePiece keys = sequence_piece(cut, post->block, j);
            if (keys.first != queries.first && are_visible(pass, queries, keys))
                attend_to(pass, i, keys, kv, dkv, false);
        }
    }
}

static void receive(Pass *pass, int kind, int buffer) {
    Context *c = pass->context;
    int ranks = context_ranks(c, ROLE_CONTEXT), before = (context_rank(c, ROLE_CONTEXT) + ranks - 1) % ranks;
    pass->traffic[kind].receive = comm_recv(context_group(c, ROLE_CONTEXT), c->stream,
                                            pass->traffic[kind].buffers[buffer], before, kind);
}

static void send(Pass *pass, int kind, int buffer) {
    Context *c = pass->context;
    cp_show(c, pass->traffic[kind].buffers[buffer]);
    int after = (context_rank(c, ROLE_CONTEXT) + 1) % context_ranks(c, ROLE_CONTEXT);
    pass->traffic[kind].send = comm_send(context_group(c, ROLE_CONTEXT), c->stream,
                                         pass->traffic[kind].buffers[buffer], after, kind);
}

static void wait_for(Pass *pass, int kind) {
    Context *c = pass->context;
    comm_wait(context_group(c, ROLE_CONTEXT), c->stream, &pass->traffic[kind].receive);
    comm_wait(context_group(c, ROLE_CONTEXT), c->stream, &pass->traffic[kind].send);
}

// Goes round once. Returns, of a backward, the gradients of this rank's keys and values.
static Tensor go_round(Pass *pass) {
    Context *c = pass->context;
    KeyRing ring = {.ranks = context_ranks(c, ROLE_CONTEXT),
                    .rank = context_rank(c, ROLE_CONTEXT),
                    .backward = !pass->forward};
    RingPost post = {0};
    take_keys(c, pass->call.shape, pass->call.qkv, pass->traffic[KEYS].buffers[0]);
    while (ring_next(&ring, &post)) switch (post.op) {
        case RING_RECEIVE_KEYS: receive(pass, KEYS, post.buffer); break;
        case RING_SEND_KEYS: send(pass, KEYS, post.buffer); break;
        case RING_WAIT_KEYS: wait_for(pass, KEYS); break;
        case RING_ATTEND: attend_to_block(pass, &post); break;
        case RING_RECEIVE_SUMS: receive(pass, SUMS, post.buffer); break;
        case RING_SEND_SUMS: send(pass, SUMS, post.buffer); break;
        case RING_WAIT_SUMS: wait_for(pass, SUMS); break;
        case RING_ADD:
            add(c->device, c->stream,
                (Add){.x = pass->call.dkv, .y = pass->traffic[SUMS].buffers[post.buffer]});
            break;
        case NUM_RING_OPS: break;
        }
    return pass->traffic[SUMS].buffers[post.buffer];
}

Status context_connect(const Context *c) {
    int ranks = context_ranks(c, ROLE_CONTEXT);
    if (c->mode.context_way != CONTEXT_RING || ranks == 1) return OK;
    CommChannel *channels = calloc((size_t)ranks * NUM_TRAFFICS, sizeof *channels);
    if (!channels) return fail(ERR_OS, "no memory for the channels of %d ranks", ranks);
    for (int i = 0; i < ranks * NUM_TRAFFICS; i++)
        channels[i] = (CommChannel){i / NUM_TRAFFICS, (i / NUM_TRAFFICS + 1) % ranks, i % NUM_TRAFFICS};
    Status status = comm_open_channels(context_group(c, ROLE_CONTEXT), channels, ranks * NUM_TRAFFICS);
    free(channels);
    TRY(status);
    TRY(ring_verify(ranks, false));
    return ring_verify(ranks, true);
}

// A block of keys and values, [T, 2G/t * D].
static Tensor block_of(Tensor qkv, AttentionShape shape) {
    return (Tensor){.rows = qkv.rows, .cols = 2 * shape.groups * shape.head_size, .dtype = qkv.dtype};
}

static void forward(Context *c, const Microbatch *mb, AttentionForward call) {
    ArenaMark mark = arena_mark(c->scratch);
    Pass pass = {.context = c,
                 .microbatch = mb,
                 .forward = true,
                 .call = {.qkv = call.qkv,
                          .first_key = call.first_key,
                          .sinks = call.sinks,
                          .out = call.out,
                          .stats = call.stats,
                          .shape = call.shape,
                          .rules = call.rules,
                          .dropout = call.dropout}};
    take_buffers(c, &pass.traffic[KEYS], "keys and values", block_of(call.qkv, call.shape));
    go_round(&pass);
    arena_release(c->scratch, mark);
}

static void backward(Context *c, const Microbatch *mb, AttentionBackward call) {
    ArenaMark mark = arena_mark(c->scratch);
    Pass pass = {.context = c, .microbatch = mb, .call = call};
    Tensor block = block_of(call.qkv, call.shape);
    take_buffers(c, &pass.traffic[KEYS], "keys and values", block);
    take_buffers(c, &pass.traffic[SUMS], "sums of gradients of keys and values", block);
    pass.call.dqkv =
        tensor_take(c->scratch, "gradient of queries", call.dout.rows, call.dout.cols, call.dqkv.dtype);
    pass.call.dkv =
        tensor_take(c->scratch, "gradient of keys and values", block.rows, block.cols, block.dtype);
    Tensor dkv = go_round(&pass);
    join_gradients(c, call.shape, pass.call.dqkv, dkv, call.dqkv);
    arena_release(c->scratch, mark);
}

const AttentionWay by_ring = {forward, backward};
