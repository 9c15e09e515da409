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
    *op = (BoardOp){.use = board->next_use};
    board->next_use += chunk ? (call->count + chunk - 1) / chunk : 1;
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

static bool complete(const Board *board, uint64_t use, int phase, uint64_t uses) {
    const Slot *slot = &board->slots[use % (uint64_t)board->num_slots];
    return atomic_load_explicit(&slot->arrived[phase], memory_order_acquire) >= uses * (uint64_t)board->size;
}

// All have left the slot's use before this one; all have entered; all have reduced; direct: all have left.
static bool may_begin(const Board *board, const Call *call, const BoardOp *op) {
    uint64_t earlier = op->use / (uint64_t)board->num_slots;
    if (op->phase == PHASE_ENTER) return complete(board, op->use, PHASE_LEAVE, earlier);
    if (op->phase == PHASE_LEAVE && call->op != COMM_ALL_REDUCE) return true;
    return complete(board, op->use, op->phase - 1, earlier + 1);
}

static void arrive(Board *board, const BoardOp *op) {
    size_t slot = op->use % (uint64_t)board->num_slots;
    uint64_t earlier = op->use / (uint64_t)board->num_slots;
    atomic_store_explicit(&entry(board, slot, board->rank)->phases,
                          earlier * NUM_PHASES + (uint64_t)op->phase + 1, memory_order_relaxed);
    uint64_t before =
        atomic_fetch_add_explicit(&board->slots[slot].arrived[op->phase], 1, memory_order_acq_rel);
    if (board->ring && before + 1 == (earlier + 1) * (uint64_t)board->size) board->ring(board->self);
}

// True when another chunk is to be done.
static bool next_chunk(const Call *call, size_t chunk, BoardOp *op) {
    op->offset += chunk;
    if (op->offset >= call->count) return false;
    op->use++;
    op->phase = PHASE_ENTER;
    return true;
}

Progress board_advance(Board *board, const Call *call, BoardOp *op) {
    size_t chunk = chunk_elements(board, call);
    Progress progress = STUCK;
    while (may_begin(board, call, op)) {
        progress = MOVED;
        if (op->phase == NUM_PHASES) return DONE;
        size_t left = call->count - op->offset;
        phases[op->phase](&(Chunk){board, call, op->use % (uint64_t)board->num_slots, op->offset,
                                   left < chunk ? left : chunk});
        arrive(board, op);
        op->phase++;
        // What others still read is the stage, not the caller's memory: no need to wait until they have left.
        if (board->stages && op->phase == NUM_PHASES && !next_chunk(call, chunk, op)) return DONE;
    }
    return progress;
}

bool board_waits_for(const Board *board, const BoardOp *op, int rank) {
    uint64_t earlier = op->use / (uint64_t)board->num_slots;
    const Entry *e = entry(board, op->use % (uint64_t)board->num_slots, rank);
    return atomic_load_explicit(&e->phases, memory_order_relaxed) <
           earlier * NUM_PHASES + (uint64_t)op->phase;
}
