# shellcheck shell=bash
# ./run bench costs: what long sequences, experts and shards take, as Markdown tables: the memory of a rank, exact, by
# `trireme memory`, and the step that `trireme plan` predicts on GPUs of a machine. Nothing is measured, so the tables
# are the same on any machine; docs/long.md, docs/experts.md and docs/sharding.md have them.

# costs_memory WORD...: GiB of a rank of the first pipeline stage.
costs_memory() {
    build/trireme memory "$@" >build/costs.log 2>&1 || die 1 "failed: build/trireme memory $*: $(tail -1 build/costs.log)"
    awk '$1 == 0 && NF == 9 { printf "%.1f", $9 / 1024; found = 1; exit } END { exit !found }' build/costs.log
}

# costs_step GPUS WORD...: seconds.
costs_step() {
    build/trireme plan --machine dgx-h100 --pp 1 --tp 1 --json --gpus "$@" >build/costs.log 2>&1 ||
        die 1 "failed: build/trireme plan --gpus $*: $(tail -1 build/costs.log)"
    sed 's/.*"chosen": {//' build/costs.log | grep -o '"step_s": [0-9.]*' | awk 'NR == 1 { printf "%.3f", $2 }'
}

# Of one sequence; the optimizer's state is cut over the ranks that share it.
costs_of_contexts() {
    local s c words run
    echo "| S | c | GiB of a rank | planned s | planned tokens/s of a GPU |"
    echo "|---:|---:|---:|---:|---:|"
    for s in 8192 16384 32768 65536; do
        for c in 1 2 4 8; do
            words="--model llama3-8b --bf16 --use-distributed-optimizer --micro-batch-size 1 --cp-comm-type p2p --seq-length $s --cp $c"
            # shellcheck disable=SC2086 # words
            run=$(costs_step "$c" --global-batch-size 1 $words)
            # shellcheck disable=SC2086 # words
            echo "| $s | $c | $(costs_memory --ranks "$c" $words) | $run | $(awk -v s="$s" -v c="$c" -v t="$run" 'BEGIN { printf "%.0f", s / c / t }') |"
        done
    done
}

# Eight ranks with a sample each.
costs_of_experts() {
    local e ep words
    echo "| E | ep | GiB of a rank | planned s |"
    echo "|---:|---:|---:|---:|"
    for e in 4 8 16 32 64 128; do
        for ep in 1 2 4 8; do
            [[ $ep -le $e ]] || continue
            words="--num-layers 16 --hidden-size 1024 --num-attention-heads 16 --seq-length 4096 --vocab-size 32000 --swiglu
                --normalization RMSNorm --disable-bias-linear --position-embedding-type rope --bf16 --use-distributed-optimizer
                --micro-batch-size 1 --num-experts $e --moe-router-topk 4 --moe-ffn-hidden-size 512 --expert-model-parallel-size $ep"
            # shellcheck disable=SC2086 # words
            echo "| $e | $ep | $(costs_memory --ranks 8 $words) | $(costs_step 8 --global-batch-size 8 $words) |"
        done
    done
}

# Eight replicas with a sample each.
costs_of_shards() {
    local strategy words
    echo "| shards of | GiB of a rank | planned s |"
    echo "|---|---:|---:|"
    for strategy in no_shard optim optim_grads optim_grads_params; do
        words="--model llama3-8b --bf16 --micro-batch-size 1 --seq-length 8192 --data-parallel-sharding-strategy $strategy"
        # shellcheck disable=SC2086 # words
        echo "| \`$strategy\` | $(costs_memory --ranks 8 $words) | $(costs_step 8 --global-batch-size 8 $words) |"
    done
}

bench_costs() {
    say "Long sequences: llama3-8b, one sequence a step, optimizer state cut over its ranks, on H100" ""
    costs_of_contexts
    say "" "Experts: 16 layers, H 1024, 4 experts of 512 of a token, eight ranks with a sample of 4096 tokens each, on H100" ""
    costs_of_experts
    say "" "Shards: llama3-8b, eight replicas with a sample of 8192 tokens each, on H100" ""
    costs_of_shards
}
