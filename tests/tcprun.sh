#!/usr/bin/env bash
# Starts a job as launchers without MPI do: every rank is a process with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
# When a rank ends with an error the others have two seconds to end as well; the largest status is that of the job.
# Usage: tcprun.sh RANKS PROGRAM ARGUMENT...
set -uo pipefail
export WORLD_SIZE=$1 MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-$((10000 + $$ % 20000))}
shift
# A rank that is stopped hears no other signal.
trap 'kill -KILL "${ranks[@]}" 2>/dev/null' EXIT
ranks=()
for ((rank = 0; rank < WORLD_SIZE; rank++)); do
    RANK=$rank LOCAL_RANK=$rank "$@" &
    ranks+=($!)
done
# Not `wait -n`, which passes over a rank that was killed when others end at the same moment.
codes=()
status=0
until=
while ((${#codes[@]} < WORLD_SIZE)) && [[ -z $until || $SECONDS -lt $until ]]; do
    for ((rank = 0; rank < WORLD_SIZE; rank++)); do
        if [[ -n ${codes[rank]:-} ]] || kill -0 "${ranks[rank]}" 2>/dev/null; then continue; fi
        wait "${ranks[rank]}"
        codes[rank]=$?
        ((codes[rank] <= status)) || status=${codes[rank]}
    done
    ((!status)) || until=${until:-$((SECONDS + 3))}
    sleep 0.05
done
exit "$status"
