#!/usr/bin/env bash
# Every library of others that the program can do without: a build that has it uses it, one that lacks it trains and
# generates all the same, and refuses what needs the library with status 69 and the package to install.
# Usage: libraries.sh PATH/trireme
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1"
"$trireme" --version >version

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
    if grep -q "^built with.* $library\b" version; then
        expect "$status" "$@"
    else
        grep -q "^without $library,.*$package\$" version || complain "--version says nothing of $library"
        expect 69 "$@"
        grep -qF "needs $library" said || complain "$library is not named: $(cat said)"
        grep -qF "$package" said || complain "$package is not named: $(cat said)"
    fi
}

tiny=("${corpus[@]}" "${no_evaluation[@]}" --train-iters 2)
check "a model is trained, saved and used" # of ASCII
train fp32 "${no_evaluation[@]}" --train-iters 2 --save saved --ranks 2 --tp 2
train bf16 "${no_evaluation[@]}" --train-iters 2 --bf16
expect 0 "$trireme" generate --load saved --prompt "int f" --max-new-tokens 3
expect 0 "$trireme" checkpoint verify saved
expect 0 "$trireme" memory --model gpt2-124m --mbs 1

check "a configuration file"
printf 'train-iters: 2\n' >two.yaml
needs libyaml libyaml-dev 0 "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --config two.yaml

check "a plan, whose machines are YAML"
needs libyaml libyaml-dev 0 "$trireme" plan --model gpt2-124m --gpus 8 --machine dgx-a100 --gbs 64

check "text of gzip"
gzip -k documents.jsonl
needs zlib zlib1g-dev 0 "$trireme" preprocess --input documents.jsonl.gz --output-prefix gzipped --vocab-size 300

check "text of zstd"
printf '\x28\xb5\x2f\xfd\x20\x01\x09\x00\x00x' >x.jsonl.zst # damaged
needs zstd libzstd-dev 65 "$trireme" preprocess --input x.jsonl.zst --output-prefix compressed --vocab-size 300

check "a SentencePiece model"
printf '\nno model' >tokenizer.model
needs SentencePiece libsentencepiece-dev 65 "$trireme" tokenizer inspect --tokenizer-type SentencePieceTokenizer --tokenizer-model tokenizer.model

# Such a process would otherwise train by itself, beside as many others.
check "a rank of a launcher's"
if ! grep -q '^built with.* MPI\b' version; then
    for rank in 0 1; do
        needs MPI libopenmpi-dev 0 env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=$rank \
            "$trireme" train "${tiny[@]}"
    done
fi
finish
