// The matrix products of a piece of work, made again without the rest, in the same order and in the same memory: what a
// training step, most of which they are, is held against. Products of experts are made at once, as in a step.
#pragma once
#include "device/ops.h"
#include <stddef.h>

// Zero-initialise; replay_close ends it.
typedef struct {
    Matmul *calls;
    size_t count, capacity;
    double flops; // of all calls
} Replay;

void replay_add(Replay *replay, const Matmul *call, OpCount one);
// Writes small normal numbers to all tensors of the calls, which live in plain memory: what is there is lost.
void replay_fill(Replay *replay);
void replay_make(const Replay *replay, Device *device, Stream *stream);
void replay_close(Replay *replay);
