#!/usr/bin/env bash
# What belongs to a published model beside its weights stays with it: through training, on any grid, and into the files
# of other programs. Training that would mix it with another model's is refused.
# Usage: belongings_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

refused() {
    local code=$1 words=$2 status
    shift 2
    timeout -k 5 180 "$trireme" "$@" >refused.log 2>&1 </dev/null
    status=$?
    [[ $status == "$code" ]] || complain "$*: exit $status, not $code: $(tail -3 refused.log)"
    grep -qF -e "$words" refused.log || complain "$*: '$words' is not in $(tail -3 refused.log)"
}
run() { "$trireme" "$@" >run.log 2>&1 || complain "$*: $(tail -3 run.log)"; }
# same FILE FOLDER FOLDER
same() { cmp -s "$2/$1" "$3/$1" || complain "$1 of $3 is not that of $2"; }

# A model as people download it: several end tokens, sampling defaults, a chat template, a tokenizer with a configuration.
published() {
    train random "${no_evaluation[@]}" --train-iters 1 --save random
    run export --load random --output model
    sed -i 's/"eos_token_id": [0-9]*/"eos_token_id": [399, 77]/' model/config.json
    echo '{"do_sample": true, "temperature": 0.6, "eos_token_id": [399, 78]}' >model/generation_config.json
    echo "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '|' }}{% endfor %}" >model/chat_template.jinja
    mkdir model/additional_chat_templates
    echo "{% for m in messages %}{{ m['content'] }}{% endfor %}" >model/additional_chat_templates/rag.jinja
    echo '{"eos_token": "<|endoftext|>", "chat_template": "older", "model_max_length": 32}' >model/tokenizer_config.json
    echo '{"eos_token": "<|endoftext|>"}' >model/special_tokens_map.json
}
names=(generation_config.json chat_template.jinja tokenizer_config.json special_tokens_map.json tokenizer.json)
corpus=(--data-path documents --micro-batch-size 1 --global-batch-size 8 --lr 1e-4 "${no_evaluation[@]}")
tune=(train "${corpus[@]}" --train-iters 2 --finetune)
whole=(--data-path documents --num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1
    --global-batch-size 8 --lr 1e-3)

# keeps STEP: a checkpoint and what is exported from it have all of it.
keeps() {
    local name
    rm -rf exported exported.gguf
    run export --load "$1" --output exported
    run export --load "$1" --to gguf --output exported.gguf
    for name in "${names[@]}"; do
        same "$name" model "$1"
        same "$name" model exported
    done
    same additional_chat_templates/rag.jinja model exported
    grep -q '"eos_token_id": \[399, 77\]' exported/config.json || complain "$(grep eos exported/config.json)"
    grep -qaF "$(cat model/chat_template.jinja)" exported.gguf || complain "exported.gguf has no chat template"
}
with_model() {
    local corpus=("${whole[@]}")
    need published
}
if check "a model that is trained on keeps what belongs to it"; then
    with_model
    train tuned --train-iters 2 --finetune --load model --save tuned
    keeps tuned/step-00000002
    train on --train-iters 4 --load tuned --save tuned
    keeps tuned/step-00000004
    train grid --train-iters 2 --finetune --load model --save grid --ranks 4 --tp 2 --pp 2 --async-save
    keeps grid/step-00000002
fi
if check "an imported model keeps what belongs to it, through training, too"; then
    with_model
    run import model --save imported
    keeps imported/step-00000000
    train again --train-iters 2 --finetune --load imported --save again
    keeps again/step-00000002
fi
if check "the tokenizer inside a GGUF file is the model's, and its template"; then
    with_model
    run export --load model --to gguf --dtype f32 --output inside.gguf
    run import inside.gguf --save from_gguf
    for from in model inside.gguf from_gguf; do
        for how in "" --chat; do
            # shellcheck disable=SC2086
            timeout 60 "$trireme" generate --load $from $how --prompt "document 7: café" --temperature 0 --max-new-tokens 8 \
                >"${from%.gguf}$how.text" 2>text.log || complain "$from $how: $(tail -3 text.log)"
            cmp "model$how.text" "${from%.gguf}$how.text" || complain "$from $how gives another text"
        done
    done
    for from in model from_gguf/step-00000000; do
        "$trireme" tokenizer encode documents.jsonl --tokenizer-model $from >"${from%/*}.ids" || complain "no ids of $from"
    done
    cmp model.ids from_gguf.ids || complain "other ids"
    LC_ALL=C sed 's/gpt-2/gpt-9/' inside.gguf >unknown.gguf
    refused 69 'is "gpt-9"; known: gpt-2, ' generate --load unknown.gguf --prompt x
    refused 69 "give --tokenizer-model" import unknown.gguf --save unknown
    run generate --load unknown.gguf --tokenizer-model model --prompt x --max-new-tokens 2
    run import unknown.gguf --tokenizer-model model --save unknown
    same tokenizer.json model unknown/step-00000000
fi
# A data set of others has no tokenizer: the model's is the run's.
if check "the tokenizer of the model goes with it where the data have none"; then
    with_model
    mkdir bare
    cp documents.bin documents.idx bare
    train bare --train-iters 2 --finetune --load model --save bare/tuned --data-path bare/documents
    keeps bare/tuned/step-00000002
fi
if check "a run that goes on from a checkpoint in memory keeps it, too"; then
    with_model
    mkdir ram
    saving=("${corpus[@]}" --train-iters 1000000 --memory-save-interval 2 --memory-save-dir ram --save memory --threads 1)
    train memory --train-iters 1 --finetune --load model --save memory
    "$trireme" train "${saving[@]}" --load memory >killed.log 2>&1 </dev/null &
    for _ in $(seq 6000); do
        [[ -z $(compgen -G 'ram/trireme-*/*/step-*/manifest.json') ]] || break
        kill -0 $! 2>/dev/null || break
        sleep 0.01
    done
    kill -9 $!
    wait $! 2>/dev/null
    timeout 180 "$trireme" train "${saving[@]}" --load memory --exit-duration-in-mins 0.001 >memory.log 2>&1 </dev/null ||
        complain "$(tail -3 memory.log)"
    grep -q "loaded checkpoint from the memory in" memory.log || complain "not from memory: $(tail -3 memory.log)"
    keeps "$(compgen -G 'memory/step-*' | sort | tail -1)"
fi

# ---- another model's tokenizer ------------------------------------------------------------------------------
if check "data of another tokenizer of the same size are refused"; then
    with_model
    sed 'y/abcdefghijklmnopqrstuvwxyz/bcdefghijklmnopqrstuvwxyza/' documents.jsonl | sed 's/"ufyu"/"text"/' >others.jsonl
    run preprocess --input others.jsonl --output-prefix others --vocab-size 400
    [[ $(grep -c . others.tokenizer.json) == "$(grep -c . documents.tokenizer.json)" ]] || complain "the sizes differ"
    for from in model random; do
        refused 78 "the tokenizer of the data is another one than that of the model of --load $from: its token" \
            "${tune[@]}" --data-path others --load "$from" --save others
        run preprocess --input others.jsonl --output-prefix "for-$from" \
            --tokenizer-model "$(sed -n 's/.*Prepare the data with the model.s: --tokenizer-model //p' refused.log)"
        run "${tune[@]}" --data-path "for-$from" --load "$from"
    done
    [[ ! -e others ]] || complain "others was made"
fi

# ---- where a run saves --------------------------------------------------------------------------------------
if check "a run does not save among the files of a model, or before the steps of another run"; then
    with_model
    find model -type f -exec sha256sum {} + | sort >before
    refused 78 "--save model: a model is there" "${tune[@]}" --load model --save model
    refused 78 "another folder, such as model-tuned" "${tune[@]}" --load random --save model
    find model -type f -exec sha256sum {} + | sort >after
    cmp -s before after || complain "the model was changed: $(diff before after)"
    train first --train-iters 4 --finetune --load model --save taken
    refused 78 "--save taken holds step 4 of an earlier run" "${tune[@]}" --load model --save taken
    refused 78 "give --load taken and leave out --finetune" "${tune[@]}" --load taken --save taken
    train goes-on --train-iters 6 --load taken --save taken
    run import model --save imported-there
    train from-import --train-iters 2 --finetune --load imported-there --save imported-there
fi
finish
