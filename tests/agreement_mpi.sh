#!/usr/bin/env bash
# Processes of one job that were started differently: with other options, data, environment, or another build. Each
# job ends with status 78 before anything is trained, and its message names what differs, both ranks and both values.
# Usage: agreement_mpi.sh PATH/trireme
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1"
: >complaints
cases=0

# refused [STATUS] TEXT LEFT... // RIGHT...: the commands of the two ranks. Four jobs, which mostly wait, run at a time.
refused() {
    local want=78
    [[ $1 != [0-9]* ]] || { want=$1 && shift; }
    local text=$1 out=out.$((++cases))
    shift
    (($(jobs -rp | wc -l) < 4)) || wait -n
    {
        mkdir "$out.tmp"
        TMPDIR=$cases_folder/$out.tmp timeout -k 5 180 mpirun -n 2 "$here/by_rank.sh" "$@" >"$out" 2>&1 </dev/null
        code=$?
        [[ $code == "$want" ]] || echo "$text: exit $code, not $want: $(tail -3 "$out")"
        grep -qF -- "$text" "$out" || echo "'$text' is not in: $(head -3 "$out")"
        [[ $(grep -c "trireme: error" "$out") == 1 ]] || echo "$text: not said once: $(head -3 "$out")"
        if grep -q "iteration  " "$out"; then echo "$text: something was trained"; fi
    } >>complaints &
}

# ---- options ---------------------------------------------------------------------------------------------
"$trireme" preprocess --input documents.jsonl --output-prefix others --vocab-size 400 >log 2>&1 || complain "$(cat log)"
run=("$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 3 --threads 1)
while IFS='|' read -r name left right left_arguments right_arguments; do
    [[ -n ${name//[# ]/} && $name != "#"* ]] || continue
    # shellcheck disable=SC2086 # words
    refused "${name% } is${left% } on rank 0 and${right% } on rank 1:" "${run[@]}" $left_arguments // \
        "${run[@]}" $right_arguments
done <"$here/mismatches.txt"

# What all ranks find wrong is said once; and what one rank alone cannot read as options.
refused "world size (2) is not divisible by tensor (3)" "${run[@]}" --tp 3 // "${run[@]}" --tp 3
refused 64 "unknown option --lrr" "${run[@]}" --lrr 1 // "${run[@]}" --lrr 1
refused "the command line is understood on rank 0 and unknown option --lrr" "${run[@]}" // "${run[@]}" --lrr 1
refused "the command line is understood on rank 0 and elsewhere.yaml: " "${run[@]}" // "${run[@]}" --config elsewhere.yaml

# ---- program and environment -----------------------------------------------------------------------------
# The linker's build id is a note of 36 bytes; the last 20 are the id.
objcopy --dump-section .note.gnu.build-id=note "$trireme" /dev/null 2>/dev/null
if [[ -s note ]]; then
    printf 'another build, 20 by' | dd of=note bs=1 seek=16 conv=notrunc status=none
    objcopy --update-section .note.gnu.build-id=note "$trireme" another
    ln -s "${trireme%/*}"/trireme_mpi_*.so .
    refused "build 616e6f74686572206275696c642c203230206279 on rank 1" "${run[@]}" // ./another "${run[@]:1}"
else
    complain "no build id in $trireme"
fi
refused "the environment's DNNL_MAX_CPU_ISA is unset on rank 0 and AVX2 on rank 1" "${run[@]}" // \
    env DNNL_MAX_CPU_ISA=AVX2 "${run[@]}"
refused "the environment's ONEDNN_DEFAULT_FPMATH_MODE is BF16 on rank 0 and unset on rank 1" \
    env ONEDNN_DEFAULT_FPMATH_MODE=BF16 "${run[@]}" // "${run[@]}"

# ---- data: different files under one name ----------------------------------------------------------------
mkdir left right blend
cp documents.* left && cp others.bin right/documents.bin && cp others.idx right/documents.idx
cp documents.tokenizer.json right
refused "the data set documents is 600 documents" env -C left "${run[@]}" // env -C right "${run[@]}"
# The same lengths, one other token.
mkdir token && cp documents.* token
printf '\x07\x00' | dd of=token/documents.bin bs=2 seek=1000 conv=notrunc status=none
refused "the data set documents is 600 documents" env -C left "${run[@]}" // env -C token "${run[@]}"
# As many tokens, two of them in each other's place.
mkdir spelled && cp documents.* spelled
sed -i 's/^"!": 0,/"#": 0,/; s/^"#": 2,/"!": 2,/' spelled/documents.tokenizer.json
cmp -s documents.tokenizer.json spelled/documents.tokenizer.json && complain "the tokenizer was not changed"
refused "the tokenizer is 400 tokens" env -C left "${run[@]}" // env -C spelled "${run[@]}"
echo "0.3 documents 0.7 documents" >left/words
echo "0.5 documents 0.5 documents" >blend/words
cp documents.* blend
blend=("$trireme" train "${corpus[@]:2}" --train-iters 3 --eval-iters 0 --data-args-path words)
refused "the data sets of words is 0.3 documents 0.7 documents on rank 0 and 0.5" env -C left "${blend[@]}" // \
    env -C blend "${blend[@]}"

# ---- a trained model at work -----------------------------------------------------------------------------
train start "${no_evaluation[@]}" --train-iters 3 --threads 1 --save saved
work=("$trireme" generate --load saved --prompt "document" --max-new-tokens 4 --tp 2 --threads 1)
score=("$trireme" evaluate --load saved --data-path documents --tp 2 --threads 1)
refused "--temperature is 0.0 on rank 0 and 1.0 on rank 1:" "${work[@]}" --temperature 0 // "${work[@]}"
refused "--seed is 1 on rank 0 and 2 on rank 1:" "${work[@]}" --seed 1 // "${work[@]}" --seed 2
refused '--prompt is document on rank 0 and two\x0alines on rank 1:' "${work[@]}" // "${work[@]}" \
    --prompt $'two\nlines'
refused "the verb is generate on rank 0 and evaluate on rank 1:" "${work[@]}" // "${score[@]}"
# A model that one rank alone finds.
mkdir empty
refused 66 "[rank 1] saved" "${score[@]}" // env -C empty "${score[@]}"
refused "--micro-batch-size is 2 on rank 0 and 4 on rank 1:" "${score[@]}" --micro-batch-size 2 // \
    "${score[@]}" --micro-batch-size 4
# Two models of one shape and one name.
mkdir twin && cp documents.* twin
(cd twin && train start "${no_evaluation[@]}" --train-iters 3 --threads 1 --seed 7 --save saved)
refused "the model of --load is saved/step-00000003, hash" "${work[@]}" // env -C twin "${work[@]}"
refused "the model of --load is saved/step-00000003, hash" "${score[@]}" // env -C twin "${score[@]}"
again=("$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 6 --threads 1 --load saved --save again)
refused "the model of --load is saved/step-00000003, hash" "${again[@]}" // env -C twin "${again[@]}"
# A value that was given stays as it is beside the model's, also where it is the default.
more=("$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 6 --threads 1 --load flat --save more)
train flat "${no_evaluation[@]}" --train-iters 3 --threads 1 --hidden-dropout 0 --save flat
refused "--hidden-dropout is 0.1 on rank 0 and 0" "${more[@]}" --hidden-dropout 0.1 // "${more[@]}"

# ---- what may differ -------------------------------------------------------------------------------------
wait
mpirun -n 2 "$here/by_rank.sh" "${run[@]}" --metrics a.jsonl // \
    "${run[@]}" --threads 2 --data-cache-path cache --plain >log 2>&1 </dev/null || complain "$(cat log)"
[[ $(rows a) == 3 ]] || complain "$(rows a) rows of a run whose ranks may differ"

((cases >= 50)) || complain "only $cases jobs"
[[ -s complaints ]] && complain "$(cat complaints)"
finish
