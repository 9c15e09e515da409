// Keeps the whole gradients of the units that microbatches add to, where each replica keeps shards of them alone.
#include "parallel/parallel.h"
#include <stdlib.h>

Status grad_window_create(GradWindow *w, Context *context, const Params *params, const Buckets *buckets,
                          Arena *arena) {
    *w = (GradWindow){.context = context, .params = params};
    TRY(unit_rooms_create(&w->rooms, params, buckets, true));
    w->begun = calloc((size_t)params->num_units + 1, sizeof *w->begun);
    w->parts = calloc((size_t)w->rooms.num_parts + 1, sizeof *w->parts);
    w->sums = calloc((size_t)buckets->count + 1, sizeof *w->sums);
    if (!w->begun || !w->parts || !w->sums)
        return fail(ERR_OS, "no memory for the window of gradients of %d units", params->num_units);
    w->memory = tensor_take(arena, "window of whole gradients", 1, w->rooms.elements, F32);
    return OK;
}

void grad_window_destroy(GradWindow *w) {
    if (w->parts) grad_window_settle(w);
    unit_rooms_destroy(&w->rooms);
    free(w->begun);
    free(w->parts);
    free(w->sums);
    *w = (GradWindow){0};
}

// ---- what is in the window ------------------------------------------------------------------------

static Tensor whole_of(const GradWindow *w, int part) {
    const RoomPart *at = &w->rooms.parts[part];
    return tensor_part(w->memory, at->begin, room_bucket(&w->rooms, at)->count);
}

// This rank's shard of the whole gradients, where a sum that is added to others arrives.
static Tensor slice_of(const GradWindow *w, int part) {
    const Bucket *b = room_bucket(&w->rooms, &w->rooms.parts[part]);
    return tensor_part(whole_of(w, part), b->shard_count * b->replica, b->shard_count);
}

static void place_grads(const GradWindow *w, int unit, bool there) {
    for (int i = w->params->units[unit].first; i < w->params->units[unit].end; i++) {
        Param *p = w->params->items[i];
        void *at = p->frozen ? NULL : unit_rooms_find(&w->rooms, w->memory, unit, p);
        if (!at) continue;
        p->grad.data = there ? at : NULL;
        if (there) p->grad_uninitialized = true;
    }
}

// The elements between parameters are reduced with them. Others were there.
static void zero_gaps(const GradWindow *w, int unit, int part) {
    const Context *c = w->context;
    const Bucket *b = room_bucket(&w->rooms, &w->rooms.parts[part]);
    Tensor whole = whole_of(w, part);
    int64_t at = 0;
    for (int i = w->params->units[unit].first; i <= w->params->units[unit].end; i++) {
        const Param *p = i < w->params->units[unit].end ? w->params->items[i] : NULL;
        if (p && (p->chunk != b->chunk || p->offset < b->begin || p->offset >= b->begin + b->count)) continue;
        int64_t next = p ? p->offset - b->begin : b->count;
        if (next > at) device_zero(c->device, c->stream, tensor_part(whole, at, next - at));
        if (p) at = next + param_local_count(p);
    }
}

// ---- units come and go ----------------------------------------------------------------------------

// Waits for a sum. The first one has gone to the shard itself.
static void settle_part(const GradWindow *w, int part) {
    const Context *c = w->context;
    const RoomPart *at = &w->rooms.parts[part];
    const Bucket *b = room_bucket(&w->rooms, at);
    if (!w->parts[part].due) return;
    comm_wait(b->group, c->stream, &w->parts[part].reducing);
    w->parts[part].due = false;
    if (w->sums[at->bucket] > 1)
        add(c->device, c->stream, (Add){.x = slice_of(w, part), .y = bucket_grads(w->params, b)});
}

static void settle_unit(const GradWindow *w, int unit) {
    const UnitRoom *u = &w->rooms.units[unit];
    for (int i = 0; i < u->num_parts; i++) settle_part(w, u->first_part + i);
}

void grad_window_settle(GradWindow *w) {
    for (int i = 0; i < w->rooms.num_parts; i++) settle_part(w, i);
}

void grad_window_begin(GradWindow *w, int unit) {
    const UnitRoom *u = &w->rooms.units[unit];
    if (!u->num_parts) return;
    for (int i = 0; i < w->params->num_units; i++) {
        if (!unit_rooms_overlap(&w->rooms, i, unit)) continue;
        CHECK(!w->begun[i], "the gradients of unit %d need memory that those of unit %d use", unit, i);
        settle_unit(w, i);
    }
    for (int i = 0; i < u->num_parts; i++) zero_gaps(w, unit, u->first_part + i);
    place_grads(w, unit, true);
    w->begun[unit] = true;
}

void grad_window_reduce(GradWindow *w, int unit, ReduceOp op, bool stays) {
    const UnitRoom *u = &w->rooms.units[unit];
    if (!w->begun[unit]) return;
    w->begun[unit] = false;
    place_grads(w, unit, false);
    for (int part = u->first_part; part < u->first_part + u->num_parts && !stays; part++) {
        const RoomPart *at = &w->rooms.parts[part];
        const Bucket *b = room_bucket(&w->rooms, at);
        bool first = w->sums[at->bucket]++ == 0;
        w->parts[part].reducing =
            comm_reduce_scatter_start(b->group, w->context->stream, whole_of(w, part),
                                      first ? bucket_grads(w->params, b) : slice_of(w, part), op);
        w->parts[part].due = true;
    }
}

void grad_window_finish(GradWindow *w) {
    grad_window_settle(w);
    for (int i = 0; i < w->rooms.buckets->count; i++) {
        const Bucket *b = &w->rooms.buckets->items[i];
        CHECK(w->sums[i] || !b->grads_cut, "no sum of the gradients of a bucket of chunk %d", b->chunk);
        w->sums[i] = 0;
    }
}
