#!/usr/bin/env bash
# Runs that are killed and go on. A trial kills -9 one rank of a training run, or all, at a random moment (saves
# take a good part of a run here), starts the same command again, kills that too, and lets the third finish. Every
# loss and norm that was logged, before a kill or after, must have the bits of the run that nobody killed, whatever
# checkpoint is there must verify, and nothing unfinished may be left. Which command goes on changes in what changes
# no bit: pipeline stages, schedule, transport, sharding, asynchronous saves.
# Usage: kill_runs.sh PATH/trireme [TRIALS [SEED]]
set -uo pipefail
export LC_ALL=C
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1"
trials=${2:-12}
RANDOM=${3:-1}
iterations=24

# All with t = 2 and d = 2, so that sums are made in one order.
ways=(
    "threads --ranks 4 --pp 1"
    "threads --ranks 8 --pp 2 --async-save"
    "threads --ranks 8 --pp 2 --schedule zb-h1 --use-distributed-optimizer"
    "mpi 4 --pp 1 --async-save --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
    "threads --ranks 8 --pp 2 --vp 2 --use-distributed-optimizer --async-save"
    "mpi 4 --pp 1"
)
common=("${corpus[@]}" --tp 2 --train-iters "$iterations" --eval-interval 7 --eval-iters 2 --plain)

# Sets $command to a way of training, with its own options behind.
choose() {
    local words
    read -ra words <<<"${ways[RANDOM % ${#ways[@]}]}"
    if [[ ${words[0]} == mpi ]]; then
        command=(mpirun -n "${words[1]}" "$trireme" train "${words[@]:2}")
    else
        command=("$trireme" train "${words[@]:1}")
    fi
    command+=("${common[@]}")
}

# metrics FILE: iteration and bits, of training and of evaluation, each line that is whole.
metrics() {
    sed -nE -e 's/^\{"iteration": ([0-9]+),.*"lm_loss": ([^,]*), "grad_norm": ([^,]*),.*\}$/\1 \2 \3/p' \
        -e 's/^\{"iteration": ([0-9]+),.*"validation_loss": ([^,}]*)\}$/\1 validation \2/p' "$1" | sort -u
}

begin_s=$EPOCHREALTIME
train reference --train-iters "$iterations" --tp 2 --ranks 4 --eval-interval 7 --eval-iters 2
# About what a run takes that saves too: kills come at any of its moments, on machines of any speed.
seconds=$(awk -v begin="$begin_s" -v end="$EPOCHREALTIME" 'BEGIN { print 1.6 * (end - begin) }')
metrics reference.jsonl >reference.txt
[[ $(wc -l <reference.txt) -ge $iterations ]] || complain "the reference run has $(wc -l <reference.txt) lines"

pids_of() { # PID: of the program's processes under it, or itself
    if [[ ${command[0]} == mpirun ]]; then ranks_below "$1" | cut -d " " -f 2; else echo "$1"; fi
}

# Starts $command and kills it after a random time; false when it was over before.
run_and_kill() { # LOG
    "${command[@]}" >"$1" 2>&1 </dev/null &
    local pid=$! victims
    sleep "$(awk -v r="$RANDOM" -v most="$seconds" 'BEGIN { print r / 32768 * most }')"
    mapfile -t victims < <(pids_of $pid)
    if [[ ${#victims[@]} -gt 0 ]]; then
        ((RANDOM % 2)) && victims=("${victims[RANDOM % ${#victims[@]}]}")
        kill -9 "${victims[@]}" 2>/dev/null
    fi
    end_launcher "$pid"
    wait "$pid" 2>/dev/null
}

# mpirun ends a job that has lost a rank within two seconds, but can wait for ever when ranks die while it still
# starts others.
end_launcher() { # PID
    local tenths
    [[ ${command[0]} == mpirun ]] || return 0
    for tenths in {1..100}; do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    echo "mpirun was killed after $tenths tenths of a second"
    pkill -9 -P "$1"
    kill -9 "$1"
}

kills=0 saved=0 torn=0 fell_back=0
for trial in $(seq "$trials"); do
    rm -rf save trial.jsonl
    save=(--save save --load save --save-interval $((1 + RANDOM % 4)) --keep-last $((RANDOM % 4))
        --metrics trial.jsonl)
    for attempt in 1 2; do
        choose
        command+=("${save[@]}")
        run_and_kill "killed.log" && break
        kills=$((kills + 1))
        compgen -G 'save/.tmp*' >/dev/null && torn=$((torn + 1))
        compgen -G 'save/step-*' >/dev/null || continue
        saved=$((saved + 1))
        "$trireme" checkpoint verify save >verify.log 2>&1 ||
            complain "trial $trial: after kill $attempt: $(tail -2 verify.log)"
    done
    choose
    command+=("${save[@]}")
    timeout -k 5 120 "${command[@]}" >last.log 2>&1 </dev/null ||
        complain "trial $trial: ${command[*]}: exit $?: $(tail -3 last.log)"
    grep -q WARNING last.log && grep -qv 'could not find' <(grep WARNING last.log) && fell_back=$((fell_back + 1))
    diff <(metrics trial.jsonl) reference.txt >differences ||
        complain "trial $trial: ${command[*]}: numbers differ: $(head -4 differences)"
    compgen -G 'save/.tmp*' >/dev/null && complain "trial $trial: $(ls -A save) are left"
done
echo "$trials trials, $kills kills, $saved of them with checkpoints there, $torn within a save," \
    "$fell_back went on from an older checkpoint than the newest"
[[ $kills -gt $((trials / 2)) && $saved -gt $((trials / 4)) ]] ||
    complain "only $kills kills in $trials trials, $saved with checkpoints there"
finish
