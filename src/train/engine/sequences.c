// The share of a context-parallel rank in the sequences of a batch: which tokens it uploads, and the losses of all.
#include "train/engine/engine.h"
#include <stdlib.h>
#include <string.h>

int64_t engine_step_tokens(const Engine *e) {
    return (int64_t)e->spec.shape.sequence * e->spec.mode.microbatch;
}

int64_t engine_local_tokens(const Engine *e) {
    return engine_step_tokens(e) / grid_along(e->spec.grid, AXIS_CP);
}

// Documents give each microbatch a cut of its own.
static int num_cuts(const Engine *e) { return e->spec.first_keys ? e->spec.num_microbatches : 1; }
static int number_of_cut(const Engine *e, int microbatch) { return e->spec.first_keys ? microbatch : 0; }

Status sequences_create(Engine *e) {
    int ranks = grid_along(e->spec.grid, AXIS_CP), m = e->spec.num_microbatches;
    if (ranks == 1) return OK;
    size_t tokens = (size_t)(m * engine_step_tokens(e));
    e->cuts = calloc((size_t)num_cuts(e), sizeof *e->cuts);
    e->sequence_room = calloc(tokens, sizeof *e->sequence_room);
    e->loss_room = calloc(tokens, sizeof *e->loss_room); // the null network fills in this rank alone
    if (!e->cuts || !e->sequence_room || !e->loss_room)
        return fail(ERR_OS, "no memory for the sequences of %d microbatches", m);
    for (int i = 0; i < num_cuts(e); i++) sequence_cut_zigzag(&e->cuts[i], e->spec.shape.sequence, ranks);
    return OK;
}

void sequences_destroy(Engine *e) {
    free(e->cuts);
    free(e->sequence_room);
    free(e->loss_room);
}

// Ranks that exchange heads need the first keys of whole sequences.
static bool exchanges_heads(const Engine *e) {
    return e->cuts && e->spec.mode.context_way == CONTEXT_ALL_TO_ALL;
}

int64_t engine_first_keys(const Engine *e) {
    return exchanges_heads(e) ? engine_step_tokens(e) : engine_local_tokens(e);
}

void sequences_take(Engine *e, Arena *arena) {
    if (!e->cuts) return;
    e->from_ranks = tensor_take(arena, "rows of whole sequences", num_cuts(e), engine_step_tokens(e), I32);
    e->to_ranks = tensor_take(arena, "rows of sequences by rank", num_cuts(e), engine_step_tokens(e), I32);
    if (!exchanges_heads(e)) return;
    e->to_heads = tensor_take(arena, "rows by heads", 1, engine_step_tokens(e), I32);
    e->from_heads = tensor_take(arena, "heads by rows", 1, engine_step_tokens(e), I32);
}

static void upload_orders(Engine *e, int i) {
    const Context *c = &e->runtime.context;
    sequence_orders(&e->cuts[i], e->spec.mode.microbatch, e->sequence_room, NULL);
    device_upload(c->device, c->stream, tensor_rows(e->from_ranks, i, 1), e->sequence_room);
    sequence_orders(&e->cuts[i], e->spec.mode.microbatch, NULL, e->sequence_room);
    device_upload(c->device, c->stream, tensor_rows(e->to_ranks, i, 1), e->sequence_room);
}

static void upload_shares(Engine *e) {
    const Context *c = &e->runtime.context;
    int ranks = grid_along(e->spec.grid, AXIS_CP);
    sequence_shares(engine_local_tokens(e), ranks, e->sequence_room, NULL);
    device_upload(c->device, c->stream, e->to_heads, e->sequence_room);
    sequence_shares(engine_local_tokens(e), ranks, NULL, e->sequence_room);
    device_upload(c->device, c->stream, e->from_heads, e->sequence_room);
}

void sequences_upload_orders(Engine *e) {
    if (!e->cuts || !device_computes(e->runtime.context.device)) return;
    for (int i = 0; i < num_cuts(e); i++) upload_orders(e, i);
    if (exchanges_heads(e)) upload_shares(e);
}

void sequences_cut(Engine *e, const Batch *batch) {
    int ranks = grid_along(e->spec.grid, AXIS_CP);
    if (!e->cuts || !e->spec.first_keys || !device_computes(e->runtime.context.device)) return;
    for (int k = 0; k < batch->num_microbatches; k++) {
        sequence_cut_by_area(&e->cuts[k], e->spec.shape.sequence, ranks, e->spec.mode.microbatch,
                             batch->first_keys + k * engine_step_tokens(e));
        upload_orders(e, k);
    }
}

void sequences_set(const Engine *e, int k, Microbatch *mb) {
    int i = number_of_cut(e, k);
    if (!e->cuts) return;
    mb->cut = &e->cuts[i];
    mb->from_ranks = tensor_rows(e->from_ranks, i, 1), mb->to_ranks = tensor_rows(e->to_ranks, i, 1);
    mb->to_heads = e->to_heads, mb->from_heads = e->from_heads;
}

// Calls `each` for every neighbouring part of this rank's rows in m microbatches: `count` rows from `local` on, which
// are those from `whole` on of the batch.
typedef void EachPart(Engine *e, const void *from, int64_t local, int64_t whole, int64_t count);

static void for_parts(Engine *e, int m, const void *from, int rank, EachPart *each) {
    int64_t samples = e->spec.mode.microbatch;
    for (int k = 0; k < m; k++) {
        const SequenceCut *cut = &e->cuts[number_of_cut(e, k)];
        for (int i = 0; i < sequence_pieces(cut); i++) {
            SequencePiece piece = sequence_piece(cut, rank, i);
            each(e, from, k * engine_local_tokens(e) + piece.local * samples,
                 k * engine_step_tokens(e) + piece.first * samples, piece.count * samples);
        }
    }
}

static void take_values(Engine *e, const void *from, int64_t local, int64_t whole, int64_t count) {
    memcpy(e->sequence_room + local, (const int32_t *)from + whole, (size_t)count * sizeof(int32_t));
}

static void take_positions(Engine *e, const void *from, int64_t local, int64_t whole, int64_t count) {
    int64_t first = whole % engine_step_tokens(e);
    (void)from;
    for (int64_t i = 0; i < count; i++)
        e->sequence_room[local + i] = (int32_t)((first + i) / e->spec.mode.microbatch);
}

void sequences_upload(Engine *e, Tensor to, int m, const void *from) {
    const Context *c = &e->runtime.context;
    _Static_assert(sizeof(float) == sizeof(int32_t), "a mask is cut like tokens");
    bool positions = !from && to.data == e->positions.data;
    bool whole = to.data == e->first_keys.data && exchanges_heads(e);
    if (!to.data) return;
    if (e->cuts && !whole && device_computes(c->device)) {
        for_parts(e, m, from, context_rank(c, ROLE_CONTEXT), positions ? take_positions : take_values);
        from = e->sequence_room;
    }
    device_upload(c->device, c->stream, tensor_rows(to, 0, m), from);
}

static void put_losses(Engine *e, const void *from, int64_t local, int64_t whole, int64_t count) {
    memcpy(e->host_losses + whole, (const float *)from + local, (size_t)count * sizeof(float));
}

void sequences_download_losses(Engine *e, int m) {
    const Context *c = &e->runtime.context;
    Tensor losses = tensor_rows(e->losses, 0, m);
    int64_t count = m * engine_local_tokens(e);
    if (!e->cuts) {
        device_download(c->device, c->stream, e->host_losses, losses);
        return;
    }
    device_download(c->device, c->stream, e->sequence_room, losses);
    comm_all_gather_host(context_group(c, ROLE_CONTEXT), e->sequence_room, e->loss_room,
                         (size_t)count * sizeof(float));
    for (int rank = 0; rank < e->cuts->ranks; rank++)
        for_parts(e, m, e->loss_room + rank * count, rank, put_losses);
}
