// Ordered parallel work: the caller's thread produces items and consumes them in the same order, workers work
// on them between.
//
// Since consuming is in order, the outcome does not depend on the number of workers; since there are finitely
// many slots, neither does the memory.
#pragma once
#include "base/error.h"
#include <stdbool.h>

enum { MAX_WORKERS = 256, SLOTS_PER_WORKER = 4 };

typedef struct {
    Status (*produce)(void *self, int slot, bool *end); // fills the slot, or sets *end and leaves it empty
    Status (*work)(void *self, int worker, int slot);   // on a worker's thread
    Status (*consume)(void *self, int slot);
    void (*tick)(void *self); // at least four times a second, on the caller's thread
} PipelineSteps;

int pipeline_num_slots(int workers);
// The first failure, in the order of the items, ends it; its message is the caller's fail_message().
Status pipeline_run(const PipelineSteps *steps, void *self, int workers);
