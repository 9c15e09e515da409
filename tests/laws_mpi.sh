#!/usr/bin/env bash
# The same run as threads and as MPI processes gives the same bits, on every grid with t, p, d in {1, 2, 4} and at most 8 ranks.
# Usage: laws_mpi.sh PATH/test_train_laws
set -euo pipefail
laws=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

compare() { # t p d schedule v
    "$laws" worker threads "$@" >"$folder/threads"
    mpirun --oversubscribe --bind-to none -n $(($1 * $2 * $3)) "$laws" worker mpi "$@" >"$folder/mpi"
    if ! [[ -s $folder/threads ]] || ! cmp "$folder/threads" "$folder/mpi"; then
        echo "threads and MPI differ at t$1 p$2 d$3 $4 v$5"
        exit 1
    fi
}

for t in 1 2 4; do for p in 1 2 4; do for d in 1 2 4; do
    [[ $((t * p * d)) -le 8 ]] || continue
    compare "$t" "$p" "$d" 1f1b 1
    [[ $p -gt 1 ]] || continue
    compare "$t" "$p" "$d" gpipe 1
    compare "$t" "$p" "$d" interleaved 2
done; done; done
