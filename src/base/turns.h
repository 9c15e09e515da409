// Two functions that take turns on one thread, each on a stack of its own: one lets the other go on where it would
// only wait. They never run at the same time, so nothing needs a lock, and the order follows from the calls of
// turns_give alone: it is the same in every run.
#pragma once
#include "base/error.h"

typedef struct Turns Turns;

// Takes the second stack.   ERR_OS without memory.
Status turns_open(Turns **turns);
void turns_close(Turns *turns);
// Runs `first` until it gives its turn, then `second` until it gives its own, and so on until both have ended. Who is
// left goes on alone.
void turns_run(Turns *turns, void (*first)(void *), void (*second)(void *), void *arg);
// Called by one of the two: the other goes on. Returns when that gives its turn, at once where it has ended.
void turns_give(Turns *turns);
