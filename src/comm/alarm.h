// A time limit for calls that block inside MPI, where none of our polls runs: the set-up of groups and the end of the
// job. It uses a signal and the process's one timer, so only the mpi transport, one rank per process, can use it.
#pragma once

// If alarm_clear is not called within timeout_s (time in which the process was stopped does not count), the rank prints
// that it waits for the other ranks in `what` and exits with ERR_HANG; the launcher then ends the job.
void alarm_set(const char *what, double timeout_s);
void alarm_clear(void);
