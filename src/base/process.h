// Whether a process of this machine runs, is stopped or has ended, as Linux reports it.
#pragma once
#include <sys/types.h>

// The state of a process that could not be read.
enum { PROCESS_UNKNOWN = '?' };
// Returns the state of a process: 'R', 'S', 'D', 'T', 'Z', 'X'; 0: there is none; or PROCESS_UNKNOWN. `parent` (NULL:
// not wanted) receives the number of its parent, 0 where that is not known.
char process_status(pid_t pid, pid_t *parent);
