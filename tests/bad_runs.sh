#!/usr/bin/env bash
# What a user can do to a run: damaged and missing files, wrong text, signals, ranks that die or stop. Each ends with
# the right exit code, a message that names the cause, and nothing left running.
# Usage: bad_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/cases.sh
source "${BASH_SOURCE%/*}/cases.sh" "$@"
# shellcheck source=tests/jobs.sh
source "$here/jobs.sh"
outputs=0 # each command has a file of its own for what it prints

# expect CODE TEXT COMMAND...: the exit code, and a part of what is printed, which stays in the file $out.
expect() {
    local want=$1 text=$2 code
    shift 2
    out=out.$BASHPID.$((++outputs))
    timeout -k 5 180 "$@" >"$out" 2>&1 </dev/null
    code=$?
    [[ $code == "$want" ]] || complain "exit $code, not $want: $* $(tail -3 "$out")"
    grep -qF -- "$text" "$out" || complain "no '$text' in the output of: $* -- $(tail -3 "$out")"
    if grep -qE 'Sanitizer|core dumped' "$out"; then complain "a crash in: $*"; fi
}
# expect_one CODE TEXT COMMAND...: the same, and one rank alone prints an error.
expect_one() {
    expect "$@"
    [[ $(grep -c '^trireme: error' "$out") == 1 ]] || complain "not one error: $(cat "$out")"
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
    out=out.$BASHPID.$((++outputs))
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
end_by_signal() { # SIGNAL
    start mpirun -n 4 "${long[@]}" --tp 2 --pp 2
    until_true is_training
    kill -"$1" "$pid"
    expect_ended any "iteration        1/"
}
end_by_signals() {
    check "a launcher that SIGINT ends takes its ranks along" end_by_signal INT
    check "a launcher that SIGTERM ends takes its ranks along" end_by_signal TERM
    return 0 # also where these cases were not asked for
}

lose_a_rank() { # SIGNAL TEXT
    start mpirun -n 4 "${long[@]}" --tp 2 --pp 2 --distributed-timeout-minutes 0.1
    until_true is_training
    kill -"$1" "$(pid_of_rank "$pid" 2)"
    expect_ended any "$2"
}
lose_ranks() {
    check "a rank that dies within a step ends the job" lose_a_rank KILL "signal 9"
    check "a rank that stops answering ends the job" lose_a_rank STOP "has waited"
    return 0
}

jobs=()
for job in end_by_signals lose_ranks; do
    mkdir "$job" # for mpirun's session
    (TMPDIR=$cases_folder/$job $job) &
    jobs+=($!)
done

# ---- good runs -------------------------------------------------------------------------------------------
check "a good run trains" expect 0 "trained 3 iterations" "${run[@]}"
check "a good run of 8 threads trains" expect 0 "trained 3 iterations" "${run[@]}" --ranks 8 --tp 2 --pp 2 --vp 2
check "a good run of 4 processes trains" expect 0 "trained 3 iterations" mpirun -n 4 "${run[@]}" --tp 2 --pp 2
check "the program says its version" expect 0 "trireme" "$trireme" --version

# ---- files -----------------------------------------------------------------------------------------------
preprocess=("$trireme" preprocess --output-prefix x --vocab-size 300 --input)
check "a missing text is named" expect 66 "missing.txt" "${preprocess[@]}" missing.txt
: >empty.txt
check "an empty text is refused" expect 65 "--input empty.txt: no text: the input is empty" "${preprocess[@]}" empty.txt
mkdir nothing
check "a folder without files is refused" expect 65 "no text: the folder has no files" "${preprocess[@]}" nothing
check "a data set that is there is not replaced" expect 73 "corpus.idx exists and is not replaced" "$trireme" preprocess \
    --input many.jsonl --output-prefix corpus --vocab-size 300
tokens=("$trireme" preprocess --input text.txt --output-prefix x --tokenizer-model)
check "a path without a tokenizer is told" expect 66 "nowhere.tokenizer.json" "${tokens[@]}" nowhere
check "the nearest name is told" expect 66 "did you mean corpus.tokenizer.json?" "${tokens[@]}" corpus.tokeniser.json
check "a name of a hub is told" expect 66 "hf download meta-llama/Llama-3.2-1B" "${tokens[@]}" meta-llama/Llama-3.2-1B
mkdir model && cp corpus.tokenizer.json model/tokenizer.json && echo '{}' >model/config.json
check "a file beside a tokenizer is told" expect 65 "did you mean the folder, model?" "${tokens[@]}" model/config.json
printf '{"text": "fine"}\n{"text": broken\n' >bad.jsonl
check "a line that is no JSON is named" expect 65 "bad.jsonl:2" "${preprocess[@]}" bad.jsonl
for i in $(seq 200); do printf 'caf\xc3\xa9 \xff\xfe\x80 %d latin \xe9t\xe9\n' "$i"; done >latin.txt
check "text that is not UTF-8 is taken" \
    expect 0 "latin: 1 documents" "$trireme" preprocess --input latin.txt --output-prefix latin --vocab-size 300
chat=("$trireme" prepare-chat --seq-length 64 --tokenizer-model corpus.tokenizer.json --chat-template alpaca --input)
printf '{"prompt": "a", "completion": "b"}\n{"messages": [{"role": "user", "content": "a"}]}\n' >chats.jsonl
check "a conversation without an answer is named" \
    expect 65 "chats.jsonl:2: a conversation without an answer" "${chat[@]}" chats.jsonl --output-prefix chats
prepare_twice() {
    expect 0 "left out 1 bad lines" "${chat[@]}" chats.jsonl --output-prefix chats --skip-bad-lines
    expect 73 "chats.idx exists and is not replaced" "${chat[@]}" chats.jsonl --output-prefix chats --skip-bad-lines
    expect 0 "left out 1 bad lines" "${chat[@]}" chats.jsonl --output-prefix chats --skip-bad-lines --overwrite
}
check "such a conversation is left out, and its data set not replaced" prepare_twice
: >empty.jsonl
check "empty conversations are refused" \
    expect 65 "empty.jsonl: no conversation: the input is empty" "${chat[@]}" empty.jsonl --output-prefix none
check "a preview marks what is trained" \
    expect 0 $'\xe2\x9f\xa6b\xc2\xb7<|endoftext|>\xe2\x9f\xa7' "${chat[@]}" chats.jsonl --preview 1 --skip-bad-lines
printf '{"prompt": "\\u001b\\u009b", "completion": "b\\nc"}\n' >controls.jsonl
check "a preview shows control characters as escapes" \
    expect 0 '\u001b' "${chat[@]}" controls.jsonl --preview 1
check "a preview shows those beyond ASCII as escapes" \
    expect 0 '\u009b' "${chat[@]}" controls.jsonl --preview 1
check "a conversation needs room" \
    expect 65 "chats.jsonl:1: a conversation of " "${chat[@]}" chats.jsonl --output-prefix small --seq-length 4
check "conversations need a tokenizer" expect 64 "--tokenizer-model FOLDER" "$trireme" prepare-chat --input chats.jsonl
check "conversations need a place" expect 64 "--output-prefix PREFIX, or --preview N" "${chat[@]}" chats.jsonl
check "a template has to suit the tokenizer" \
    expect 78 "the vocabulary has no token <|im_start|>" "${chat[@]}" chats.jsonl --preview 1 --chat-template chatml
check "text is no data set of conversations" \
    expect 66 "corpus is no data set of conversations" "${run[@]}" --sft
check "a missing data set is named" \
    expect 66 "nowhere" "$trireme" train --data-path nowhere "${model[@]}" --train-iters 1
cp corpus.bin bare.bin && cp corpus.idx bare.idx
check "a data set without its tokenizer is refused" \
    expect 66 "tokenizer" "$trireme" train --data-path bare "${model[@]}" --train-iters 1
check "an import takes no tokenizer type without files" \
    expect 78 "import copies the files of a tokenizer" "$trireme" import hf --save imported --tokenizer-type NullTokenizer
check "a missing tokenizer of an import is named" \
    expect 66 "nowhere.json" "$trireme" import hf --save imported --tokenizer-model nowhere.json

# A fresh copy to damage.
damage() { for end in bin idx tokenizer.json; do cp "corpus.$end" "damaged.$end"; done; }
damaged=("$trireme" train --data-path damaged --split "100,0,0" --eval-iters 0 "${model[@]}" --train-iters 3)
size=$(stat -c %s corpus.idx)
for keep in 0 8 20 33 $((size / 2)) $((size - 1)); do
    damage && truncate -s "$keep" damaged.idx
    check "an index of $keep bytes is refused" expect 65 "damaged.idx" "${damaged[@]}"
done
damage && truncate -s -2 damaged.bin
check "tokens that end too early are refused" expect 65 "damaged" "${damaged[@]}"
for at in 0 9 17 18 26 34 38; do
    damage && printf '\xff' | dd of=damaged.idx bs=1 seek="$at" conv=notrunc status=none
    check "a wrong byte $at of an index is found" expect 65 "damaged" "${damaged[@]}"
done

# Some ranks read them, all ranks end.
damage && head -c 4000 /dev/zero | tr '\0' '\377' | dd of=damaged.bin bs=1 seek=100 conv=notrunc status=none
check "tokens outside the vocabulary end a run" expect_one 65 "vocabulary" "${damaged[@]}"
check "tokens outside the vocabulary end 4 threads with one error" \
    expect_one 65 "vocabulary" "${damaged[@]}" --ranks 4 --tp 2 --pp 2
check "tokens outside the vocabulary end 4 processes with one error" \
    expect_one 65 "vocabulary" mpirun -n 4 "${damaged[@]}" --tp 2
printf 'lr: 1e-3\nnum-layres: 4\n' >typo.yaml
check "an unknown key of a configuration is named with its line" expect 78 "typo.yaml:2" "${run[@]}" --config typo.yaml
check "the nearest option is named" expect 64 "--num-layers" "${run[@]}" --num-layer 4
check "ranks that the grid does not divide are refused" expect 78 "--ranks" "${run[@]}" --ranks 3 --tp 2
if check "an unknown instruction set is refused before a folder is made"; then
    expect 78 "TRIREME_MAX_CPU_ISA=avx9 is unknown; unset it or use one of: " \
        env TRIREME_MAX_CPU_ISA=avx9 "${run[@]}" --save early
    [[ ! -e early ]] || complain "a refused run makes its folder"
fi
check "processes that the grid does not divide are refused with one error" \
    expect_one 78 "world size (3) is not divisible" mpirun -n 3 "${run[@]}" --tp 2

# ---- blends, synthetic data, index files -----------------------------------------------------------------
rest=("$trireme" train --eval-iters 0 "${model[@]}" --train-iters 3)
check "synthetic data train" expect 0 "trained 3 iterations" "${rest[@]}" --mock-data --vocab-size 300
if check "a damaged index of samples is made again"; then
    expect 0 "trained 3 iterations" mpirun -n 4 "${rest[@]}" --data-path .3 corpus .7 many \
        --split 1 --pp 2 --data-cache-path cache
    index=$(compgen -G "cache/*GPTDataset-train-sample_index.npy" | head -1)
    [[ -n $index ]] || complain "no index files: $(ls cache)"
    printf '\377' | dd of="$index" bs=1 seek=300 conv=notrunc status=none
    expect 0 "checksums are not those of the arrays: made again" "${rest[@]}" --data-path .3 corpus .7 many \
        --split 1 --data-cache-path cache
fi
check "a file as the folder of index files is refused" \
    expect 73 "corpus.bin" "${rest[@]}" --data-path corpus --split 1 --data-cache-path corpus.bin
check "a missing part of a blend is named" \
    expect 66 "nowhere.idx" "${rest[@]}" --data-path .3 corpus .7 nowhere --split 1
check "a blend without weights that is too small is read again with a warning" \
    expect 0 "--data-path: 2 data sets without weights hold " "${rest[@]}" --data-path many many --split 1 \
    --train-iters 200 --exit-interval 2
check "a missing file of --data-args-path is named" expect 66 "nowhere" "${rest[@]}" --data-args-path nowhere
printf '{"train": ["corpus"], "valid": 3}' >splits.json
check "splits that are not needed are not judged" \
    expect 0 "trained 3 iterations" "${rest[@]}" --per-split-data-args-path splits.json
check "a wrong split is named with its byte" \
    expect 65 "splits.json: byte" "${rest[@]}" --per-split-data-args-path splits.json --eval-iters 1
echo '{}' >none.json
check "splits without training data are refused" \
    expect 65 "none.json names no data set for train" "${rest[@]}" --per-split-data-args-path none.json
check "data inspect counts documents" \
    expect 0 "many: 400 documents" "$trireme" data inspect corpus many --seq-length 32 --samples 1000
check "data verify reads every token" expect 0 "all in the vocabulary of 400" "$trireme" data verify many
damage && printf '\377\377' | dd of=damaged.bin bs=1 seek=100 conv=notrunc status=none
check "data verify names a token outside the vocabulary" \
    expect 65 "damaged.bin: byte 100: sequence 0, position 50: token 65535 is not in the vocabulary of 400" \
    "$trireme" data verify corpus damaged
check "data sample shows ends of documents" \
    expect 0 "<|endoftext|>" "$trireme" data sample 1 corpus 2 many --seq-length 32 --split 1 \
    --train-samples 50 --samples 20
check "the nearest verb of data is named" expect 64 "did you mean sample; it is one of inspect, verify, sample" "$trireme" data smple many
check "data verify takes a blend" expect 0 "many: sound" "$trireme" data verify --data-path 1 corpus 2 many
check "data inspect takes no --split" \
    expect 64 "--split is not for data inspect" "$trireme" data inspect many --split 1,1,1
check "data verify takes no --mock-data" \
    expect 64 "--mock-data is not for data verify" "$trireme" data verify --mock-data --vocab-size 9
check "tokenizer encode takes no --max-bytes" \
    expect 64 "--max-bytes is for tokenizer train" "$trireme" tokenizer encode --tokenizer-model corpus --max-bytes 9
twice=("$trireme" preprocess --input many.jsonl --output-prefix twice --vocab-size 300 --json-keys a)
check "a key that is named twice is refused" expect 64 "--json-keys names 'a' twice" "${twice[@]}" a
check "a key that is no part of a file's name is refused" \
    expect 64 "cannot be part of a file's name" "${twice[@]}" ../b
check "data sample says what makes more samples" \
    expect 78 "use --train-samples N" "$trireme" data sample many --seq-length 32 --first-sample 100000

# ---- memory without data ---------------------------------------------------------------------------------
memory=("$trireme" memory "${model[@]}")
check "memory needs a vocabulary" expect 78 "--vocab-size is required" "${memory[@]}"
check "memory needs the end token of a mask" \
    expect 78 "add --data-path or --tokenizer-model" "${memory[@]}" --vocab-size 400 --eod-mask-loss
check "memory needs the merges of a vocabulary file" \
    expect 78 "--merge-file is missing" "${memory[@]}" --vocab-size 400 --vocab-file corpus.vocab.json
check "memory names a missing data set" expect 66 "nowhere" "${memory[@]}" --data-path nowhere
check "memory compares the vocabulary with the tokenizer" \
    expect 78 "differs from the tokenizer's 400" "${memory[@]}" --vocab-size 401 --tokenizer-model corpus

# ---- traces ----------------------------------------------------------------------------------------------
make_trace() { expect 0 "trained 3 iterations" "${run[@]}" --ranks 4 --pp 2 --vp 2 --trace traced.json; }
check "a trace in a missing folder is refused" \
    expect 73 "--trace nowhere/t.json: cannot create" "${run[@]}" --trace nowhere/t.json
check "a trace of 2 processes in a missing folder is refused with one error" \
    expect_one 73 "--trace nowhere/t.json: cannot create" mpirun -n 2 "${run[@]}" --trace nowhere/t.json
check "a trace to a device is refused" expect 73 "not a regular file" "${run[@]}" --trace /dev/full
read_trace=("$trireme" schedule --trace)
if check "a trace is read"; then
    need make_trace
    expect 0 ", the median of " "${read_trace[@]}" traced.json
fi
if check "a trace is read without options of other schedules"; then
    need make_trace
    expect 64 "leave out --pipeline-model-parallel-size" "${read_trace[@]}" traced.json --pp 2
    expect 64 "leave out --hop-us" "${read_trace[@]}" traced.json --hop-us 1
    expect 64 "leave out --exchange-us" "${read_trace[@]}" traced.json --exchange-us 1
    expect 64 "leave out --from" "${read_trace[@]}" traced.json --from mine.txt
fi
if check "travel that no pair hides, or longer than its computes, is refused"; then
    expect 64 "such as --schedule paired, and 1f1b has none" "$trireme" schedule --pp 2 --exchange-us 0.1
    expect 64 "use at most 0.5" "$trireme" schedule --schedule paired --pp 2 --exchange-us 0.6
    expect 0 "hidden " "$trireme" schedule --schedule paired --pp 2 --exchange-us 0.5
    echo "0: F0 B0 R" >no-pairs.txt
    expect 64 "no-pairs.txt has none" "$trireme" schedule --from no-pairs.txt --exchange-us 0.1
fi
check "a missing trace is named" expect 66 "missing.json" "${read_trace[@]}" missing.json
check "a text is no trace" expect 65 "text.txt: line 1: it opens no trace" "${read_trace[@]}" text.txt
if check "a picture in a missing folder is refused"; then
    need make_trace
    expect 73 "--svg nowhere/s.svg" "${read_trace[@]}" traced.json --svg nowhere/s.svg
fi
if check "a trace that is cut off is refused with its line"; then
    need make_trace
    size=$(stat -c %s traced.json)
    for keep in 0 1 500 5000 $((size / 2)) $((size - 1)) $((size - 4)); do
        head -c "$keep" traced.json >cut.json
        expect 65 "cut.json: line" "${read_trace[@]}" cut.json
    done
fi
if check "a trace with a wrong byte is read or refused"; then
    need make_trace
    size=$(stat -c %s traced.json)
    for at in 0 100 115 125 300 700 1300 $(seq 3001 $((size / 20)) "$size"); do
        cp traced.json flipped.json
        printf '\xff' | dd of=flipped.json bs=1 seek="$at" conv=notrunc status=none
        timeout 60 "${read_trace[@]}" flipped.json >flipped.log 2>&1
        code=$?
        [[ $code == 0 || $code == 65 ]] ||
            complain "exit $code with byte $at of a trace wrong: $(tail -3 flipped.log)"
    done
fi
if check "a trace without room for a step says so"; then
    expect 0 "had no room for its first" "${run[@]}" --ranks 4 --pp 2 --vp 2 --trace few.json --trace-events 30
    expect 65 "few.json: no step is complete: --trace-events was too small, rank" \
        "${read_trace[@]}" few.json
fi
if check "a trace of no steps says so"; then
    expect 0 "nothing was trained" "${run[@]}" --train-iters 0 --trace none.json
    expect 65 "none.json: no step is complete: the run ended" "${read_trace[@]}" none.json
fi

# ---- signals ---------------------------------------------------------------------------------------------
stop_run() { # SIGNAL
    start "${long[@]}" --ranks 4 --tp 2 --pp 2
    until_true is_training
    kill -"$1" "$pid"
    expect_ended 130 "stopped by a signal"
}
check "SIGINT stops a run" stop_run INT
check "SIGTERM stops a run" stop_run TERM

if check "a run that was stopped has a trace"; then
    start "${long[@]}" --ranks 4 --tp 2 --pp 2 --trace ended.json
    until_true is_training
    sleep 0.5
    kill -INT "$pid"
    expect_ended 130 "stopped by a signal"
    expect 0 "tp 2, dp 1, pp 2" "${read_trace[@]}" ended.json
fi

if check "a signal stops an evaluation that would take minutes"; then
    start "$trireme" train --data-path many --split "50,50,0" --eval-interval 1 \
        --eval-iters 30000 "${model[@]}" --train-iters 9 --plain
    until_true is_training
    sleep 0.5
    kill -TERM "$pid"
    expect_ended 130 "stopped by a signal (SIGTERM) after iteration 1"
fi

# The text takes seconds, and its tokenizer is there already.
is_writing() { compgen -G "stopped.*tmp*" >/dev/null; }
if check "preprocessing that is stopped leaves nothing"; then
    cp many.jsonl large.jsonl
    for _ in $(seq 11); do cat large.jsonl large.jsonl >larger.jsonl && mv larger.jsonl large.jsonl; done
    start "$trireme" preprocess --input large.jsonl --output-prefix stopped --tokenizer-model corpus --append-eod
    until_true is_writing
    kill -TERM "$pid"
    expect_ended 130 "stopped by a signal"
    if compgen -G "stopped.*" >/dev/null; then complain "preprocessing left behind: $(echo stopped.*)"; fi
fi

for pid in "${jobs[@]}"; do
    wait "$pid" || complain "a job in the background ended with $?"
done

finish
