#!/usr/bin/env bash
# Measures a restart: a supervised run is killed (by threads the process, by MPI one of its ranks) some steps after a
# checkpoint, and goes on. One row for each way: the seconds from the kill to the end of the next step, and their parts
# from the ledger, the median of the trials by the whole. Of the machine as busy as it is.
# Usage: restart_times.sh PROGRAM [TRIALS [ROWS]]
#   ROWS  a pattern of awk: of the rows "TRANSPORT RANKS SIZE FROM", those that match; "MPI 8 large memory"
set -uo pipefail
export LC_ALL=C
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1"
# shellcheck source=tests/jobs.sh
source "$here/jobs.sh"
kills=${2:-3} pattern=${3:-.}
declare -A models=([small]="--num-layers 4 --hidden-size 32" [medium]="--num-layers 4 --hidden-size 416"
    [large]="--num-layers 12 --hidden-size 768")
declare -A grids=([2]="--tp 2" [4]="--tp 2 --pp 2" [8]="--tp 2 --pp 2 --use-distributed-optimizer"
    [16]="--tp 2 --pp 4 --use-distributed-optimizer")
ledger=save/supervise/ledger.jsonl
events() { grep -cF "$1" "$ledger" 2>/dev/null; }
has_events() { [[ $(events "$1") -ge $2 ]]; }
# There is a save after each fourth step.
has_trained() { sed -n 's/.*"event": "steps".*"to": \([0-9]*\),.*/\1/p' "$ledger" 2>/dev/null | awk '$1 >= 9 { found = 1 } END { exit !found }'; }

# The parts, from the kill (seconds of the day) on.
parts() { # KILLED
    awk -v killed="$1" '
        { at = $0; sub(/.*"at": "[^T]*T/, "", at); split(at, hms, /[:Z]/); now = hms[1] * 3600 + hms[2] * 60 + hms[3] }
        now < killed - 0.001 { next }
        /"event": "stopping"/ && !stopping { stopping = now }
        /"event": "ended"/ && !ended { ended = now }
        /"event": "ready"/ && ended && !ready { ready = now }
        /"event": "loaded"/ && ready && !loaded { loaded = now; from = $0 ~ /"from": "memory"/ ? "memory" : "disk" }
        /"event": "first_step"/ && loaded {
            printf "%.3f %.3f %.3f %.3f %.3f %.3f %s\n", now - killed, stopping - killed, ended - stopping, ready - ended,
                loaded - ready, now - loaded, from
            exit
        }' "$ledger"
}

measure() { # TRANSPORT RANKS SIZE FROM
    local how words=() victims killed
    read -ra words <<<"${models[$3]} ${grids[$2]} $([[ $4 == disk ]] || echo --memory-save-interval 4)"
    case $1 in
    threads) how=(train --ranks "$2") ;;
    MPI) how=(mpirun -n "$2" "$trireme" train) ;;
    esac
    for _ in $(seq "$kills"); do
        rm -rf save
        out=log
        "$trireme" supervise -- "${how[@]}" --data-path documents --num-attention-heads 4 --seq-length 16 \
            --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 --plain "${no_evaluation[@]}" "${words[@]}" --threads 1 \
            --train-iters 20000 --save-interval "$([[ $4 == disk ]] && echo 4 || echo 1000000)" --keep-last 1 \
            --log-interval 1 --save "$PWD/save" >log 2>&1 </dev/null &
        pid=$!
        until_true has_trained
        mapfile -t victims < <(ranks_below "$pid" | cut -d " " -f 2)
        ((${#victims[@]})) || mapfile -t victims < <(pgrep -P "$pid")
        killed=$EPOCHREALTIME
        kill -9 "${victims[${#victims[@]} - 1]}"
        until_true has_events '"event": "first_step"' 2
        parts "$(awk -v t="$killed" 'BEGIN { printf "%.6f", t % 86400 }')"
        kill -9 "$pid"
        wait "$pid" 2>/dev/null
        sleep 0.2
        rm -rf save
    done | sort -n | sed -n "$(((kills + 1) / 2))p"
}

echo "| ranks | state | from | kill to next step | detect | stop | start | load | step |"
echo "|---|---|---|---|---|---|---|---|---|"
for row in {threads,MPI}\ {2,4,8,16}\ {small,medium,large}\ {memory,disk}; do
    grep -qE "$pattern" <<<"$row" || continue
    read -r transport ranks size from <<<"$row"
    # shellcheck disable=SC2086
    measure $row >median 2>errors || true
    read -r total detect stop start load step got <median
    [[ $got == "$from" ]] || complain "$row: from $got; $(tail -3 errors)"
    echo "| $ranks $transport | $size | $from | $total s | $detect | $stop | $start | $load | $step |"
done
"$trireme" train --data-path documents --num-layers 1 --hidden-size 16 --num-attention-heads 1 --seq-length 16 --micro-batch-size 1 \
    --global-batch-size 1 --train-iters 1 "${no_evaluation[@]}" --save last --save-interval 1 --memory-save-interval 1 >log 2>&1
finish
