// Ordered parallel work: one thread produces items, workers work on them, the caller's thread consumes them
// in the order in which they were produced.
//
// Since consuming is in order, the outcome does not depend on the number of workers; since there are finitely
// many slots, and no more weight in them than `max_weight` unless one item has more alone, neither does the
// memory on the length of the input.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>

enum { MAX_WORKERS = 256, SLOTS_PER_WORKER = 3 };

typedef struct {
    // Fills the slot and says what it weighs, or sets *end and leaves it empty. On a thread of its own.
    Status (*produce)(void *self, int slot, size_t *weight, bool *end);
    Status (*work)(void *self, int worker, int slot); // on a worker's thread
    Status (*consume)(void *self, int slot);
    Status (*tick)(void *self); // at least four times a second, on the caller's thread; may end it
    void (*cancel)(void *self); // it ends: a produce that waits for input must return
} PipelineSteps;

int pipeline_num_slots(int workers);
// The first failure, in the order of the items, ends it; its message is the caller's fail_message().
Status pipeline_run(const PipelineSteps *steps, void *self, int workers, size_t max_weight);
