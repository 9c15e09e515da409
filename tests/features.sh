#!/usr/bin/env bash
# The features of a run as a user meets them, alone and together, on tiny models: precision, recomputation,
# shards, schedules, a batch that grows, traces, predicted memory, published models. What must not change a
# bit is compared as it is printed: nine digits tell every float from its neighbours.
# Usage: features.sh PATH/trireme
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1"
corpus+=("${no_evaluation[@]}" --threads 1)
steps=(--train-iters 4)

# expect_bits REFERENCE NAME OPTION...: the run NAME has the losses and gradients of REFERENCE.
expect_bits() {
    local reference=$1 name=$2
    shift 2
    train "$name" "$@"
    expect_same lm_loss "$reference" "$name"
    expect_same grad_norm "$reference" "$name"
}

expect_text() { grep -qF -- "$2" "$1" || complain "no '$2' in $1: $(tail -5 "$1")"; } # FILE TEXT

# ---- precision, schedules, recomputation -----------------------------------------------------------------
precisions=("" "--bf16" "--fp16 --loss-scale 1024")
names=(fp32 bf16 fp16)
pipelines=("2 --pp 2 --schedule gpipe" "2 --pp 2" "4 --pp 4 --schedule zb-h1" "4 --pp 4 --schedule zb-h2"
    "2 --pp 2 --schedule zb-v"
    "4 --pp 4 --schedule auto --schedule-times 1,2,1,1 --schedule-stash-limit 6"
    "2 --pp 2 --vp 2 --schedule interleaved"
    "4 --pp 4 --balance-stages")
recomputations=("--recompute-activations"
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2"
    "--recompute-granularity full --recompute-method block --recompute-num-layers 1")
for i in 0 1 2; do
    name=${names[i]}
    read -ra precision <<<"${precisions[i]}"
    train "$name" "${steps[@]}" "${precision[@]}"
    expect_rows "$name" 4
    # Each of them with one precision: tests/test_train_covering.c has all pairs.
    for ((k = i; k < ${#pipelines[@]}; k += 3)); do
        # shellcheck disable=SC2086 # several words
        expect_bits "$name" "$name ${pipelines[k]}" "${steps[@]}" "${precision[@]}" --ranks ${pipelines[k]}
    done
    # shellcheck disable=SC2086 # several words
    expect_bits "$name" "$name ${recomputations[i]}" "${steps[@]}" "${precision[@]}" ${recomputations[i]}
done
expect_text bf16.log "M parameters, bf16"
for name in bf16 fp16; do
    expect_close fp32 $name 1e-3
    [[ $(metric lm_loss $name) != "$(metric lm_loss fp32)" ]] || complain "--$name changes nothing"
done
expect_bits bf16 "together" "${steps[@]}" --bf16 --ranks 2 --pp 2 --schedule zb-v \
    --recompute-granularity full --recompute-method uniform

# Products in 8 bits, in a run that begins in bf16.
fp8=(--bf16 --fp8-format hybrid)
train fp8 "${steps[@]}" "${fp8[@]}"
expect_rows fp8 4
expect_text fp8.log "M parameters, bf16, products of layers in 8 bits (hybrid)"
expect_close bf16 fp8 2e-3
[[ $(metric lm_loss fp8) != "$(metric lm_loss bf16)" ]] || complain "--fp8-format changes nothing"
expect_bits fp8 "fp8 on a grid" "${steps[@]}" "${fp8[@]}" --ranks 2 --pp 2 --recompute-activations --check-comm
train switched "${steps[@]}" --bf16 --save switched --exit-interval 2
train switched "${steps[@]}" "${fp8[@]}" --save switched --load switched
expect_rows switched 4
expect_close bf16 switched 2e-3
[[ $(metric lm_loss switched | head -2) == "$(metric lm_loss bf16 | head -2)" ]] || complain "switched: not bf16 at first"
[[ $(metric lm_loss switched) != "$(metric lm_loss bf16)" ]] || complain "switched: not in 8 bits in the end"

# ---- recipes of scales -----------------------------------------------------------------------------------
# Each is near bf16, has the same bits on another grid, and goes on there from a checkpoint as if it had not stopped.
recipes=("delayed 2e-3 --fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 3 --fp8-amax-compute-algo max --fp8-margin 1"
    "mxfp8 2e-3 --fp8-format e4m3 --fp8-recipe mxfp8"
    "nvfp4 1e-2 --fp4-format e2m1"
    "ends 1e-2 --fp4-format e2m1 --first-last-layers-bf16 --num-layers-at-end-in-bf16 2")
for recipe in "${recipes[@]}"; do
    read -r name tolerance options <<<"$recipe"
    read -ra recipe <<<"--bf16 $options"
    train "$name" "${steps[@]}" "${recipe[@]}"
    expect_rows "$name" 4
    expect_close bf16 "$name" "$tolerance"
    [[ $(metric lm_loss "$name") != "$(metric lm_loss bf16)" ]] || complain "$options changes nothing"
    expect_bits "$name" "$name on a grid" "${steps[@]}" "${recipe[@]}" --ranks 2 --pp 2 --vp 2 \
        --recompute-granularity full --recompute-method uniform --check-comm
    train "$name again" "${steps[@]}" "${recipe[@]}" --save "of $name" --exit-interval 2 --async-save
    train "$name again" "${steps[@]}" "${recipe[@]}" --save "of $name" --load "of $name" --ranks 2 --pp 2
    expect_same lm_loss "$name" "$name again"
    expect_same grad_norm "$name" "$name again"
    "$trireme" checkpoint verify "of $name" >log 2>&1 || complain "$name: verify: $(tail -2 log)"
done
expect_text delayed.log "M parameters, bf16, products of layers in 8 bits (hybrid, delayed)"
expect_text nvfp4.log "M parameters, bf16, products of layers in 4 bits (e2m1, nvfp4)"
[[ $(metric lm_loss ends) != "$(metric lm_loss nvfp4)" ]] || complain "layers in bf16 change nothing"
# A run takes delayed scales up, with another history, and drops them.
train other "${steps[@]}" --bf16 --fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 2 --load "of delayed" \
    --train-iters 6 --save other
train dropped "${steps[@]}" --bf16 --load other --train-iters 8
expect_rows dropped 2
blocks=(--hidden-size 128 --seq-length 128)
train "wide" "${steps[@]}" "${blocks[@]}" --bf16
train blockwise "${steps[@]}" "${blocks[@]}" --bf16 --fp8-format e4m3 --fp8-recipe blockwise
expect_close wide blockwise 2e-3
[[ $(metric lm_loss wide) != "$(metric lm_loss blockwise)" ]] || complain "blockwise changes nothing"

# ---- a Llama with everything on --------------------------------------------------------------------------
llama=(--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
    --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 2 --ffn-hidden-size 64)
shards=(--tp 2 --sequence-parallel --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather)
train llama "${steps[@]}" "${llama[@]}"
for i in 0 1; do
    read -ra options <<<"${precisions[i]}"
    options+=("${steps[@]}" "${llama[@]}" "${shards[@]}")
    name="llama ${names[i]}"
    train "$name" "${options[@]}" --ranks 4 --save-config "$i.yaml"
    expect_bits "$name" "$name grid" "${options[@]}" --ranks 8 --pp 2 --recompute-activations
    expect_bits "$name" "$name full" "${options[@]}" --ranks 8 --pp 2 --schedule zb-v \
        --recompute-granularity full --recompute-method uniform
    expect_bits "$name" "$name config" --config "$i.yaml"
    launcher=(mpirun -n 8)
    expect_bits "$name" "$name mpi" "${options[@]}" --pp 2 --recompute-activations --trace "mpi $i.json"
    launcher=()
done
expect_close llama "llama fp32"
expect_close llama "llama bf16" 1e-3

# ---- a batch that grows ----------------------------------------------------------------------------------
# 4, and 4 more after every 60 / 3 samples until there are 16, which need more than 60 samples.
growing=(--global-batch-size 16 --train-samples 120 --rampup-batch-size 4 4 60)
train growing "${growing[@]}"
sizes=$(metric global_batch_size growing | xargs)
[[ $sizes == "4 4 4 4 4 8 8 8 12 12 16 16 16" ]] || complain "--rampup-batch-size: batches of $sizes"
paste <(metric consumed_samples growing) <(metric global_batch_size growing) |
    awk '{ consumed += $2; if ($1 != consumed) bad = 1 } END { exit bad || !NR }' ||
    complain "samples and batches do not add up"
expect_bits growing "growing pipeline" "${growing[@]}" --ranks 2 --pp 2
expect_bits growing "growing zb-h2" "${growing[@]}" --ranks 2 --pp 2 --schedule zb-h2
expect_same global_batch_size growing "growing pipeline"

# ---- overflows of fp16 -----------------------------------------------------------------------------------
# Each one halves the scale and leaves everything else, the learning rate too; two good steps double it.
overflowing=(--fp16 --initial-loss-scale 16777216 --hysteresis 1 --loss-scale-window 2 --train-iters 16)
train overflowing "${overflowing[@]}"
paste <(metric skipped overflowing) <(metric loss_scale overflowing) <(metric grad_norm overflowing) \
    <(metric learning_rate overflowing) | awk '
    BEGIN { scale = 16777216; rate = 1e-3 }
    $1 { scale /= 2; good = 0; skipped++; if ($3 != "\"Infinity\"" || $4 != rate) bad = 1 }
    !$1 { steps++; if (++good == 2) { scale *= 2; good = 0 }; if ($4 >= rate) bad = 1 }
    $2 != scale { bad = 1 }
    { rate = $4 }
    END { exit bad || !skipped || steps < 3 }' ||
    complain "skipped steps: $(cut -d, -f 3-5,9- overflowing.jsonl)"
expect_text overflowing.log "loss scale: 8388608.0 | number of skipped iterations:   1 |"
expect_bits overflowing "overflowing pipeline" "${overflowing[@]}" --ranks 4 --pp 4 --schedule zb-h1
timeout 60 "$trireme" train "${corpus[@]}" --fp16 --initial-loss-scale 1e30 --max-skipped-steps 3 \
    --train-iters 9 >log 2>&1
[[ $? == 76 ]] || complain "--max-skipped-steps does not end the run: $(tail -2 log)"
expect_text log "iteration 3: 3 steps in a row changed nothing (--max-skipped-steps)"

# ---- losses that jump, ends ------------------------------------------------------------------------------
train spiky --lr 3 --lr-decay-style constant "${steps[@]}" --check-for-spiky-loss --loss-spike-factor 2
expect_text spiky.log "iteration 2: lm loss"
expect_text spiky.log "(--check-for-spiky-loss)"
train interval "${steps[@]}" --bf16 --exit-interval 3 --ranks 2 --pp 2 --schedule zb-h1
[[ $(metric lm_loss interval) == "$(metric lm_loss bf16 | head -3)" ]] ||
    complain "--exit-interval does not end after 3 of bf16's steps"
train duration --bf16 --train-iters 20000 --exit-duration-in-mins 0.01 --ranks 2
expect_text duration.log "trained"
(($(rows duration) < 20000)) || complain "--exit-duration-in-mins does not end a run"

# ---- traces ----------------------------------------------------------------------------------------------
train untraced "${steps[@]}" --bf16 --ranks 2 --dp 2
expect_bits untraced traced "${steps[@]}" --bf16 --ranks 4 --pp 2 --vp 2 --dp 2 --trace threads.json
# read_trace FILE RANKS TEXT: the program's own reader refuses what is no JSON; a line per rank, two pictures.
read_trace() {
    "$trireme" schedule --trace "$1" --svg trace.svg --width 80 >log 2>&1 ||
        complain "schedule --trace $1: exit $?: $(cat log)"
    expect_text log "$3"
    [[ $(awk '/^rank   tp/ { table = 1; next } /^$/ { table = 0 } table' log | wc -l) == "$2" ]] ||
        complain "$1: not $2 ranks: $(cat log)"
    [[ $(grep -c "bubble .* %:$" log) == 2 && $(head -c 4 trace.svg) == "<svg" ]] ||
        complain "$1: not two pictures: $(cat log)"
}
read_trace threads.json 4 "interleaved on tp 1, dp 2, pp 2"
for i in 0 1; do read_trace "mpi $i.json" 8 "1f1b on tp 2, dp 2, pp 2"; done
# waited COLUMN: every rank of the table that was read last has waited for this kind of group.
waited() {
    awk -v name="$1" '
        /^$/ { table = 0 }
        table { rows++; most += $column > 0 }
        /^rank   tp/ { table = 1; for (i = 1; i <= NF; i++) if ($i == name) column = i }
        END { exit !(column && rows && most == rows) }' log || complain "not every rank waited for $1: $(cat log)"
}
train context "${steps[@]}" --ranks 4 --cp 2 --pp 2 --trace context.json
read_trace context.json 4 "1f1b on tp 1, cp 2, dp 1, pp 2"
expect_text log "of the step in waits for tp, cp and dp, mean over ranks"
waited cp
train experts "${steps[@]}" --ranks 2 --num-experts 4 --moe-router-topk 2 --expert-model-parallel-size 2 --trace experts.json
read_trace experts.json 2 "1f1b on tp 1, ep 2, dp 2, pp 1"
expect_text log "of the step in waits for tp, ep and dp, mean over ranks"
waited ep

# ---- many steps in 16 bits -----------------------------------------------------------------------------------
# Weights that were only their 16-bit values would be 0.2 above fp32 by then.
mean_of() { metric lm_loss "$1" | tail -5 | awk '{ sum += $1 } END { print sum / NR }'; } # over the last 50 steps
learning=(--train-iters 150 --lr 3e-3 --log-interval 10)
train learning "${learning[@]}"
for options in "--bf16" "--fp16 --loss-scale 1024" \
    "--bf16 --fp8-format hybrid" \
    "--bf16 --ranks 8 --tp 2 --pp 2 --sequence-parallel --use-distributed-optimizer"; do
    # shellcheck disable=SC2086 # several words
    train "learning $options" "${learning[@]}" $options
    awk -v a="$(mean_of learning)" -v b="$(mean_of "learning $options")" \
        'BEGIN { exit !(a > 1 && a < 2 && b < a + 0.01 && b > a - 0.01) }' ||
        complain "$options: a mean loss of $(mean_of "learning $options"), fp32 $(mean_of learning)"
done

# ---- orders by time --------------------------------------------------------------------------------------
# Where the model laid as a V is shorter in the same memory, auto says so; not where it holds more, or waits more.
shorter_v() { "$trireme" schedule --schedule auto --pp 4 --microbatches 8 "$@" | grep -c "shorter by .* --schedule zb-v"; }
[[ $(shorter_v --schedule-times 1,0.98,0.5,0.03) == 1 ]] || complain "schedule --schedule auto: no word of zb-v"
# 12 of 16 computes of each direction are in pairs: of six parts of 1 and messages of x a pair takes 6 up to x = 0.9, 8 with x = 2.
expect_hidden() { # PERCENT OPTION...
    "$trireme" schedule --schedule paired --pp 2 --microbatches 8 "${@:2}" >log 2>&1 || complain "exit $?: $(cat log)"
    grep -q "^hidden  $1 % of the time in which rows travel to experts and back$" log || complain "not $1 % hidden: $(cat log)"
}
expect_hidden 75.0 --forward-us 3.8 --backward-us 5.8 --exchange-us 0.9
expect_hidden 71.9 --forward-us 4.4 --backward-us 6.4 --exchange-us 1.2
expect_hidden 56.2 --forward-us 6 --backward-us 8 --exchange-us 2
"$trireme" schedule --schedule paired --pp 2 --microbatches 8 >log 2>&1
grep -q ^hidden log && complain "a schedule hides what does not travel: $(cat log)"
[[ $(shorter_v --schedule-times 1,0.98,0.5,0.03 --schedule-stash-limit 3) == 0 ]] || complain "zb-v in a stash of 3"
[[ $(shorter_v --schedule-times 1,1,1,2) == 0 ]] || complain "zb-v in spite of slow messages"

# ---- memory and models -----------------------------------------------------------------------------------
# numbers_of FILE: the memory of rank 0 as train and as memory print it: run, stashes, each, recomputed, each,
# scratch, workspace, total.
numbers_of() {
    sed -nE -e '/^memory of rank 0/{s/^[^0-9]*0[^0-9]*//;s/[^0-9.]+/ /g;p}' \
        -e '/^   0 /{s/ +/ /g;s/^ 0 //;p}' "$1" | head -1
}

# same_memory OPTION...: what is predicted is what a run takes, the blocks of the arena included.
same_memory() {
    timeout 60 "$trireme" train --data-path documents "$@" --lr "1e-3" --train-iters 1 --dry-run >log 2>&1 ||
        complain "--dry-run $*: $(tail -2 log)"
    timeout 60 "$trireme" memory --data-path documents "$@" >memory.log 2>&1 ||
        complain "memory $*: exit $?: $(tail -2 memory.log)"
    [[ $(numbers_of log | wc -w) == 8 && $(numbers_of log) == "$(numbers_of memory.log)" ]] ||
        complain "memory of $*: train says $(numbers_of log), memory $(numbers_of memory.log)"
    [[ $(grep -E ' [0-9]+ x ' log) == "$(grep -E ' [0-9]+ x ' memory.log)" ]] ||
        complain "the arenas of $* differ"
    awk 'NF == 9 && /^ +[0-9]+ / && ($2 <= 0 || $3 < 1 || $9 < $2 + $3 * $4 + $5 * $6 - 1) { bad = 1 }
        /^ +sum / && $2 > 0 { sum = 1 }
        END { exit bad || !sum }' memory.log ||
        complain "memory $*: $(cat memory.log)"
}
small=(--hidden 256 --layers 4 --heads 8 --seq 128 --mbs 2 --gbs 16 --threads 1 "${no_evaluation[@]}")
same_memory --model gpt2-124m "${small[@]}" --max-position-embeddings 128
same_memory --model llama2-7b "${small[@]}" --bf16 --ranks 8 "${shards[@]}" --pp 2 --schedule zb-h2 \
    --recompute-activations
expect_text log "swiglu .......................................... True"
expect_text log "num_layers ...................................... 4"
expect_text log "model: 4 layers, hidden 256, 8 heads, sequence 128, vocabulary 400"
same_memory --model gpt2-124m "${small[@]}" --max-position-embeddings 128 --bf16 --fp8-format hybrid --ranks 2 --tp 2
for options in "--fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 16" \
    "--fp8-format e4m3 --fp8-recipe mxfp8" "--fp4-format e2m1"; do
    # shellcheck disable=SC2086 # several words
    same_memory --model gpt2-124m "${small[@]}" --max-position-embeddings 128 --bf16 $options --ranks 2 --pp 2
done
same_memory --model llama3-8b "${small[@]}" --num-query-groups 4 --fp16 --ranks 4 --pp 2 --vp 2 \
    --checkpoint-activations
# What memory predicts is also what a run that trains says it took.
train taken "${small[@]}" --bf16 --ranks 4 --tp 2 --pp 2 --train-iters 1
"$trireme" memory --vocab-size 400 "${small[@]}" --bf16 --ranks 4 --tp 2 --pp 2 >memory.log 2>&1 ||
    complain "memory: exit $?"
[[ $(numbers_of taken.log | wc -w) == 8 && $(numbers_of taken.log) == "$(numbers_of memory.log)" ]] ||
    complain "a run takes $(numbers_of taken.log), memory says $(numbers_of memory.log)"

"$trireme" models >list || complain "models: exit $?"
[[ $(wc -l <list) -ge 30 ]] || complain "only $(wc -l <list) models: $(cat list)"
for row in "mixtral-8x7b 46.70B 12.88B" "mixtral-8x22b 140.63B 39.16B" "qwen3-30b-a3b 30.53B 3.35B" \
    "gpt-oss-20b 20.91B 4.19B" "gpt-oss-120b 116.83B 5.71B" "qwen3-235b-a22b 235.09B 22.19B" "olmoe-1b-7b 6.92B 1.28B" "deepseek-v2-lite-16b 15.71B 2.66B" \
    "deepseek-v3-671b 671.03B 37.55B" "llama3-8b 8.03B -"; do
    read -r model total active <<<"$row"
    grep -Eq "^$model +$total +$active " list || complain "no $row in: $(grep "^$model" list)"
done
while read -r model parameters _; do
    [[ $model == name ]] && continue
    [[ $parameters =~ ^[1-9][0-9.]*[MB]$ ]] || complain "$model has $parameters parameters"
    "$trireme" memory --model "$model" --mbs 1 >log 2>&1 ||
        complain "memory --model $model: exit $?: $(tail -2 log)"
done <list

finish
