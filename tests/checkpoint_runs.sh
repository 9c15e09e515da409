#!/usr/bin/env bash
# What a run remembers and what a save that fails does, as people meet it: going on with every option that changes
# what is read, with other batches and evaluations than before, beside damaged, later and half-written
# checkpoints, and when writing fails on one rank.
# Usage: checkpoint_runs.sh PATH/trireme PATH/libfaults.so
set -uo pipefail
faults=$(realpath "$2")
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1"

# refused CODE WORDS OPTION...: a training run that ends so.
refused() {
    local code=$1 words=$2 status
    shift 2
    timeout -k 5 60 "$trireme" train "${corpus[@]}" "$@" >refused.log 2>&1 </dev/null
    status=$?
    [[ $status == "$code" ]] || complain "$*: exit $status, not $code: $(tail -3 refused.log)"
    grep -q -e "$words" refused.log || complain "$*: '$words' is not in $(tail -3 refused.log)"
}

steps() { (cd "$1" && echo step-* | sed 's/step-0*//g'); }
expect_steps() { [[ $(steps "$1") == "$2" ]] || complain "$1 has steps $(steps "$1"), not $2"; }
expect_clean() { compgen -G "$1/.tmp*" >/dev/null && complain "$1: $(ls -A "$1") are left"; }
says() { grep -q -e "$2" "$1.log" || complain "$1: '$2' is not in $(tail -5 "$1.log")"; }
damage() { printf '\377\377' | dd of="$1/rank-00000.safetensors" bs=1 seek=40000 conv=notrunc 2>/dev/null; }

# ---- going on is never having stopped -------------------------------------------------------------------
# goes_on NAME OPTION...: so many steps at once, and the same stopped after 5.
goes_on() {
    local name=$1 key
    shift
    train "$name-whole" "$@"
    train "$name-parts" "$@" --save "$name" --save-interval 2 --async-save --exit-interval 5
    train "$name-parts" "$@" --save "$name" --load "$name" # its metrics go to the end of the file
    for key in lm_loss grad_norm learning_rate loss_scale validation_loss global_batch_size; do
        [[ -z $(metric $key "$name-whole") ]] || expect_same $key "$name-whole" "$name-parts"
    done
}
goes_on fp16 --train-iters 12 "${no_evaluation[@]}" --fp16 --initial-loss-scale 8388608 --loss-scale-window 3
metric grad_norm fp16-whole | grep -q Inf || complain "fp16: no step was skipped"
goes_on scale_of_one --train-iters 12 "${no_evaluation[@]}" --fp16 --initial-loss-scale 1 \
    --loss-scale-window 8
[[ $(metric loss_scale scale_of_one-whole | tail -1) == 2 ]] || complain "scale_of_one: the scale never grew"
goes_on ramp --train-samples 96 --rampup-batch-size 4 4 24 --eval-interval 3 --eval-iters 2
goes_on decay --train-iters 10 --eval-interval 5 --eval-iters 2 --start-weight-decay 0.01 --end-weight-decay 0.1 \
    --weight-decay-incr-style linear --ranks 4 --dp 2 --tp 2 --use-distributed-optimizer

# ---- not all of it --------------------------------------------------------------------------------------
common=("${no_evaluation[@]}" --train-iters 10)
train saving "${common[@]}" --save saved --exit-interval 5
train bare "${common[@]}" --save bare --exit-interval 5 --no-save-optim
train finetuned "${common[@]}" --load saved --finetune
[[ $(rows finetuned) == 10 ]] || complain "finetuned: $(rows finetuned) steps, not 10"
awk "BEGIN { exit !($(metric lm_loss finetuned | head -1) < $(metric lm_loss saving | head -1) - 0.05) }" ||
    complain "finetuned: it begins with another model"
train fresh "${common[@]}" --load saved --no-load-optim
train fresh_bare "${common[@]}" --load bare --no-load-optim
expect_same lm_loss fresh fresh_bare
[[ $(rows fresh) == 5 ]] || complain "fresh: $(rows fresh) steps, not 5"
refused 78 "no-save-optim" "${common[@]}" --load bare
refused 78 "norm_epsilon" "${common[@]}" --load saved --norm-epsilon 1e-6
refused 78 "num_layers" "${common[@]}" --load saved --num-layers 2
refused 66 "step-00000004" "${common[@]}" --load saved --ckpt-step 4
refused 66 "nowhere" "${common[@]}" --load nowhere --exit-on-missing-checkpoint
# Nothing is left to do, but it is to be elsewhere.
train moved "${common[@]}" --train-iters 5 --load saved --save moved
expect_steps moved 5

# ---- other batches and evaluations than before ------------------------------------------------------------
train often --split 50,50,0 --train-iters 8 --exit-interval 4 --eval-interval 1 --eval-iters 16 --save often
train seldom --split 50,50,0 --train-iters 8 --eval-interval 4 --eval-iters 1 --load often
[[ $(metric validation_loss seldom | wc -l) -ge 1 ]] || complain "seldom: no evaluation"
train large "${no_evaluation[@]}" --train-samples 96 --global-batch-size 16 --exit-interval 3 --save large
train small "${no_evaluation[@]}" --train-samples 96 --global-batch-size 4 --load large
[[ $(metric consumed_samples small | tail -1) == 96 ]] || complain "small: not 96 samples"
train larger "${no_evaluation[@]}" --train-samples 96 --global-batch-size 24 --load large
[[ $(metric consumed_samples larger | tail -1) == 96 ]] || complain "larger: not 96 samples"
train first "${no_evaluation[@]}" --train-iters 10 --global-batch-size 96 --exit-interval 8 --save first
refused 78 "train-samples" "${no_evaluation[@]}" --train-iters 10 --global-batch-size 4 --load first

# ---- beside others ----------------------------------------------------------------------------------------
train four "${no_evaluation[@]}" --train-iters 8 --save-interval 2 --save four
expect_steps four "2 4 6 8"
cp -r four back
train back "${no_evaluation[@]}" --train-iters 6 --exit-interval 3 --ckpt-step 2 --load back --save back \
    --keep-last 1
expect_steps back "3 4 6 8"
says back "takes the newest"
# What cannot even be opened is passed over, and told.
cp -r four bad
echo >>bad/step-00000008/manifest.json
"$trireme" export --load bad --output bad-hf >export.log 2>&1 || complain "export: $(cat export.log)"
says export "WARNING: bad/step-00000008/manifest.json: damaged.*going back to bad/step-00000006"
damage four/step-00000008
damage four/step-00000006
mkdir four/.tmp-step-00000009 four/.trash-step-00000001
mv four/step-00000004 four/.old-step-00000004
train damaged "${no_evaluation[@]}" --train-iters 10 --exit-interval 5 --load four --save four --keep-last 1
says damaged "from four/step-00000004"
expect_steps four "5 6 8"
[[ $(grep -c "WARNING: four/step-0000000[68]/rank-00000.safetensors: damaged: tensor" damaged.log) == 2 ]] ||
    complain "damaged: $(grep WARNING damaged.log)"
left=$(ls -A four)
[[ $left == $'.lock\nstep-00000005\nstep-00000006\nstep-00000008' ]] || complain "four has $left"

# ---- two runs, and a signal -------------------------------------------------------------------------------
"$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 20000 --save busy --save-interval 20000 \
    >busy.log 2>&1 </dev/null &
pid=$!
for _ in $(seq 100); do
    grep -qs "iteration  " busy.log && break
    sleep 0.1
done
refused 73 "another run is writing there" "${common[@]}" --save busy
kill -INT $pid
wait $pid
status=$?
[[ $status == 130 ]] || complain "busy: exit $status, not 130"
says busy "go on with --load busy"
"$trireme" checkpoint verify busy >verify.log 2>&1 || complain "busy: $(cat verify.log)"

# ---- saves that fail --------------------------------------------------------------------------------------
# fails NAME FAULT OPTION...: a run with such a fault; leaves NAME.log and $status.
fails() {
    local name=$1 fault=$2
    shift 2
    LD_PRELOAD=$faults TRIREME_FAULT=$fault timeout -k 5 60 "$trireme" train "${corpus[@]}" \
        "${no_evaluation[@]}" --train-iters 8 --save-interval 2 --save "$name" "$@" >"$name.log" 2>&1 </dev/null
    status=$?
    expect_clean "$name"
    compgen -G "$name/step-*" >/dev/null || return
    "$trireme" checkpoint verify "$name" >verify.log 2>&1 || complain "$name: $(cat verify.log)"
}
for save in --no-async-save --async-save; do
    for fault in fsync:3:EIO write:6:ENOSPC rename:2:EIO; do
        name="fault-${fault//:/-}$save"
        fails "$name" "$fault" $save --ranks 4 --dp 2 --tp 2 --use-distributed-optimizer
        [[ $status == 0 ]] || complain "$name: exit $status: $(tail -3 "$name.log")"
        says "$name" "iteration 2 was not saved, training goes on"
        [[ $(steps "$name") == "4 6 8" ]] || complain "$name has steps $(steps "$name")"
    done
    fails "always$save" "fsync:1+:EIO" $save --ranks 2 --dp 2
    [[ $status == 74 ]] || complain "always$save: exit $status: $(tail -3 "always$save.log")"
    says "always$save" "could not be saved"
done
finish
