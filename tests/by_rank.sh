#!/usr/bin/env bash
# A command of its own for each rank of a job: mpirun -n 2 by_rank.sh COMMAND_OF_RANK_0... // COMMAND_OF_RANK_1...
# mpirun alone has ":" for this, but that of Open MPI 5.0.7 crashes over it.
rank=${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-${PMI_RANK:?not a rank of a job}}}
while ((rank > 0 && $#)); do
    [[ $1 != // ]] || rank=$((rank - 1))
    shift
done
command=()
for word; do
    [[ $word != // ]] || break
    command+=("$word")
done
exec "${command[@]:?no command for this rank}"
