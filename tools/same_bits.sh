#!/usr/bin/env bash
# Shows that two programs compute the same bits. Runs a table of small runs with both and compares what they leave:
# losses and norms with all digits, checkpoints, exports, data sets and texts byte for byte. Log lines, comments in
# config.yaml and the words around the numbers of `memory` and `schedule` are not compared.
#
#   tools/same_bits.sh OLD NEW [SHARE]
#
# OLD and NEW are paths to two builds of trireme. SHARE N takes every Nth row, SHARE K/N every Nth from the Kth on, and
# SHARE NAME... the rows whose names match one of these patterns. What OLD leaves is kept in the folder
# $SAME_BITS_CACHE (unset: build/same_bits) by its build id, so that OLD runs once. Prints for each row that
# differs its first difference, then "N runs, N differ". Exit status: 0 when none differ, 1 otherwise. Remove the
# folder after a change of this script's functions.
set -uo pipefail
export LC_ALL=C
(($# >= 2)) || {
    sed -n '2,13s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 64
}
# shellcheck source=tools/mpi.sh
source "${BASH_SOURCE%/*}/mpi.sh"
old=$(realpath -e "$1") && new=$(realpath -e "$2") || exit 66
shift 2
build_id() { readelf -n "$1" | sed -n 's/^ *Build ID: //p'; }
cache=${SAME_BITS_CACHE:-build/same_bits}/$(build_id "$old")
mkdir -p "$cache" && cache=$(realpath "$cache") || exit 73
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
processor=$(grep -m 1 "model name" /proc/cpuinfo) # the products of fp32 may depend on it

# ---- what a row runs: functions that work in a folder of their own, with $trireme --------------------------------
words() { # FIRST LAST: documents, each shorter than two samples
    seq "$1" "$2" | awk '{
        printf "{\"text\": \"document %d: int f_%d(int a) { return a + %d; } and %d words more, ", $1, $1, $1 * $1, $1
        print "then others\"}" }'
}
data_set() { [[ -e documents.idx ]] || cp "$cache"/data/* .; }
gpt=(--data-path documents --num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32
    --micro-batch-size 1 --global-batch-size 8 --lr "1e-3" --split "100,0,0" --eval-iters 0 --threads 1
    --train-iters 3 --log-interval 1 --metrics metrics.jsonl --save saved)
llama=(--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
    --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 4 --ffn-hidden-size 64)
qwen=(--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --add-qkv-bias
    --group-query-attention --num-query-groups 2 --ffn-hidden-size 96)

train() { # [mpi N] OPTION...
    local launcher=()
    if [[ ${1:-} == mpi ]]; then
        launcher=(mpirun -n "$2")
        shift 2
    fi
    data_set
    timeout -k 5 300 "${launcher[@]}" "$trireme" train "${gpt[@]}" "$@" >>log 2>&1 </dev/null
}
train_llama() {
    if [[ ${1:-} == mpi ]]; then train mpi "$2" "${llama[@]}" "${@:3}"; else train "${llama[@]}" "$@"; fi
}
train_qwen() { train "${qwen[@]}" "$@"; }
mock() { gpt=("${gpt[@]:2}") && train --mock-data --vocab-size 100 "$@"; }
grow() {
    gpt=("${gpt[@]/--train-iters/--train-samples}")
    train --train-samples 60 --global-batch-size 16 --rampup-batch-size 4 4 24 "$@"
}

# kept MODEL: a checkpoint that OLD wrote, as the folder `saved`, with the data set beside it. OLD writes it first.
kept() {
    data_set
    if [[ ! -d $cache/kept/$1 ]]; then
        local model=()
        [[ $1 != llama ]] || model=("${llama[@]}")
        [[ $1 != sharded ]] || model=("${llama[@]}" --bf16 --ranks 8 --tp 2 --pp 2 --use-distributed-optimizer)
        "$old" train "${gpt[@]}" "${model[@]}" --train-iters 20 --save kept >>log 2>&1 </dev/null || return
        rm -f metrics.jsonl && mkdir -p "$cache/kept" && { mv -T kept "$cache/kept/$1" 2>/dev/null || rm -r kept; }
    fi
    cp -r "$cache/kept/$1" saved && rm -f saved/run.json
}
kept_options() { # MODEL: the options that make it, in the array gpt
    [[ $1 == gpt ]] || gpt+=("${llama[@]}")
}
goes_on() { # STEPS MODEL OPTION...: so many steps more than OLD made, and saved again
    kept "$2" && mv saved loaded && kept_options "$2" &&
        train --load loaded --train-iters $((20 + $1)) "${@:3}" && rm -r loaded
}
quietly() { timeout -k 5 300 "$trireme" "$@" >>log 2>&1 </dev/null; } # what it prints has times
verb() { timeout -k 5 300 "$trireme" "$@" >>output 2>>log </dev/null; }
numbers() { verb "$@" && grep -oE '[0-9]+([.][0-9]+)?' output >figures && rm output; } # words may change
exported() { # MODEL OPTION...
    kept "$1" && quietly export --load saved --output exported "${@:2}" && rm -r saved
}
imported() { # MODEL
    kept "$1" && "$old" export --load saved --output hf >>log 2>&1 && rm -r saved &&
        quietly import hf --save saved && rm -r hf
}
generated() { # MODEL OPTION...
    kept "$1" && verb generate --load saved --prompt "document 7: int f_" --threads 1 "${@:2}" && rm -r saved
}
evaluated() { kept "$1" && verb evaluate --load saved --threads 1 "${@:2}" && rm -r saved; }
scored() { # MODEL OPTION...
    seq 5 | awk '{
        printf "{\"context\": \"document %d: int \", ", $1
        printf "\"continuation\": \"f_%d(int a) { return\"}\n", $1 }' >requests
    evaluated "$1" --requests requests --output answers.jsonl "${@:2}"
}
resharded() { kept "$1" && quietly checkpoint reshard saved --output again --files 3 && rm -r saved; }
prepared() { # OPTION...
    words 1 900 >text.jsonl
    seq 300 | awk '{ print "line " $1 " of a text, with some words: " $1 * 7 }' >text.txt
    gzip -kn text.txt
    quietly preprocess --output-prefix prepared --vocab-size 350 "$@" && rm text*
}
tokenizer() {
    words 1 400 >text.jsonl && quietly tokenizer train --input text.jsonl --vocab-size 320 --output made && rm text.jsonl
}
sampled() { data_set && verb data sample documents --seq-length 32 --samples 12 --first-sample 5; }
plan() { verb plan --model gpt3-175b --machine dgx-a100 --global-batch-size 1536 --json "$@"; }

# ---- the table: name, then the call -------------------------------------------------------------------------------
table() {
    cat <<'END'
one                       train
reference                 train --device reference
check                     train --device check --check-comm --ranks 4 --tp 2 --pp 2
threads                   train --threads 2
no-dropout                train --attention-dropout 0 --hidden-dropout 0 --bf16
unfused                   train --attention-backend unfused --ranks 2 --tp 2
bf16                      train --bf16
fp16                      train --fp16 --initial-loss-scale 16777216 --hysteresis 1 --loss-scale-window 2 --train-iters 6
d2                        train --ranks 2
d4-sharded                train --ranks 4 --use-distributed-optimizer
d8-overlap                train --ranks 8 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --ddp-bucket-size 5000
d4-bf16                   train --ranks 4 --bf16 --use-distributed-optimizer --overlap-grad-reduce
d4-fp16                   train --ranks 4 --fp16 --loss-scale 1024 --use-distributed-optimizer
t2                        train --ranks 2 --tp 2
t4-sp                     train --ranks 4 --tp 4 --sequence-parallel
t4-sp-bf16                train --ranks 4 --tp 4 --sequence-parallel --bf16
t2-fp16                   train --ranks 2 --tp 2 --fp16 --loss-scale 512
gpipe                     train --ranks 2 --pp 2 --schedule gpipe
1f1b-p2                   train --ranks 2 --pp 2
1f1b-p4-bf16              train --ranks 4 --pp 4 --bf16
1f1b-late-receives        train --ranks 4 --pp 4 --no-overlap-p2p-communication
interleaved               train --ranks 2 --pp 2 --vp 2
interleaved-v4            train --ranks 2 --pp 2 --vp 4 --num-layers 8 --bf16
interleaved-group         train --ranks 2 --pp 2 --vp 2 --microbatch-group-size-per-virtual-pipeline-stage 4
zb-h1                     train --ranks 4 --pp 4 --schedule zb-h1
zb-h1-bf16                train --ranks 4 --pp 2 --schedule zb-h1 --bf16 --use-distributed-optimizer
zb-h2                     train --ranks 4 --pp 4 --schedule zb-h2
zb-v                      train --ranks 2 --pp 2 --schedule zb-v
zb-v-fp16                 train --ranks 2 --pp 2 --schedule zb-v --fp16 --loss-scale 1024
auto                      train --ranks 4 --pp 4 --schedule auto --schedule-times 1,2,1,1 --schedule-stash-limit 6
balanced                  train --ranks 4 --pp 4 --balance-stages
uneven                    train --ranks 2 --pp 2 --decoder-first-pipeline-num-layers 1
layout                    train --ranks 2 --pp 2 --pipeline-model-parallel-layout Et|t|t|tL
selective                 train --recompute-activations --ranks 2 --tp 2
full-uniform              train --recompute-granularity full --recompute-method uniform --recompute-num-layers 2
full-block                train --ranks 2 --pp 2 --recompute-granularity full --recompute-method block --recompute-num-layers 1
full-shared               train --ranks 4 --tp 2 --pp 2 --recompute-granularity full --recompute-method uniform --distribute-saved-activations
full-zb-v-bf16            train --ranks 2 --pp 2 --schedule zb-v --bf16 --recompute-granularity full --recompute-method uniform
t2p2                      train --ranks 4 --tp 2 --pp 2
t2p2-whole-messages       train --ranks 4 --tp 2 --pp 2 --no-scatter-gather-tensors-in-pipeline
t2p2d2-sp                 train --ranks 8 --tp 2 --pp 2 --sequence-parallel --use-distributed-optimizer
t2p2d2-bf16               train --ranks 8 --tp 2 --pp 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --bf16
t2p2d2-fp16-zb            train --ranks 8 --tp 2 --pp 2 --schedule zb-h1 --fp16 --loss-scale 1024 --use-distributed-optimizer
t2p4d2                    train --ranks 16 --tp 2 --pp 4 --sequence-parallel --use-distributed-optimizer --bf16
t4p2d2                    train --ranks 16 --tp 4 --pp 2 --schedule zb-v --sequence-parallel --overlap-grad-reduce
t1p4d4-v2                 train --ranks 16 --pp 4 --vp 2 --num-layers 8 --global-batch-size 16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
t2p2d4-selective          train --ranks 16 --tp 2 --pp 2 --recompute-activations --sequence-parallel --schedule zb-h2
growing                   grow --ranks 2 --pp 2
mbs2                      train --micro-batch-size 2 --ranks 2 --tp 2 --sequence-parallel
evaluation                train --ranks 2 --pp 2 --split 50,50,0 --eval-interval 2 --eval-iters 2
masked                    train --eod-mask-loss --ranks 2
mock                      mock --ranks 2 --bf16
async                     train --async-save --save-interval 1 --ranks 4 --dp 2 --tp 2 --use-distributed-optimizer
no-optimizer-saved        train --no-save-optim --ranks 2 --pp 2
decays                    train --lr-decay-style cosine --lr-warmup-iters 1 --min-lr 1e-5 --weight-decay 0.1 --clip-grad 0.5 --ranks 2
llama                     train_llama
llama-bf16                train_llama --bf16 --ranks 2 --tp 2 --sequence-parallel
llama-fp16                train_llama --fp16 --loss-scale 1024 --ranks 2 --pp 2
llama-p4-zb-v             train_llama --ranks 4 --pp 2 --tp 2 --schedule zb-v --bf16
llama-interleaved         train_llama --ranks 4 --pp 2 --vp 2 --use-distributed-optimizer --overlap-grad-reduce
llama-full                train_llama --ranks 8 --tp 2 --pp 2 --recompute-granularity full --recompute-method block --bf16 --use-distributed-optimizer
llama-t4p2d2              train_llama --ranks 16 --tp 4 --pp 2 --sequence-parallel --bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
llama-t2p4d2-zb           train_llama --ranks 16 --tp 2 --pp 4 --schedule zb-h1 --sequence-parallel --recompute-activations
llama-scaled              train_llama --use-rope-scaling --rope-original-max-position-embeddings 16 --rotary-percent 0.5 --ranks 2 --tp 2
qwen                      train_qwen --ranks 2 --tp 2
qwen-bf16                 train_qwen --bf16 --ranks 4 --tp 2 --pp 2 --sequence-parallel
exact-gelu                train --no-bias-gelu-fusion --position-embedding-type none --ranks 2 --tp 2
mpi-d2                    train mpi 2 --use-distributed-optimizer --bf16
mpi-t2p2                  train mpi 4 --tp 2 --pp 2 --sequence-parallel
mpi-zb-v                  train mpi 2 --pp 2 --schedule zb-v
mpi-interleaved           train mpi 4 --pp 2 --vp 2 --bf16 --overlap-grad-reduce
mpi-llama                 train_llama mpi 8 --tp 2 --pp 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
mpi-llama-fp16            train_llama mpi 4 --tp 2 --fp16 --loss-scale 1024 --recompute-activations
mpi-16                    train mpi 16 --tp 2 --pp 4 --schedule zb-h1 --bf16 --use-distributed-optimizer
again-gpt                 goes_on 0 gpt
again-gpt-t2p2            goes_on 0 gpt --ranks 4 --tp 2 --pp 2
again-gpt-d2              goes_on 0 gpt --ranks 2 --use-distributed-optimizer
again-llama-p4            goes_on 0 llama --ranks 4 --pp 4
again-sharded             goes_on 0 sharded --bf16 --ranks 8 --tp 2 --pp 2 --use-distributed-optimizer
again-sharded-one         goes_on 0 sharded --bf16
on-gpt-t2d2               goes_on 2 gpt --ranks 4 --tp 2 --use-distributed-optimizer
on-llama                  goes_on 2 llama --ranks 2 --pp 2
on-sharded-zb-v           goes_on 2 sharded --bf16 --ranks 4 --pp 2 --schedule zb-v
reshard-gpt               resharded gpt
reshard-sharded           resharded sharded
hf-gpt                    exported gpt --to hf
hf-llama                  exported llama --to hf
hf-sharded                exported sharded --to hf --dtype f32
gguf-gpt                  exported gpt --to gguf --dtype f16
gguf-llama                exported llama --to gguf --dtype q8_0
gguf-sharded              exported sharded --to gguf
import-gpt                imported gpt
import-llama              imported llama
generate-gpt              generated gpt --max-new-tokens 12 --temperature 0
generate-drawn            generated gpt --max-new-tokens 12 --temperature 0.9 --top-k 40 --top-p 0.95 --seed 11 --num-samples 3 --tp 2 --pp 2 --ranks 4
generate-llama            generated llama --max-new-tokens 12 --temperature 0.7 --seed 5
generate-uncached         generated llama --max-new-tokens 12 --temperature 0 --no-kv-cache --bf16 --ranks 2 --tp 2
evaluate-gpt              evaluated gpt --data-path documents --split 50,50,0 --mbs 2
evaluate-llama            evaluated llama --data-path documents --split 50,50,0 --mbs 2 --ranks 4 --tp 2 --pp 2
score-gpt                 scored gpt --mbs 3
score-llama               scored llama --mbs 2 --ranks 2 --tp 2
preprocess                prepared --input text.jsonl --append-eod --workers 1
preprocess-workers        prepared --input text.jsonl text.txt.gz text.txt --append-eod --workers 3
preprocess-text           prepared --input text.txt
tokenizer                 tokenizer
samples                   sampled
schedule-gpipe            verb schedule --schedule gpipe --pp 3 --microbatches 5
schedule-1f1b             numbers schedule --schedule 1f1b --pp 4 --microbatches 8
schedule-interleaved      numbers schedule --schedule interleaved --pp 4 --vp 2 --microbatches 8
schedule-zb-h1            numbers schedule --schedule zb-h1 --pp 4 --microbatches 8
schedule-zb-h2            numbers schedule --schedule zb-h2 --pp 4 --microbatches 8
schedule-zb-v             numbers schedule --schedule zb-v --pp 4 --microbatches 8
schedule-auto             numbers schedule --schedule auto --pp 4 --microbatches 8 --schedule-times 1,0.98,0.5,0.03
memory-gpt                numbers memory --model gpt2-124m --mbs 2 --gbs 16 --ranks 4 --tp 2 --pp 2 --bf16
memory-llama              numbers memory --model llama2-7b --mbs 1 --gbs 64 --ranks 16 --tp 4 --pp 2 --sequence-parallel --use-distributed-optimizer --bf16 --schedule zb-h2
memory-full               numbers memory --model llama3-8b --mbs 1 --gbs 64 --ranks 8 --tp 2 --pp 2 --vp 2 --fp16 --recompute-granularity full --recompute-method uniform
plan-search               plan --gpus 1024
plan-one                  plan --gpus 1024 --tp 8 --pp 16 --micro-batch-size 1
plan-context              plan --gpus 512 --cp 2 --tp 8
plan-zb                   plan --gpus 256 --tp 8 --pp 8 --schedule zb-h1 --micro-batch-size 1
END
}

# ---- what a row leaves ----------------------------------------------------------------------------------------------
# facts: a line for each fact of the files in this folder, without times.
facts() {
    local file
    local others=(! -name log ! -name .lock ! -name run.json ! -name 'documents.*' ! -name requests)
    find . -type f "${others[@]}" | sort | while read -r file; do
        case $file in
        *metrics.jsonl)
            sed -E "s|\"(elapsed_ms\|tokens_per_s\|tflops_per_rank)\": [^,}]*(, )?||g; s|^|$file: |" "$file" ;;
        *config.yaml) sed -E "/^ *(#|$)/d; s/  #.*//; s|^|$file: |" "$file" ;; # options without comments
        *manifest.json | *.yaml | *output | *figures | *answers.jsonl) sed "s|^|$file: |" "$file" ;;
        *) echo "$file: $(stat -c %s "$file") bytes, $(sha256sum <"$file" | cut -c 1-32)" ;;
        esac
    done
}

# leave PROGRAM CALL...: what the call leaves, in standard output; in a shell of its own.
leave() (
    local trireme=$1 status
    shift
    rm -rf "$work/row" && mkdir "$work/row" && cd "$work/row" || exit 1
    "$@"
    status=$?
    facts
    ((status == 0)) || echo "exit status $status: $(tail -n 1 log 2>/dev/null)"
)

# chosen INDEX NAME: whether SHARE takes the row.
share=("$@")
chosen() {
    local pattern
    ((${#share[@]})) || return 0
    if [[ ${share[0]} =~ ^([0-9]+)(/([0-9]+))?$ ]]; then
        local every=${BASH_REMATCH[3]:-${BASH_REMATCH[1]}} from=1
        [[ -z ${BASH_REMATCH[3]} ]] || from=${BASH_REMATCH[1]}
        (((${1} - from) % every == 0))
        return
    fi
    for pattern in "${share[@]}"; do
        # shellcheck disable=SC2053 # a pattern
        [[ $2 != $pattern ]] || return 0
    done
    return 1
}

cd "$work" || exit 1
if [[ ! -d $cache/data ]]; then # the data set that all rows train on
    words 1 600 >documents.jsonl
    "$old" preprocess --input documents.jsonl --output-prefix documents --vocab-size 400 --append-eod >log 2>&1 || {
        cat log
        exit 1
    }
    mkdir "$cache/data.$$" && mv documents.bin documents.idx documents.tokenizer.json "$cache/data.$$" &&
        mv -T "$cache/data.$$" "$cache/data"
fi
runs=0
differ=0
index=0
while read -r name call; do
    index=$((index + 1))
    chosen $index "$name" || continue
    read -ra call <<<"$call"
    kept=$cache/$name.$(echo "$processor ${call[*]}" | sha256sum | cut -c 1-12)
    if [[ ! -e $kept ]]; then
        leave "$old" "${call[@]}" >"$kept.$$"
        mv "$kept.$$" "$kept"
        grep '^exit status' "$kept" | sed "s|^|$name: in OLD: |"
    fi
    leave "$new" "${call[@]}" >"$work/facts"
    runs=$((runs + 1))
    if ! cmp -s "$kept" "$work/facts"; then
        differ=$((differ + 1))
        diff "$kept" "$work/facts" >"$work/difference"
        echo "$name: $(grep -c '^[<>]' "$work/difference") lines differ; the first of OLD and of NEW:"
        for side in '<' '>'; do grep -m 1 "^$side" "$work/difference" | cut -c 1-300; done
    fi
done < <(table)
echo "$runs runs, $differ differ"
((differ == 0))
