#!/usr/bin/env bash
# The same run as threads and as MPI processes gives the same bits: on every grid with t, p, d in {1, 2, 4}
# and at most 8 ranks, and for a third of the covering set of combinations. Runs with as many ranks and the
# same checks share one mpirun, whose start costs more than they do.
# Usage: laws_mpi.sh PATH/test_train_covering
set -euo pipefail
covering=$1
least=36 # the 17 grids and 19 of at least 58 combinations
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder # a session folder that is not shared: see mpirun.sh
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
# shellcheck source=tools/mpi.sh
source "${BASH_SOURCE%/*}/../tools/mpi.sh"

compared=0
for ranks in 1 2 4 8; do for checked in 0 1; do
    "$covering" worker threads "$ranks" "$checked" >"$folder/threads"
    [[ -s $folder/threads ]] || continue
    mpirun -n "$ranks" \
        "$covering" worker mpi "$ranks" "$checked" >"$folder/mpi"
    if ! diff "$folder/threads" "$folder/mpi"; then
        echo "threads (<) and MPI (>) differ: $ranks ranks, checks $checked"
        exit 1
    fi
    compared=$((compared + $(grep -c ': parameters: ' "$folder/threads")))
done; done
if [[ $compared -lt $least ]]; then
    echo "only $compared runs were compared, $least and more were expected"
    exit 1
fi
