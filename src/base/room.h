// How much memory this process may still take.
#pragma once
#include <stdint.h>

// Returns the bytes: what the system could give (MemAvailable), and no more than the control groups of this process (of
// version 2 and 1) and its own limits (ulimit -v) leave. INT64_MAX where nothing says anything. `root` is "", or the
// folder of a tree that is laid out like /proc and /sys.
int64_t memory_room(const char *root);
