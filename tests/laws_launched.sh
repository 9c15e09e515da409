#!/usr/bin/env bash
# The same run as threads and as processes, by MPI or by connections of its own, gives the same bits: on every grid with t, p, d in {1, 2, 4}
# and at most 8 ranks, and for a third of the covering set of combinations. Runs with as many ranks and the
# same checks share one launch, whose start costs more than they do.
# Usage: laws_launched.sh mpi|tcp PATH/test_train_covering
set -euo pipefail
transport=$1
covering=$2
least=36 # the 17 grids and 19 of at least 58 combinations
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder # a session folder that is not shared: see mpirun.sh
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
# shellcheck source=tools/mpi.sh
source "${BASH_SOURCE%/*}/../tools/mpi.sh"
launcher=(mpirun -n)
[[ $transport == mpi ]] || launcher=("${BASH_SOURCE%/*}/tcprun.sh")

compared=0
for ranks in 1 2 4 8; do for checked in 0 1; do
    "$covering" worker threads "$ranks" "$checked" >"$folder/threads"
    [[ -s $folder/threads ]] || continue
    "${launcher[@]}" "$ranks" "$covering" worker "$transport" "$ranks" "$checked" >"$folder/processes"
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
