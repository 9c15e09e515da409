#!/usr/bin/env bash
# Measures the effective training time of a supervised run that is killed again and again, its state in memory, beside
# what no better interval between saves would reach. Of the machine as busy as it is: give the run a core of its own.
# Usage: effective_time.sh PROGRAM [SECONDS [EVERY [INTERVAL]]]
#   SECONDS   that it takes (1800); EVERY: seconds between kills (60); INTERVAL: --memory-save-interval (auto)
set -uo pipefail
export LC_ALL=C
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1"
# shellcheck source=tests/jobs.sh
source "$here/jobs.sh"
seconds=${2:-1800} every=${3:-60} interval=${4:-auto}

"$trireme" supervise -- train "${corpus[@]}" "${no_evaluation[@]}" --plain --num-layers 4 --hidden-size 416 --seq-length 64 \
    --train-iters 1000000 --memory-save-interval "$interval" --save "$PWD/save" >log 2>&1 </dev/null &
pid=$!
for ((kill = 1; kill < seconds / every; kill++)); do
    sleep "$every"
    pkill -KILL -P "$pid" || complain "no run to kill: $(tail -3 log)"
done
sleep "$every"
kill -TERM "$pid"
wait "$pid"
"$trireme" goodput save
"$trireme" goodput save --json >goodput.json
awk -v every="$every" '
    function number(name) { return match($0, "\"" name "\": [0-9.]+") ? substr($0, RSTART + length(name) + 4, RLENGTH - length(name) - 4) : 0 }
    { all = all $0 }
    END {
        $0 = all
        cost = number("save_stall") / number("saves")
        printf "effective %.2f %%; at best %.2f %% with saves of %.1f ms and a failure every %g s: 1 - sqrt(2 C / M), restarts left out\n",
            100 * number("effective"), 100 * (1 - sqrt(2 * cost / every)), 1e3 * cost, every
    }' goodput.json
finish
