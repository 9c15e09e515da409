#include "comm/board.h"
#include "comm/reduce.h"
#include <stdlib.h>
#include <string.h>

enum { SUMS_BYTES = 64 << 10 }; // of a block: it stays in the second-level cache with all its parts

void board_open(Board *board) {
    board->parts = comm_allocate((size_t)board->size, sizeof *board->parts);
    board->next_use = 0;
}

void board_close(Board *board) { free(board->parts); }

// Elements of one chunk; a stage holds a piece for every rank in a reduce-scatter.
static size_t chunk_elements(const Board *board, const Call *call) {
    if (!board->stages || !call->count) return call->count;
    size_t pieces = call->op == COMM_REDUCE_SCATTER ? (size_t)board->size : 1;
    size_t fit = board->stage_bytes / call->element_bytes / pieces;
    CHECK(fit > 0, "a stage of %zu bytes is too small for %d ranks", board->stage_bytes, board->size);
    return fit < call->count ? fit : call->count;
}

void board_start(Board *board, const Call *call, BoardOp *op) {
    size_t chunk = chunk_elements(board, call);
    uint64_t chunks = chunk ? (call->count + chunk - 1) / chunk : 1;
    *op = (BoardOp){.first = board->next_use, .chunks = chunks};
    board->next_use += chunks;
}

// ---- one phase of one chunk ----------------------------------------------------------------------

// One rank's part of it: this rank's own, or anybody's where the last one does all.
typedef struct {
    Board *board;
    const Call *call; // this rank's; what is read of it is the same on all
    int rank;         // whose part it is
    const char *in;   // the chunk within its memory; NULL where it has none
    char *out;
    size_t slot;
    size_t length; // elements
} Chunk;

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes && to != from) memcpy(to, from, bytes);
}

static char *stage(const Chunk *c, int rank) {
    return c->board->stages[rank] + c->slot * c->board->stage_bytes;
}

static Entry *entry(const Board *board, size_t slot, int rank) {
    return &board->entries[slot * (size_t)board->size + (size_t)rank];
}

// Where `rank` shows element `index` of this chunk to everybody.
static const char *shown(const Chunk *c, int rank, size_t index) {
    const char *base = c->board->stages ? stage(c, rank) : entry(c->board, c->slot, rank)->in;
    return base + index * c->call->element_bytes;
}

// The elements of an all-reduce that `rank` adds: [first, returned value).
static size_t slice_of(const Chunk *c, int rank, size_t *first) {
    *first = slice_begin(c->length, c->board->size, rank);
    return slice_begin(c->length, c->board->size, rank + 1);
}

// To the rank's stage, what the others need: all but what it adds itself.
static void enter_staged(const Chunk *c) {
    const Call *call = c->call;
    char *to = stage(c, c->rank);
    size_t element = call->element_bytes, bytes = c->length * element, first, end;
    if (!c->length) return;
    if (call->op == COMM_ALL_REDUCE) {
        end = slice_of(c, c->rank, &first);
        copy(to, c->in, first * element);
        copy(to + end * element, c->in + end * element, bytes - end * element);
    } else if (call->op == COMM_REDUCE_SCATTER) {
        for (int r = 0; r < c->board->size; r++)
            if (r != c->rank) copy(to + (size_t)r * bytes, c->in + (size_t)r * call->count * element, bytes);
    } else if (call->op == COMM_ALL_GATHER || call->peer == c->rank) {
        copy(to, c->in, bytes);
    }
}

static void enter(const Chunk *c) {
    Entry *e = entry(c->board, c->slot, c->rank);
    e->in = c->in, e->out = c->out;
    if (c->board->stages && c->call->op != COMM_BARRIER) enter_staged(c);
}

// To whom the sums go that `rank` made: on to its stage, or at once into everybody's memory.
static void hand_out(const Chunk *c, const char *sums, size_t index, size_t bytes) {
    const Board *b = c->board;
    size_t at = index * c->call->element_bytes;
    if (b->stages) copy(stage(c, c->rank) + at, sums, bytes);
    for (int r = 0; !b->stages && r < b->size; r++) copy(entry(b, c->slot, r)->out + at, sums, bytes);
}

// The rank's slice, block by block, so that sums are handed out from the cache.
static void reduce_slice(const Chunk *c) {
    const Call *call = c->call;
    const Board *b = c->board;
    size_t block = SUMS_BYTES / call->element_bytes, first, end = slice_of(c, c->rank, &first);
    for (size_t at = first, n; at < end; at += n) {
        n = end - at < block ? end - at : block;
        char *sums = c->out + at * call->element_bytes;
        for (int r = 0; r < b->size; r++) b->parts[r] = r == c->rank ? sums : shown(c, r, at);
        reduce_in_order(sums, b->parts, b->size, n, call->dtype, call->reduce);
        hand_out(c, sums, at, n * call->element_bytes);
    }
}

static void reduce(const Chunk *c) {
    const Call *call = c->call;
    const Board *b = c->board;
    if (call->op == COMM_ALL_REDUCE) reduce_slice(c);
    if (call->op != COMM_REDUCE_SCATTER || !c->length) return;
    size_t rank = (size_t)c->rank;
    for (int r = 0; r < b->size; r++)
        b->parts[r] =
            r == c->rank ? c->in + rank * call->count * call->element_bytes : shown(c, r, rank * c->length);
    reduce_in_order(c->out, b->parts, b->size, c->length, call->dtype, call->reduce);
}

static void leave(const Chunk *c) {
    const Call *call = c->call;
    const Board *b = c->board;
    size_t element = call->element_bytes, bytes = c->length * element, first, end;
    if (!c->length) return;
    if (call->op == COMM_BROADCAST && call->peer != c->rank) copy(c->out, shown(c, call->peer, 0), bytes);
    for (int r = 0; r < b->size; r++) {
        if (call->op == COMM_ALL_REDUCE && b->stages && r != c->rank) {
            end = slice_of(c, r, &first);
            copy(c->out + first * element, shown(c, r, first), (end - first) * element);
        } else if (call->op == COMM_ALL_GATHER) {
            copy(c->out + (size_t)r * call->count * element, r == c->rank ? c->in : shown(c, r, 0), bytes);
        }
    }
}

static void (*const phases[NUM_PHASES])(const Chunk *) = {enter, reduce, leave};

// ---- the state machine ----------------------------------------------------------------------------

// Uses of the slot before this one.
static uint64_t earlier_uses(const Board *board, uint64_t use) { return use / (uint64_t)board->num_slots; }

static bool complete(const Board *board, uint64_t use, int phase, uint64_t uses) {
    const Slot *slot = &board->slots[use % (uint64_t)board->num_slots];
    return atomic_load_explicit(&slot->arrived[phase], memory_order_acquire) >= uses * (uint64_t)board->size;
}

// All have left the slot's use before this one; all have entered; all have reduced; direct: all have left.
static bool may_begin(const Board *board, const Call *call, uint64_t use, int phase) {
    uint64_t earlier = earlier_uses(board, use);
    if (phase == PHASE_ENTER) return complete(board, use, PHASE_LEAVE, earlier);
    if (phase == PHASE_LEAVE && call->op != COMM_ALL_REDUCE) return true;
    return complete(board, use, phase - 1, earlier + 1);
}

// Counts `ranks` that have finished a phase of the slot's use; true when all have.
static bool count_arrived(const Board *board, uint64_t use, int phase, int ranks) {
    Slot *slot = &board->slots[use % (uint64_t)board->num_slots];
    uint64_t added = (uint64_t)ranks;
    uint64_t before = atomic_fetch_add_explicit(&slot->arrived[phase], added, memory_order_acq_rel);
    return before + added == (earlier_uses(board, use) + 1) * (uint64_t)board->size;
}

// Of a chunk that all have entered, all that is left. Before the count nobody leaves; after it each rank's
// memory is its own again.
static void finish_for_all(const Chunk *c, uint64_t use) {
    const Board *b = c->board;
    Chunk part = *c;
    for (int phase = PHASE_REDUCE; phase <= PHASE_LEAVE; phase++)
        for (part.rank = 0; part.rank < b->size; part.rank++) {
            const Entry *e = entry(b, c->slot, part.rank);
            part.in = e->in, part.out = e->out;
            phases[phase](&part);
        }
    count_arrived(b, use, PHASE_LEAVE, b->size);
}

// The last phase of its own that a rank has finished with this one.
static int finished(const Board *board, int phase) { return board->last_does_all ? PHASE_LEAVE : phase; }

static void arrive(const Chunk *c, uint64_t use, int phase) {
    const Board *b = c->board;
    uint64_t count = earlier_uses(b, use) * NUM_PHASES + (uint64_t)finished(b, phase) + 1;
    atomic_store_explicit(&entry(b, c->slot, b->rank)->phases, count, memory_order_relaxed);
    if (!count_arrived(b, use, phase, 1)) return;
    if (b->last_does_all) finish_for_all(c, use);
    if (b->ring) b->ring(b->self);
}

// This rank's part of a chunk, `offset` elements into the call and up to `length` long.
static Chunk chunk_at(Board *board, const Call *call, uint64_t use, size_t offset, size_t length) {
    size_t left = call->count - offset, skip = offset * call->element_bytes;
    return (Chunk){.board = board,
                   .call = call,
                   .rank = board->rank,
                   .in = call->in ? (const char *)call->in + skip : NULL,
                   .out = call->out ? (char *)call->out + skip : NULL,
                   .slot = use % (uint64_t)board->num_slots,
                   .length = left < length ? left : length};
}

// One phase of one chunk; false when none may begin. The oldest chunk first: it is in the cache, and others
// wait for its slot.
static bool take_step(Board *board, const Call *call, size_t length, BoardOp *op) {
    for (int phase = PHASE_LEAVE; phase >= PHASE_ENTER; phase--) {
        uint64_t chunk = op->done[phase], use = op->first + chunk;
        uint64_t ready = phase == PHASE_ENTER ? op->chunks : op->done[phase - 1];
        if (chunk == ready || !may_begin(board, call, use, phase)) continue;
        Chunk c = chunk_at(board, call, use, (size_t)chunk * length, length);
        phases[phase](&c);
        arrive(&c, use, phase);
        for (int done = phase; done <= finished(board, phase); done++) op->done[done]++;
        return true;
    }
    return false;
}

Progress board_advance(Board *board, const Call *call, BoardOp *op) {
    size_t length = chunk_elements(board, call);
    Progress progress = STUCK;
    while (take_step(board, call, length, op)) progress = MOVED;
    if (op->done[PHASE_LEAVE] < op->chunks) return progress;
    // Staged, what others still read is not the caller's memory, and sums are handed out before anybody
    // leaves: no need to wait until all have. Where the last one does all, that it has is what counts.
    bool alone = (board->stages || call->op == COMM_ALL_REDUCE) && !board->last_does_all;
    return alone || may_begin(board, call, op->first, NUM_PHASES) ? DONE : progress;
}

bool board_waits_for(const Board *board, const BoardOp *op, int rank) {
    uint64_t chunk = op->done[PHASE_LEAVE] < op->chunks ? op->done[PHASE_LEAVE] : op->chunks - 1;
    int phase = PHASE_ENTER; // of the oldest chunk on its way
    while (phase < NUM_PHASES && op->done[phase] > chunk) phase++;
    uint64_t use = op->first + chunk;
    const Entry *e = entry(board, use % (uint64_t)board->num_slots, rank);
    return atomic_load_explicit(&e->phases, memory_order_relaxed) <
           earlier_uses(board, use) * NUM_PHASES + (uint64_t)phase;
}
