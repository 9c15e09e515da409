#!/usr/bin/env bash
# Samples that are left out, and runs that go back after a spike of the loss, on data of which a few documents are noise.
# Usage: spike_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

# Each document counts upwards; two of them are of tokens that no other has, in no order.
awk 'BEGIN {
    srand(7)
    for (i = 0; i < 900; i++) {
        line = ""
        noise = i == 400 || i == 401 || i == 700
        for (k = 0; k < 40; k++) line = line (k ? " " : "") (noise ? 50 + int(rand() * 45) : (i * 7 + k) % 48)
        print "{\"text\": \"" line "\"}"
    }
}' >numbers.jsonl
"$trireme" preprocess --input numbers.jsonl --output-prefix numbers --tokenizer-type NullTokenizer --vocab-size 96 \
    --append-eod >log 2>&1 || complain "$(cat log)"
corpus=(--data-path numbers --tokenizer-type NullTokenizer --vocab-size 96 --num-layers 2 --hidden-size 32
    --num-attention-heads 4 --seq-length 40 --micro-batch-size 1 --global-batch-size 2 --lr "5e-3"
    --lr-warmup-iters 10 --lr-decay-style cosine --log-interval 1 "${no_evaluation[@]}" --train-iters 400 --hidden-dropout 0
    --attention-dropout 0)
rewinding=(--save-interval 10 --rewind-on-spike --loss-spike-factor 2.5 --rewind-margin 5)

# tensors_differ FOLDER OTHER: prints how many tensors differ between the newest checkpoints.
tensors_differ() { "$trireme" checkpoint diff "$1" "$2" 2>&1 | sed -n 's/^\([0-9]*\) of [0-9]* tensors.*/\1/p'; }
expect_same_model() {
    [[ $(tensors_differ "$1" "$2") == 0 ]] || complain "$1 and $2 differ: $("$trireme" checkpoint diff "$1" "$2" 2>&1 | tail -3)"
}
back() { sed -n 's/.*the run goes back to iteration \([0-9]*\) and leaves out samples \([0-9]*\) to \([0-9]*\) .*/\1 \2 \3/p' "$1.log"; }
fails() { # STATUS NAME OPTION...: as train, but it ends so
    local want=$1 name=$2 status=0
    shift 2
    timeout -k 5 180 "$trireme" train "${corpus[@]}" "$@" --metrics "$name.jsonl" >"$name.log" 2>&1 </dev/null || status=$?
    [[ $status == "$want" ]] || complain "$name: exit $status, not $want: $(tail -3 "$name.log")"
}
says() { grep -qE -- "$2" "$1.log" || complain "$1 does not say '$2': $(tail -3 "$1.log")"; }

run_spiky() { train spiky --check-for-spiky-loss --loss-spike-factor 2.5; }
run_rewound() { train rewound "${rewinding[@]}" --save rewound; }

# ---- going back ------------------------------------------------------------------------------------------
if check "noise makes the loss jump, and a run that goes back does not train on it"; then
    need run_spiky
    need run_rewound
    says spiky "times the usual"
    [[ $(back rewound | wc -l) -ge 2 ]] || complain "went back so often: $(back rewound)"
    grep -q '"event": "rewind"' rewound.jsonl || complain "the metrics do not have it"
    [[ -n $(ls -d rewound/step-00000400) ]] || complain "no last checkpoint"
    # After the last rewind no loss is a spike, and the samples count on.
    [[ $(metric consumed_samples rewound | tail -1) == 800 ]] || complain "$(tail -1 rewound.jsonl)"
fi
if check "going back is a function of the data: again, and on another grid"; then
    need run_rewound
    train again "${rewinding[@]}" --save again
    train staged "${rewinding[@]}" --save staged --ranks 2 --pp 2 --async-save
    for other in again staged; do
        [[ $(back "$other") == "$(back rewound)" ]] || complain "$other: went back otherwise: $(back "$other")"
        expect_same lm_loss rewound "$other"
        expect_same_model rewound "$other"
    done
    train halves "${rewinding[@]}" --save halves --ranks 2
    [[ $(back halves) == "$(back rewound)" ]] || complain "halves: went back otherwise: $(back halves)"
    expect_close rewound halves
fi
if check "a run that leaves the samples out by hand from that checkpoint is the same"; then
    need run_rewound
    read -r step first last <<<"$(back rewound | head -1)"
    mkdir -p byhand
    cp -r "rewound/step-$(printf %08d "$step")" byhand/
    skip=$("$trireme" checkpoint inspect rewound | sed -n 's/^skipped  *//p')
    train byhand --load byhand --save byhand --save-interval 10 --skip-samples "$skip"
    expect_same_model rewound byhand
    says byhand "samples that are left out: $skip"
    [[ $first -le $last ]] || complain "an empty range"
fi
if check "the checkpoint keeps the samples that are left out"; then
    need run_rewound
    train early "${rewinding[@]}" --save early --load early --exit-interval 330
    train later "${rewinding[@]}" --save early --load early
    expect_same_model rewound early
    [[ $("$trireme" checkpoint inspect early | grep -E '^(skipped|rewinds) ') == \
        "$("$trireme" checkpoint inspect rewound | grep -E '^(skipped|rewinds) ')" ]] || complain "other ranges"
fi
if check "a killed run that went back goes on with the same bits"; then
    need run_rewound
    for number in 1 2 3 4 5 6; do
        timeout -s KILL "0.$((number + 2))" "$trireme" train "${corpus[@]}" "${rewinding[@]}" --save killed --load killed \
            >killed.log 2>&1 </dev/null &
        wait $!
    done
    train killed "${rewinding[@]}" --save killed --load killed
    expect_same_model rewound killed
fi

if check "checkpoints between the one that a run goes back to and the spike are removed"; then
    # The first run stops just before the spike, at a checkpoint; the second goes back far beyond it and stops early.
    train stale --save stale --save-interval 10 --exit-interval 315
    train stale "${rewinding[@]}" --rewind-margin 25 --save stale --load stale --exit-interval 299
    [[ $(back stale) == "290 "* ]] || complain "went back to $(back stale)"
    ls -d stale/step-000003* 2>/dev/null && complain "later checkpoints are left"
    # What is saved again at the step of one that was removed is really saved.
    train wide "${rewinding[@]}" --rewind-margin 15 --save wide
    [[ $(back wide | head -1) == "300 "* ]] || complain "went back to $(back wide)"
    [[ -f wide/step-00000310/manifest.json ]] || complain "step 310 was not saved again: $(ls wide)"
fi

if check "a run goes back to checkpoints of its own alone"; then
    # Another run has left its steps in the folder: those after the one that this run begins with are not its own.
    train foreign --save foreign --save-interval 7 --exit-interval 315
    mkdir -p clean
    cp -r foreign/step-00000252 clean/
    for folder in clean foreign; do
        train "own_$folder" "${rewinding[@]}" --save-interval 20 --save "$folder" --load "$folder" --ckpt-step 252
    done
    [[ $(back own_foreign | head -1) == "300 "* ]] || complain "went back to $(back own_foreign)"
    expect_same lm_loss own_clean own_foreign
    expect_same_model clean foreign
    # The step that it began with is its own; a run that begins anew owns none.
    rm -rf foreign/step-000003* foreign/step-0000028* && mkdir -p bare && cp -r foreign/step-000001* bare/
    train own_first "${rewinding[@]}" --save-interval 200 --save foreign --load foreign --ckpt-step 252
    [[ $(back own_first | head -1) == "252 "* ]] || complain "went back to $(back own_first)"
    fails 76 own_none "${rewinding[@]}" --save-interval 390 --save bare
    says own_none "the run cannot go back: bare has no checkpoint of this run of step [0-9]+ or before"
fi

# saves_keep_up NAME: no step is further from the save before it, or from where the run has gone back to, than the longest
# interval since then.
saves_keep_up() {
    sed -nE 's/^saving every ([0-9]+) it.*/every \1/p; s/^saving checkpoint at iteration +([0-9]+) .*/save \1/p
        s/.*the run goes back to iteration ([0-9]+) .*/back \1/p; s/^ \[.* iteration +([0-9]+)\/.*/step \1/p' "$1.log" >"$1.lines"
    awk '$1 == "every" { now = $2; most = now > most ? now : most }
        $1 == "step" && most && $2 - last > most { exit bad = 1 }
        $1 == "save" || $1 == "back" { last = $2; most = now }
        END { exit bad || !now }' "$1.lines" || complain "$1: steps far from a save: $(grep -v step "$1.lines" | tr '\n' ' ')"
}
if check "the ledger has the rewinds, and --save-interval auto counts from where the run goes on"; then
    yes '{"at": "2026-11-24T00:00:00.000Z", "mono_s": 0, "event": "opening"}' | head -60000 >failing.jsonl
    "$trireme" train "${corpus[@]}" "${rewinding[@]}" --num-layers 6 --hidden-size 96 --lr 2e-3 --loss-spike-factor 4 \
        --save-interval auto --rewind-margin 80 --max-rewinds 2 --exit-interval 330 --save auto --ledger failing.jsonl \
        >auto.log 2>&1 </dev/null
    [[ $? == 0 || $? == 76 ]] || complain "auto: $(tail -3 auto.log)"
    saves_keep_up auto
    train told "${rewinding[@]}" --save told --ledger told.ledger
    "$trireme" goodput told.ledger --json >told.json || complain "goodput: $?"
    told=$(back told | wc -l)
    [[ $(grep -c '"event": "rewind", "from": [0-9]*, "to": [0-9]*, "seconds": 0' told.ledger) == "$told" ]] ||
        complain "not $told rewinds: $(grep rewind told.ledger)"
    grep -q "\"rewinds\": $told," told.json || complain "$(cat told.json)"
fi

# ---- giving up -------------------------------------------------------------------------------------------
if check "after --max-rewinds the run ends and says why"; then
    fails 76 most "${rewinding[@]}" --save most --max-rewinds 1
    says most "the run has gone back 1 times already \(--max-rewinds\)"
    grep -q '"reason": "iteration .*the run has gone back 1 times already' most/run.json || complain "$(cat most/run.json)"
fi
if check "without a checkpoint that is old enough the run ends"; then
    fails 76 young "${rewinding[@]}" --save young --save-interval 390
    says young "the run cannot go back: young has no checkpoint of this run of step [0-9]+ or before"
fi
if check "a loss that is not finite makes a run go back, and too high a rate ends it"; then
    fails 76 hot --save hot --save-interval 1 --rewind-on-spike --loss-spike-factor 1e30 --rewind-margin 1 --lr 1e30 \
        --lr-warmup-iters 0 --train-iters 40 --max-rewinds 2 --clip-grad 0
    [[ $(back hot) == $'1 2 3\n1 4 5' ]] || complain "went back otherwise: $(back hot)"
    says hot "iteration 2: lm loss nan, gradient norm .*; the run has gone back 2 times already"
fi

# ---- by hand ---------------------------------------------------------------------------------------------
skipping=(--skip-samples "4-11,17,200-303" --train-iters 130)
if check "samples are left out on every grid, by ramps of the batch too"; then
    train plain "${skipping[@]}" --save plain --save-interval 100
    train staged2 "${skipping[@]}" --save staged2 --ranks 2 --pp 2
    expect_same lm_loss plain staged2
    train halves2 "${skipping[@]}" --ranks 2
    expect_close plain halves2
    train none --train-iters 130
    [[ $(metric lm_loss plain | head -2) == "$(metric lm_loss none | head -2)" ]] || complain "other samples before the range"
    [[ $(metric lm_loss plain | sed -n 3p) != "$(metric lm_loss none | sed -n 3p)" ]] || complain "nothing is left out"
    [[ $(metric learning_rate plain) == "$(metric learning_rate none)" ]] || complain "the learning rate follows other samples"
    corpus_before=("${corpus[@]}")
    corpus=("${corpus[@]/--train-iters/--train-samples}")
    corpus=("${corpus[@]/--lr-warmup-iters/--lr-warmup-samples}")
    train ramp --rampup-batch-size 2 2 60 --skip-samples "8-15,21" --train-samples 200
    train ramp_staged --rampup-batch-size 2 2 60 --skip-samples "8-15,21" --train-samples 200 --ranks 2 --pp 2
    corpus=("${corpus_before[@]}")
    expect_same lm_loss ramp ramp_staged
    [[ $(metric consumed_samples ramp | tail -1) == 200 ]] || complain "$(tail -1 ramp.jsonl)"
fi
if check "what was trained on cannot be left out afterwards"; then
    train trained --save trained --train-iters 40
    fails 78 late --load trained --save trained --skip-samples 79-90
    says late "has been trained on sample 79. Skip samples from 80 on"
    train onward --load trained --save trained --skip-samples 80-90 --train-iters 50
    train onward --load trained --save trained --skip-samples 80-90 --train-iters 60
    fails 78 later --load trained --save trained --skip-samples 80-91 --train-iters 70
fi
if check "a checkpoint without them is as before"; then
    train before --save before --train-iters 15
    grep -q '"version": 1' before/step-00000015/manifest.json || complain "another version"
    grep -q 'skipped"' before/step-00000015/manifest.json && complain "a member that is not needed"
fi
if check "a run that needs more data than there are says so"; then
    train over --train-iters 430 --skip-samples 0-79
    says over "which then reads them from the start again"
fi
finish
