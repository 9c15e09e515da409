// The functions that a layer calls on its context: groups, the conjugate operators of tensor parallelism, and the
// dropout of a microbatch.
#include "nn/stage.h"

Comm *context_group(const Context *c, Role role) { return c->groups.by_role[role]; }
int context_ranks(const Context *c, Role role) { return topology_size(&c->groups.topology, role); }
int context_rank(const Context *c, Role role) { return topology_rank(&c->groups.topology, role); }

void context_catch_up(Context *c) {
    ContextCall work = c->put_off;
    c->put_off = (ContextCall){0};
    if (work.run) work.run(work.self);
}

void context_put_off(Context *c, ContextCall work) {
    context_catch_up(c);
    c->put_off = work;
}

void context_meanwhile(Context *c) {
    context_catch_up(c);
    if (c->turn.run) c->turn.run(c->turn.self);
}

void unit_acquire(const Context *c, int unit, int next) {
    if (c->watch.acquire) c->watch.acquire(c->watch.self, unit, next);
}

void unit_release(const Context *c, int unit) {
    if (c->watch.release) c->watch.release(c->watch.self, unit);
}

void unit_begin(const Context *c, int unit) {
    if (c->watch.begin) c->watch.begin(c->watch.self, unit);
}

void unit_finish(const Context *c, int unit, bool final) {
    if (c->watch.finish) c->watch.finish(c->watch.self, unit, final);
}

static void show_to(const Context *c, Role role, Tensor x) {
    if (c->shared.see && context_ranks(c, role) > 1) c->shared.see(c->shared.self, x);
}

static void show(const Context *c, Tensor x) { show_to(c, ROLE_TENSOR, x); }
void cp_show(const Context *c, Tensor x) { show_to(c, ROLE_CONTEXT, x); }

void tp_all_gather(const Context *c, Tensor share, Tensor all) {
    show(c, share);
    comm_all_gather(context_group(c, ROLE_TENSOR), c->stream, share, all);
}

void tp_all_reduce(const Context *c, Tensor x, ReduceOp op) {
    show(c, x);
    comm_all_reduce(context_group(c, ROLE_TENSOR), c->stream, x, op);
}

static bool cut(const Context *c) { return c->mode.sequence_parallel && context_ranks(c, ROLE_TENSOR) > 1; }

int64_t context_rows(const Context *c, int64_t rows) {
    return cut(c) ? rows / context_ranks(c, ROLE_TENSOR) : rows;
}

int64_t context_first_row(const Context *c, int64_t rows) {
    return cut(c) ? rows / context_ranks(c, ROLE_TENSOR) * context_rank(c, ROLE_TENSOR) : 0;
}

Tensor tp_gather(Context *c, Tensor share) {
    if (!cut(c)) return share;
    Tensor all = tensor_take(c->scratch, "gathered rows", share.rows * context_ranks(c, ROLE_TENSOR),
                             share.cols, share.dtype);
    tp_all_gather(c, share, all);
    return all;
}

Tensor tp_reduce_begin(Context *c, Tensor result) {
    if (!cut(c)) return result;
    return tensor_take(c->scratch, "rows to scatter", result.rows * context_ranks(c, ROLE_TENSOR),
                       result.cols, result.dtype);
}

void tp_reduce_end(Context *c, Tensor partial, Tensor result) {
    if (!cut(c)) {
        tp_all_reduce(c, result, REDUCE_SUM);
        return;
    }
    show(c, partial);
    comm_reduce_scatter(context_group(c, ROLE_TENSOR), c->stream, partial, result, REDUCE_SUM);
}

void context_use_microbatch(Context *c, const Microbatch *mb) {
    c->place = mb->place;
    c->first_sample = mb->first_sample, c->samples = mb->samples;
}

Dropout microbatch_dropout(const Microbatch *mb, RngKey key, float probability) {
    return (Dropout){.key = key,
                     .probability = mb->training ? probability : 0.0f,
                     .first_sample = mb->first_sample,
                     .samples = mb->samples,
                     .first_row = mb->position * mb->samples};
}

// The part of rows [first, end) that lies in a piece of this rank's positions.
static DropoutRows rows_of_piece(const Context *c, const Microbatch *mb, int64_t first, int64_t end, int i) {
    SequencePiece piece = sequence_piece(mb->cut, context_rank(c, ROLE_CONTEXT), i);
    int64_t begin = piece.local * mb->samples, behind = begin + piece.count * mb->samples;
    int64_t from = begin > first ? begin : first, to = behind < end ? behind : end;
    return (DropoutRows){.row = from - first,
                         .count = to - from,
                         .dropout.first_row = piece.first * mb->samples + from - begin};
}

bool microbatch_rows(const Context *c, const Microbatch *mb, RngKey key, float probability, bool cut, int i,
                     DropoutRows *rows) {
    int64_t tokens = mb->samples * mb->sequence, first = cut ? context_first_row(c, tokens) : 0;
    int64_t end = first + (cut ? context_rows(c, tokens) : tokens);
    int found = 0, piece = 0;
    *rows = (DropoutRows){.count = end - first, .dropout.first_row = mb->position * mb->samples + first};
    for (; mb->cut && piece < sequence_pieces(mb->cut); piece++) {
        *rows = rows_of_piece(c, mb, first, end, piece);
        if (rows->count > 0 && found++ == i) break;
    }
    int64_t first_row = rows->dropout.first_row;
    rows->dropout = microbatch_dropout(mb, key, probability);
    rows->dropout.first_row = first_row;
    return mb->cut ? piece < sequence_pieces(mb->cut) : i == 0;
}
