#!/usr/bin/env bash
# Every library of others that the program can do without: a build that has it uses it, one that lacks it trains and
# generates all the same, and refuses what needs the library with status 69 and the package to install.
# Usage: libraries.sh PATH/trireme
set -uo pipefail
# shellcheck source=tests/cases.sh
source "${BASH_SOURCE%/*}/cases.sh" "$1"
"$trireme" --version >version
has() { grep -q "^built with.* $1\b" version; }

# expect STATUS COMMAND...: leaves what it said in `said`.
expect() {
    local want=$1 status=0
    shift
    timeout -k 5 120 "$@" >said 2>&1 </dev/null || status=$?
    [[ $status == "$want" ]] || complain "status $status, not $want: $* said: $(tail -3 said)"
}

# needs LIBRARY PACKAGE STATUS COMMAND...: ends with the status where the build has the library, else is refused.
needs() {
    local library=$1 package=$2 status=$3
    shift 3
    if has "$library"; then
        expect "$status" "$@"
        return
    fi
    grep -q "^without $library,.*$package\$" version || complain "--version says nothing of $library"
    expect 69 "$@"
    grep -qF "needs $library" said || complain "$library is not named: $(cat said)"
    grep -qF "$package" said || complain "$package is not named: $(cat said)"
}

check "the program says what it is"
for word in commit build devices transports "built with"; do
    grep -q "^$word " version || complain "--version says nothing of '$word'"
done
commit=$(sed -n 's/^commit *\([0-9a-f]*\).*/\1/p' version)
if git -C "$here" rev-parse HEAD >log 2>&1; then
    git -C "$here" cat-file -e "$commit^{commit}" 2>log || complain "'$commit' is no commit: $(cat log)"
fi

for i in $(seq 30); do echo "{\"text\": \"document $i: int f_$i(int a) { return a + $i; } and others\"}"; done >text.jsonl
model=(--data-path text --num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 16 --micro-batch-size 1
    --global-batch-size 2 --lr "1e-3" --threads 1 --train-iters 1 --split "100,0,0" --eval-iters 0)

check "a model is trained, saved and used" # its text is ASCII
expect 0 "$trireme" preprocess --input text.jsonl --output-prefix text --vocab-size 270 --append-eod --workers 1
expect 0 "$trireme" train "${model[@]}" --save saved --ranks 2 --tp 2
expect 0 "$trireme" train "${model[@]}" --bf16
expect 0 "$trireme" generate --load saved --prompt "int f" --max-new-tokens 3 --threads 1
expect 0 "$trireme" checkpoint verify saved

check "a configuration file"
printf 'train-iters: 1\n' >one.yaml
needs libyaml libyaml-dev 0 "$trireme" train "${model[@]}" --config one.yaml

check "a plan, whose machines are YAML"
needs libyaml libyaml-dev 0 "$trireme" plan --model gpt2-124m --gpus 1 --machine dgx-a100 --gbs 8

check "the memory of a run on GPUs"
expect 0 "$trireme" memory "${model[@]}" --device cuda-sim
grep -q "^MiB of each rank" said || complain "no report: $(cat said)"
if has libyaml; then wanted="allow [0-9]* MiB for them"; else wanted="this build lacks libyaml"; fi
grep -q "$wanted" said || complain "'$wanted' is not in: $(cat said)"

check "text of gzip"
gzip -k text.jsonl
needs zlib zlib1g-dev 0 "$trireme" preprocess --input text.jsonl.gz --output-prefix gzipped --vocab-size 270

check "text of zstd"
printf '\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x' >damaged.jsonl.zst
needs zstd libzstd-dev 65 "$trireme" preprocess --input damaged.jsonl.zst --output-prefix packed --vocab-size 270

check "a SentencePiece model"
printf '\nno model' >tokenizer.model
needs SentencePiece libsentencepiece-dev 65 "$trireme" tokenizer inspect --tokenizer-model tokenizer.model

# Such a process would otherwise train by itself, beside as many others.
check "a rank of mpirun's"
has MPI || for rank in 0 1; do
    needs MPI libopenmpi-dev 0 env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=$rank "$trireme" train "${model[@]}"
done
finish
