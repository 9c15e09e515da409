// Ends processes of a job whose launcher has died.
#pragma once

// From now on this process is killed when the process that started it (mpirun, its daemon, or srun's) ends before it;
// at once when the supervisor of the job has ended (base/beat.h).
void orphan_kill(void);
