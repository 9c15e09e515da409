#!/usr/bin/env bash
# What a user can do to a run: damaged and missing files, wrong text, signals, ranks that die or stop. Each ends with the
# right exit code, a message that names the cause, and nothing left running.
# Usage: bad_runs.sh PATH/trireme
set -uo pipefail
trireme=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
failures=0

complain() {
    echo "$*"
    failures=$((failures + 1))
}

# expect CODE TEXT COMMAND...: the exit code, and a part of what is printed.
expect() {
    local want=$1 text=$2 code
    shift 2
    timeout 60 "$@" >out 2>&1 </dev/null
    code=$?
    [[ $code == "$want" ]] || complain "exit $code, not $want: $* $(tail -3 out)"
    grep -qF -- "$text" out || complain "no '$text' in the output of: $* -- $(tail -3 out)"
    if grep -qE 'Sanitizer|core dumped' out; then complain "a crash in: $*"; fi
}

model=(--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 8 --lr 1e-3)

for i in $(seq 400); do echo "int function_$i(int a) { return a + $i; }  // line $i of a text that repeats itself"; done >text.txt
"$trireme" preprocess --input text.txt --output-prefix corpus --vocab-size 400 --append-eod >log 2>&1 || complain "preprocess: $(cat log)"
run=("$trireme" train --data-path corpus --split 100,0,0 --eval-iters 0 "${model[@]}" --train-iters 3)

# ---- good runs ----------------------------------------------------------------------------------------------
expect 0 "trained 3 iterations" "${run[@]}"
expect 0 "trained 3 iterations" "${run[@]}" --ranks 8 --tp 2 --pp 2 --vp 2 --metrics metrics.jsonl
[[ $(wc -l <metrics.jsonl) == 3 ]] || complain "metrics.jsonl has $(wc -l <metrics.jsonl) lines, not 3"
expect 0 "trained 3 iterations" mpirun --oversubscribe -n 4 "${run[@]}" --tp 2 --pp 2
expect 0 "Nothing was trained" "${run[@]}" --dry-run
expect 0 "trireme" "$trireme" --version

# ---- files ---------------------------------------------------------------------------------------------------
expect 66 "missing.txt" "$trireme" preprocess --input missing.txt --output-prefix x --vocab-size 300
: >empty.txt
expect 65 "empty" "$trireme" preprocess --input empty.txt --output-prefix x --vocab-size 300
printf '{"text": "fine"}\n{"text": broken\n' >bad.jsonl
expect 65 "bad.jsonl:2" "$trireme" preprocess --input bad.jsonl --output-prefix x --vocab-size 300
{ for i in $(seq 200); do printf 'caf\xc3\xa9 \xff\xfe\x80 %d latin \xe9t\xe9\n' "$i"; done; } >latin.txt
expect 0 "" "$trireme" preprocess --input latin.txt --output-prefix latin --vocab-size 300
expect 66 "nowhere" "$trireme" train --data-path nowhere "${model[@]}" --train-iters 1
expect 66 "tokenizer" bash -c 'cp corpus.bin bare.bin; cp corpus.idx bare.idx; exec "$0" train --data-path bare "$@"' "$trireme" "${model[@]}" --train-iters 1

damage() { for end in bin idx vocab.json merges.txt; do cp "corpus.$end" "damaged.$end"; done; } # a fresh copy to damage
damaged=("$trireme" train --data-path damaged --split 100,0,0 --eval-iters 0 "${model[@]}" --train-iters 3)
size=$(stat -c %s corpus.idx)
for keep in 0 8 20 33 $((size / 2)) $((size - 1)); do
    damage && truncate -s "$keep" damaged.idx
    expect 65 "damaged.idx" "${damaged[@]}"
done
damage && truncate -s -2 damaged.bin
expect 65 "damaged" "${damaged[@]}"
for at in 0 9 17 18 26 34 38; do
    damage && printf '\xff' | dd of=damaged.idx bs=1 seek="$at" conv=notrunc status=none
    expect 65 "damaged" "${damaged[@]}"
done
damage && head -c 4000 /dev/zero | tr '\0' '\377' | dd of=damaged.bin bs=1 seek=100 conv=notrunc status=none
expect 65 "vocabulary" "${damaged[@]}"
expect 65 "vocabulary" "${damaged[@]}" --ranks 4 --tp 2 --pp 2
printf 'lr: 1e-3\nnum-layres: 4\n' >typo.yaml
expect 78 "typo.yaml:2" "${run[@]}" --config typo.yaml
expect 64 "--num-layers" "${run[@]}" --num-layer 4
expect 78 "--ranks" "${run[@]}" --ranks 3 --tp 2
expect 78 "" mpirun --oversubscribe -n 3 "${run[@]}" --tp 2

# ---- signals --------------------------------------------------------------------------------------------------
long=("$trireme" train --data-path corpus --split 100,0,0 --eval-iters 0 "${model[@]}" --train-iters 100000 --plain)

wait_for_training() { # until the first log line, at most 20 s
    for _ in $(seq 200); do
        grep -q "iteration        1/" out && return
        sleep 0.1
    done
    complain "no first iteration: $(tail -3 out)"
}

expect_ended() { # PID CODE TEXT: within 30 s
    for _ in $(seq 300); do kill -0 "$1" 2>/dev/null || break; sleep 0.1; done
    if kill -0 "$1" 2>/dev/null; then complain "still running: $3" && kill -9 "$1"; fi
    wait "$1"
    local code=$?
    [[ $2 == any && $code != 0 || $2 == "$code" ]] || complain "exit $code, not $2: $(tail -3 out)"
    grep -qF -- "$3" out || complain "no '$3': $(tail -5 out)"
    sleep 0.3
    if pgrep -f "$folder|data-path corpus.*100000" >/dev/null; then
        complain "something is left running"
        pkill -9 -f "data-path corpus.*100000"
    fi
}

for signal in INT TERM; do
    "${long[@]}" --ranks 4 --tp 2 --pp 2 >out 2>&1 </dev/null &
    pid=$!
    wait_for_training
    kill -"$signal" "$pid"
    expect_ended "$pid" 130 "stopped by a signal"
done

# One MPI rank dies in the middle of a step, another one stops answering.
for signal in KILL STOP; do
    mpirun --oversubscribe -n 4 "${long[@]}" --tp 2 --pp 2 --distributed-timeout-minutes 0.05 >out 2>&1 </dev/null &
    pid=$!
    wait_for_training
    victim=$(pgrep -f -- "train --data-path corpus.*100000" | grep -vx "$pid" | sed -n 3p)
    kill -"$signal" "$victim"
    if [[ $signal == KILL ]]; then expect_ended "$pid" any "signal 9"; else expect_ended "$pid" any "has waited"; fi
done

[[ $failures == 0 ]] || { echo "$failures failures"; exit 1; }
