# shellcheck shell=bash
# Sets the environment in which scripts start jobs under mpirun of any MPI. Open MPI 4 (OMPI_) and 5 (PRTE_) read these
# variables and MPICH ignores them: root may start jobs, there may be more ranks than cores, a waiting rank yields its
# core, and no rank is bound.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
export OMPI_MCA_mpi_yield_when_idle=1
# Containers often forbid one process to read the memory of another.
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma

# The options that a user of this mpirun needs for more ranks than cores, and as root.
mpirun_options() {
    mpirun --version 2>&1 | grep -qi 'open mpi\|open-mpi' || return 0
    printf '%s' --oversubscribe
    ((EUID)) || printf ' %s' --allow-run-as-root
}

# A shell that srun or a launcher has started has a rank, which its jobs must not inherit.
unset PMI_RANK PMIX_RANK OMPI_COMM_WORLD_RANK

# ranks_below PID: "RANK PID" of every process of the job that the launcher PID has started, in the order of their
# ranks. Launchers may have processes of their own between.
ranks_below() { all_ranks_below "$1" | sort -n; }

all_ranks_below() {
    local child rank
    for child in $(pgrep -P "$1"); do
        if [[ $(cat "/proc/$child/comm" 2>/dev/null) == trireme ]]; then
            rank=$(tr '\0' '\n' 2>/dev/null <"/proc/$child/environ" |
                sed -nE '/^(OMPI_COMM_WORLD_RANK|PMIX_RANK|PMI_RANK)=/{s/.*=//p;q}')
            [[ -z $rank ]] || echo "$rank $child"
        else
            all_ranks_below "$child"
        fi
    done
}

# pid_of_rank LAUNCHER RANK: nothing when there is none.
pid_of_rank() { ranks_below "$1" | awk -v rank="$2" '$1 == rank { print $2 }'; }
