#!/usr/bin/env bash
# Starts a job as launchers without MPI do: every rank is a process with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
# When a rank ends with an error the others are ended a moment later, and its status is that of the job.
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
status=0
for ((left = WORLD_SIZE; left; left--)); do
    wait -n || status=$?
    ((status)) || continue
    for ((i = 0; i < 20; i++)); do
        kill -0 "${ranks[@]}" 2>/dev/null || break
        sleep 0.1
    done
    exit "$status"
done
