#include "comm/board.h"
#include "comm/reduce.h"
#include <stdlib.h>
#include <string.h>

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

typedef struct {
    Board *board;
    const Call *call;
    size_t slot, offset, length; // elements
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
    const char *base = c->board->stages ? stage(c, rank) : entry(c->board, c->slot, rank)->address;
    return base + index * c->call->element_bytes;
}

static void enter(const Chunk *c) {
    const Call *call = c->call;
    const Board *b = c->board;
    size_t element = call->element_bytes, bytes = c->length * element;
    entry(b, c->slot, b->rank)->address = call->in;
    if (!b->stages || call->op == COMM_BARRIER || (call->op == COMM_BROADCAST && call->peer != b->rank))
        return;
    size_t pieces = call->op == COMM_REDUCE_SCATTER ? (size_t)b->size : 1;
    for (size_t i = 0; i < pieces; i++)
        copy(stage(c, b->rank) + i * bytes, (const char *)call->in + (i * call->count + c->offset) * element,
             bytes);
}

static void reduce(const Chunk *c) {
    const Call *call = c->call;
    const Board *b = c->board;
    size_t first = 0, count = c->length;
    char *out = call->out;
    if (call->op == COMM_REDUCE_SCATTER) {
        first = (size_t)b->rank * c->length;
        out += c->offset * call->element_bytes;
    } else if (call->op == COMM_ALL_REDUCE) {
        first = slice_begin(c->length, b->size, b->rank);
        count = slice_begin(c->length, b->size, b->rank + 1) - first;
        out = (b->stages ? stage(c, b->rank) : out) + first * call->element_bytes;
    } else {
        return;
    }
    if (!count) return;
    for (int r = 0; r < b->size; r++) b->parts[r] = shown(c, r, first);
    reduce_in_order(out, b->parts, b->size, count, call->dtype, call->reduce);
}

static void leave(const Chunk *c) {
    const Call *call = c->call;
    const Board *b = c->board;
    size_t element = call->element_bytes;
    char *out = call->out;
    if (call->op == COMM_BROADCAST && call->peer != b->rank)
        copy(out + c->offset * element, shown(c, call->peer, 0), c->length * element);
    for (int r = 0; r < b->size; r++) {
        if (call->op == COMM_ALL_REDUCE) {
            size_t first = slice_begin(c->length, b->size, r), end = slice_begin(c->length, b->size, r + 1);
            copy(out + (c->offset + first) * element, shown(c, r, first), (end - first) * element);
        } else if (call->op == COMM_ALL_GATHER) {
            copy(out + ((size_t)r * call->count + c->offset) * element, shown(c, r, 0), c->length * element);
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

static void arrive(Board *board, uint64_t use, int phase) {
    size_t slot = use % (uint64_t)board->num_slots;
    uint64_t earlier = earlier_uses(board, use);
    atomic_store_explicit(&entry(board, slot, board->rank)->phases,
                          earlier * NUM_PHASES + (uint64_t)phase + 1, memory_order_relaxed);
    uint64_t before = atomic_fetch_add_explicit(&board->slots[slot].arrived[phase], 1, memory_order_acq_rel);
    if (board->ring && before + 1 == (earlier + 1) * (uint64_t)board->size) board->ring(board->self);
}

// One phase of one chunk; false when none may begin. The oldest chunk first: it is in the cache, and others
// wait for its slot.
static bool take_step(Board *board, const Call *call, size_t length, BoardOp *op) {
    for (int phase = PHASE_LEAVE; phase >= PHASE_ENTER; phase--) {
        uint64_t chunk = op->done[phase], use = op->first + chunk;
        uint64_t ready = phase == PHASE_ENTER ? op->chunks : op->done[phase - 1];
        if (chunk == ready || !may_begin(board, call, use, phase)) continue;
        size_t offset = (size_t)chunk * length, left = call->count - offset;
        phases[phase](
            &(Chunk){board, call, use % (uint64_t)board->num_slots, offset, left < length ? left : length});
        arrive(board, use, phase);
        op->done[phase]++;
        return true;
    }
    return false;
}

Progress board_advance(Board *board, const Call *call, BoardOp *op) {
    size_t length = chunk_elements(board, call);
    Progress progress = STUCK;
    while (take_step(board, call, length, op)) progress = MOVED;
    if (op->done[PHASE_LEAVE] < op->chunks) return progress;
    // Staged, what others still read is not the caller's memory: no need to wait until they have left.
    return board->stages || may_begin(board, call, op->first, NUM_PHASES) ? DONE : progress;
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
