// Leaves: the shares of a step's samples whose gradients are added first. A step's sum is that of its leaves in a
// binary tree, so its bits depend on the number of leaves alone, whichever number of data-parallel ranks divides it.
// Without a number of leaves each of these ranks has one, and ranks are added in order.
#pragma once
#include "layout/topology.h"
#include <stdint.h>

typedef struct {
    int total, first, count; // leaves of the run; those of this rank are [first, first + count)
    bool tree;               // they are added in a tree
} Leaves;

// `virtual_ranks`: --virtual-data-parallel, a power of two that the data-parallel ranks divide; 0: as many as these
// ranks.
Leaves leaves_of(const Topology *topology, int virtual_ranks);

// Where one of the rank's `num_microbatches` microbatches belongs: a rank computes its leaves one after the other.
typedef struct {
    int leaf;  // counted from the rank's first one
    int index; // of the microbatch in its leaf
} LeafPlace;
LeafPlace leaves_place(const Leaves *leaves, int num_microbatches, int microbatch);
// The first of its samples, counted from the first one of the step: microbatch i of leaf l begins with sample
// (i * total + l) * micro_batch, so with one leaf a rank the samples are those of Megatron-LM.
int64_t leaves_first_sample(const Leaves *leaves, LeafPlace place, int micro_batch);
