#!/usr/bin/env bash
# The same run as threads and as MPI processes gives the same bits: on every grid with t, p, d in {1, 2, 4}
# and at most 8 ranks, and for a tenth of the covering set of combinations.
# Usage: laws_mpi.sh PATH/test_train_laws      test_train_covering lies beside it
set -euo pipefail
laws=$1
covering=${1%_laws}_covering
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder # a session folder that is not shared: see mpirun.sh
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

compare() { # RANKS WHAT PROGRAM before and after TRANSPORT...
    local ranks=$1 what=$2
    shift 2
    "${@/TRANSPORT/threads}" >"$folder/threads"
    mpirun --oversubscribe --bind-to none -n "$ranks" "${@/TRANSPORT/mpi}" >"$folder/mpi"
    if ! [[ -s $folder/threads ]] || ! cmp "$folder/threads" "$folder/mpi"; then
        echo "threads and MPI differ: $what"
        exit 1
    fi
}

for t in 1 2 4; do for p in 1 2 4; do for d in 1 2 4; do
    ranks=$((t * p * d))
    [[ $ranks -le 8 ]] || continue
    if [[ $p -gt 1 ]]; then way=(interleaved 2); else way=(1f1b 1); fi
    compare "$ranks" "t$t p$p d$d ${way[0]}" "$laws" worker TRANSPORT "$t" "$p" "$d" "${way[@]}"
done; done; done

for number in $(seq 4 10 204); do
    read -r ranks what <<<"$("$covering" ranks "$number")"
    compare "$ranks" "$what" "$covering" worker "$number" TRANSPORT
done
