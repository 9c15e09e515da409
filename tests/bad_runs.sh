#!/usr/bin/env bash
# What a user can do to a run: damaged and missing files, wrong text, signals, ranks that die or stop. Each
# ends with the right exit code, a message that names the cause, and nothing left running.
# Usage: bad_runs.sh PATH/trireme
set -uo pipefail
trireme=$(realpath "$1")
# shellcheck source=tools/mpi.sh
source "${BASH_SOURCE%/*}/../tools/mpi.sh"
# shellcheck source=tests/jobs.sh
source "${BASH_SOURCE%/*}/jobs.sh"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export TMPDIR=$folder # a session folder that is not shared: see mpirun.sh
cd "$folder" || exit 1
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
cases=0 # each has a file of its own for what it prints

complain() { echo "$*" | tee -a "$folder/complaints"; }

# expect CODE TEXT COMMAND...: the exit code, and a part of what is printed, which stays in the file $out.
expect() {
    local want=$1 text=$2 code
    shift 2
    out=out.$BASHPID.$((++cases))
    timeout -k 5 180 "$@" >"$out" 2>&1 </dev/null
    code=$?
    [[ $code == "$want" ]] || complain "exit $code, not $want: $* $(tail -3 "$out")"
    grep -qF -- "$text" "$out" || complain "no '$text' in the output of: $* -- $(tail -3 "$out")"
    if grep -qE 'Sanitizer|core dumped' "$out"; then complain "a crash in: $*"; fi
}

model=(--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1
    --global-batch-size 8 --lr 1e-3)

for i in $(seq 400); do
    echo "int function_$i(int a) { return a + $i; }  // line $i of a text that repeats itself"
done >text.txt
while read -r line; do printf '{"text": "%s"}\n' "$line"; done <text.txt >many.jsonl
expect 0 "vocabulary 400 (trained)" "$trireme" preprocess --input text.txt --output-prefix corpus \
    --vocab-size 400 --append-eod
expect 0 "many: 400 documents" "$trireme" preprocess --input many.jsonl --output-prefix many \
    --vocab-size 400 --append-eod
run=("$trireme" train --data-path corpus --split "100,0,0" --eval-iters 0 "${model[@]}" --train-iters 3)

# ---- jobs of processes that are ended: beside everything else, as most of their time is waiting ------------
long=("$trireme" train --data-path corpus --split "100,0,0" --eval-iters 0 "${model[@]}"
    --train-iters 20000 --plain)

# start COMMAND...: in the background, in a session of its own, whose number is $pid; what it
# prints goes to $out.
start() {
    out=out.$BASHPID.$((++cases))
    setsid "$@" >"$out" 2>&1 </dev/null &
    pid=$!
}

session_is_empty() { ! pgrep -s "$pid" >/dev/null; }

# expect_ended CODE TEXT: "any" is every code but 0. Then no process of the session is left.
expect_ended() {
    local code
    until_true has_ended
    until_true session_is_empty
    pkill -KILL -s "$pid"
    wait "$pid"
    code=$?
    [[ $code == "$1" || ($1 == any && $code != 0) ]] || complain "exit $code, not $1: $(tail -3 "$out")"
    grep -qF -- "$2" "$out" || complain "no '$2': $(tail -5 "$out")"
}

# The launcher turns either signal into TERM for the ranks and, a second later, KILL.
end_by_signal() {
    local signal
    for signal in INT TERM; do
        start mpirun -n 4 "${long[@]}" --tp 2 --pp 2
        until_true is_training
        kill -"$signal" "$pid"
        expect_ended any "iteration        1/"
    done
}

# One MPI rank dies in the middle of a step, another one stops answering.
lose_a_rank() {
    local signal
    for signal in KILL STOP; do
        start mpirun -n 4 "${long[@]}" --tp 2 --pp 2 --distributed-timeout-minutes 0.1
        until_true is_training
        kill -"$signal" "$(pid_of_rank "$pid" 2)"
        if [[ $signal == KILL ]]; then expect_ended any "signal 9"; else expect_ended any "has waited"; fi
    done
}

jobs=()
for job in end_by_signal lose_a_rank; do
    mkdir "$job" # for mpirun's session
    (TMPDIR=$folder/$job $job) &
    jobs+=($!)
done

# ---- good runs -------------------------------------------------------------------------------------------
expect 0 "trained 3 iterations" "${run[@]}"
expect 0 "trained 3 iterations" "${run[@]}" --ranks 8 --tp 2 --pp 2 --vp 2
expect 0 "trained 3 iterations" mpirun -n 4 "${run[@]}" --tp 2 --pp 2
expect 0 "trireme" "$trireme" --version

# ---- files -----------------------------------------------------------------------------------------------
expect 66 "missing.txt" "$trireme" preprocess --input missing.txt --output-prefix x --vocab-size 300
: >empty.txt
expect 65 "empty" "$trireme" preprocess --input empty.txt --output-prefix x --vocab-size 300
printf '{"text": "fine"}\n{"text": broken\n' >bad.jsonl
expect 65 "bad.jsonl:2" "$trireme" preprocess --input bad.jsonl --output-prefix x --vocab-size 300
for i in $(seq 200); do printf 'caf\xc3\xa9 \xff\xfe\x80 %d latin \xe9t\xe9\n' "$i"; done >latin.txt
expect 0 "latin: 1 documents" "$trireme" preprocess --input latin.txt --output-prefix latin --vocab-size 300
expect 66 "nowhere" "$trireme" train --data-path nowhere "${model[@]}" --train-iters 1
cp corpus.bin bare.bin && cp corpus.idx bare.idx
expect 66 "tokenizer" "$trireme" train --data-path bare "${model[@]}" --train-iters 1
expect 78 "import keeps the tokenizer of files" "$trireme" import hf --save imported --tokenizer-type NullTokenizer
expect 66 "nowhere.json" "$trireme" import hf --save imported --tokenizer-model nowhere.json

# A fresh copy to damage.
damage() { for end in bin idx tokenizer.json; do cp "corpus.$end" "damaged.$end"; done; }
damaged=("$trireme" train --data-path damaged --split "100,0,0" --eval-iters 0 "${model[@]}" --train-iters 3)
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

# Tokens outside the vocabulary: some ranks read them, all ranks end, one of them speaks.
expect_one_error() {
    [[ $(grep -c '^trireme: error' "$out") == 1 ]] || complain "not one error: $(cat "$out")"
}
damage && head -c 4000 /dev/zero | tr '\0' '\377' | dd of=damaged.bin bs=1 seek=100 conv=notrunc status=none
expect 65 "vocabulary" "${damaged[@]}"
expect_one_error
expect 65 "vocabulary" "${damaged[@]}" --ranks 4 --tp 2 --pp 2
expect_one_error
expect 65 "vocabulary" mpirun -n 4 "${damaged[@]}" --tp 2
expect_one_error
printf 'lr: 1e-3\nnum-layres: 4\n' >typo.yaml
expect 78 "typo.yaml:2" "${run[@]}" --config typo.yaml
expect 64 "--num-layers" "${run[@]}" --num-layer 4
expect 78 "--ranks" "${run[@]}" --ranks 3 --tp 2
expect 78 "TRIREME_MAX_CPU_ISA=avx9 is unknown; unset it or use one of: " env TRIREME_MAX_CPU_ISA=avx9 "${run[@]}" --save early
[[ ! -e early ]] || complain "a refused run makes its folder"
expect 78 "world size (3) is not divisible" mpirun -n 3 "${run[@]}" --tp 2
expect_one_error

# ---- blends, synthetic data, index files -----------------------------------------------------------------
rest=("$trireme" train --eval-iters 0 "${model[@]}" --train-iters 3)
expect 0 "trained 3 iterations" "${rest[@]}" --mock-data --vocab-size 300
expect 0 "trained 3 iterations" mpirun -n 4 "${rest[@]}" --data-path .3 corpus .7 many \
    --split 1 --pp 2 --data-cache-path cache
index=$(compgen -G "cache/*GPTDataset-train-sample_index.npy" | head -1)
[[ -n $index ]] || complain "no index files: $(ls cache)"
printf '\377' | dd of="$index" bs=1 seek=300 conv=notrunc status=none
expect 0 "checksums are not those of the arrays: made again" "${rest[@]}" --data-path .3 corpus .7 many \
    --split 1 --data-cache-path cache
expect 73 "corpus.bin" "${rest[@]}" --data-path corpus --split 1 --data-cache-path corpus.bin
expect 66 "nowhere.idx" "${rest[@]}" --data-path .3 corpus .7 nowhere --split 1
expect 0 "--data-path: 2 data sets without weights hold " "${rest[@]}" --data-path many many --split 1 \
    --train-iters 200 --exit-interval 2
expect 66 "nowhere" "${rest[@]}" --data-args-path nowhere
printf '{"train": ["corpus"], "valid": 3}' >splits.json
expect 0 "trained 3 iterations" "${rest[@]}" --per-split-data-args-path splits.json
expect 65 "splits.json: byte" "${rest[@]}" --per-split-data-args-path splits.json --eval-iters 1
echo '{}' >none.json
expect 65 "none.json names no data set for train" "${rest[@]}" --per-split-data-args-path none.json
expect 0 "many: 400 documents" "$trireme" data inspect corpus many --seq-length 32 --samples 1000
expect 0 "all in the vocabulary of 400" "$trireme" data verify many
damage && printf '\377\377' | dd of=damaged.bin bs=1 seek=100 conv=notrunc status=none
expect 65 "damaged.bin: byte 100: sequence 0, position 50: token 65535 is not in the vocabulary of 400" \
    "$trireme" data verify corpus damaged
expect 0 "<|endoftext|>" "$trireme" data sample 1 corpus 2 many --seq-length 32 --split 1 \
    --train-samples 50 --samples 20
expect 64 "did you mean sample?" "$trireme" data smple many
expect 0 "many: sound" "$trireme" data verify --data-path 1 corpus 2 many
expect 64 "--split is not for data inspect" "$trireme" data inspect many --split 1,1,1
expect 64 "--mock-data is not for data verify" "$trireme" data verify --mock-data --vocab-size 9
expect 64 "--max-bytes is for tokenizer train" "$trireme" tokenizer encode --tokenizer-model corpus --max-bytes 9
expect 64 "--json-keys names 'a' twice" "$trireme" preprocess --input many.jsonl --output-prefix twice \
    --vocab-size 300 --json-keys a a
expect 64 "cannot be part of a file's name" "$trireme" preprocess --input many.jsonl --output-prefix twice \
    --vocab-size 300 --json-keys a ../b
expect 78 "use --train-samples N" "$trireme" data sample many --seq-length 32 --first-sample 100000

# ---- memory without data ---------------------------------------------------------------------------------
memory=("$trireme" memory "${model[@]}")
expect 78 "--vocab-size is required" "${memory[@]}"
expect 78 "add --data-path or --tokenizer-model" "${memory[@]}" --vocab-size 400 --eod-mask-loss
expect 78 "--merge-file is missing" "${memory[@]}" --vocab-size 400 --vocab-file corpus.vocab.json
expect 66 "nowhere" "${memory[@]}" --data-path nowhere
expect 78 "differs from the tokenizer's 400" "${memory[@]}" --vocab-size 401 --tokenizer-model corpus

# ---- traces ----------------------------------------------------------------------------------------------
expect 73 "--trace nowhere/t.json: cannot create" "${run[@]}" --trace nowhere/t.json
expect 73 "--trace nowhere/t.json: cannot create" mpirun -n 2 "${run[@]}" \
    --trace nowhere/t.json
expect_one_error
expect 73 "not a regular file" "${run[@]}" --trace /dev/full
expect 0 "trained 3 iterations" "${run[@]}" --ranks 4 --pp 2 --vp 2 --trace traced.json
read_trace=("$trireme" schedule --trace)
expect 0 ", the median of " "${read_trace[@]}" traced.json
expect 64 "leave out --pipeline-model-parallel-size" "${read_trace[@]}" traced.json --pp 2
expect 64 "leave out --hop-us" "${read_trace[@]}" traced.json --hop-us 1
expect 64 "leave out --from" "${read_trace[@]}" traced.json --from mine.txt
expect 66 "missing.json" "${read_trace[@]}" missing.json
expect 65 "text.txt: line 1: it opens no trace" "${read_trace[@]}" text.txt
expect 73 "--svg nowhere/s.svg" "${read_trace[@]}" traced.json --svg nowhere/s.svg
size=$(stat -c %s traced.json)
for keep in 0 1 500 5000 $((size / 2)) $((size - 1)) $((size - 4)); do
    head -c "$keep" traced.json >cut.json
    expect 65 "cut.json: line" "${read_trace[@]}" cut.json
done
# What can still be read may be read.
for at in 0 100 115 125 300 700 1300 $(seq 3001 $((size / 20)) "$size"); do
    cp traced.json flipped.json
    printf '\xff' | dd of=flipped.json bs=1 seek="$at" conv=notrunc status=none
    timeout 60 "${read_trace[@]}" flipped.json >flipped.log 2>&1
    code=$?
    [[ $code == 0 || $code == 65 ]] ||
        complain "exit $code with byte $at of a trace wrong: $(tail -3 flipped.log)"
done
expect 0 "had no room for its first" "${run[@]}" --ranks 4 --pp 2 --vp 2 --trace few.json --trace-events 30
expect 65 "few.json: no step of it is there as a whole: --trace-events was too small, rank" \
    "${read_trace[@]}" few.json
expect 0 "nothing was trained" "${run[@]}" --train-iters 0 --trace none.json
expect 65 "none.json: no step of it is there as a whole: the run ended" "${read_trace[@]}" none.json

# ---- signals ---------------------------------------------------------------------------------------------
for signal in INT TERM; do
    start "${long[@]}" --ranks 4 --tp 2 --pp 2
    until_true is_training
    kill -"$signal" "$pid"
    expect_ended 130 "stopped by a signal"
done

# A run that was stopped has a trace all the same.
start "${long[@]}" --ranks 4 --tp 2 --pp 2 --trace ended.json
until_true is_training
sleep 0.5
kill -INT "$pid"
expect_ended 130 "stopped by a signal"
expect 0 "tp 2, dp 1, pp 2" "${read_trace[@]}" ended.json

# An evaluation that would take minutes.
start "$trireme" train --data-path many --split "50,50,0" --eval-interval 1 \
    --eval-iters 30000 "${model[@]}" --train-iters 9 --plain
until_true is_training
sleep 0.5
kill -TERM "$pid"
expect_ended 130 "stopped by a signal (SIGTERM) after iteration 1"

# In the middle of preprocessing: what was written so far goes. The text takes seconds, and its tokenizer
# is there already.
cp many.jsonl large.jsonl
for _ in $(seq 11); do cat large.jsonl large.jsonl >larger.jsonl && mv larger.jsonl large.jsonl; done
is_writing() { compgen -G "stopped.*tmp*" >/dev/null; }
start "$trireme" preprocess --input large.jsonl --output-prefix stopped --tokenizer-model corpus --append-eod
until_true is_writing
kill -TERM "$pid"
expect_ended 130 "stopped by a signal"
if compgen -G "stopped.*" >/dev/null; then complain "preprocessing left behind: $(echo stopped.*)"; fi

for pid in "${jobs[@]}"; do
    wait "$pid" || complain "a job in the background ended with $?"
done

[[ ! -s complaints ]] || { echo "$(wc -l <complaints) lines of complaints"; exit 1; }
