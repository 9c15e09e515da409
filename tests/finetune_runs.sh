#!/usr/bin/env bash
# `trireme finetune` as people use it: from a published model and a file to a better model, in one command that goes on
# where it was stopped; what it chooses, and what it refuses with file, line and what to do.
# Usage: finetune_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

says() { grep -qF -e "$2" "$1.log" || complain "$1: '$2' is not in $(tail -5 "$1.log")"; }
says_not() { ! grep -qF -e "$2" "$1.log" || complain "$1: '$2' is in $(grep -F -e "$2" "$1.log")"; }
# tune NAME WORD...: leaves NAME.log.
tune() {
    local name=$1
    shift
    timeout -k 5 180 "$trireme" finetune "$@" >"$name.log" 2>&1 </dev/null ||
        complain "$name: exit $?: $(tail -3 "$name.log")"
}
# refused CODE WORDS WORD...: `finetune WORD...` ends so.
refused() {
    local code=$1 words=$2 status
    shift 2
    timeout -k 5 180 "$trireme" finetune "$@" >refused.log 2>&1 </dev/null
    status=$?
    [[ $status == "$code" ]] || complain "$*: exit $status, not $code: $(tail -3 refused.log)"
    grep -qF -e "$words" refused.log || complain "$*: '$words' is not in $(tail -3 refused.log)"
}

# ---- a model as it is downloaded, and data -----------------------------------------------------------------
published() {
    train random "${no_evaluation[@]}" --train-iters 1 --seq-length 128 --save random
    "$trireme" export --load random --output model >export.log 2>&1 || complain "$(cat export.log)"
    echo "{% for m in messages %}{{ m.role + ': ' + m.content + '<|endoftext|>' }}{% endfor %}{% if add_generation_prompt \
%}{{ 'assistant: ' }}{% endif %}" >model/chat_template.jinja
    for i in $(seq 240); do
        printf '{"messages": [{"role": "user", "content": "words of document %d"}, {"role": "assistant", "content": "%s"}]}\n' \
            "$i" "return a + $((i % 7)); and words"
    done >chats.jsonl
    head -40 documents.jsonl >texts.jsonl
    for i in $(seq 60); do echo "int f_$i(int a) { return a + $i; } and more words of document $i"; done >book.txt
}
need published
loss() { sed -n "s/^$2: loss \\([0-9.]*\\),.*/\\1/p" "$1.log"; } # NAME before|after
better() {
    awk -v before="$(loss "$1" before)" -v after="$(loss "$1" after)" 'BEGIN { exit !(after + 0 > 0 && after < before - 0.3) }' ||
        complain "$1: loss $(loss "$1" before) before and $(loss "$1" after) after"
}

# ---- two commands ------------------------------------------------------------------------------------------
tuned() { tune tuned model chats.jsonl --save tuned --lr 1e-2; }
if check "one command makes a better model, and says what it chose and what is where"; then
    need tuned
    better tuned
    says tuned "240 conversations"
    says tuned "full fine-tuning in "
    says tuned "3 epochs of "
    says tuned "trireme prepare-chat --input chats.jsonl --tokenizer-model model --output-prefix tuned/data"
    says tuned "trireme train --data-path tuned/data --sft"
    says tuned "  tuned/model.gguf "
    for file in tuned/hf/config.json tuned/hf/model.safetensors tuned/model.gguf tuned/hf/chat_template.jinja; do
        [[ -s $file ]] || complain "there is no $file"
    done
    cmp model/chat_template.jinja tuned/hf/chat_template.jinja || complain "another chat template"
    [[ $(grep -c "^  step " tuned.log) -ge 3 ]] || complain "no lines of steps: $(cat tuned.log)"
    says_not tuned "TFLOP"
fi
if check "the second command uses the model"; then
    need tuned
    "$trireme" generate --load tuned/hf --chat --prompt "words of document 8" --temperature 0 --max-new-tokens 12 \
        >answer.log 2>&1 || complain "$(cat answer.log)"
    says answer " and words"
    "$trireme" generate --load tuned/model.gguf --tokenizer-model tuned/hf --chat --prompt "words of document 8" \
        --temperature 0 --max-new-tokens 12 >gguf.log 2>&1 || complain "$(cat gguf.log)"
    [[ $(head -1 gguf.log) == "$(head -1 answer.log)" ]] || complain "$(head -1 gguf.log), not $(head -1 answer.log)"
fi
# answers NAME OPTION...: `generate --load` says what the model in tuned/hf says.
answers() {
    local name=$1
    shift
    "$trireme" generate --load "$@" --chat --prompt "words of document 8" --temperature 0 --max-new-tokens 12 \
        >"$name.log" 2>&1 || complain "$name: $(cat "$name.log")"
    says "$name" " and words"
}
if check "its folder is a model, finished or stopped"; then
    need tuned
    answers whole_folder tuned
    answers of_step tuned --ckpt-step "$(cd tuned/checkpoints && echo step-* | sed 's/step-0*//')"
    cp -r tuned stopped
    rm -r stopped/hf stopped/model.gguf
    answers stopped_folder stopped
    rm -r stopped/checkpoints/step-*
    "$trireme" generate --load stopped --prompt x >no_step.log 2>&1 && complain "a model of nothing"
    says no_step "stopped/checkpoints: "
    "$trireme" train --load model --finetune "${corpus[@]:0:2}" --train-iters 1 --lr 1e-4 --micro-batch-size 1 --save tuned >among.log 2>&1 && complain "saved among its files"
    says among "--save tuned: a model is there"
fi
if check "the GGUF file has the name of the folder"; then
    need tuned
    grep -aq "general.name.\{12\}tuned" tuned/model.gguf || complain "$(strings tuned/model.gguf | grep -A1 general.name)"
    "$trireme" export --load tuned --to gguf --output other.gguf >export.log 2>&1 || complain "$(cat export.log)"
    grep -aq "general.name.\{12\}tuned" other.gguf || complain "$(strings other.gguf | grep -A1 general.name)"
fi
if check "the commands that it prints do the same by hand"; then
    need tuned
    sed -n '/^the same by hand:/,/^before/p' tuned.log | sed '1d;$d' | sed 's/tuned\//by-hand\//g' |
        sed "s|^  trireme|\"$trireme\"|" >commands.sh
    mkdir by-hand
    bash -e commands.sh >by_hand.log 2>&1 || complain "$(tail -3 by_hand.log)"
    rm -r by-hand/checkpoints
    bash -e commands.sh >again.log 2>&1 || complain "a second time: $(tail -3 again.log)"
    "$trireme" checkpoint diff tuned/checkpoints by-hand/checkpoints >diff.log 2>&1 || complain "$(head -3 diff.log)"
fi
if check "the same command says that all is done"; then
    need tuned
    tune again model chats.jsonl --save tuned --lr 1e-2
    says again "  tuned/model.gguf "
    says again "after: loss $(loss tuned after)"
    says_not again "  step 1/"
fi

# ---- stopped, and on ---------------------------------------------------------------------------------------
if check "Ctrl-C saves, and the same command goes on to the same bytes"; then
    options=(../model ../chats.jsonl --lr 1e-2 --global-batch-size 4 --train-samples 2560 --ranks 2 --save out)
    mkdir whole broken
    cd whole || exit 1
    tune ../whole "${options[@]}"
    cd ../broken || exit 1
    "$trireme" finetune "${options[@]}" >../broken.log 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 600); do
        grep -qs "  step [1-9][0-9]*0/" ../broken.log && break
        sleep 0.1
    done
    kill -INT $pid
    wait $pid
    status=$?
    cd .. || exit 1
    [[ $status == 130 ]] || complain "exit $status, not 130: $(tail -2 broken.log)"
    says broken " of 640, which is saved. The same command goes on: trireme finetune ../model ../chats.jsonl"
    cd broken || exit 1
    tune ../on "${options[@]}"
    cd .. || exit 1
    says on "out: goes on after step "
    says_not on "  step 1/"
    cmp whole/out/model.gguf broken/out/model.gguf || complain "other bytes in model.gguf"
    diff -r whole/out/hf broken/out/hf || complain "other bytes in hf"
    [[ $(loss whole after) == "$(loss on after)" ]] || complain "another loss"
fi
if check "an end of another kind goes on, too"; then
    tune part model chats.jsonl --save part --exit-interval 4 --train-iters 10
    says part "4 of 10 steps are done; the same command goes on"
    [[ ! -e part/hf ]] || complain "a model that is not done was exported"
    samples=(model chats.jsonl --save samples --exit-interval 3 --global-batch-size 4 --train-samples 18)
    tune samples "${samples[@]}"
    says samples "  4 steps, learning rate"
    says samples "3 of 4 steps are done; the same command goes on"
    says_not samples "after:"
    [[ ! -e samples/hf ]] || complain "a model of --train-samples that is not done was exported"
    tune samples "${samples[@]}"
    says samples "samples: goes on after step 3"
    says samples "after:"
    tune samples "${samples[@]}"
    says samples "  samples/model.gguf "
    says_not samples "training;"
fi
if check "the data may get another time, but no other content"; then
    cp chats.jsonl touched.jsonl
    again=(model touched.jsonl --save touched --exit-interval 1 --train-iters 3)
    tune touched "${again[@]}"
    touch -d "2001-01-01" touched.jsonl
    tune touched "${again[@]}"
    says touched "touched: goes on after step 1"
    sed -i 's/return a/return b/' touched.jsonl
    refused 78 "touched.jsonl has changed since the fine-tuning in touched began" "${again[@]}"
fi
if check "before the first step is saved what is asked may change"; then
    refused 76 "Lower --lr" model chats.jsonl --save anew --lr 1e30
    tune anew random chats.jsonl --save anew --chat-template alpaca --lr 1e-2 --train-iters 2
    says anew "chosen:"
    says anew "before: "
    refused 78 "another answer to 'model'" model chats.jsonl --save anew --lr 1e-2 --train-iters 2
    need tuned
    tune first tuned/model.gguf chats.jsonl --tokenizer-model model --save imported --dry-run
    tune second tuned/model.gguf chats.jsonl --tokenizer-model model --save imported --dry-run --lr 1e-3
    says second "trireme import tuned/model.gguf"
    [[ -e imported/base/step-00000000 ]] || complain "no base: $(ls imported/base)"
    mkdir -p busy/checkpoints
    cp anew/finetune.json busy
    flock busy/checkpoints/.lock sleep 5 &
    sleep 0.3
    refused 69 "busy" model chats.jsonl --save busy --lr 1e-5
    wait
fi
if check "the time that is left follows from all steps of the run"; then
    tune left model chats.jsonl --save left --train-iters 1000000 --exit-interval 20 --metrics left.jsonl
    read -r hours minutes seconds < <(sed -n 's/^  step 20\/.* eta \([0-9]*\):\([0-9]*\):\([0-9]*\)$/\1 \2 \3/p' left.log | tail -1)
    metric elapsed_ms left | awk -v said=$((10#$hours * 3600 + 10#$minutes * 60 + 10#$seconds)) '{ sum += $1; steps++ }
        END { want = sum / steps / 1000 * 999980; exit !(steps == 20 && said > want - 2 && said < want + 2) }' ||
        complain "$hours:$minutes:$seconds, and steps of $(metric elapsed_ms left | tr '\n' ' ')"
fi
if check "another command does not go on in the folder"; then
    need tuned
    refused 78 "another answer to 'options': --lr 0.01 there, --lr 0.0001 now" model chats.jsonl --save tuned --lr 1e-4
    cp chats.jsonl others.jsonl
    refused 78 "another answer to 'data'" model others.jsonl --save tuned --lr 1e-2
    mkdir occupied
    touch occupied/precious
    refused 73 "occupied has files, such as precious" model chats.jsonl --save occupied
fi

# ---- other data and models ---------------------------------------------------------------------------------
if check "texts are trained on, in JSON lines and as a file"; then
    tune texts model texts.jsonl --save texts --lr 1e-2 --seq-length 32
    better texts
    says texts "40 documents"
    says texts "trireme preprocess --input texts.jsonl"
    tune book model book.txt --save book --lr 1e-2 --seq-length 32
    says book "1 documents"
    says_not book "before:" # nothing can be held out of one document
    [[ -s book/model.gguf ]] || complain "no GGUF"
fi
if check "a GGUF file and a checkpoint are models, too"; then
    need tuned
    tune from_gguf tuned/model.gguf chats.jsonl --tokenizer-model model --train-iters 2
    says from_gguf "trireme import tuned/model.gguf --tokenizer-model model --save model-tuned/base"
    [[ -s model-tuned/hf/config.json ]] || complain "no model-tuned: $(ls)"
    tune from_checkpoint random chats.jsonl --train-iters 2 --chat-template alpaca
    [[ -s random-tuned/hf/chat_template.jinja ]] || complain "the template that was named is not with the model"
    tune inside tuned/model.gguf chats.jsonl --save inside --train-iters 2
    says inside "trireme import tuned/model.gguf --save inside/base"
    for file in hf/tokenizer.json base/step-00000000/chat_template.jinja; do
        [[ -s inside/$file ]] || complain "no inside/$file: $(ls inside/*)"
    done
fi
if check "few conversations are a sample each, and some are held out"; then
    head -6 chats.jsonl >few.jsonl
    tune few model few.jsonl --save few --dry-run
    says few "--no-pack"
    says few "--split 5,1,0"
    says few "nothing was trained (--dry-run)"
fi
if check "options of train win over what it chooses"; then
    tune given model chats.jsonl --save given --dry-run --micro-batch-size 1 --global-batch-size 6 --train-iters 7 --ranks 3 \
        --lr-decay-style constant --split 90,10,0 --seq-length 64
    says given "  6 sequences a step in microbatches of 1, on 3 ranks"
    says given "--train-iters 7"
    [[ $(grep -o -e "--seq-length [0-9]*" given.log | sort -u) == "--seq-length 64" ]] || complain "$(cat given.log)"
    tune threes model chats.jsonl --save threes --train-iters 1 --ranks 3
    grep -q "  \(3\|6\|12\) sequences a step in microbatches of .*, on 3 ranks" threes.log || complain "$(cat threes.log)"
    tune sixes model chats.jsonl --save sixes --train-iters 1 --micro-batch-size 6
    says sixes " sequences a step in microbatches of 6, on "
    train rotary "${no_evaluation[@]}" --train-iters 1 --position-embedding-type rope --save rotary
    tune beyond rotary chats.jsonl --save beyond --chat-template alpaca --dry-run --seq-length 192
    says beyond "WARNING: --seq-length 192 is beyond the window of the model, 32 tokens"
    says_not given "WARNING"
    tune fp32 model chats.jsonl --save fp32 --dry-run --no-bf16
    says fp32 "  full fine-tuning in fp32: "
fi
if check "adapters are one option, and are written alone and merged"; then
    tune adapters model chats.jsonl --save adapters --lora-rank 4 --lr 3e-2
    better adapters
    says adapters "adapters (LoRA) in "
    says adapters "  adapters of rank 4 with alpha 8"
    grep -q '"lora_alpha": 8' adapters/adapter/adapter_config.json || complain "$(cat adapters/adapter/adapter_config.json)"
    for file in adapters/adapter/adapter_config.json adapters/hf/model.safetensors adapters/model.gguf; do
        [[ -s $file ]] || complain "there is no $file"
    done
    held_out=$(sed -n 's/.*--split \([0-9,]*\).*/\1/p' adapters.log)
    # nats OPTION...: of the held-out answers.
    nats() {
        "$trireme" evaluate --sft --data-path adapters/data --split "$held_out" "$@" 2>&1 | sed -n 's/nats.token \([0-9.]*\).*/\1/p'
    }
    awk -v adapter="$(nats --load model --adapter adapters/adapter)" -v merged="$(nats --load adapters/hf)" \
        'BEGIN { d = adapter - merged; exit !(adapter + 0 > 0 && d < 0.02 && d > -0.02) }' ||
        complain "$(nats --load model --adapter adapters/adapter) with the adapter, $(nats --load adapters/hf) merged"
fi
if check "trained adapters are trained on, as they are"; then
    mkdir lora
    train lora/first "${no_evaluation[@]}" --load model --finetune --lora-rank 4 --train-iters 2 --seq-length 128 --save lora/first
    "$trireme" export --load lora/first --to peft --output lora/peft >export.log 2>&1 || complain "$(cat export.log)"
    for from in first peft; do
        tune "$from" "lora/$from" chats.jsonl --save "on-$from" --train-iters 8
        says "$from" "  adapters (LoRA) in "
        says "$from" "learning rate 0.002"
        says_not "$from" "--lora-rank" # the model brings it
        says "$from" "  adapters of rank 4 with alpha 4"
        says "$from" "  on-$from/adapter    the adapter alone"
        grep -q '"r": 4' "on-$from/adapter/adapter_config.json" || complain "$(cat "on-$from/adapter/adapter_config.json")"
        refused 78 "lora/$from is an adapter, so that --lora-rank 0 cannot train the whole model: merge it" \
            "lora/$from" chats.jsonl --save none --lora-rank 0
    done
    says peft "--tokenizer-model $PWD/model"
    [[ $(sed -n 's/^before: loss \([0-9.]*\),.*/\1/p' first.log) == $(sed -n 's/^before: loss \([0-9.]*\),.*/\1/p' peft.log) ]] ||
        complain "$(grep before: first.log) of the checkpoint, $(grep before: peft.log) of PEFT's"
fi
wide() { # 3 million parameters
    train wide "${no_evaluation[@]}" --train-iters 1 --hidden-size 256 --seq-length 2048 --global-batch-size 1 --save wide
    long=$(printf 'words %.0s' $(seq 1900))
    { cat chats.jsonl; echo "{\"prompt\": \"q\", \"completion\": \"$long\"}"; } >longer.jsonl
}
# chooses GB WORDS...: with so much memory.
chooses() {
    local memory=$1 words
    shift
    rm -rf chosen
    tune "chosen" wide chats.jsonl --chat-template alpaca --save chosen --dry-run --memory-gb "$memory" --ranks 1
    for words; do says chosen "$words"; done
}
# Full fine-tuning with GB of memory.
in_full() { echo wide longer.jsonl --chat-template alpaca --save none --lora-rank 0 --ranks 1 --memory-gb "$1"; }
if check "where memory is short it takes less, and says what would fit where nothing does"; then
    need wide
    chooses 1 "  full fine-tuning in "
    chooses 0.206 "  adapters (LoRA) in " "--lora-rank 16 --lora-alpha 32"
    refused 69 "not enough memory: adapters (LoRA), activations recomputed of wide" wide chats.jsonl --chat-template alpaca \
        --save none --memory-gb 0.165
    refused 69 "a model of about " wide chats.jsonl --chat-template alpaca --save none --memory-gb 0.165
    # shellcheck disable=SC2046 # words
    refused 69 "would fit" $(in_full 0.001)
    least=$(sed -n 's/.*takes \([0-9.]*\) GiB at the least.*/\1/p' refused.log)
    # shellcheck disable=SC2046
    refused 69 " with --too-long truncate (or drop) would fit" $(in_full "$(awk "BEGIN { print $least * 1.0737 - 0.012 }")")
fi

# ---- what is refused -----------------------------------------------------------------------------------------
if check "wrong data are refused with file, line and what to do"; then
    { head -3 chats.jsonl; echo '{"messages": [{"role": "user", "content": "alone"}]}'; } >unanswered.jsonl
    refused 65 "unanswered.jsonl:4: a conversation without an answer" model unanswered.jsonl --save none
    refused 65 "--skip-bad-lines leaves such lines out" model unanswered.jsonl --save repaired
    head -3 chats.jsonl >unanswered.jsonl
    tune repaired model unanswered.jsonl --save repaired --train-iters 1
    long=$(printf 'words %.0s' $(seq 200))
    { head -2 chats.jsonl; echo "{\"prompt\": \"q\", \"completion\": \"$long\"}"; } >long.jsonl
    refused 65 "long.jsonl:3: a conversation of " model long.jsonl --save none
    refused 65 "the model's window is 128: give --too-long truncate or drop" model long.jsonl --save none
    refused 65 "give a larger --seq-length (the model's window: 128), or --too-long" model long.jsonl --save none --seq-length 64
    : >empty.jsonl
    refused 65 "empty.jsonl: it is empty" model empty.jsonl --save none
    echo '{"body": "x"}' >keyless.jsonl
    refused 65 "keyless.jsonl:1: neither a conversation" model keyless.jsonl --save none
    echo '{"prompt": "q", "chosen": "a", "rejected": "b"}' >pairs.jsonl
    refused 78 "\`trireme train --dpo\`" model pairs.jsonl --save none
    refused 66 "nothing.jsonl: there is no such file" model nothing.jsonl --save none
    refused 66 "nowhere" nowhere chats.jsonl --save none
    refused 64 "usage: trireme finetune MODEL DATA" model
    refused 64 "--data-path follows from DATA" model chats.jsonl --data-path corpus
    refused 64 "--epochs and --train-iters" model chats.jsonl --epochs 2 --train-iters 3
    tune truncated model long.jsonl --save truncated --too-long truncate --dry-run
    says truncated "truncated 1 conversations"
fi

# ---- a folder as a data set is downloaded --------------------------------------------------------------------
if check "JSON lines decide what a folder holds, and its README.md is not trained on"; then
    mkdir downloaded downloaded_texts
    echo "# Conversations, with a licence" | tee downloaded/README.md downloaded/LICENSE >downloaded_texts/README.md
    cp chats.jsonl downloaded/train.jsonl
    cp texts.jsonl downloaded_texts/train.jsonl
    tune downloaded model downloaded --save downloaded_chats --dry-run
    says downloaded "downloaded: 240 conversations"
    says downloaded "these are conversations by their first document, downloaded/train.jsonl:1"
    says downloaded "left out files of downloaded that are no JSON lines: 1"
    tune downloaded_texts model downloaded_texts --save downloaded_tuned --dry-run
    says downloaded_texts "downloaded_texts: 40 documents"
fi
finish
