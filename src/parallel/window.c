// Gathers the values of the units in use where each replica keeps shards of them alone.
#include "parallel/parallel.h"
#include <stdlib.h>

Status window_create(Window *w, Context *context, const Params *params, const Buckets *buckets,
                     Arena *arena) {
    *w = (Window){.context = context, .params = params, .shared = !params_keep_shards(params)};
    if (w->shared) return OK;
    TRY(unit_rooms_create(&w->rooms, params, buckets, false));
    w->units = calloc((size_t)params->num_units + 1, sizeof *w->units);
    w->gathering = calloc((size_t)w->rooms.num_parts + 1, sizeof *w->gathering);
    if (!w->units || !w->gathering)
        return fail(ERR_OS, "no memory for the window of %d units", params->num_units);
    DType dtype = params->num_chunks ? params->chunks[0].values.dtype : F32;
    w->memory = tensor_take(arena, "window of gathered parameters", 1, w->rooms.elements, dtype);
    return OK;
}

void window_destroy(Window *w) {
    if (w->units && w->gathering) window_forget(w);
    unit_rooms_destroy(&w->rooms);
    free(w->units);
    free(w->gathering);
    *w = (Window){0};
}

// ---- units come and go --------------------------------------------------------------------------

// Sets the addresses of a unit's values.
static void place_values(const Window *w, int unit, bool there) {
    for (int i = w->params->units[unit].first; i < w->params->units[unit].end; i++) {
        Param *p = w->params->items[i];
        if (p->spec.by_rule) continue;
        const Param *owner = p->tied_value ? p->tied_value : p;
        p->value.data = there ? unit_rooms_find(&w->rooms, w->memory, unit, owner) : NULL;
    }
}

static void finish_gathers(const Window *w, int unit) {
    const UnitRoom *u = &w->rooms.units[unit];
    for (int i = u->first_part; i < u->first_part + u->num_parts; i++) {
        Comm *group = room_bucket(&w->rooms, &w->rooms.parts[i])->group;
        if (w->gathering[i]) comm_wait(group, w->context->stream, &w->gathering[i]);
    }
}

static void drop(const Window *w, int unit) {
    finish_gathers(w, unit);
    place_values(w, unit, false);
    w->units[unit].there = false;
}

static bool memory_is_used(const Window *w, int unit) {
    for (int i = 0; i < w->params->num_units; i++)
        if (w->units[i].in_use && unit_rooms_overlap(&w->rooms, i, unit)) return true;
    return false;
}

static void start(const Window *w, int unit) {
    const UnitRoom *u = &w->rooms.units[unit];
    CHECK(!memory_is_used(w, unit), "unit %d needs memory that another one uses", unit);
    for (int i = 0; i < w->params->num_units; i++)
        if (w->units[i].there && unit_rooms_overlap(&w->rooms, i, unit)) drop(w, i);
    for (int i = u->first_part; i < u->first_part + u->num_parts; i++) {
        const RoomPart *part = &w->rooms.parts[i];
        const Bucket *b = room_bucket(&w->rooms, part);
        w->gathering[i] = comm_all_gather_start(b->group, w->context->stream, bucket_values(w->params, b),
                                                tensor_part(w->memory, part->begin, b->count));
    }
    w->units[unit].there = true;
}

// Waits until all replicas have written their shards.
static void settle(Window *w) {
    if (w->settled) return;
    device_sync(w->context->device, w->context->stream);
    comm_barrier(context_group(w->context, ROLE_REPLICAS));
    w->settled = true;
}

void window_acquire(Window *w, int unit, int next) {
    if (w->shared) {
        settle(w);
        return;
    }
    if (!w->rooms.units[unit].num_parts) return;
    if (!w->units[unit].there) start(w, unit);
    finish_gathers(w, unit);
    place_values(w, unit, true);
    w->units[unit].in_use = true;
    if (next >= 0 && !w->units[next].there && !memory_is_used(w, next)) start(w, next);
}

void window_release(Window *w, int unit) {
    if (!w->shared) w->units[unit].in_use = false;
}

void window_forget(Window *w) {
    w->settled = false;
    for (int unit = 0; unit < w->params->num_units && !w->shared; unit++) {
        CHECK(!w->units[unit].in_use, "unit %d is in use while its shards change", unit);
        if (w->units[unit].there) drop(w, unit);
    }
}
