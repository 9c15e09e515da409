// Advances collectives in shared memory: phase by phase, chunk by chunk, without blocking.
#include "comm/shm_collective.h"
#include <stdlib.h>
#include <string.h>

enum { SUMS_BYTES = 64 << 10 }; // one block of sums; it and its parts fit into the second-level cache

void shm_collective_open(ShmCollective *shm) {
    shm->parts = comm_allocate((size_t)shm->size, sizeof *shm->parts);
    shm->next_use = 0;
}

void shm_collective_close(ShmCollective *shm) { free(shm->parts); }

// Elements of one chunk. Where every rank gets other elements, a staging buffer holds a piece for each.
static size_t chunk_elements(const ShmCollective *shm, const Call *call) {
    if (!shm->staging || !call->count) return call->count;
    size_t pieces = (size_t)slices_in(call, shm->size);
    size_t fit = shm->staging_bytes / call->element_bytes / pieces;
    CHECK(fit > 0, "a staging buffer of %zu bytes is too small for %d ranks", shm->staging_bytes, shm->size);
    return fit < call->count ? fit : call->count;
}

void shm_collective_start(ShmCollective *shm, const Call *call, ShmOp *op) {
    size_t chunk = chunk_elements(shm, call);
    uint64_t chunks = chunk ? (call->count + chunk - 1) / chunk : 1;
    *op = (ShmOp){.first = shm->next_use, .chunks = chunks};
    shm->next_use += chunks;
}

// ---- one phase of one chunk ----------------------------------------------------------------------

// One rank's part of a chunk: this rank's own, or any rank's with last_does_all.
typedef struct {
    ShmCollective *shm;
    const Call *call; // this rank's; only what is the same on all ranks is read
    int rank;         // the rank whose part it is
    const char *in;   // the chunk within that rank's memory; NULL: it has none
    char *out;
    size_t slot;
    size_t length; // elements
} Chunk;

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes && to != from) memcpy(to, from, bytes);
}

static char *staging_of(const Chunk *c, int rank) {
    return c->shm->staging[rank] + c->slot * c->shm->staging_bytes;
}

static ShmEntry *entry(const ShmCollective *shm, size_t slot, int rank) {
    return &shm->entries[slot * (size_t)shm->size + (size_t)rank];
}

// Returns the address at which all ranks can read element `index` of `rank`'s chunk.
static const char *shown(const Chunk *c, int rank, size_t index) {
    const char *base = c->shm->staging ? staging_of(c, rank) : entry(c->shm, c->slot, rank)->in;
    return base + index * c->call->element_bytes;
}

// The elements of an all-reduce that `rank` adds: [first, returned value).
static size_t slice_of(const Chunk *c, int rank, size_t *first) {
    *first = slice_begin(c->length, c->shm->size, rank);
    return slice_begin(c->length, c->shm->size, rank + 1);
}

// Copies to the rank's staging buffer what the others need: all elements but those that it adds itself.
static void enter_staged(const Chunk *c) {
    const Call *call = c->call;
    char *to = staging_of(c, c->rank);
    size_t element = call->element_bytes, bytes = c->length * element, first, end;
    if (!c->length) return;
    if (call->op == COMM_ALL_REDUCE) {
        end = slice_of(c, c->rank, &first);
        copy(to, c->in, first * element);
        copy(to + end * element, c->in + end * element, bytes - end * element);
    } else if (slices_in(call, c->shm->size) > 1) {
        for (int r = 0; r < c->shm->size; r++)
            if (r != c->rank) copy(to + (size_t)r * bytes, c->in + (size_t)r * call->count * element, bytes);
    } else if (call->op == COMM_ALL_GATHER || call->peer == c->rank) {
        copy(to, c->in, bytes);
    }
}

static void enter(const Chunk *c) {
    ShmEntry *e = entry(c->shm, c->slot, c->rank);
    e->in = c->in, e->out = c->out;
    if (c->shm->staging && c->call->op != COMM_BARRIER) enter_staged(c);
}

// Copies sums to the rank's staging buffer (staged) or into the memory of every rank (direct).
static void hand_out(const Chunk *c, const char *sums, size_t index, size_t bytes) {
    const ShmCollective *shm = c->shm;
    size_t at = index * c->call->element_bytes;
    if (shm->staging) copy(staging_of(c, c->rank) + at, sums, bytes);
    for (int r = 0; !shm->staging && r < shm->size; r++) copy(entry(shm, c->slot, r)->out + at, sums, bytes);
}

// Adds the rank's slice of an all-reduce block by block: sums are copied on while they are in the cache.
static void reduce_slice(const Chunk *c) {
    const Call *call = c->call;
    const ShmCollective *shm = c->shm;
    size_t block = SUMS_BYTES / call->element_bytes, first, end = slice_of(c, c->rank, &first);
    for (size_t at = first, n; at < end; at += n) {
        n = end - at < block ? end - at : block;
        char *sums = c->out + at * call->element_bytes;
        for (int r = 0; r < shm->size; r++) shm->parts[r] = r == c->rank ? sums : shown(c, r, at);
        reduce_in_order(sums, shm->parts, shm->size, n, call->dtype, call->reduce);
        hand_out(c, sums, at, n * call->element_bytes);
    }
}

static void reduce(const Chunk *c) {
    const Call *call = c->call;
    const ShmCollective *shm = c->shm;
    if (call->op == COMM_ALL_REDUCE) reduce_slice(c);
    if (call->op != COMM_REDUCE_SCATTER || !c->length) return;
    size_t rank = (size_t)c->rank;
    for (int r = 0; r < shm->size; r++)
        shm->parts[r] =
            r == c->rank ? c->in + rank * call->count * call->element_bytes : shown(c, r, rank * c->length);
    reduce_in_order(c->out, shm->parts, shm->size, c->length, call->dtype, call->reduce);
}

// Copies the slices that are for this rank.
static void take_slices(const Chunk *c) {
    const Call *call = c->call;
    size_t slice = call->count * call->element_bytes, bytes = c->length * call->element_bytes;
    size_t rank = (size_t)c->rank;
    for (int r = 0; r < c->shm->size; r++)
        copy(c->out + (size_t)r * slice, r == c->rank ? c->in + rank * slice : shown(c, r, rank * c->length),
             bytes);
}

static void leave(const Chunk *c) {
    const Call *call = c->call;
    const ShmCollective *shm = c->shm;
    size_t element = call->element_bytes, bytes = c->length * element, first, end;
    if (!c->length) return;
    if (call->op == COMM_ALL_TO_ALL) take_slices(c);
    if (call->op == COMM_BROADCAST && call->peer != c->rank) copy(c->out, shown(c, call->peer, 0), bytes);
    for (int r = 0; r < shm->size; r++) {
        if (call->op == COMM_ALL_REDUCE && shm->staging && r != c->rank) {
            end = slice_of(c, r, &first);
            copy(c->out + first * element, shown(c, r, first), (end - first) * element);
        } else if (call->op == COMM_ALL_GATHER) {
            copy(c->out + (size_t)r * call->count * element, r == c->rank ? c->in : shown(c, r, 0), bytes);
        }
    }
}

static void (*const phases[NUM_PHASES])(const Chunk *) = {enter, reduce, leave};

// ---- the state machine ----------------------------------------------------------------------------

// Returns the number of earlier uses of the slot.
static uint64_t earlier_uses(const ShmCollective *shm, uint64_t use) {
    return use / (uint64_t)shm->num_slots;
}

static bool complete(const ShmCollective *shm, uint64_t use, int phase, uint64_t uses) {
    const ShmSlot *slot = &shm->slots[use % (uint64_t)shm->num_slots];
    return atomic_load_explicit(&slot->arrived[phase], memory_order_acquire) >= uses * (uint64_t)shm->size;
}

// Returns whether all ranks have: left the slot's previous use (before ENTER); entered (before REDUCE); reduced (before
// LEAVE, all-reduce only); left (NUM_PHASES, direct only).
static bool may_begin(const ShmCollective *shm, const Call *call, uint64_t use, int phase) {
    uint64_t earlier = earlier_uses(shm, use);
    if (phase == PHASE_ENTER) return complete(shm, use, PHASE_LEAVE, earlier);
    if (phase == PHASE_LEAVE && call->op != COMM_ALL_REDUCE) return true;
    return complete(shm, use, phase - 1, earlier + 1);
}

// Adds `ranks` to the count of those that have finished a phase of the slot's use; true when all have.
static bool count_arrived(const ShmCollective *shm, uint64_t use, int phase, int ranks) {
    ShmSlot *slot = &shm->slots[use % (uint64_t)shm->num_slots];
    uint64_t added = (uint64_t)ranks;
    uint64_t before = atomic_fetch_add_explicit(&slot->arrived[phase], added, memory_order_acq_rel);
    return before + added == (earlier_uses(shm, use) + 1) * (uint64_t)shm->size;
}

// Runs the phases after ENTER for all ranks. No rank leaves before LEAVE is counted; after that each rank may
// touch its memory again.
static void finish_for_all(const Chunk *c, uint64_t use) {
    const ShmCollective *shm = c->shm;
    Chunk part = *c;
    for (int phase = PHASE_REDUCE; phase <= PHASE_LEAVE; phase++)
        for (part.rank = 0; part.rank < shm->size; part.rank++) {
            const ShmEntry *e = entry(shm, c->slot, part.rank);
            part.in = e->in, part.out = e->out;
            phases[phase](&part);
        }
    count_arrived(shm, use, PHASE_LEAVE, shm->size);
}

// The last phase that a rank itself has to finish when it finishes `phase`.
static int finished(const ShmCollective *shm, int phase) { return shm->last_does_all ? PHASE_LEAVE : phase; }

static void arrive(const Chunk *c, uint64_t use, int phase) {
    const ShmCollective *shm = c->shm;
    uint64_t count = earlier_uses(shm, use) * NUM_PHASES + (uint64_t)finished(shm, phase) + 1;
    atomic_store_explicit(&entry(shm, c->slot, shm->rank)->phases, count, memory_order_relaxed);
    if (!count_arrived(shm, use, phase, 1)) return;
    if (shm->last_does_all) finish_for_all(c, use);
    if (shm->wake) shm->wake(shm->self);
}

// This rank's part of a chunk, `offset` elements into the call and up to `length` long.
static Chunk chunk_at(ShmCollective *shm, const Call *call, uint64_t use, size_t offset, size_t length) {
    size_t left = call->count - offset, skip = offset * call->element_bytes;
    return (Chunk){.shm = shm,
                   .call = call,
                   .rank = shm->rank,
                   .in = call->in ? (const char *)call->in + skip : NULL,
                   .out = call->out ? (char *)call->out + skip : NULL,
                   .slot = use % (uint64_t)shm->num_slots,
                   .length = left < length ? left : length};
}

// Runs one phase of one chunk; false when none may begin. The oldest chunk comes first: it is in the cache, and
// others wait for its slot.
static bool take_step(ShmCollective *shm, const Call *call, size_t length, ShmOp *op) {
    for (int phase = PHASE_LEAVE; phase >= PHASE_ENTER; phase--) {
        uint64_t chunk = op->done[phase], use = op->first + chunk;
        uint64_t ready = phase == PHASE_ENTER ? op->chunks : op->done[phase - 1];
        if (chunk == ready || !may_begin(shm, call, use, phase)) continue;
        Chunk c = chunk_at(shm, call, use, (size_t)chunk * length, length);
        phases[phase](&c);
        arrive(&c, use, phase);
        for (int done = phase; done <= finished(shm, phase); done++) op->done[done]++;
        return true;
    }
    return false;
}

CallProgress shm_collective_advance(ShmCollective *shm, const Call *call, ShmOp *op) {
    size_t length = chunk_elements(shm, call);
    CallProgress progress = STUCK;
    while (take_step(shm, call, length, op)) progress = MOVED;
    if (op->done[PHASE_LEAVE] < op->chunks) return progress;
    // A staged collective need not wait until all ranks have left: the others read staging buffers, not the
    // caller's memory. Nor need an all-reduce: its sums are in place before any rank leaves. With last_does_all
    // the last rank must have finished.
    bool alone = (shm->staging || call->op == COMM_ALL_REDUCE) && !shm->last_does_all;
    return alone || may_begin(shm, call, op->first, NUM_PHASES) ? DONE : progress;
}

bool shm_collective_waits_for(const ShmCollective *shm, const ShmOp *op, int rank) {
    uint64_t chunk = op->done[PHASE_LEAVE] < op->chunks ? op->done[PHASE_LEAVE] : op->chunks - 1;
    int phase = PHASE_ENTER; // of the oldest unfinished chunk
    while (phase < NUM_PHASES && op->done[phase] > chunk) phase++;
    uint64_t use = op->first + chunk;
    const ShmEntry *e = entry(shm, use % (uint64_t)shm->num_slots, rank);
    return atomic_load_explicit(&e->phases, memory_order_relaxed) <
           earlier_uses(shm, use) * NUM_PHASES + (uint64_t)phase;
}
