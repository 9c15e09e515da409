// The conjugate operators of tensor parallelism, and the dropout of a microbatch.
#include "nn/stage.h"

static bool cut(const Context *c) { return c->mode.sequence_parallel && c->grid.tp > 1; }

int64_t context_rows(const Context *c, int64_t rows) { return cut(c) ? rows / c->grid.tp : rows; }

int64_t context_first_row(const Context *c, int64_t rows) {
    return cut(c) ? rows / c->grid.tp * c->place.tp : 0;
}

Tensor tp_gather(Context *c, Tensor share) {
    if (!cut(c)) return share;
    Tensor all = tensor_take(c->scratch, "gathered rows", share.rows * c->grid.tp, share.cols, share.dtype);
    comm_all_gather(c->tp, c->stream, share, all);
    return all;
}

Tensor tp_reduce_begin(Context *c, Tensor result) {
    if (!cut(c)) return result;
    return tensor_take(c->scratch, "rows to scatter", result.rows * c->grid.tp, result.cols, result.dtype);
}

void tp_reduce_end(Context *c, Tensor partial, Tensor result) {
    if (cut(c))
        comm_reduce_scatter(c->tp, c->stream, partial, result);
    else
        comm_all_reduce(c->tp, c->stream, result, REDUCE_SUM);
}

Dropout microbatch_dropout(const Context *c, const Microbatch *mb, RngKey key, float probability, bool cut) {
    int64_t tokens = mb->samples * mb->sequence;
    return (Dropout){.key = key,
                     .probability = mb->training ? probability : 0.0f,
                     .first_sample = mb->first_sample,
                     .samples = mb->samples,
                     .first_row = mb->position * mb->samples + (cut ? context_first_row(c, tokens) : 0)};
}
