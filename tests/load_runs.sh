#!/usr/bin/env bash
# What --load names, as people meet it: a folder that holds no model of ours is refused by its contents, and a model
# brings its sizes, its dropout and its vocabulary, whether it is a checkpoint, imported or a Hugging Face folder.
# Usage: load_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

# refused CODE WORDS VERB OPTION...: it ends so.
refused() {
    local code=$1 words=$2 status
    shift 2
    timeout -k 5 180 "$trireme" "$@" >refused.log 2>&1 </dev/null
    status=$?
    [[ $status == "$code" ]] || complain "$*: exit $status, not $code: $(tail -3 refused.log)"
    grep -qF -e "$words" refused.log || complain "$*: '$words' is not in $(tail -3 refused.log)"
}
says() { grep -qF -e "$2" "$1.log" || complain "$1: '$2' is not in $(tail -5 "$1.log")"; }
says_not() { ! grep -qF -e "$2" "$1.log" || complain "$1: '$2' is in $(grep -F -e "$2" "$1.log")"; }

# ---- no model of ours -------------------------------------------------------------------------------------
train_one=(train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 1)
# holds FOLDER FILE: a folder with this file.
holds() { mkdir -p "$1" && : >"$1/$2"; }
mkdir empty
holds megatron latest_checkpointed_iteration.txt
holds iterations iter_0000100
holds pickled pytorch_model.bin
holds quantised model.Q8_0.gguf
holds halved rank-00000.safetensors
holds bare model.safetensors
holds logs events.out
holds stopped run.json
: >stopped/.lock
: >file.gguf
while read -r folder words; do
    if check "every verb says what the folder holds that is no model: $folder"; then
        refused 66 "--load $folder: $words" "${train_one[@]}" --load "$folder"
        refused 66 "--load $folder: $words" "${train_one[@]}" --load "$folder" --finetune --save "$folder"
        refused 66 "--load $folder: $words" "${train_one[@]}" --load "$folder" --dry-run
        refused 66 "$folder: $words" generate --load "$folder" --prompt x
        refused 66 "$folder: $words" evaluate --load "$folder" --data-path documents
        refused 66 "$folder: $words" export --load "$folder" --output exported
        refused 66 "$folder: $words" import "$folder" --save imported
        refused 66 "$folder: $words" memory --load "$folder" --micro-batch-size 1
    fi
done <<'LIST'
emptx there is no such folder; the nearest name is empty
./sub/../nothing there is no such folder
empty the folder is empty
megatron it holds checkpoints of Megatron-LM
iterations it holds checkpoints of Megatron-LM
pickled it holds weights of PyTorch (pytorch_model.bin)
quantised it holds a GGUF file
halved it holds a checkpoint without its manifest.json
bare it holds safetensors without their config.json
logs it holds no model, but events.out
stopped its run was stopped before the first checkpoint
documents.jsonl it is a file, not a folder
LIST
if check "every verb says that a file is no GGUF file"; then
    refused 65 "file.gguf: not a GGUF file" "${train_one[@]}" --load file.gguf
    refused 65 "file.gguf: not a GGUF file" generate --load file.gguf --prompt x
    refused 65 "file.gguf: not a GGUF file" evaluate --load file.gguf --data-path documents
    refused 65 "file.gguf: not a GGUF file" export --load file.gguf --output exported
    refused 65 "file.gguf: not a GGUF file" import file.gguf --save imported
fi
if check "checkpoint list says what the folder holds"; then
    refused 66 "neither a checkpoint nor a folder of checkpoints" checkpoint list megatron
fi
# The first of several runs with one command saves where it loads; the files of others do not become its own.
for folder in first first/ empty logs stopped; do
    if check "the first of several runs saves where it loads: $folder"; then
        train beginning "${no_evaluation[@]}" --train-iters 1 --load "$folder" --save "${folder%/}"
        [[ -d $folder/step-00000001 ]] || complain "$folder has no checkpoint"
    fi
done
# Whatever the two call it.
if check "--load and --save may name one folder in two ways"; then
    train beginning "${no_evaluation[@]}" --train-iters 1 --load "$PWD/named" --save named
    train beginning "${no_evaluation[@]}" --train-iters 1 --load ./named2 --save logs/../named2
fi
if check "a first run is refused in a folder of others, and makes no folder"; then
    refused 66 "checkpoints of Megatron-LM" "${train_one[@]}" --load megatron --save megatron
    refused 66 "--exit-on-missing-checkpoint" "${train_one[@]}" --load new --save new --exit-on-missing-checkpoint
    refused 66 "begin with random weights leave out --load" "${train_one[@]}" --load new --save elsewhere
    [[ ! -e new && ! -e elsewhere ]] || complain "a refused run made a folder"
fi

# ---- a model brings itself --------------------------------------------------------------------------------
no_dropout=(--attention-dropout 0 --hidden-dropout 0)
llama=(--position-embedding-type rope --normalization RMSNorm --swiglu --ffn-hidden-size 96 --disable-bias-linear
    --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 2 --rotary-base 500000
    --norm-epsilon 1e-6)
whole_model=("${corpus[@]}")
corpus=(--data-path documents --micro-batch-size 2 --lr 1e-4)
# brings NAME OPTION...: the model that these options make, with no option of it given, is trained alike wherever it
# comes from, on every grid; and as with all options given.
brings() {
    local name=$1 from
    shift
    corpus=("${whole_model[@]}")
    train "$name" "$@" "${no_evaluation[@]}" "${no_dropout[@]}" --train-iters 3 --save "$name"
    train "$name-given" "$@" "${no_evaluation[@]}" "${no_dropout[@]}" --train-iters 3 --micro-batch-size 2 \
        --global-batch-size 2 --lr 1e-4 --load "$name" --finetune
    says_not "$name-given" "taken from"
    corpus=(--data-path documents --micro-batch-size 2 --lr 1e-4)
    "$trireme" export --load "$name" --output "$name-hf" >export.log 2>&1 || complain "$(cat export.log)"
    "$trireme" import "$name-hf" --save "$name-imported" >import.log 2>&1 || complain "$(cat import.log)"
    for from in "$name" "$name-hf" "$name-imported"; do
        train "from-$from" "${no_evaluation[@]}" --train-iters 3 --load "$from" --finetune
        expect_same lm_loss "$name-given" "from-$from"
        says "from-$from" "taken from $from"
        says "from-$from" "--num-layers 4 --hidden-size 32"
    done
    launcher=(mpirun -n 2)
    train "mpi-$name" "${no_evaluation[@]}" --train-iters 3 --load "$name-hf" --finetune --pp 2
    launcher=()
    expect_same lm_loss "$name-given" "mpi-$name"
    # Its configuration has the whole model.
    train "config-$name" "${no_evaluation[@]}" --train-iters 3 --load "$name-hf" --finetune \
        --config "$name-imported/step-00000000/config.yaml"
    expect_same lm_loss "$name-given" "config-$name"
    says_not "config-$name" "taken from"
}
check "a GPT brings its sizes, wherever it comes from" need brings gpt
check "a Llama brings its sizes, wherever it comes from" need brings llama "${llama[@]}"

# ---- Hugging Face's cache ---------------------------------------------------------------------------------
# cached REVISION: llama-hf as `hf download some-org/Small-1` leaves it, the files of the revision links to blobs.
cached() {
    local model=cache/models--some-org--Small-1 file
    mkdir -p "$model/snapshots/$1" "$model/blobs"
    for file in llama-hf/*; do
        cp "$file" "$model/blobs/"
        ln -sf "../../blobs/${file##*/}" "$model/snapshots/$1/${file##*/}"
    done
}
if check "a model in Hugging Face's cache is found by its name and by its folder" need brings llama "${llama[@]}"; then
    cached 0123abcd
    export HF_HUB_CACHE=$PWD/cache
    corpus=(--data-path documents --micro-batch-size 2 --lr 1e-4)
    for from in some-org/Small-1 cache/models--some-org--Small-1 cache/models--some-org--Small-1/snapshots/0123abcd; do
        train "as-${from//\//-}" "${no_evaluation[@]}" --train-iters 3 --load "$from" --finetune
        expect_same lm_loss llama-given "as-${from//\//-}"
    done
    # Of two revisions the newest is the one that refs/main names; without it neither is.
    mkdir -p cache/models--some-org--Small-1/snapshots/old cache/models--some-org--Small-1/refs
    refused 66 "it holds no model" "${train_one[@]}" --load cache/models--some-org--Small-1
    printf 0123abcd >cache/models--some-org--Small-1/refs/main
    train cached "${no_evaluation[@]}" --train-iters 3 --load some-org/Small-1 --finetune
    expect_same lm_loss llama-given cached
    refused 66 "hf download some-org/Other" "${train_one[@]}" --load some-org/Other
    # The path of a folder is looked at first.
    mkdir -p some-org/Small-1
    refused 66 "the folder is empty" "${train_one[@]}" --load some-org/Small-1 --finetune
    rm -r some-org
fi

# What was taken is part of the configuration that goes with the run.
if check "what was taken is part of the configuration that goes with the run"; then
    need brings llama "${llama[@]}"
    train again "${no_evaluation[@]}" --train-iters 2 --load llama-hf --finetune --save again
    train scratch --config again/step-00000002/config.yaml --no-finetune --train-iters 1 --save scratch
    says scratch "4 layers, hidden 32, 4 heads, sequence 32, vocabulary 400"
    # Going on says what is taken, and nothing of the vocabulary.
    train on "${no_evaluation[@]}" --train-iters 4 --load again
    says_not on "not the same as before the checkpoint: vocab"
fi

# ---- what is given differently ----------------------------------------------------------------------------
finetune=(train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 3 --finetune)
for from in gpt gpt-hf gpt-imported; do
    if check "sizes that contradict the model are refused, its dropout is not: $from"; then
        need brings gpt
        refused 78 "--num-layers 2 (it has 4), --hidden-size 64 (it has 32), --norm-epsilon 0.001 (it has 1e-05)" \
            "${finetune[@]}" --load "$from" --num-layers 2 --hidden-size 64 --norm-epsilon 1e-3
        refused 78 "--vocab-size 500 (it has 400)" "${finetune[@]}" --load "$from" --vocab-size 500
        refused 78 "--swiglu true (it has false)" "${finetune[@]}" --load "$from" --model llama2-7b
        refused 78 "--position-embedding-type rope (it has learned_absolute), --rotary-base 10000 (it has none)" \
            "${finetune[@]}" --load "$from" --position-embedding-type rope
        train biased "${no_evaluation[@]}" --train-iters 1 --load "$from" --finetune --add-qkv-bias
        refused 78 "longer than the table of 32 positions" "${finetune[@]}" --load "$from" --seq-length 64
        train dropped "${no_evaluation[@]}" --train-iters 3 --load "$from" --finetune --hidden-dropout 0.1
        says dropped "--hidden-dropout 0.1 is used, as given; the model of $from"
        says_not dropped "--attention-dropout 0.1"
    fi
done
if check "a rotary model may have longer sequences"; then
    need brings llama "${llama[@]}"
    train longer "${no_evaluation[@]}" --train-iters 1 --load llama-hf --finetune --seq-length 64
    says longer "sequence 64"
fi
if check "--use-checkpoint-args has no effect"; then
    need brings gpt
    train known "${no_evaluation[@]}" --train-iters 3 --load gpt-imported --finetune --use-checkpoint-args
    expect_same lm_loss gpt-given known
    says known "--use-checkpoint-args has no effect: --load always takes the model's sizes"
fi
if check "memory takes the model of --load"; then
    need brings llama "${llama[@]}"
    "$trireme" memory --load llama-hf --micro-batch-size 1 >memory.log 2>&1 || complain "memory: $(cat memory.log)"
    says memory "MiB of each rank"
fi

# ---- the vocabulary ---------------------------------------------------------------------------------------
if check "synthetic data take the vocabulary of the model"; then
    need brings gpt
    corpus=(--mock-data --micro-batch-size 2 --lr 1e-4 --eval-iters 0)
    train mock --train-iters 1 --load gpt --finetune
    says mock "vocabulary 400"
    corpus=(--data-path documents --micro-batch-size 2 --lr 1e-4)
fi
if check "a tokenizer of another size than the vocabulary is refused"; then
    need brings gpt
    "$trireme" preprocess --input documents.jsonl --output-prefix others --vocab-size 300 >log 2>&1 || complain "$(cat log)"
    refused 78 "tokenizer of the data has 300 tokens, but the model of --load gpt has a vocabulary of 400" \
        train --data-path others --micro-batch-size 2 --lr 1e-4 --train-iters 1 --load gpt --finetune
fi
# As many publish it: a table with more rows than the tokenizer has tokens.
if check "a table with more rows than the tokenizer has tokens is taken"; then
    corpus=("${whole_model[@]}")
    mkdir bare_data
    cp documents.bin documents.idx bare_data
    train wide "${no_evaluation[@]}" --train-iters 1 --vocab-size 448 --data-path bare_data/documents --save wide
    corpus=(--data-path documents --micro-batch-size 2 --lr 1e-4)
    cp documents.tokenizer.json wide/step-00000001/tokenizer.json
    train wider "${no_evaluation[@]}" --train-iters 1 --load wide --finetune
    says wider "vocabulary 448"
    train unnamed "${no_evaluation[@]}" --train-iters 1 --load wide --finetune --data-path bare_data/documents
    says unnamed "vocabulary 448"
fi

# ---- nothing left to do -----------------------------------------------------------------------------------
if check "nothing left of --train-iters is told"; then
    need brings gpt
    train ended "${no_evaluation[@]}" --train-iters 3 --load gpt
    says ended "nothing to train: iteration 3 of --train-iters 3"
    says ended "a larger --train-iters goes on with it"
fi
if check "a checkpoint beyond --train-iters is told"; then
    need brings gpt
    train beyond "${no_evaluation[@]}" --train-iters 2 --load gpt
    says beyond "nothing to train: iteration 3 of --train-iters 2"
    says beyond "the checkpoint is beyond this end: --ckpt-step N takes an older one, a --train-iters of more than 3 goes on"
fi
if check "nothing left of --train-samples is told"; then
    need brings gpt
    train samples "${no_evaluation[@]}" --train-samples 24 --load gpt
    says samples "nothing to train: iteration 3 of the 3 that --train-samples makes"
fi
if check "a larger --train-iters goes on"; then
    need brings gpt
    train more "${no_evaluation[@]}" --train-iters 4 --load gpt
    says_not more "nothing to train"
fi
finish
