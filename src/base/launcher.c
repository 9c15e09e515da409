// Reads the environment variables by which MPI's and Slurm's launchers number the processes of a job.
#include "base/launcher.h"
#include "base/text.h"
#include <stdlib.h>
#include <unistd.h>

// The first of these environment variables that is a number, or -1.
static int from_environment(const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        const char *text = getenv(names[i]);
        int64_t value;
        if (text && parse_int(text, &value) && value >= 0 && value <= INT32_MAX) return (int)value;
    }
    return -1;
}

// Slurm sets SLURM_NTASKS in the batch script too; only srun's processes have a step and a process number.
bool launcher_is_srun(void) { return getenv("SLURM_STEP_ID") && getenv("SLURM_PROCID"); }

int launcher_ranks(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"};
    int ranks = from_environment(names, 3);
    if (ranks < 1 && launcher_is_srun()) ranks = from_environment((const char *const[]){"SLURM_NTASKS"}, 1);
    return ranks > 0 ? ranks : 0;
}

int launcher_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
                                        "SLURM_PROCID"};
    int rank = launcher_ranks() ? from_environment(names, 4) : 0;
    return rank > 0 ? rank : 0;
}

int launcher_ranks_here(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"};
    int here = from_environment(names, 4), all = launcher_ranks();
    return here > 0 ? here : all > 0 ? all : 1;
}

void launcher_wait_for_rank_0(void) { sleep(3); }
