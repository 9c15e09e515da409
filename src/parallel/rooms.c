// Lays out windows: where the values, or the gradients, of the units in use are whole.
#include "parallel/parallel.h"
#include <stdlib.h>

const Bucket *room_bucket(const UnitRooms *r, const RoomPart *part) {
    return &r->buckets->items[part->bucket];
}

static bool has_part(const UnitRooms *r, int bucket, int unit, bool of_grads) {
    const Bucket *b = &r->buckets->items[bucket];
    return (b->grads_cut || !of_grads) && bucket_holds(b, r->params, unit);
}

// Lists the buckets that hold what a unit has from `at` on, or with NULL only counts them.
static int list_parts(const UnitRooms *r, int unit, bool of_grads, RoomPart *at, int64_t *elements) {
    int count = 0, num_buckets = r->buckets->count + (of_grads ? 0 : r->buckets->num_frozen);
    *elements = 0;
    for (int i = 0; i < num_buckets; i++) {
        if (!has_part(r, i, unit, of_grads)) continue;
        if (at) at[count] = (RoomPart){.bucket = i, .begin = *elements};
        *elements += r->buckets->items[i].count;
        count++;
    }
    return count;
}

static int chunk_of(const UnitRooms *r, int unit) {
    return r->params->items[r->params->units[unit].first]->chunk;
}

// Finds what each unit takes, and what the window must hold.
static void find_units(UnitRooms *r, bool of_grads) {
    int64_t before = 0;
    for (int unit = 0, parts = 0, previous = -1; unit < r->params->num_units; unit++) {
        UnitRoom *u = &r->units[unit];
        u->first_part = parts;
        u->num_parts = list_parts(r, unit, of_grads, &r->parts[parts], &u->count);
        parts += u->num_parts;
        if (!u->num_parts) continue;
        if (previous < 0 || chunk_of(r, unit) != chunk_of(r, previous)) before = 0;
        if (before + u->count > r->elements) r->elements = before + u->count;
        before = u->count, previous = unit;
    }
}

static void lay_out(UnitRooms *r) {
    for (int unit = 0, at_end = 0, previous = -1; unit < r->params->num_units; unit++) {
        UnitRoom *u = &r->units[unit];
        if (!u->num_parts) continue;
        at_end = previous >= 0 && chunk_of(r, unit) == chunk_of(r, previous) ? !at_end : 0;
        u->begin = at_end ? r->elements - u->count : 0;
        for (int i = 0; i < u->num_parts; i++) r->parts[u->first_part + i].begin += u->begin;
        previous = unit;
    }
}

Status unit_rooms_create(UnitRooms *r, const Params *params, const Buckets *buckets, bool of_grads) {
    int64_t elements;
    *r = (UnitRooms){.params = params, .buckets = buckets};
    for (int unit = 0; unit < params->num_units; unit++)
        r->num_parts += list_parts(r, unit, of_grads, NULL, &elements);
    r->units = calloc((size_t)params->num_units + 1, sizeof *r->units);
    r->parts = calloc((size_t)r->num_parts + 1, sizeof *r->parts);
    if (!r->units || !r->parts)
        return fail(ERR_OS, "no memory for the window of %d units", params->num_units);
    find_units(r, of_grads);
    lay_out(r);
    return OK;
}

void unit_rooms_destroy(UnitRooms *r) {
    free(r->units);
    free(r->parts);
    *r = (UnitRooms){0};
}

bool unit_rooms_overlap(const UnitRooms *r, int a, int b) {
    const UnitRoom *x = &r->units[a], *y = &r->units[b];
    return x->begin < y->begin + y->count && y->begin < x->begin + x->count;
}

void *unit_rooms_find(const UnitRooms *r, Tensor memory, int unit, const Param *p) {
    const UnitRoom *u = &r->units[unit];
    for (int k = 0; k < u->num_parts; k++) {
        const RoomPart *part = &r->parts[u->first_part + k];
        const Bucket *b = room_bucket(r, part);
        int64_t at = p->offset - b->begin;
        if (p->chunk == b->chunk && at >= 0 && at < b->count)
            return tensor_part(memory, part->begin + at, param_local_count(p)).data;
    }
    return NULL;
}
