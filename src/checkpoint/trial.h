// A trial of the file system that is to hold checkpoints: every call that the save of a small checkpoint makes fails in
// turn, and the process is killed in front of each. After each the older checkpoints are intact, and the new one is
// complete or absent. What a loss of power does to what was not synced cannot be tried without privileges.
#pragma once
#include "base/calls.h"
#include "base/text.h"
#include <stdatomic.h>

typedef enum { TRIAL_EIO, TRIAL_ENOSPC, TRIAL_KILL, NUM_TRIAL_FAULTS } TrialFault;
// "fails once": with EIO; "fails from there": with ENOSPC, and so do all later ones of this call; "killed"
const char *trial_fault_name(TrialFault fault);

typedef struct {
    int made[NUM_FILE_CALLS];                     // calls of a save without a fault
    int tried[NUM_FILE_CALLS][NUM_TRIAL_FAULTS];  // faults
    int broken[NUM_FILE_CALLS][NUM_TRIAL_FAULTS]; // of them, those after which something was wrong
    bool locks;                                   // the file system has locks
    Text first;                                   // what was wrong first; ""
} TrialResult;

// Makes FOLDER/trireme-selftest, which must not exist, saves checkpoints there and removes it at the end. Runs
// processes of its own and may be called only by a process without other threads. Fails where a save without any fault
// fails, or no process can be started; what the faults did is in `result`. `stopped` (may be NULL) other than 0 ends it
// with INTERRUPTED.
Status trial_run(const char *folder, const atomic_int *stopped, TrialResult *result);
void trial_free(TrialResult *result);
// Saves the three checkpoints of the trial in `save`, without a fault, and counts the calls.   For tests.
Status trial_count(const char *save, int made[NUM_FILE_CALLS]);
