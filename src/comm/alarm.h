// A watchdog for calls that block inside MPI, where no poll of ours runs: set-up of groups, and the end of
// the job. Only a signal reaches such a rank. One timer per process, so for the mpi transport alone.
#pragma once

// From now until alarm_clear a rank that is still at it after timeout_s of running (time in which the process
// was stopped does not count) says that it waits for the others in `what` and ends with ERR_HANG, upon which
// the launcher ends all.
void alarm_set(const char *what, double timeout_s);
void alarm_clear(void);
