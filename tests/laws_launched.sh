#!/usr/bin/env bash
# The same run as threads and as processes, by MPI or by connections of its own, gives the same bits: on every grid with
# t, p, d in {1, 2, 4} and at most 8 ranks, and for a sixth of the covering set of combinations, another sixth for each of
# the two. Runs with as many ranks and the same checks are in one launch, whose start costs more than they do.
# Usage: laws_launched.sh mpi|tcp PATH/test_train_covering
set -euo pipefail
transport=$1
covering=$2
least=38 # the 17 grids and 21 of at least 126 combinations
share=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder # a session folder that is not shared: see mpirun.sh
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
# shellcheck source=tools/mpi.sh
source "${BASH_SOURCE%/*}/../tools/mpi.sh"
launcher=(mpirun -n)
if [[ $transport == tcp ]]; then
    launcher=("${BASH_SOURCE%/*}/tcprun.sh")
    share=1
fi

compared=0
for ranks in 1 2 4 8; do for checked in 0 1; do
    "$covering" worker threads "$ranks" "$checked" "$share" >"$folder/threads"
    [[ -s $folder/threads ]] || continue
    "${launcher[@]}" "$ranks" "$covering" worker "$transport" "$ranks" "$checked" "$share" >"$folder/processes"
    if ! diff "$folder/threads" "$folder/processes"; then
        echo "threads (<) and $transport (>) differ: $ranks ranks, checks $checked"
        exit 1
    fi
    compared=$((compared + $(grep -c ': parameters: ' "$folder/threads")))
done; done
if [[ $compared -lt $least ]]; then
    echo "only $compared runs were compared, $least and more were expected"
    exit 1
fi
