// Reads what the launcher of a parallel job tells each process in environment variables: its number and the number of
// ranks. They are known before the ranks are connected, so a message can be printed once for the whole job.
//
// Launchers are mpirun, Slurm's srun, and everything that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: torchrun,
// or a loop of a shell. Those variables come first. WORLD_SIZE=1 is no launch: images of containers set it for all.
#pragma once
#include "base/error.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The number of ranks that the launcher started this process as part of; 0 without a launcher.
int launcher_ranks(void);
int launcher_rank(void); // the number of this process among them; 0 without a launcher
// The number of ranks of the job on this machine, or of the whole job where the launcher does not say it; at least 1.
int launcher_ranks_here(void);
bool launcher_is_variables(void); // RANK and WORLD_SIZE number this process
bool launcher_is_mpirun(void);    // mpirun or mpiexec does
bool launcher_is_srun(void);      // Slurm's srun itself started this process
// Called by a process other than 0 that fails before the ranks are connected. Waits 3 s: a launcher ends the job when
// the first process fails, and process 0, which may fail in the same way, needs the time to print the message.
void launcher_wait_for_rank_0(void);

// Where the ranks meet without MPI: MASTER_ADDR and MASTER_PORT, or under srun the first node of the step and a port
// made of the job's number. `job` is made of the launcher's number of the job, 0: it has none. ERR_CONFIG names what is
// missing.
Status launcher_meeting(char *host, size_t host_size, uint16_t *port, uint64_t *job);
