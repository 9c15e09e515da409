#!/usr/bin/env bash
# Layers with experts, as people run them: the same run on every grid, checkpoints between grids, generation and
# evaluation, and what is refused.
# Usage: experts_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

experts=("${no_evaluation[@]}" --train-iters 6 --straggler-interval 0 --swiglu --normalization RMSNorm --disable-bias-linear
    --position-embedding-type rope --ffn-hidden-size 64 --untie-embeddings-and-output-weights --num-experts 8
    --moe-router-topk 2 --moe-layer-freq "[0,1,1,1]" --moe-ffn-hidden-size 48 --moe-shared-expert-intermediate-size 32)
one() { train one "${experts[@]}" --save saved --save-interval 3; }

if check "experts train alike on every grid" need one; then
    while read -r name options; do
        # shellcheck disable=SC2086 # words
        train "$name" "${experts[@]}" $options
        expect_close one "$name"
        expect_rows "$name" 6
    done <<'GRIDS'
d4 --ranks 4
ep2 --ranks 4 --expert-model-parallel-size 2
ep4 --ranks 4 --expert-model-parallel-size 4 --use-distributed-optimizer --moe-dispatch-rows 3
t2 --ranks 4 --tp 2
t2sp --ranks 4 --tp 2 --sequence-parallel --expert-tensor-parallel-size 1 --expert-model-parallel-size 4
p2 --ranks 4 --pp 2 --expert-model-parallel-size 2 --schedule zb-h1
pairs --ranks 4 --pp 2 --expert-model-parallel-size 2 --overlap-moe-expert-parallel-comm
c2 --ranks 2 --context-parallel-size 2 --expert-model-parallel-size 2
z3 --ranks 4 --expert-model-parallel-size 2 --data-parallel-sharding-strategy optim_grads_params
full --ranks 2 --expert-model-parallel-size 2 --recompute-granularity full --recompute-method uniform
GRIDS
fi
if check "experts with biases train alike on every grid, and go out as a GPT-OSS"; then
    biased=("${no_evaluation[@]}" --train-iters 6 --straggler-interval 0 --quick-geglu --glu-linear-offset 1
        --activation-func-clamp-value 7 --normalization RMSNorm --position-embedding-type rope --softmax-type learnable
        --window-size "7,0" --window-attn-skip-freq 2 --ffn-hidden-size 48 --untie-embeddings-and-output-weights --num-experts 8
        --moe-router-topk 2)
    train biased "${biased[@]}" --save biased
    train b4 "${biased[@]}" --ranks 4 --tp 2 --expert-model-parallel-size 2 --moe-dispatch-rows 5
    train b2 "${biased[@]}" --ranks 4 --tp 2 --sequence-parallel --expert-tensor-parallel-size 1 --expert-model-parallel-size 4
    train b3 "${biased[@]}" --ranks 2 --expert-model-parallel-size 2 --data-parallel-sharding-strategy optim_grads_params
    for name in b4 b2 b3; do expect_close biased "$name"; done
    timeout 60 "$trireme" export --load biased --output oss --dtype f32 >export.log 2>&1 || complain "$(cat export.log)"
    grep -q GptOssForCausalLM oss/config.json || complain "$(cat oss/config.json)"
    timeout 60 "$trireme" import oss --save oss-back >import.log 2>&1 || complain "$(cat import.log)"
    for from in biased oss oss-back; do
        timeout 60 "$trireme" generate --load "$from" --prompt "the " --temperature 0 >"$from.txt" 2>"$from.err" ||
            complain "$from: $(tail -1 "$from.err")"
    done
    timeout 60 "$trireme" generate --load oss --prompt "the " --temperature 0 --ranks 2 --tp 2 >ranks.txt 2>ranks.err
    cmp -s biased.txt ranks.txt || complain "other text of two ranks: $(cat ranks.txt ranks.err)"
    cmp -s biased.txt oss.txt || complain "other text: $(cat biased.txt oss.txt)"
    cmp -s biased.txt oss-back.txt || complain "other text: $(cat biased.txt oss-back.txt)"
fi
if check "with --virtual-data-parallel neither data nor expert ranks change a bit"; then
    train v1 "${experts[@]}" --virtual-data-parallel 8
    train v2 "${experts[@]}" --virtual-data-parallel 8 --ranks 2 --expert-model-parallel-size 2
    train v4 "${experts[@]}" --virtual-data-parallel 8 --ranks 4 --expert-model-parallel-size 2
    for name in v2 v4; do
        expect_same lm_loss v1 "$name"
        expect_same grad_norm v1 "$name"
    done
fi
if check "a checkpoint goes on on another number of expert ranks, and brings its options" need one; then
    cp -r saved early && rm -r early/step-00000006
    described=("${corpus[@]}")
    corpus=(--data-path documents --micro-batch-size 1 --global-batch-size 8 --lr "1e-3")
    train on "${no_evaluation[@]}" --train-iters 6 --straggler-interval 0 --ranks 4 --expert-model-parallel-size 4 \
        --load early --save other
    paste <(metric lm_loss one | tail -3) <(metric lm_loss on) | awk '
        { d = ($1 - $2) / $1; if (NF != 2 || d > 1e-5 || d < -1e-5) bad = 1 } END { exit bad || NR != 3 }' ||
        complain "losses differ: $(metric lm_loss one | tail -3) and $(metric lm_loss on)"
    for verb in "generate --load other --prompt document --max-new-tokens 4" "evaluate --load other --data-path documents"; do
        # shellcheck disable=SC2086 # words
        timeout 60 "$trireme" $verb >verb.log 2>&1 || complain "$verb: $(tail -1 verb.log)"
    done
    corpus=("${described[@]}")
fi
if check "losses of routers are metrics, alike on every grid; loads are of each layer"; then
    losses=(--moe-aux-loss-coeff 0.01 --moe-z-loss-coeff 0.001)
    train plain "${experts[@]}" --num-experts 8
    train losses "${experts[@]}" "${losses[@]}" --tensorboard-dir board --metrics-prom losses.prom
    train losses4 "${experts[@]}" "${losses[@]}" --ranks 4 --tp 2 --sequence-parallel --expert-model-parallel-size 2
    expect_close losses losses4
    for name in load_balancing_loss z_loss expert_load_max expert_load_entropy; do
        paste <(metric "$name" losses) <(metric "$name" losses4) | awk '
            { d = ($1 - $2) / $1; if (NF != 2 || d > 1e-3 || d < -1e-3) bad = 1 } END { exit bad || NR != 6 }' ||
            complain "$name differs: $(metric "$name" losses) and $(metric "$name" losses4)"
        grep -q "^trireme_$name{" losses.prom || complain "no $name for Prometheus"
    done
    cmp -s <(metric lm_loss plain) <(metric lm_loss losses) && complain "losses of routers train nothing"
    few=(--moe-expert-capacity-factor 1 --moe-input-jitter-eps 0.01 --moe-shared-expert-gate)
    train few "${experts[@]}" "${few[@]}"
    train few4 "${experts[@]}" "${few[@]}" --ranks 4 --tp 2 --sequence-parallel
    expect_close few few4
    train few8 "${experts[@]}" "${few[@]}" --ranks 8 --context-parallel-size 2 --tp 2 --sequence-parallel \
        --moe-token-drop-policy position
    train position "${experts[@]}" "${few[@]}" --moe-token-drop-policy position
    expect_close position few8
    train few2 "${experts[@]}" "${few[@]}" --ranks 2 --context-parallel-size 2
    expect_close few few2
    [[ $(metric expert_dropped few | head -1) == 0.* ]] || complain "nothing is dropped: $(metric expert_dropped few)"
    for name in few4 few2; do
        [[ $(metric expert_dropped few) == "$(metric expert_dropped $name)" ]] ||
            complain "dropped: $(metric expert_dropped few) and $(metric expert_dropped $name)"
    done
    [[ -z $(metric z_loss plain) ]] || complain "a loss that is not trained is written"
    grep -q '"layer": 3, "load_max": [1-8]' losses.jsonl || complain "layers: $(tail -1 losses.jsonl)"
    grep -q "experts/layer_1/load_entropy" board/* || complain "no layers in TensorBoard's files"
fi
if check "biases of experts follow loads, and are saved, in bf16 too"; then
    biases=("${experts[@]}" --moe-router-score-function sigmoid --moe-router-enable-expert-bias
        --moe-router-bias-update-rate 0.01 --virtual-data-parallel 8 --bf16)
    train bias "${biases[@]}" --save bias --save-interval 3 --ema-decay 0.9
    train unbiased "${biases[@]}" --moe-router-bias-update-rate 0
    cmp -s <(metric lm_loss bias) <(metric lm_loss unbiased) && complain "biases change nothing"
    rm -r bias/step-00000006
    train further_on "${biases[@]}" --ema-decay 0.9 --ranks 2 --expert-model-parallel-size 2 --load bias --save again
    [[ $(metric lm_loss bias | tail -3) == "$(metric lm_loss further_on)" ]] ||
        complain "losses differ: $(metric lm_loss bias | tail -3) and $(metric lm_loss further_on)"
    timeout 60 "$trireme" evaluate --load again --data-path documents >verb.log 2>&1 || complain "evaluate: $(tail -1 verb.log)"
fi
if check "experts multiply in few bits, with the same bits on other expert ranks, also from a checkpoint"; then
    few_bits=("${experts[@]}" --moe-ffn-hidden-size 64 --bf16 --virtual-data-parallel 8)
    train wide "${few_bits[@]}"
    while read -r name options; do
        read -ra recipe <<<"$options"
        train "$name" "${few_bits[@]}" "${recipe[@]}" --save "$name" --save-interval 3
        train "$name 4" "${few_bits[@]}" "${recipe[@]}" --ranks 4 --expert-model-parallel-size 4
        expect_same lm_loss "$name" "$name 4"
        expect_same grad_norm "$name" "$name 4"
        paste <(metric lm_loss wide) <(metric lm_loss "$name") | awk '
            { d = ($1 - $2) / $1; if (d > 1e-2 || d < -1e-2) bad = 1 } END { exit bad || NR != 6 }' ||
            complain "$name is far from bf16: $(metric lm_loss wide) and $(metric lm_loss "$name")"
        rm -r "$name/step-00000006"
        train "$name on" "${few_bits[@]}" "${recipe[@]}" --ranks 2 --expert-model-parallel-size 2 --load "$name" --save "$name on"
        [[ $(metric lm_loss "$name" | tail -3) == "$(metric lm_loss "$name on")" ]] ||
            complain "losses differ: $(metric lm_loss "$name" | tail -3) and $(metric lm_loss "$name on")"
    done <<'RECIPES'
tensorwise --fp8-format hybrid
delayed --fp8-format hybrid --fp8-recipe delayed --fp8-amax-history-len 3 --fp8-amax-compute-algo max
mxfp8 --fp8-format e4m3 --fp8-recipe mxfp8
nvfp4 --fp4-format e2m1
RECIPES
fi
if check "experts that are copies of an MLP compute what it does"; then
    for biases in --disable-bias-linear --no-disable-bias-linear; do
        rm -rf dense copies
        dense=("${no_evaluation[@]}" --train-iters 4 --straggler-interval 0 --swiglu --normalization RMSNorm "$biases"
            --position-embedding-type rope --ffn-hidden-size 64 --untie-embeddings-and-output-weights)
        train dense "${dense[@]}" --save dense
        timeout 60 "$trireme" import dense --save copies --upcycle 4 --upcycle-topk 3 >import.log 2>&1 || complain "$(cat import.log)"
        train further "${dense[@]}" --load dense --finetune --train-iters 1
        train copies1 "${dense[@]}" --load copies --finetune --train-iters 1
        train copies2 "${dense[@]}" --load copies --finetune --train-iters 1 --ranks 2 --expert-model-parallel-size 2
        expect_close further copies1
        expect_close further copies2
        grep -q "load_max" copies2.jsonl || complain "no experts were trained"
    done
    timeout 60 "$trireme" import copies --save twice --upcycle 4 >import.log 2>&1 && complain "experts of experts"
    grep -q "has experts already" import.log || complain "$(cat import.log)"
    timeout 60 "$trireme" import dense --save twice --upcycle 4 --upcycle-topk 5 >import.log 2>&1
    [[ $? == 78 && $(cat import.log) == *"use 4 or less"* ]] || complain "$(cat import.log)"
fi
if check "copies of the MLPs of a Qwen2 go out as a Granite-MoE, with zeros for the bias that they have not"; then
    qwen=("${no_evaluation[@]}" --train-iters 2 --straggler-interval 0 --swiglu --normalization RMSNorm --disable-bias-linear
        --add-qkv-bias --position-embedding-type rope --ffn-hidden-size 64 --model-family qwen2 --lr 1e-2)
    perplexity() { sed -n 's/.*perplexity \([0-9.]*\)[0-9][0-9]$/\1/p' "$1.log"; } # but for what rounding changes
    train qwen "${qwen[@]}" --save qwen
    timeout 60 "$trireme" import qwen --save qwen-copies --upcycle 4 >import.log 2>&1 || complain "$(cat import.log)"
    timeout 60 "$trireme" export --load qwen-copies --output qwen-hf --dtype f32 >export.log 2>&1 || complain "$(cat export.log)"
    grep -q GraniteMoeForCausalLM qwen-hf/config.json || complain "$(cat qwen-hf/config.json)"
    grep -q "o_proj.bias" qwen-hf/model.safetensors || complain "no zeros"
    for from in qwen qwen-copies qwen-hf; do
        timeout 60 "$trireme" evaluate --load "$from" --data-path documents >"$from.log" 2>&1 || complain "$(tail -1 "$from.log")"
        [[ -n $(perplexity qwen) && $(perplexity qwen) == "$(perplexity "$from")" ]] || complain "perplexity $(perplexity "$from"), not $(perplexity qwen)"
    done
fi
# refused CODE WORDS OPTION...
refused() {
    local code=$1 words=$2 status
    shift 2
    timeout 60 "$trireme" train "${corpus[@]}" "${experts[@]}" "$@" >refused.log 2>&1
    status=$?
    [[ $status == "$code" && $(cat refused.log) == *"$words"* ]] || complain "$*: exit $status: $(tail -1 refused.log)"
}
if check "what cannot be is refused before work starts, with a value that can"; then
    corpus=(--data-path documents --num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32
        --micro-batch-size 1 --global-batch-size 24 --lr "1e-3")
    refused 78 "do not divide over --expert-model-parallel-size 3: use 1" --ranks 3 --expert-model-parallel-size 3
    refused 78 "do not divide over --expert-model-parallel-size 6: use 4" --ranks 12 --expert-model-parallel-size 6
    refused 78 "does not divide the 1 ranks of a pipeline stage: use 1" --expert-model-parallel-size 2
    refused 78 "does not divide the 2 ranks of a pipeline stage: use 2" --ranks 2 --expert-model-parallel-size 4 --dry-run
    refused 78 "use 2" --ranks 4 --expert-model-parallel-size 3
    refused 78 "--moe-router-topk 9 is more than --num-experts 8" --moe-router-topk 9
    refused 78 "does not divide into --moe-router-num-groups 3" --moe-router-num-groups 3 --moe-router-group-topk 1
    refused 78 "or add --sequence-parallel" --ranks 4 --tp 2 --expert-tensor-parallel-size 1
    refused 78 "needs --moe-router-score-function sigmoid" --moe-router-enable-expert-bias
    refused 78 "does not go with both shared experts and --add-mlp-bias: leave it out" --add-mlp-bias
    refused 78 "does not go with both shared experts and biases of linear layers: add" --no-disable-bias-linear
    refused 78 "--moe-layer-freq 'x'" --moe-layer-freq x
    refused 78 "per token" --audit-interval 2 --moe-aux-loss-coeff 0.1 --calculate-per-token-loss
    refused 64 "[1,65536]" --moe-expert-capacity-factor 0.9
    refused 64 "--moe-router-load-balancing-type" --moe-router-load-balancing-type some
fi
finish
