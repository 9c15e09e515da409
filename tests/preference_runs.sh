#!/usr/bin/env bash
# Runs on pairs of answers: on any grid, stopped and gone on with, supervised; the reference model's numbers, in their
# file, without it, or of another model; evaluations; what is refused.
# Usage: preference_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

# ---- a base, pairs -----------------------------------------------------------------------------------------
awk 'BEGIN {
    srand(5)
    split("red blue green one two three yes no the sky is a number", word, " ")
    for (i = 0; i < 90; i++) {
        for (part = 0; part < 3; part++) {
            text[part] = ""
            count = 2 + int(rand() * 5)
            for (k = 0; k < count; k++) text[part] = text[part] (k ? " " : "") word[1 + int(rand() * 13)]
        }
        printf "{\"prompt\": \"%s\", \"chosen\": \"%s yes\", \"rejected\": \"%s no\"}\n", text[0], text[1], text[2]
    }
}' >pairs.jsonl
sed 's/"prompt": "\([^"]*\)", "chosen": "\([^"]*\)".*/"text": "\1 \2"}/' pairs.jsonl >text.jsonl
"$trireme" tokenizer train --input text.jsonl --vocab-size 300 --output tokens >log 2>&1 || complain "$(cat log)"
"$trireme" preprocess --input text.jsonl --output-prefix text --tokenizer-model tokens --append-eod >log 2>&1 || complain "$(cat log)"
prepare() { # PREFIX FILE OPTION...
    "$trireme" prepare-chat --input "$2" --tokenizer-model tokens --chat-template alpaca --seq-length 160 --output-prefix "$1" \
        "${@:3}" >"$1.log" 2>&1
}
prepare pairs pairs.jsonl --preferences || complain "$(cat pairs.log)"
"$trireme" train --data-path text --num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 160 --micro-batch-size 2 \
    --global-batch-size 4 --train-iters 8 --lr "1e-2" --eval-iters 0 --hidden-dropout 0 --attention-dropout 0 --save base >log 2>&1 ||
    complain "$(tail -3 log)"
"$trireme" train --data-path text --load base --finetune --micro-batch-size 2 --global-batch-size 4 --train-iters 8 --lr "1e-2" \
    --seq-length 160 --eval-iters 0 --save other >log 2>&1 || complain "$(tail -3 log)"

iterations=24
options=(--dpo --data-path pairs --seq-length 160 --micro-batch-size 2 --global-batch-size 8 --train-iters "$iterations" --lr "2e-3"
    --lr-decay-style constant --split "80,20,0" --eval-interval 8 --eval-iters 2 --log-interval 1 --save-interval 6 --plain)
from_base=(--load base --finetune)
# dpo NAME OPTION...: trains into the folder NAME, with rows in NAME.jsonl and the log in NAME.log.
dpo() {
    local name=$1
    shift
    timeout -k 5 180 "$trireme" train "${options[@]}" --save "$name" --metrics "$name.jsonl" "$@" >"$name.log" 2>&1 </dev/null ||
        complain "$name: $(tail -3 "$name.log")"
}
refused() { # STATUS WORDS OPTION...
    local want=$1 words=$2 status=0
    shift 2
    timeout -k 5 60 "$trireme" train "${options[@]}" --save refused "$@" >refused.log 2>&1 </dev/null || status=$?
    [[ $status == "$want" ]] || complain "exit $status, not $want: $(tail -3 refused.log)"
    grep -qF -- "$words" refused.log || complain "'$words' is not said: $(tail -3 refused.log)"
}
says() { grep -qE -- "$2" "$1.log" || complain "$1 does not say '$2': $(tail -3 "$1.log")"; }
keys=(lm_loss validation_loss grad_norm rewards_chosen rewards_rejected rewards_margin rewards_accuracy logps_chosen logps_rejected)
expect_alike() { # NAME OTHER: the rows of both, and their models
    local key
    for key in "${keys[@]}"; do expect_same "$key" "$1" "$2"; done
    "$trireme" checkpoint diff "$1" "$2" >diff.log 2>&1 || complain "$1 and $2 differ: $(tail -2 diff.log)"
}
whole() { dpo whole "${from_base[@]}"; }

# ---- numbers -------------------------------------------------------------------------------------------------
if check "the first loss is log 2, and the chosen answers become likelier"; then
    need whole
    awk -v loss="$(metric lm_loss whole | head -1)" 'BEGIN { exit !(loss > 0.693146 && loss < 0.693149) }' ||
        complain "the first loss is $(metric lm_loss whole | head -1)"
    [[ $(metric rewards_chosen whole | head -1) == 0 && $(metric rewards_rejected whole | head -1) == 0 ]] || complain "first rewards"
    awk -v last="$(metric lm_loss whole | tail -1)" 'BEGIN { exit !(last < 0.5) }' || complain "no training"
    awk -v last="$(metric validation_loss whole | tail -1)" 'BEGIN { exit !(last < 0.69) }' || complain "no validation"
    says whole "lm loss: .* rewards chosen: .* rewards rejected: .* rewards margin: .* rewards accuracy: "
    says whole "validation loss at iteration 8 .* rewards accuracy: "
    says whole "reference model .*base: log-probabilities of 90 pairs, computed in .* s, kept in whole/dpo-reference"
fi
if check "pipelines and schedules change no bit"; then
    need whole
    dpo staged "${from_base[@]}" --ranks 2 --pp 2
    dpo halves "${from_base[@]}" --ranks 2 --pp 2 --schedule zb-h1
    dpo chunks "${from_base[@]}" --ranks 2 --pp 2 --vp 2
    for other in staged halves chunks; do expect_alike whole "$other"; done
    cmp whole/dpo-reference staged/dpo-reference || complain "the reference's numbers differ"
fi
if check "cut sequences are close"; then
    need whole
    for way in all_gather a2a p2p; do
        dpo "$way" "${from_base[@]}" --ranks 2 --cp 2 --cp-comm-type "$way"
        expect_close whole "$way" "1e-3"
    done
fi
if check "data ranks that are leaves change no bit"; then
    dpo leaves "${from_base[@]}" --virtual-data-parallel 2
    dpo ranks "${from_base[@]}" --virtual-data-parallel 2 --ranks 4 --pp 2
    expect_alike leaves ranks
    cmp leaves/dpo-reference ranks/dpo-reference || complain "the reference's numbers differ"
fi

# ---- going on ------------------------------------------------------------------------------------------------
if check "a run that stops and goes on, on another grid, is the whole run"; then
    need whole
    dpo parts "${from_base[@]}" --exit-interval 6
    dpo parts --load parts --exit-interval 18 --ranks 2 --pp 2
    says parts "reference model .*base: log-probabilities of 90 pairs, from parts/dpo-reference"
    dpo parts --load parts
    expect_alike whole parts
fi
if check "without the file a run goes on where the reference model is named, and no other is taken for it"; then
    need whole
    dpo lost "${from_base[@]}" --exit-interval 12
    rm lost/dpo-reference
    refused 78 "name the model that the run began with by --dpo-reference PATH" --save lost --load lost
    dpo lost --load lost --dpo-reference base
    expect_alike whole lost
fi
# Ranks on machines of their own, here in folders of their own: what rank 0 sees decides for all.
if type mpirun >/dev/null 2>&1 && check "a link to the reference model that leads elsewhere on another rank holds nothing up"; then
    mkdir there
    ln -s base ref
    cp -r base copy
    dpo far --load other --finetune --dpo-reference ref --train-iters 4 --eval-iters 0 --exit-interval 2
    for file in far pairs*; do ln -s "../$file" there/; done
    ln -s ../copy there/ref
    far=("$trireme" train "${options[@]}" --save far --load far --dpo-reference ref --train-iters 4 --eval-iters 0 --distributed-timeout-minutes 0.5)
    timeout -k 5 180 mpirun -n 2 "$here/by_rank.sh" "${far[@]}" // env -C there "${far[@]}" >far.log 2>&1 </dev/null ||
        complain "exit $?: $(grep -a error far.log)"
    says far "reference model .*base: log-probabilities of [0-9]* pairs, from far/dpo-reference"
fi
if check "a longer run asks the reference model again, and refuses another one"; then
    dpo longer "${from_base[@]}" --split 100,0,0 --eval-iters 0 --train-iters 4
    before=$(cksum <longer/dpo-reference)
    dpo longer --load longer --split 100,0,0 --eval-iters 0 --train-iters 10
    says longer "reference model .*base: log-probabilities of [0-9]* pairs, computed"
    [[ $(cksum <longer/dpo-reference) != "$before" ]] || complain "the file has not grown"
    dpo straight "${from_base[@]}" --split 100,0,0 --eval-iters 0 --train-iters 10
    for key in lm_loss rewards_margin; do expect_same "$key" longer straight; done
    refused 78 "is not the reference model with which this run began" --save longer --load longer --dpo-reference other \
        --split 100,0,0 --eval-iters 0 --train-iters 40
fi
if check "a damaged file, or one of other data or weights, is written again"; then
    need whole
    dpo damaged "${from_base[@]}" --train-iters 1
    printf x | dd of=damaged/dpo-reference bs=1 seek=700 conv=notrunc 2>/dev/null
    rm -r damaged/step-*
    dpo damaged "${from_base[@]}"
    says damaged "damaged/dpo-reference is damaged: it is not used, and written again"
    rm -r damaged/step-* damaged.jsonl
    dpo damaged "${from_base[@]}"
    says damaged "log-probabilities of 90 pairs, from damaged/dpo-reference"
    expect_alike whole damaged
    rm -r damaged/step-* damaged.jsonl
    dpo damaged --load other --finetune
    says damaged "reference model .*other: log-probabilities of [0-9]* pairs, computed"
    [[ $(metric rewards_chosen damaged | head -1) == 0 ]] || complain "numbers of another model were taken"
fi
if check "a reference model of its own"; then
    dpo own --load other --finetune --dpo-reference base
    says own "reference model .*base: log-probabilities of [0-9]* pairs, computed"
    [[ $(metric rewards_chosen own | head -1) != 0 ]] || complain "the reference is the model itself"
    need whole
    cmp <(tail -c 300 own/dpo-reference | head -c 290) <(tail -c 300 whole/dpo-reference | head -c 290) ||
        complain "base says something else here"
fi
if check "a supervised run that is killed goes on with the same numbers"; then
    "$trireme" supervise -- train "${options[@]}" "${from_base[@]}" --save watched --metrics watched.jsonl --ranks 2 --pp 2 \
        --train-iters 200 >watched.log 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 600); do [[ ! -d watched/step-00000006 ]] || break; sleep 0.05; done
    child=$(pgrep -P "$pid" -f "train" | head -1)
    kill -KILL "$child" || complain "no run was killed"
    wait "$pid" || complain "supervise: $(tail -3 watched.log)"
    says watched "reference model .*base: log-probabilities of 90 pairs, from watched/dpo-reference"
    dpo unwatched "${from_base[@]}" --train-iters 200
    "$trireme" checkpoint diff unwatched watched >diff.log 2>&1 || complain "another model: $(tail -2 diff.log)"
fi

# ---- adapters ------------------------------------------------------------------------------------------------
if check "adapters: the reference is the model without them, on any grid, after a stop, and where the file is gone"; then
    lora=(--lora-rank 4 --lora-target-modules linear_qkv linear_fc1 --lr "2e-2")
    dpo adapters "${from_base[@]}" "${lora[@]}"
    [[ $(metric rewards_chosen adapters | head -1) == 0 ]] || complain "the reference is not the base"
    awk -v last="$(metric lm_loss adapters | tail -1)" 'BEGIN { exit !(last < 0.69) }' || complain "no training"
    need whole
    cmp <(tail -c 1448 adapters/dpo-reference | head -c 1440) <(tail -c 1448 whole/dpo-reference | head -c 1440) ||
        complain "the base says something else here"
    dpo beside "${from_base[@]}" "${lora[@]}" --exit-interval 12 --ranks 2 --pp 2
    cmp adapters/dpo-reference beside/dpo-reference || complain "the reference's numbers differ"
    rm beside/dpo-reference
    refused 78 "by --dpo-reference PATH" --load beside "${lora[@]}"
    dpo beside --load beside "${lora[@]}" --dpo-reference base
    expect_alike adapters beside
    refused 78 "is not the reference model with which this run began" --save adapters --load adapters "${lora[@]}" \
        --dpo-reference other --train-iters 100
    "$trireme" evaluate --load adapters --dpo --dpo-reference base --data-path pairs --split "0,1,0" >evaluated.log 2>&1 ||
        complain "$(tail -3 evaluated.log)"
fi

# ---- evaluation ------------------------------------------------------------------------------------------------
# near NAME VALUE OTHER: within 2e-5
near() { awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; exit !(d < 2e-5 && d > -2e-5 && b != "") }' || complain "$1 is $2, not $3"; }
evaluated() { sed -n "s/.*$2 \([-0-9.]*\).*/\1/p" "$1.log"; }
if check "evaluate gives the numbers of a run's validation, on other ranks too"; then
    dpo judged "${from_base[@]}" --global-batch-size 6 --eval-iters 3 --train-iters 12
    for t in 1 2; do
        "$trireme" evaluate --load judged --dpo --dpo-reference base --data-path pairs --split 80,20,0 --tp $t --ranks $t >evaluated.log 2>&1 ||
            complain "$(tail -3 evaluated.log)"
        says evaluated "pairs, validation share of --split 80,20,0: 18 pairs"
        near loss "$(evaluated evaluated "loss (sigmoid)")" "$(metric validation_loss judged | tail -1)"
        near chosen "$(evaluated evaluated "rewards chosen")" "$(metric rewards_chosen judged | tail -1)"
        near rejected "$(evaluated evaluated "[0-9], rejected")" "$(metric rewards_rejected judged | tail -1)"
        near accuracy "$(evaluated evaluated accuracy)" "$(printf %.4f "$(metric rewards_accuracy judged | tail -1)")"
    done
    "$trireme" evaluate --load judged --dpo --dpo-loss simpo --dpo-beta 2 --data-path pairs --split 0,1,0 >evaluated.log 2>&1 ||
        complain "$(tail -3 evaluated.log)"
    says evaluated "0,1,0: 90 pairs"
    ! "$trireme" evaluate --load judged --dpo --data-path pairs >evaluated.log 2>&1 || complain "evaluated without a reference"
    says evaluated "add --dpo-reference PATH, the model that training began with"
fi

# ---- other losses, other options -----------------------------------------------------------------------------
if check "losses without a reference ask none"; then
    for loss in simpo orpo; do
        dpo "$loss" "${from_base[@]}" --dpo-loss "$loss" --dpo-beta 2
        [[ ! -e $loss/dpo-reference ]] || complain "$loss asks a reference"
        awk -v a="$(metric lm_loss "$loss" | head -1)" -v b="$(metric lm_loss "$loss" | tail -1)" 'BEGIN { exit !(b < a) }' ||
            complain "$loss does not fall"
    done
fi
if check "a run that leaves samples out, and one that may go back, have all references"; then
    dpo skipping "${from_base[@]}" --skip-samples 10-29 --rewind-on-spike --rewind-margin 1
    says skipping "reference model .*: log-probabilities of 90 pairs, computed"
    dpo skipping --load skipping --train-iters 40 --rewind-on-spike --rewind-margin 1
    says skipping "iteration +40/"
    status=0
    "$trireme" train "${from_base[@]}" --dpo --data-path pairs --seq-length 160 --micro-batch-size 2 --global-batch-size 800 --lr "1e-3" \
        --rampup-batch-size 8 8 100 --train-samples 100 --split "100,0,0" >refused.log 2>&1 || status=$?
    [[ $status == 78 ]] || complain "a batch larger than the data: exit $status"
    grep -q "asked in whole batches of 800 samples, and the run has 180: lower --global-batch-size" refused.log || complain "$(cat refused.log)"
fi
if check "bf16, audits, asynchronous saves and the distributed optimizer"; then
    dpo narrow "${from_base[@]}" --bf16 --ranks 4 --pp 2 --use-distributed-optimizer --async-save --audit-interval 4
    says narrow "iteration +24/"
fi

# ---- what is refused -----------------------------------------------------------------------------------------
if check "wrong options and data are refused with what to do"; then
    refused 78 "--sft trains on conversations and --dpo on pairs of answers: keep one of them" "${from_base[@]}" --sft
    refused 78 "--dpo-label-smoothing has no effect with --dpo-loss ipo: leave it out" "${from_base[@]}" --dpo-loss ipo \
        --dpo-label-smoothing 0.1
    refused 78 "--dpo-reference has no effect with --dpo-loss simpo" "${from_base[@]}" --dpo-loss simpo --dpo-reference base
    refused 78 "leave --calculate-per-token-loss out" "${from_base[@]}" --calculate-per-token-loss
    refused 66 "text is no data set of preferences: there is no text_preference_mask.idx" "${from_base[@]}" --data-path text
    sed 's/"chosen"/"completion"/; s/, "rejected".*/}/' pairs.jsonl >chats.jsonl
    prepare chats chats.jsonl || complain "$(cat chats.log)"
    refused 66 "It is one of conversations, which --sft trains on" "${from_base[@]}" --data-path chats
    status=0
    "$trireme" train --load base --finetune --sft --data-path pairs --seq-length 160 --micro-batch-size 2 --train-iters 1 --lr 1e-3 \
        >refused.log 2>&1 || status=$?
    [[ $status == 66 ]] || complain "--sft on pairs: exit $status"
    grep -q "It is one of preferences, which --dpo trains on" refused.log || complain "--sft on pairs: $(cat refused.log)"
    status=0
    "$trireme" train --load base --finetune --data-path pairs --seq-length 160 --micro-batch-size 2 --train-iters 1 --lr 1e-3 \
        >refused.log 2>&1 || status=$?
    [[ $status == 78 ]] || complain "pairs as text: exit $status"
    grep -q "add --dpo, which trains on pairs" refused.log || complain "pairs as text: $(cat refused.log)"
    refused 65 "give --seq-length as it was given" "${from_base[@]}" --seq-length 20
fi
if check "wrong lines are refused with file and line"; then
    echo '{"prompt": "a", "chosen": "b"}' | cat pairs.jsonl - >short.jsonl
    ! prepare short short.jsonl --preferences || complain "a pair without a rejected answer"
    grep -qF 'short.jsonl:91: "rejected" is missing: a pair has a "chosen" and a "rejected" answer' short.log || complain "$(cat short.log)"
    ! prepare plain pairs.jsonl || complain "pairs without --preferences"
    grep -qF 'pairs.jsonl:1: "chosen" and "rejected" are a pair of answers: add --preferences' plain.log || complain "$(cat plain.log)"
    ! prepare cut pairs.jsonl --preferences --too-long truncate || complain "truncated pairs"
    grep -qF -- "use --too-long drop" cut.log || complain "$(cat cut.log)"
fi
finish
