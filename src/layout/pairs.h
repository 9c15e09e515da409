// The time of a forward and a backward that run together. Internal to layout/.
#pragma once
#include "layout/simulate.h"

// Returns the us of a pair whose computes take so long apart: the executor's order (pairs.c) on two streams, one that
// computes and one in which rows travel. What the stages do outside of layers with experts is not hidden.
double pair_us(const StageExchange *forward, double forward_us, const StageExchange *backward,
               double backward_us);
