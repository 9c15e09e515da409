// What the ranks of a group of "peer" tell each other: steps of collectives, and ends of messages.
#include "comm/peer_board.h"
#include <stdlib.h>

PeerBoard *peer_board_create(int size) {
    PeerBoard *b = comm_allocate(1, sizeof *b);
    b->size = size;
    b->entries = comm_allocate((size_t)size * PEER_SLOTS, sizeof *b->entries);
    b->posts = comm_allocate((size_t)size, sizeof *b->posts);
    pthread_mutex_init(&b->mutex, NULL);
    atomic_init(&b->users, size);
    return b;
}

static void free_posts(PeerPost *p) {
    for (PeerPost *next; p; p = next) {
        next = p->of_rank;
        shared_event_close(p->ready);
        shared_event_close(p->copied);
        free(p);
    }
}

void peer_board_leave(PeerBoard *b) {
    if (!b || atomic_fetch_sub(&b->users, 1) > 1) return;
    for (int i = 0; i < b->size * PEER_SLOTS; i++)
        for (int step = 0; step < STEP_LEAVE; step++) shared_event_close(b->entries[i].after[step]);
    for (int r = 0; r < b->size; r++) free_posts(b->posts[r]);
    pthread_mutex_destroy(&b->mutex);
    free(b->posts);
    free(b->entries);
    free(b);
}

// ---- collectives ------------------------------------------------------------------------------------------

// Returns how many ranks have finished a step of a slot when all have, after so many uses.
static uint64_t all_after(const PeerBoard *b, uint64_t uses) { return uses * (uint64_t)b->size; }

bool peer_board_may_begin(const PeerBoard *b, uint64_t use, PeerStep step) {
    const PeerSlot *slot = &b->slots[use % PEER_SLOTS];
    uint64_t earlier = use / PEER_SLOTS;
    const atomic_uint_fast64_t *before = &slot->arrived[step == STEP_ENTER ? STEP_LEAVE : step - 1];
    return atomic_load_explicit(before, memory_order_acquire) >=
           all_after(b, step == STEP_ENTER ? earlier : earlier + 1);
}

// Returns how many steps of a slot a rank has finished when it begins this one.
static uint64_t steps_before(uint64_t use, PeerStep step) {
    return use / PEER_SLOTS * NUM_STEPS + (uint64_t)step;
}

bool peer_board_arrive(PeerBoard *b, uint64_t use, PeerStep step, int rank) {
    PeerSlot *slot = &b->slots[use % PEER_SLOTS];
    atomic_store_explicit(&peer_entry(b, use, rank)->steps, steps_before(use, step) + 1,
                          memory_order_relaxed);
    uint64_t before = atomic_fetch_add_explicit(&slot->arrived[step], 1, memory_order_acq_rel);
    return before + 1 == all_after(b, use / PEER_SLOTS + 1);
}

bool peer_board_waits_for(const PeerBoard *b, uint64_t use, PeerStep step, int rank) {
    return atomic_load_explicit(&peer_entry(b, use, rank)->steps, memory_order_relaxed) <
           steps_before(use, step);
}

// ---- messages ---------------------------------------------------------------------------------------------

SharedEvent *peer_event(Device *device, SharedEvent **event) {
    if (!*event) {
        Status status = shared_event_open(device, event);
        if (status != OK) abort_after_error(status);
    }
    return *event;
}

PeerPost *peer_board_post(PeerBoard *b, int rank, Device *device) {
    PeerPost *p = b->posts[rank];
    while (p && !atomic_load(&p->free)) p = p->of_rank;
    if (!p) {
        p = comm_allocate(1, sizeof *p);
        peer_event(device, &p->ready);
        peer_event(device, &p->copied);
        p->of_rank = b->posts[rank];
        b->posts[rank] = p;
    }
    atomic_store(&p->copier, NULL);
    atomic_store(&p->free, false);
    return p;
}

static bool meets(const PeerPost *a, const PeerPost *b) {
    return a->sends != b->sends && a->from == b->from && a->to == b->to && a->channel == b->channel;
}

PeerPost *peer_board_meet(PeerBoard *b, PeerPost *mine) {
    pthread_mutex_lock(&b->mutex);
    PeerPost **at = &b->unmet;
    while (*at && !meets(*at, mine)) at = &(*at)->next;
    PeerPost *other = *at;
    if (other) {
        *at = other->next;
    } else {
        mine->next = NULL;
        *at = mine;
    }
    pthread_mutex_unlock(&b->mutex);
    return other;
}
