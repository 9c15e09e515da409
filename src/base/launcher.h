// Reads what the launcher of a parallel job (mpirun, srun) tells each process in environment variables: its number and
// the number of ranks. They are known before MPI is initialised, so a message can be printed once for the whole job.
#pragma once
#include <stdbool.h>

// The number of ranks that the launcher started this process as part of; 0 without a launcher.
int launcher_ranks(void);
int launcher_rank(void); // the number of this process among them; 0 without a launcher
// The number of ranks of the job on this machine, or of the whole job where the launcher does not say it; at least 1.
int launcher_ranks_here(void);
bool launcher_is_srun(void); // Slurm's srun itself started this process
// Called by a process other than 0 that fails before the ranks are connected. Waits 3 s: a launcher ends the job when
// the first process fails, and process 0, which may fail in the same way, needs the time to print the message.
void launcher_wait_for_rank_0(void);
