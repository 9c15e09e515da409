#!/usr/bin/env bash
# Runs that are killed and go on. A trial kills -9 one rank of a training run, all, or mpirun at a random moment (saves
# take a good part of a run here), starts the same command again, kills that too, and lets the third finish. Every
# loss and norm that was logged, before a kill or after, must have the bits of the undisturbed run, whatever
# checkpoint is there must verify, and nothing unfinished may be left. Which command goes on changes in what changes
# no bit: pipeline stages, schedule, transport, sharding, asynchronous saves. Every other trial also saves in memory, at
# least as often.
# Usage: kill_runs.sh PATH/trireme [TRIALS [SEED [INTERVAL [KEEP]]]]
#   INTERVAL  steps between saves; 0, as without: another one in each trial
#   KEEP      --keep-last; "any", as without: another one in each trial
# A campaign of 300 trials that save at every step:  kill_runs.sh build/trireme 300 1 1 2
set -uo pipefail
export LC_ALL=C
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1"
trials=${2:-8}
RANDOM=${3:-1}
interval=${4:-0} keep=${5:-any}
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

train reference --train-iters "$iterations" --tp 2 --ranks 4 --eval-interval 7 --eval-iters 2
metrics reference.jsonl >reference.txt
[[ $(wc -l <reference.txt) -ge $iterations ]] || complain "the reference run has $(wc -l <reference.txt) lines"

# About two steps with a save: kills come at any moment of them.
moment=$(sed -nE 's/.*iteration \(ms\): ([0-9.]+).*/\1/p' reference.log | tail -1 | awk '{ print 4 * $1 / 1000 }')

descendants() { # PID
    local child
    for child in $(pgrep -P "$1"); do
        echo "$child"
        descendants "$child"
    done
}

ranks_of() { # PID: the program's processes under it, or itself
    if [[ ${command[0]} == mpirun ]]; then ranks_below "$1" | cut -d " " -f 2; else echo "$1"; fi
}

steps_logged() { grep -sc lm_loss trial.jsonl || true; } # of all runs of the trial
newest_step() { compgen -G 'save/step-*' | sed 's/.*step-0*//' | sort -n | tail -1; }
seconds_below() { awk -v r="$RANDOM" -v most="$1" 'BEGIN { print r / 32768 * most }'; }

# Until a run has logged so many steps more or has ended; false when it does neither for two minutes.
wait_for_steps() { # PID STEPS
    local before last now idle=0
    before=$(steps_logged) last=$before
    while kill -0 "$1" 2>/dev/null && now=$(steps_logged) && [[ $now -lt $((before + $2)) ]]; do
        if [[ $now == "$last" ]]; then idle=$((idle + 1)); else idle=0; fi
        last=$now
        [[ $idle -lt 6000 ]] || return 1
        sleep 0.02
    done
}

# The process that runs now and its launcher: one rank, all of them, or the launcher alone.
choose_victims() { # PID
    mapfile -t victims < <(ranks_of "$1")
    [[ ${#victims[@]} -gt 0 ]] || victims=("$1")
    case $((RANDOM % 3)) in
    0) victims=("${victims[RANDOM % ${#victims[@]}]}") ;;
    1) victims=("$1") ;;
    esac
}

# Starts $command and kills it: while it starts, or some time after a step, both drawn at random; so it does not
# matter how fast the machine is. False when it was over before.
run_and_kill() { # LOG
    local newest pid victims steps code
    newest=$(newest_step)
    steps=$((iterations - 4 - ${newest:-0})) # the last ones take less time than a look at what is logged
    steps=$((RANDOM % (steps > 1 ? steps : 1)))
    "${command[@]}" >"$1" 2>&1 </dev/null &
    pid=$!
    if [[ $steps == 0 ]]; then
        sleep "$(seconds_below 0.5)"
    else
        wait_for_steps $pid $steps || complain "no step for two minutes: ${command[*]}: $(tail -3 "$1")"
        sleep "$(seconds_below "${moment:-0.05}")"
    fi
    choose_victims $pid
    kill -9 "${victims[@]}" 2>/dev/null
    end_launcher "$pid"
    wait "$pid" 2>/dev/null
    code=$?
    [[ $code != 0 ]] # it was killed
}

# mpirun ends a job that has lost a rank within two seconds, but can wait for ever when ranks die while it still
# starts others.
end_launcher() { # PID
    local tenths
    [[ ${command[0]} == mpirun ]] || return 0
    for tenths in {1..300}; do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.1
    done
    echo "mpirun was killed after $tenths tenths of a second"
    mapfile -t victims < <(descendants "$1")
    kill -9 "$1" "${victims[@]}" 2>/dev/null
}

# To its end, which is as far away as the machine is slow; but steps are to be seen.
run_to_end() {
    local pid
    "${command[@]}" >last.log 2>&1 </dev/null &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        wait_for_steps $pid 1 && continue
        mapfile -t victims < <(descendants $pid)
        kill -9 $pid "${victims[@]}" 2>/dev/null
        complain "no step for two minutes"
    done
    wait $pid
}

mkdir memory
kills=0 saved=0 torn=0 fell_back=0 from_memory=0 torn_in_memory=0
for trial in $(seq "$trials"); do
    rm -rf save trial.jsonl
    kept=$keep
    [[ $keep != any ]] || kept=$((RANDOM % 4))
    save=(--save save --load save --metrics trial.jsonl
        --save-interval $((interval ? interval : 1 + RANDOM % 4)) --keep-last "$kept")
    if ((trial % 2)); then save+=(--memory-save-interval $((1 + RANDOM % 2)) --memory-save-dir memory); fi
    if ((trial % 4 == 1)); then save+=(--save-interval 9); fi # so that memory is ahead of the disk
    for attempt in 1 2; do
        choose
        command+=("${save[@]}")
        run_and_kill "killed.log" 2>/dev/null || break
        kills=$((kills + 1))
        compgen -G 'save/.tmp*' >/dev/null && torn=$((torn + 1))
        compgen -G 'memory/*/*/.tmp*' >/dev/null && torn_in_memory=$((torn_in_memory + 1))
        compgen -G 'save/step-*' >/dev/null || continue
        saved=$((saved + 1))
        "$trireme" checkpoint verify save >verify.log 2>&1 ||
            complain "trial $trial: after kill $attempt: $(tail -2 verify.log)"
    done
    choose
    command+=("${save[@]}")
    run_to_end ||
        complain "trial $trial: ${command[*]}: exit $?: $(tail -3 last.log)"
    grep -q "loaded checkpoint from the memory" last.log && from_memory=$((from_memory + 1))
    grep -q WARNING last.log && grep -qv 'could not find' <(grep WARNING last.log) && fell_back=$((fell_back + 1))
    diff <(metrics trial.jsonl) reference.txt >differences ||
        complain "trial $trial: ${command[*]}: numbers differ: $(head -4 differences)"
    compgen -G 'save/.tmp*' >/dev/null && complain "trial $trial: $(ls -A save) are left"
    [[ -z $(ls -A memory) ]] || complain "trial $trial: $(find memory | tail -3) are left"
done
echo "$trials trials, $kills kills, $saved of them with checkpoints there, $torn within a save," \
    "$fell_back went on from an older checkpoint than the newest;" \
    "$from_memory went on from memory, $torn_in_memory were killed within a save there"
[[ $kills -gt $((trials / 2)) && $saved -gt $((trials / 4)) ]] ||
    complain "only $kills kills in $trials trials, $saved with checkpoints there"
finish
