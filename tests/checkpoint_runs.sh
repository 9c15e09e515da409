#!/usr/bin/env bash
# What a run remembers and what a save that fails does, as people meet it: going on with every option that changes
# what is read, with other batches and evaluations than before, beside damaged, later and half-written
# checkpoints, and when writing fails on one rank.
# Usage: checkpoint_runs.sh PATH/trireme PATH/libfaults.so [WORD...]    with words: only the cases whose names contain one
set -uo pipefail
faults=$(realpath "$2")
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1" "${@:3}"

# refused CODE WORDS OPTION...: a training run that ends so.
refused() {
    local code=$1 words=$2 status
    shift 2
    timeout -k 5 180 "$trireme" train "${corpus[@]}" "$@" >refused.log 2>&1 </dev/null
    status=$?
    [[ $status == "$code" ]] || complain "$*: exit $status, not $code: $(tail -3 refused.log)"
    grep -q -e "$words" refused.log || complain "$*: '$words' is not in $(tail -3 refused.log)"
}

steps() { (cd "$1" && echo step-* | sed 's/step-0*//g'); }
expect_steps() { [[ $(steps "$1") == "$2" ]] || complain "$1 has steps $(steps "$1"), not $2"; }
expect_clean() { compgen -G "$1/.tmp*" >/dev/null && complain "$1: $(ls -A "$1") are left"; }
says() { grep -q -e "$2" "$1.log" || complain "$1: '$2' is not in $(tail -5 "$1.log")"; }
# wait_for WORDS FILE: until they are there, or half a minute.
wait_for() {
    for _ in $(seq 300); do
        grep -qs "$1" "$2" && return
        sleep 0.1
    done
    complain "'$1' never came into $2: $(tail -3 "$2")"
}
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
if check "going on with a loss scale that falls is never having stopped"; then
    goes_on fp16 --train-iters 12 "${no_evaluation[@]}" --fp16 --initial-loss-scale 8388608 --loss-scale-window 3
    goes_on fp16_default --train-iters 12 "${no_evaluation[@]}" --fp16
    metric grad_norm fp16-whole | grep -q Inf || complain "fp16: no step was skipped"
fi
if check "going on with a loss scale that grows is never having stopped"; then
    goes_on scale_of_one --train-iters 12 "${no_evaluation[@]}" --fp16 --initial-loss-scale 1 \
        --loss-scale-window 8
    [[ $(metric loss_scale scale_of_one-whole | tail -1) == 2 ]] || complain "scale_of_one: the scale never grew"
fi
if check "going on with a batch that grows is never having stopped"; then
    goes_on ramp --train-samples 96 --rampup-batch-size 4 4 24 --eval-interval 3 --eval-iters 2
fi
if check "going on with a decay that changes, on a grid, is never having stopped"; then
    goes_on decay --train-iters 10 --eval-interval 5 --eval-iters 2 --start-weight-decay 0.01 --end-weight-decay 0.1 \
        --weight-decay-incr-style linear --ranks 4 --dp 2 --tp 2 --use-distributed-optimizer
fi
if check "going on with Muon and an average of the weights, on a grid, is never having stopped"; then
    goes_on muon --train-iters 10 "${no_evaluation[@]}" --optimizer muon --muon-nesterov --ema-decay 0.9 --bf16 \
        --ranks 4 --dp 2 --pp 2 --use-distributed-optimizer
    train muon-alone --train-iters 10 "${no_evaluation[@]}" --optimizer dist_muon --muon-use-nesterov --bf16
    expect_close muon-whole muon-alone 1e-3
    grep -q '"version": 4' muon/step-00000010/manifest.json || complain "muon: older programs take it for damaged"
fi

# ---- not all of it --------------------------------------------------------------------------------------
common=("${no_evaluation[@]}" --train-iters 10)
save_both() {
    train saving "${common[@]}" --save saved --exit-interval 5
    train bare "${common[@]}" --save bare --exit-interval 5 --no-save-optim
}
if check "--finetune begins at step 0 with the saved model"; then
    need save_both
    train finetuned "${common[@]}" --load saved --finetune
    [[ $(rows finetuned) == 10 ]] || complain "finetuned: $(rows finetuned) steps, not 10"
    awk "BEGIN { exit !($(metric lm_loss finetuned | head -1) < $(metric lm_loss saving | head -1) - 0.05) }" ||
        complain "finetuned: it begins with another model"
fi
if check "--no-load-optim takes the weights alone"; then
    need save_both
    train fresh "${common[@]}" --load saved --no-load-optim
    train fresh_bare "${common[@]}" --load bare --no-load-optim
    expect_same lm_loss fresh fresh_bare
    [[ $(rows fresh) == 5 ]] || complain "fresh: $(rows fresh) steps, not 5"
fi
if check "a checkpoint without moments is refused"; then
    need save_both
    refused 78 "no-save-optim" "${common[@]}" --load bare
fi
if check "another optimizer than that of the checkpoint is refused"; then
    need save_both
    refused 78 "state of --optimizer adam.*--no-load-optim" "${common[@]}" --load saved --optimizer muon
    train other "${common[@]}" --load saved --optimizer muon --no-load-optim
    expect_rows other 5
fi
if check "another model than the one of the checkpoint is refused"; then
    need save_both
    refused 78 "[-]-norm-epsilon 1e-06 (it has 1e-05)" "${common[@]}" --load saved --norm-epsilon 1e-6
    refused 78 "[-]-num-layers 2 (it has 4)" "${common[@]}" --load saved --num-layers 2
fi
if check "a checkpoint that is not there is refused"; then
    need save_both
    refused 66 "there is no checkpoint of step 4; there " "${common[@]}" --load saved --ckpt-step 4
    refused 66 "nowhere" "${common[@]}" --load nowhere --exit-on-missing-checkpoint
fi
# Nothing is left to do, but it is to be elsewhere.
if check "a run with nothing left to do is saved elsewhere"; then
    need save_both
    train moved "${common[@]}" --train-iters 5 --load saved --save moved
    expect_steps moved 5
fi

# ---- other batches and evaluations than before ------------------------------------------------------------
if check "going on with another interval of evaluation"; then
    train often --split 50,50,0 --train-iters 8 --exit-interval 4 --eval-interval 1 --eval-iters 16 --save often
    train seldom --split 50,50,0 --train-iters 8 --eval-interval 4 --eval-iters 1 --load often
    [[ $(metric validation_loss seldom | wc -l) -ge 1 ]] || complain "seldom: no evaluation"
fi
if check "going on with another batch"; then
    train large "${no_evaluation[@]}" --train-samples 96 --global-batch-size 16 --exit-interval 3 --save large
    train small "${no_evaluation[@]}" --train-samples 96 --global-batch-size 4 --load large
    [[ $(metric consumed_samples small | tail -1) == 96 ]] || complain "small: not 96 samples"
    train larger "${no_evaluation[@]}" --train-samples 96 --global-batch-size 24 --load large
    [[ $(metric consumed_samples larger | tail -1) == 96 ]] || complain "larger: not 96 samples"
fi
if check "a batch that the number of samples does not fit is refused"; then
    train first "${no_evaluation[@]}" --train-iters 10 --global-batch-size 96 --exit-interval 8 --save first
    refused 78 "train-samples" "${no_evaluation[@]}" --train-iters 10 --global-batch-size 4 --load first
fi

# ---- beside others ----------------------------------------------------------------------------------------
save_four() {
    train four "${no_evaluation[@]}" --train-iters 8 --save-interval 2 --save four
    expect_steps four "2 4 6 8"
}
if check "an older checkpoint can be loaded, and the later ones stay"; then
    need save_four
    cp -r four back
    train back "${no_evaluation[@]}" --train-iters 6 --exit-interval 3 --ckpt-step 2 --load back --save back \
        --keep-last 1
    expect_steps back "3 4 6 8"
    says back "takes the newest"
fi
# What cannot even be opened is passed over, and told.
if check "a checkpoint that cannot be opened is passed over with a warning"; then
    need save_four
    cp -r four bad
    echo >>bad/step-00000008/manifest.json
    "$trireme" export --load bad --output bad-hf >export.log 2>&1 || complain "export: $(cat export.log)"
    says export "WARNING: bad/step-00000008/manifest.json: damaged.*going back to bad/step-00000006"
fi
if check "damaged checkpoints are passed over and named"; then
    need save_four
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
    [[ $left == $'.lock\nrun.json\nstep-00000005\nstep-00000006\nstep-00000008' ]] || complain "four has $left"
fi

# ---- two runs, and a signal -------------------------------------------------------------------------------
if check "a run waits for another one that saves to its folder"; then
    "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 20000 --save busy --save-interval 20000 \
        >busy.log 2>&1 </dev/null &
    pid=$!
    wait_for "iteration  " busy.log
    refused 69 "another run is writing there (process $pid on .* since 20.*waited 0.1 s" "${common[@]}" --save busy \
        --lock-timeout 0.1
    # It is waited for.
    "$trireme" train "${corpus[@]}" "${common[@]}" --train-iters 2 --save busy --lock-timeout 60 >waiting.log 2>&1 \
        </dev/null &
    waiting=$!
    wait_for "waiting up to 60 s" waiting.log
    kill -INT $pid
    wait $pid
    status=$?
    wait $waiting || complain "waiting: exit $?: $(tail -3 waiting.log)"
    says waiting "another run is writing there (process $pid on .*): waiting up to 60 s for it to end"
    [[ $status == 130 ]] || complain "busy: exit $status, not 130"
    says busy "go on with --load busy"
    "$trireme" checkpoint verify busy >verify.log 2>&1 || complain "busy: $(cat verify.log)"
fi

if check "a run with --finetune that is stopped says that it goes on without it"; then
    need save_both
    "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 20000 --load saved --finetune --save tuned \
        >tuned.log 2>&1 </dev/null &
    pid=$!
    wait_for "iteration  " tuned.log
    kill -INT $pid
    wait $pid
    says tuned "go on with --load tuned and without --finetune"
fi

# ---- a lock that is lost ----------------------------------------------------------------------------------
# loses_lock NAME COMMAND...: what happens to the folder NAME of a run that saves again and again.
loses_lock() {
    local name=$1 pid status
    shift
    "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 20000 --save "$name" --save-interval 50 \
        --keep-last 1 >"$name.log" 2>&1 </dev/null &
    pid=$!
    wait_for "saved" "$name.log"
    "$@"
    if [[ -d $name ]]; then mkdir -p "$name"/.tmp-step-{00000000..00020000..50}; fi # saves of another run
    wait $pid
    status=$?
    if [[ -d $name ]]; then
        left=$(find "$name" -maxdepth 1 -name ".tmp-step*" | wc -l)
        [[ $left == 401 ]] || complain "$name: $left of 401 saves of another run are left"
        rm -r "$name"/.tmp-step-*
    fi
    [[ $status == 73 ]] || complain "$name: exit $status, not 73: $(tail -3 "$name.log")"
    says "$name" "$name/.lock is not the lock that this run holds any more"
}
if check "a run without its lock ends"; then
    loses_lock unlocked rm unlocked/.lock
    "$trireme" checkpoint verify unlocked >verify.log 2>&1 || complain "unlocked: $(cat verify.log)"
fi
if check "a run whose folder is moved ends"; then
    loses_lock moved_away mv moved_away elsewhere
    [[ ! -e moved_away ]] || complain "moved_away: it was made again"
    "$trireme" checkpoint verify elsewhere >verify.log 2>&1 || complain "moved_away: $(cat verify.log)"
fi
if check "a run whose folder is replaced ends"; then
    loses_lock replaced bash -c "mv replaced replaced.1; mkdir replaced; touch replaced/.lock"
    [[ $(ls -A replaced) == .lock ]] || complain "replaced: $(ls -A replaced) are there"
fi

# ---- a launcher that is killed ------------------------------------------------------------------------------
# The same command at once again, as a supervisor does.
if check "a job can follow at once on one whose launcher was killed"; then
    if type mpirun >/dev/null 2>&1; then
        for n in 1 2 3; do
            mpirun -n 2 "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 20000 \
                --save orphans --load orphans --save-interval 20 --keep-last 1 >"orphans$n.log" 2>&1 </dev/null &
            pid=$!
            wait_for "saved" "orphans$n.log"
            kill -9 $pid
            wait $pid 2>/dev/null
        done
        timeout -k 5 180 mpirun -n 2 "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" \
            --save orphans --load orphans --exit-interval 1 --train-iters 20000 >orphans.log 2>&1 </dev/null ||
            complain "orphans: exit $?: $(tail -3 orphans.log)"
    fi
fi

# ---- started without standard files -------------------------------------------------------------------------
if check "a run without standard files saves"; then
    "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 24 --save closed --save-interval 2 \
        --log-interval 1 --async-save --ranks 2 <&- >&- 2>&-
    status=$?
    [[ $status == 74 ]] || complain "closed: exit $status, not 74"
    expect_steps closed "2 4 6 8 10 12 14 16 18 20 22 24"
    "$trireme" checkpoint verify closed >verify.log 2>&1 || complain "closed: $(grep damaged verify.log | head -3)"
fi
if check "output without standard output is an error"; then
    "$trireme" models >&- 2>closed.log
    status=$?
    [[ $status == 74 ]] || complain "models: exit $status, not 74"
    says closed "standard output: not everything could be written"
    "$trireme" checkpoint verify closed <&- >verify.log 2>&- || complain "closed: exit $?"
fi

# ---- saves that fail --------------------------------------------------------------------------------------
# fails NAME FAULT OPTION...: a run with such a fault; leaves NAME.log and $status.
fails() {
    local name=$1 fault=$2
    shift 2
    LD_PRELOAD=$faults TRIREME_FAULT=$fault timeout -k 5 180 "$trireme" train "${corpus[@]}" \
        "${no_evaluation[@]}" --train-iters 8 --save-interval 2 --save "$name" "$@" >"$name.log" 2>&1 </dev/null
    status=$?
    expect_clean "$name"
    compgen -G "$name/step-*" >/dev/null || return
    "$trireme" checkpoint verify "$name" >verify.log 2>&1 || complain "$name: $(cat verify.log)"
}
# The 17th write of a save is that of the manifest, behind those of all ranks and of config.yaml.
for save in --no-async-save --async-save; do
    for fault in fsync:3:EIO write:17:ENOSPC rename:2:EIO; do
        if check "a save that fails once is told, training goes on: $fault $save"; then
            name="fault-${fault//:/-}$save"
            fails "$name" "$fault" $save --ranks 4 --dp 2 --tp 2 --use-distributed-optimizer
            [[ $status == 0 ]] || complain "$name: exit $status: $(tail -3 "$name.log")"
            says "$name" "iteration 2 was not saved, training goes on"
            [[ $fault != write* ]] || says "$name" "manifest.json: cannot write at byte 0"
            [[ $(steps "$name") == "4 6 8" ]] || complain "$name has steps $(steps "$name")"
        fi
    done
    # Altered on the way to the disk: the older checkpoint stays, and the run ends when it happens again.
    if check "bytes altered on the way to the disk keep the older checkpoint: $save"; then
        train "intact$save" "${no_evaluation[@]}" --train-iters 8 --exit-interval 2 --save "intact$save"
        fails "intact$save" "write:1+:FLIP" $save --load "intact$save" --keep-last 1 --train-iters 20 --ranks 2 --dp 2
        [[ $status == 74 ]] || complain "intact$save: exit $status: $(tail -3 "intact$save.log")"
        says "intact$save" "iteration 4 was not saved, training goes on.*/rank-0000.*: within bytes 0 to .* the disk does"
        expect_steps "intact$save" 2
    fi
    if check "saves that always fail end a run: $save"; then
        fails "always$save" "fsync:1+:EIO" $save --ranks 2 --dp 2
        [[ $status == 74 ]] || complain "always$save: exit $status: $(tail -3 "always$save.log")"
        says "always$save" "could not be saved"
    fi
done

# ---- what would fail is told before the first step ------------------------------------------------------------
# A checkpoint takes some 0.9 MB; as long as one is kept, two are there while one is written.
no_room() { # BYTES OPTION...
    local bytes=$1
    shift
    LD_PRELOAD=$faults TRIREME_FAULT=statvfs:1+:ROOM$bytes timeout -k 5 180 "$trireme" train "${corpus[@]}" \
        "${common[@]}" "$@" >room.log 2>&1 </dev/null
    status=$?
}
save_room3() { no_room 1500000 --save room3 --save-interval 2; }
if check "no room for one checkpoint is told before the first step"; then
    no_room 600000 --save room1
    [[ $status == 73 ]] || complain "room1: exit $status: $(tail -3 room.log)"
    says room "room1: no space for 1 checkpoint: 0.9 MB are needed, 0.6 MB are left"
    grep -q "iteration  " room.log && complain "room1: it trains"
fi
if check "no room for two checkpoints is told before the first step"; then
    no_room 1500000 --save room2 --save-interval 2 --keep-last 1
    [[ $status == 73 ]] || complain "room2: exit $status: $(tail -3 room.log)"
    says room "room2: no space for 2 checkpoints (0.9 MB each): 1.7 MB are needed, 1.5 MB are left"
fi
if check "no room for all checkpoints is a warning"; then
    need save_room3
    [[ $status == 0 ]] || complain "room3: exit $status: $(tail -3 room.log)"
    says room "WARNING: room3: no space for 5 checkpoints .* --keep-last N removes older ones"
fi
if check "no room beside the checkpoints of --keep-last is told before the first step"; then
    need save_room3
    no_room 1500000 --save room4 --save-interval 2 --keep-last 9 --load room3 --train-iters 20
    [[ $status == 73 ]] || complain "room4: exit $status: $(tail -3 room.log)"
fi
if check "a run with nothing left to save needs no room"; then
    need save_room3
    no_room 600000 --save room3 --load room3 # nothing is left to train
    [[ $status == 0 ]] || complain "room3: exit $status: $(tail -3 room.log)"
fi
if check "a run with one save left needs room for one"; then
    train room5 "${common[@]}" --save room5 --save-interval 2 --exit-interval 9
    no_room 1500000 --save room5 --load room5 --save-interval 2 --keep-last 9 # only the last one is left
    [[ $status == 0 ]] || complain "room5: exit $status: $(tail -3 room.log)"
fi
if check "--save-retain-interval keeps more than there is room for: a warning"; then
    no_room 2000000 --save room6 --save-interval 2 --keep-last 1 --save-retain-interval 2
    [[ $status == 0 ]] || complain "room6: exit $status: $(tail -3 room.log)"
    says room "WARNING: room6: no space for 5 checkpoints .* --save-retain-interval keeps them"
fi
# An old one goes for every new one.
if check "an old checkpoint goes for every new one"; then
    need save_room3
    no_room 1500000 --save room3 --save-interval 2 --keep-last 1 --load room3 --train-iters 20
    [[ $status == 0 ]] || complain "room3: exit $status: $(tail -3 room.log)"
fi
# With a ledger of 60,000 failures an interval is short.
if check "--save-interval auto tries again half an interval after a save that failed"; then
    yes '{"at": "2026-11-24T00:00:00.000Z", "mono_s": 0, "event": "opening"}' | head -60000 >often.jsonl
    LD_PRELOAD=$faults TRIREME_FAULT=rename@retried/.tmp-step:1:EIO train retried "${no_evaluation[@]}" \
        --train-iters 300 --save retried --save-interval auto --ledger often.jsonl
    says retried "WARNING: iteration [0-9]* was not saved, training goes on"
    [[ $(grep -c '"event": "save"' often.jsonl) == $(grep -c "successfully saved" retried.log) ]] ||
        complain "the ledger has other saves: $(grep '"save"' often.jsonl)"
    sed -n 's/^saving every \([0-9]*\) it.*/every \1/p; s/^saving checkpoint at iteration *\([0-9]*\) .*/save \1/p' \
        retried.log >retried.lines
    awk '/every/ && $2 > most { most = $2 } /save/ && ++saves == 2 { exit bad = $2 - last > most / 2 + 1 } /save/ { last = $2 }
        END { exit bad || saves < 2 }' retried.lines || complain "$(tr '\n' ' ' <retried.lines)"
fi
if check "a folder whose name is too long is refused"; then
    long=$(printf "%0250d/" {1..16})$(printf "%036d" 0)
    refused 73 "the name of the folder is too long: a checkpoint there needs paths of up to" "${common[@]}" --save "$long"
fi
finish
