// The step of AdamW's state that lies in the host's memory. Used in parallel/ alone.
#pragma once
#include "parallel/parallel.h"

// Returns the gradients of a part of a bucket's shard.
static inline Tensor state_grads(const Optimizer *o, int bucket, const ShardState *state) {
    return tensor_part(bucket_grads(o->params, &o->buckets->items[bucket]), state->begin, state->count);
}

// What the host's steps need beside the state. Two buffers: the host reads one block's gradients while the next block's
// are copied into the other.
struct Offload {
    int64_t block; // elements, at most
    Tensor gradients[2];
    OpSegment *segments; // of a block
};

// Takes the gradients' memory from the offloaded state's arena.   ERR_OS without memory.
Status offload_create(Optimizer *optimizer);
void offload_destroy(Optimizer *optimizer);
// Copies gradients to the host, steps there, and copies the new values to the device, a block at a time. All copies are
// on the rank's stream: what is put there later sees the new values. All members of `args` but the tensors and the
// segments are set.
void offload_step(Optimizer *optimizer, AdamW args);
