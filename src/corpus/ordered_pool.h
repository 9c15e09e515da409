// A pool of threads that keeps order: one thread produces items, workers work on them, and the caller's thread
// consumes them in the order in which they were produced.
//
// So the outcome does not depend on the number of workers. Memory does not grow with the input either: the number
// of slots is fixed, and their items weigh at most `max_weight` together, or one heavier item is alone.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

enum { MAX_WORKERS = 256, SLOTS_PER_WORKER = 3 };

typedef struct {
    // Fills the slot and sets its weight; at the end sets *end instead. Runs on a thread of its own.
    Status (*produce)(void *self, int slot, size_t *weight, bool *end);
    Status (*work)(void *self, int worker, int slot); // runs on a worker's thread
    Status (*consume)(void *self, int slot);
    // Runs on the caller's thread at least four times a second; a failure ends the run.
    Status (*tick)(void *self);
    void (*cancel)(void *self); // the run ends: a produce that waits for input must return
} PoolSteps;

int ordered_pool_slots(int workers);
// Runs until the items end. The first failure in the order of the items ends it, too, with its status and
// message.
Status ordered_pool_run(const PoolSteps *steps, void *self, int workers, size_t max_weight);
