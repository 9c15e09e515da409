#!/usr/bin/env bash
# A slow rank is named soon, with its host: one that was stopped for a second, and one that gets little of its core. No
# rank is named in runs that nothing disturbs.
# Usage: straggler_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
export LC_ALL=C
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
# shellcheck source=tests/jobs.sh
source "$here/jobs.sh"
# A step takes some hundredths of a second.
options=("${corpus[@]}" "${no_evaluation[@]}" --seq-length 128 --hidden-size 64 --global-batch-size 12 --threads 1
    --train-iters 100000 --log-interval 100000)

# start NAME OPTION...: three ranks, each a process of its own as ${ranks[@]}, until stop.
start() {
    out=$1.log
    name=$1
    ranks=()
    : >"$1.jsonl"
    export WORLD_SIZE=${size:-3} MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
    for ((rank = 0; rank < WORLD_SIZE; rank++)); do
        RANK=$rank LOCAL_RANK=$rank "$trireme" train "${options[@]}" "${@:2}" --metrics "$1.jsonl" >>"$1.log" 2>&1 </dev/null &
        ranks+=($!)
    done
    pid=${ranks[0]}
}
stop() {
    kill -TERM "${ranks[@]}" 2>/dev/null
    for pid in "${ranks[@]}"; do wait "$pid"; done
}
has_trained() { (($(rows "$name") >= $1)); }
# the iteration at which a rank was first named
named_at() { sed -n "s/.*\"slow_rank\", \"iteration\": \\([0-9]*\\), \"rank\": $1, \"host\": \"$(hostname)\".*/\\1/p" "$name.jsonl" | head -1; }
is_named() { [[ -n $(named_at "$1") ]]; }
# expect_named RANK AFTER: within ten steps, and on the terminal.
expect_named() {
    local at
    until_true is_named "$1"
    at=$(named_at "$1")
    ((at - $2 <= 10)) || complain "rank $1 was named at iteration $at, more than ten steps after $2"
    grep -qE "WARNING: iteration $at: rank $1 on $(hostname) is slow: it computed .*; the difference is greatest in (reading data|forward|backward|reductions and the optimizer), " "$out" ||
        complain "$(cat "$out")"
}
# stop_for_a_second RANK: leaves how many steps there were before as $before.
stop_for_a_second() {
    before=$(rows "$name")
    kill -STOP "${ranks[$1]}"
    sleep 1
    kill -CONT "${ranks[$1]}"
}

for how in "--data-parallel" "--tp 3" "--pp 3"; do
    if check "a rank that was stopped for a second is named: $how"; then
        case $how in
        --data-parallel) start dp ;;
        --tp*) start tp --tp 3 --num-attention-heads 6 --hidden-size 96 ;;
        *) start pp --pp 3 --num-layers 6 ;;
        esac
        until_true has_trained 12
        # Without others of the same work a rank is compared with its past, which takes half a second of work.
        if [[ $how == "--pp 3" ]]; then sleep 4; fi
        stop_for_a_second 1
        expect_named 1 "$before"
        stop
    fi
done

if check "a rank that gets little of its core is named"; then
    start nice
    until_true has_trained 7
    before=$(rows nice)
    # The rank shares one core with another program, which comes first.
    renice -n 19 -p "${ranks[2]}" >/dev/null
    core=$(taskset -cp $$ | sed 's/.*[: ]\([0-9]*\).*/\1/')
    taskset -acp "$core" "${ranks[2]}" >/dev/null
    taskset -c "$core" sh -c 'while :; do :; done' &
    busy=$!
    expect_named 2 "$before"
    kill "$busy"
    stop
fi

if check "no rank is named in a run that nothing disturbs"; then
    for grid in "--ranks 4 --global-batch-size 16" "--ranks 4 --tp 2 --pp 2" "--ranks 4 --pp 4"; do
        # shellcheck disable=SC2086 # several options
        train calm $grid --seq-length 64 --train-iters 200 "${no_evaluation[@]}"
        grep "is slow" calm.log && complain "$grid"
    done
fi

if check "--straggler-interval 0 compares nothing, and changes no number"; then
    train with --ranks 2 --tp 2 --train-iters 30 "${no_evaluation[@]}"
    train without --ranks 2 --tp 2 --train-iters 30 --straggler-interval 0 "${no_evaluation[@]}"
    expect_same lm_loss with without
    expect_same grad_norm with without
fi
finish
