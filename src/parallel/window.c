// Gathers the values of the units in use where each replica keeps shards of them alone.
#include "parallel/parallel.h"
#include <stdlib.h>

// ---- what lies where ----------------------------------------------------------------------------

static const Bucket *bucket_of(const Window *w, const WindowPart *part) {
    return &w->buckets->items[part->bucket];
}

static int num_buckets(const Window *w) { return w->buckets->count + w->buckets->num_frozen; }

// Lists the buckets that hold values of a unit from `at` on, or with NULL only counts them.
static int list_parts(const Window *w, int unit, WindowPart *at, int64_t *elements) {
    int count = 0;
    *elements = 0;
    for (int i = 0; i < num_buckets(w); i++) {
        if (!bucket_holds(&w->buckets->items[i], w->params, unit)) continue;
        if (at) at[count] = (WindowPart){.bucket = i, .begin = *elements};
        *elements += w->buckets->items[i].count;
        count++;
    }
    return count;
}

static int chunk_of(const Window *w, int unit) {
    return w->params->items[w->params->units[unit].first]->chunk;
}

// Finds what each unit takes. Returns what the window must hold.
static int64_t find_units(Window *w) {
    int64_t most = 0, before = 0;
    for (int unit = 0, parts = 0, previous = -1; unit < w->params->num_units; unit++) {
        WindowUnit *u = &w->units[unit];
        u->first_part = parts;
        u->num_parts = list_parts(w, unit, &w->parts[parts], &u->count);
        parts += u->num_parts;
        if (!u->num_parts) continue;
        if (previous < 0 || chunk_of(w, unit) != chunk_of(w, previous)) before = 0;
        if (before + u->count > most) most = before + u->count;
        before = u->count, previous = unit;
    }
    return most;
}

// The units of a chunk lie in turn at the begin and at the end, so that neighbours do not overlap.
static void lay_out(Window *w, int64_t elements) {
    for (int unit = 0, at_end = 0, previous = -1; unit < w->params->num_units; unit++) {
        WindowUnit *u = &w->units[unit];
        if (!u->num_parts) continue;
        at_end = previous >= 0 && chunk_of(w, unit) == chunk_of(w, previous) ? !at_end : 0;
        u->begin = at_end ? elements - u->count : 0;
        for (int i = 0; i < u->num_parts; i++) w->parts[u->first_part + i].begin += u->begin;
        previous = unit;
    }
}

Status window_create(Window *w, Context *context, const Params *params, const Buckets *buckets,
                     Arena *arena) {
    *w = (Window){
        .context = context, .params = params, .buckets = buckets, .shared = !params_keep_shards(params)};
    if (w->shared) return OK;
    int num_parts = 0;
    int64_t elements;
    for (int unit = 0; unit < params->num_units; unit++) num_parts += list_parts(w, unit, NULL, &elements);
    w->units = calloc((size_t)params->num_units + 1, sizeof *w->units);
    w->parts = calloc((size_t)num_parts + 1, sizeof *w->parts);
    if (!w->units || !w->parts)
        return fail(ERR_OS, "no memory for the window of %d units", params->num_units);
    elements = find_units(w);
    lay_out(w, elements);
    DType dtype = params->num_chunks ? params->chunks[0].values.dtype : F32;
    w->memory = tensor_take(arena, "window of gathered parameters", 1, elements, dtype);
    return OK;
}

void window_destroy(Window *w) {
    if (w->units && w->parts) window_forget(w);
    free(w->units);
    free(w->parts);
    *w = (Window){0};
}

// ---- units come and go --------------------------------------------------------------------------

// Sets the addresses of a unit's values.
static void place_values(const Window *w, int unit, bool there) {
    const WindowUnit *u = &w->units[unit];
    for (int i = w->params->units[unit].first; i < w->params->units[unit].end; i++) {
        Param *p = w->params->items[i];
        if (p->spec.by_rule) continue;
        const Param *owner = p->tied_value ? p->tied_value : p;
        p->value.data = NULL;
        for (int k = 0; k < u->num_parts && there && !p->value.data; k++) {
            const WindowPart *part = &w->parts[u->first_part + k];
            const Bucket *b = bucket_of(w, part);
            int64_t at = owner->offset - b->begin;
            if (owner->chunk == b->chunk && at >= 0 && at < b->count)
                p->value.data = tensor_part(w->memory, part->begin + at, tensor_count(p->value)).data;
        }
    }
}

static void finish_gathers(const Window *w, const WindowUnit *u) {
    for (int i = 0; i < u->num_parts; i++) {
        WindowPart *part = &w->parts[u->first_part + i];
        if (part->gathering) comm_wait(bucket_of(w, part)->group, w->context->stream, &part->gathering);
    }
}

static void drop(const Window *w, int unit) {
    WindowUnit *u = &w->units[unit];
    finish_gathers(w, u);
    place_values(w, unit, false);
    u->there = false;
}

static bool overlap(const WindowUnit *a, const WindowUnit *b) {
    return a->begin < b->begin + b->count && b->begin < a->begin + a->count;
}

static bool memory_is_used(const Window *w, const WindowUnit *u) {
    for (int i = 0; i < w->params->num_units; i++)
        if (w->units[i].in_use && overlap(&w->units[i], u)) return true;
    return false;
}

static void start(const Window *w, int unit) {
    WindowUnit *u = &w->units[unit];
    CHECK(!memory_is_used(w, u), "unit %d needs memory that another one uses", unit);
    for (int i = 0; i < w->params->num_units; i++)
        if (w->units[i].there && overlap(&w->units[i], u)) drop(w, i);
    for (int i = 0; i < u->num_parts; i++) {
        WindowPart *part = &w->parts[u->first_part + i];
        const Bucket *b = bucket_of(w, part);
        part->gathering = comm_all_gather_start(b->group, w->context->stream, bucket_values(w->params, b),
                                                tensor_part(w->memory, part->begin, b->count));
    }
    u->there = true;
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
    WindowUnit *u = &w->units[unit];
    if (!u->num_parts) return;
    if (!u->there) start(w, unit);
    finish_gathers(w, u);
    place_values(w, unit, true);
    u->in_use = true;
    if (next >= 0 && !w->units[next].there && !memory_is_used(w, &w->units[next])) start(w, next);
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
