#!/usr/bin/env bash
# Runs that train adapters (LoRA): their checkpoints hold the adapters alone and name their base, go on from it on any grid, and
# say so where it is gone or another one.
# Usage: lora_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

adapters=("${no_evaluation[@]}" --lora-rank 4 --lora-alpha 16 --lora-dropout 0.1)
begins=("${adapters[@]}" --load base --finetune)
train base "${no_evaluation[@]}" --train-iters 3 --save base
train whole "${begins[@]}" --train-iters 8 --save whole --save-interval 4

# refused CODE WORDS VERB OPTION...: it ends so.
refused() {
    local code=$1 words=$2 status
    shift 2
    timeout -k 5 180 "$trireme" "$@" >refused.log 2>&1 </dev/null
    status=$?
    [[ $status == "$code" ]] || complain "$*: exit $status, not $code: $(tail -3 refused.log)"
    grep -qF -e "$words" refused.log || complain "$*: '$words' is not in $(tail -3 refused.log)"
}
# ends_as_whole NAME: its last steps are those of the whole run.
ends_as_whole() {
    local count
    count=$(rows "$1")
    [[ $count -ge 4 && $(metric lm_loss "$1") == "$(metric lm_loss whole | tail -n "$count")" ]] ||
        complain "$1: $(metric lm_loss "$1" | xargs) are not the last of $(metric lm_loss whole | xargs)"
}
train_more=(train "${corpus[@]}" --train-iters 1)

if check "a checkpoint holds adapters alone, and names its base"; then
    "$trireme" checkpoint inspect whole/step-00000008 >inspect.log 2>&1 || complain "$(tail -3 inspect.log)"
    grep -qE "^ *base +$PWD/base/step-00000003$" inspect.log || complain "no base in $(cat inspect.log)"
    names=$(grep -o '"name": "[^"]*"' whole/step-00000008/manifest.json | grep -c 'decoder\|embedding\|output_layer')
    [[ $names == 96 ]] || complain "$names tensors, not 3 of 2 factors of 4 linear layers in 4 layers"
    ! grep -o '"name": "[^"]*"' whole/step-00000008/manifest.json | grep 'decoder' | grep -qv 'lora_[AB].weight' ||
        complain "there are weights of the base"
    "$trireme" checkpoint verify whole >verify.log 2>&1 || complain "$(tail -3 verify.log)"
fi

if check "a run goes on with the same bits, with what the checkpoint brings"; then
    train again "${no_evaluation[@]}" --load whole --ckpt-step 4 --train-iters 8
    ends_as_whole again
    grep -qF -e '--lora-rank 4 --lora-alpha 16.0 --lora-target-modules linear_qkv,linear_proj,linear_fc1,linear_fc2' again.log ||
        complain "again: $(grep -F taken again.log)"
    train pipeline "${no_evaluation[@]}" --load whole --ckpt-step 4 --train-iters 8 --ranks 4 --pp 4 --schedule zb-h1 \
        --recompute-granularity full --recompute-method uniform
    ends_as_whole pipeline
fi

if check "any grid saves what one rank saves, and takes what is predicted"; then
    train grid "${begins[@]}" --train-iters 8 --save grid --ranks 2 --pp 2 --async-save
    "$trireme" checkpoint diff whole/step-00000008 grid/step-00000008 >diff.log 2>&1 || complain "$(tail -3 diff.log)"
    train sharded "${begins[@]}" --train-iters 8 --save sharded --ranks 4 --pp 2 --use-distributed-optimizer --virtual-data-parallel 4
    train tree "${begins[@]}" --train-iters 8 --save tree --virtual-data-parallel 4
    "$trireme" checkpoint diff tree/step-00000008 sharded/step-00000008 >diff.log 2>&1 || complain "$(tail -3 diff.log)"
    train cut "${begins[@]}" --train-iters 8 --ranks 2 --tp 2 --sequence-parallel
    expect_close whole cut 1e-4
fi

if check "evaluation and text are those of base and adapters"; then
    for model in base whole; do
        "$trireme" evaluate --load "$model" --data-path documents --seq-length 32 >"$model.evaluated" 2>&1 ||
            complain "$model: $(tail -3 "$model.evaluated")"
    done
    ! diff -q <(grep -o 'perplexity.*' base.evaluated) <(grep -o 'perplexity.*' whole.evaluated) >/dev/null || complain "adapters change nothing"
    "$trireme" export --load whole --to peft --output alone >export.log 2>&1 || complain "$(tail -3 export.log)"
    trained=$(sed -n 's/^adapters: .*: \(.* M parameters\) are trained.*/\1/p' whole.log)
    grep -qF "alone: ${trained:-of no adapter} as f32" export.log || complain "'$trained' is not in $(cat export.log)"
    "$trireme" generate --load whole --prompt "document 7" --max-new-tokens 8 >generated.log 2>&1 || complain "$(tail -3 generated.log)"
fi

if check "a base that is gone, or another one, is refused"; then
    mv base elsewhere
    refused 66 "holds adapters for the model $PWD/base/step-00000003, which cannot be read: put the model back, or a link to it" \
        "${train_more[@]}" "${no_evaluation[@]}" --load whole
    refused 66 "holds adapters for the model" evaluate --load whole --data-path documents
    mkdir -p base
    train other "${no_evaluation[@]}" --train-iters 3 --seed 2 --save base
    refused 66 "and another one is there now: put the model back, or a link to it" "${train_more[@]}" "${no_evaluation[@]}" --load whole
    rm -r base
    ln -s elsewhere base
    train linked "${no_evaluation[@]}" --load whole --ckpt-step 4 --train-iters 8 --lora-dropout 0.1
    ends_as_whole linked
    rm base
    mv elsewhere base
fi

if check "what makes no sense is refused"; then
    refused 78 "--lora-rank 8 (it has 4)" "${train_more[@]}" "${no_evaluation[@]}" --load whole --lora-rank 8
    refused 78 "the model has no adapters, so that --lora-rank 4 does not go on with it: add --finetune" \
        "${train_more[@]}" "${adapters[@]}" --load base
    refused 66 "nothing is there yet, and --lora-rank 4 trains adapters beside a model" \
        "${train_more[@]}" "${adapters[@]}" --load new --save new
fi

# perplexity NAME OPTION...: what evaluate says of the data.
perplexity() {
    "$trireme" evaluate --data-path documents --seq-length 32 "${@:2}" >"$1.evaluated" 2>&1 || complain "$1: $(tail -3 "$1.evaluated")"
    grep -o 'perplexity.*' "$1.evaluated"
}
if check "a checkpoint of adapters is used beside another copy of its base, and a note says where that is another model"; then
    wanted=$(perplexity beside-own --load whole)
    "$trireme" export --load whole --to peft --output peft >export.log 2>&1 || complain "$(tail -3 export.log)"
    mv base elsewhere
    [[ -n $wanted && $(perplexity beside-copy --load elsewhere --adapter whole) == "$wanted" ]] || complain "$(grep perp beside-copy.evaluated), not $wanted"
    ! grep WARNING beside-copy.evaluated || complain "a warning of the base itself"
    "$trireme" export --load elsewhere --adapter whole --to peft --output copied >export.log 2>&1 || complain "$(tail -3 export.log)"
    cmp -s peft/adapter_model.safetensors copied/adapter_model.safetensors || complain "another adapter is written"
    refused 66 "export also take --load MODEL --adapter whole/step-00000008" evaluate --load whole --data-path documents
    train others "${no_evaluation[@]}" --train-iters 1 --seed 2 --save others
    [[ $(perplexity beside-others --load others --adapter whole) != "$wanted" ]] || complain "the base changes nothing"
    for log in beside-others.evaluated export.log; do
        [[ $log != export.log ]] || "$trireme" export --load others --adapter whole --output merged >export.log 2>&1
        grep -qF "WARNING: whole/step-00000008 was trained beside the model $PWD/base/step-00000003, and others/step-00000001 is not" $log ||
            complain "no note in $(cat $log)"
    done
    mv elsewhere base
fi

if check "--use-ema takes the average of an adapter"; then
    train averaged "${begins[@]}" --train-iters 4 --save averaged --ema-decay 0.5
    wanted=$(perplexity average --load averaged --use-ema)
    [[ -n $wanted && $(perplexity beside --load base --adapter averaged --use-ema) == "$wanted" ]] || complain "$(grep perp beside.evaluated), not $wanted"
    [[ $(perplexity last --load base --adapter averaged) != "$wanted" ]] || complain "the average is the last"
    refused 78 "whole/step-00000008 keeps no moving average" evaluate --load base --adapter whole --use-ema --data-path documents
fi

if check "--allow-non-finite takes an adapter as it is"; then
    "$trireme" export --load whole --to peft --dtype f32 --output damaged >export.log 2>&1 || complain "$(tail -3 export.log)"
    size=$(stat -c %s damaged/adapter_model.safetensors)
    printf '\0\0\300\177' | dd of=damaged/adapter_model.safetensors bs=1 seek=$((size - 4)) conv=notrunc status=none
    for words in "--load base --adapter damaged" "--load damaged"; do
        read -ra loads <<<"$words"
        refused 65 "lora_B.weight is NaN in row" evaluate "${loads[@]}" --data-path documents --seq-length 32
        refused 65 "(--allow-non-finite takes it as it is)" export "${loads[@]}" --output never
        "$trireme" export "${loads[@]}" --output taken --allow-non-finite >export.log 2>&1 || complain "$(tail -3 export.log)"
        grep -q "WARNING: damaged: weight .*is NaN" export.log || complain "no warning in $(cat export.log)"
        rm -rf taken
    done
    "$trireme" generate --load base --adapter damaged --allow-non-finite --prompt "document 7" --max-new-tokens 2 >generated.log 2>&1
    grep -q "WARNING: damaged: weight .*is NaN" generated.log || complain "generate: $(cat generated.log)"
fi

if check "trireme memory says what adapters beside a model will take"; then
    table() { sed -n '/^MiB of each rank/,$p' "$1" | grep -v '^one step'; }
    "$trireme" memory --load base --lora-rank 4 --micro-batch-size 1 --global-batch-size 8 >memory.log 2>&1 ||
        complain "exit $?: $(tail -3 memory.log)"
    train dry "${no_evaluation[@]}" --load base --finetune --lora-rank 4 --train-iters 1 --dry-run
    [[ -n $(table memory.log) && $(table memory.log) == "$(table dry.log)" ]] || complain "$(diff <(table memory.log) <(table dry.log))"
fi

if check "a run of adapters does not save where it would remove their base"; then
    cp -r base tuned
    train beside "${adapters[@]}" --load tuned --finetune --train-iters 2 --save beside
    refused 78 "--save tuned: the base of the adapters, $PWD/tuned/step-00000003, lies there among the checkpoints" \
        train "${corpus[@]}" "${no_evaluation[@]}" --load beside --save tuned --train-iters 6 --save-interval 2 --keep-last 1
    train beside-on "${no_evaluation[@]}" --load beside --save beside --train-iters 6 --save-interval 2 --keep-last 1
    rm -r tuned beside
fi

if check "a supervised run whose rank is killed goes on with the same bits"; then
    "$trireme" supervise -- train "${corpus[@]}" "${begins[@]}" --train-iters 40 --save killed --save-interval 4 --plain \
        >killed.log 2>&1 </dev/null &
    supervisor=$!
    for _ in $(seq 600); do
        [[ -d killed/step-00000008 ]] && break
        sleep 0.1
    done
    rank=$(pgrep -P "$supervisor" -x trireme | head -1)
    kill -KILL "$rank"
    wait "$supervisor" || complain "supervise: exit $?: $(tail -4 killed.log)"
    grep -q killed killed.log || complain "no rank was killed: $(tail -4 killed.log)"
    train undisturbed "${begins[@]}" --train-iters 40 --save undisturbed
    "$trireme" checkpoint diff undisturbed/step-00000040 killed/step-00000040 >diff.log 2>&1 || complain "$(tail -3 diff.log)"
fi
finish
