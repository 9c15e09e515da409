#!/usr/bin/env bash
# Starts a job as launchers without MPI do: every rank is a process with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
# When a rank ends with an error the others have two seconds to end as well; the largest status is that of the job.
# Usage: tcprun.sh RANKS PROGRAM ARGUMENT...
set -uo pipefail
export WORLD_SIZE=$1 MASTER_ADDR=${MASTER_ADDR:-127.0.0.1} MASTER_PORT=${MASTER_PORT:-$((10000 + $$ % 20000))}
shift
# A rank that is stopped hears no other signal.
trap 'kill -KILL "${ranks[@]}" $timer 2>/dev/null' EXIT
ranks=()
for ((rank = 0; rank < WORLD_SIZE; rank++)); do
    RANK=$rank LOCAL_RANK=$rank "$@" &
    ranks+=($!)
done
status=0
timer=
for ((left = WORLD_SIZE; left; left--)); do
    code=0
    wait -n -p ended || code=$?
    # shellcheck disable=SC2154 # wait sets it
    [[ $ended != "$timer" ]] || break
    ((code <= status)) || status=$code
    if ((code)) && [[ -z $timer ]]; then
        sleep 2 &
        timer=$!
    fi
done
exit "$status"
