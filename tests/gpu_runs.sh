#!/usr/bin/env bash
# GPUs as a user meets them, on simulated ones: what `trireme devices` says, and what a run says where something is
# missing, too small, shared or gone.
# Usage: gpu_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
run=("$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --device cuda-sim --threads 1)

# expect CODE TEXT [VARIABLE=VALUE...] COMMAND...: the exit status, and a part of what is printed, which is in out.log,
# whose line breaks count as blanks.
expect() {
    local want=$1 text=$2 code
    shift 2
    timeout -k 5 180 env "$@" >out.log 2>&1 </dev/null
    code=$?
    [[ $code == "$want" ]] || complain "exit $code, not $want: $* $(tail -3 out.log)"
    tr -s '\n ' ' ' <out.log | grep -qF -- "$text" || complain "no '$text' in the output of: $* -- $(tail -5 out.log)"
}
expect_again() { tr -s '\n ' ' ' <out.log | grep -qF -- "$1" || complain "no '$1' in: $(cat out.log)"; }

# ---- trireme devices ---------------------------------------------------------------------------------------
empty=$PWD/empty
mkdir "$empty"

tells_kinds() {
    expect 0 "kernels for " "$trireme" devices
    for kind in cpu reference check cuda cuda-sim; do
        grep -q "^$kind " out.log || complain "devices tells nothing of $kind: $(cat out.log)"
    done
    expect_again "GPU 0 simulated GPU, compute capability 9.0, 2 multiprocessors, 16.0 of 16.0 GiB of memory free, kernels for sm_90"
    expect_again "library NVIDIA driver (libcuda.so.1), for everything: found, CUDA 13.0"
    expect_again "library cuDNN (libcudnn.so.9), for faster attention: found, 9.19.0"
    expect 0 "GPU 2 simulated GPU" TRIREME_SIM_GPUS=3 "$trireme" devices
    expect 64 "takes no words such as cuda" "$trireme" devices cuda
}
tells_json() {
    expect 0 '"kind": "cuda-sim", "problem": null' TRIREME_SIM_GPUS=2 "$trireme" devices --json
    python3 - out.log <<'END' || complain "devices --json: $(cat out.log)"
import json, sys
kinds = {d["kind"]: d for d in json.load(open(sys.argv[1]))["devices"]}
assert list(kinds) == ["cpu", "reference", "check", "cuda", "cuda-sim"], list(kinds)
gpus = kinds["cuda-sim"]["gpus"]
assert [g["number"] for g in gpus] == [0, 1] and gpus[0]["uuid"] != gpus[1]["uuid"], gpus
assert gpus[1]["memory_bytes"] == 16 << 30 and gpus[1]["kernels"] == "sm_90", gpus
assert kinds["cuda-sim"]["module"].endswith("/trireme_cuda_sim.so")
assert kinds["cpu"]["available"] and not kinds["cpu"]["gpus"]
END
}
tells_what_is_missing() {
    expect 0 "TRIREME_CUDA=$empty has none; it is built with the program where NVIDIA's compiler nvcc" \
        TRIREME_CUDA="$empty" "$trireme" devices
    expect_again "cuda NVIDIA GPUs (not available)"
    expect_again "--target trireme_cuda_sim"
    expect 0 "no libcuda.so.1): install release 580 or later" TRIREME_SIM_DRIVER=0 "$trireme" devices
    expect_again "library NVIDIA driver (libcuda.so.1), for everything: missing; NVIDIA's driver brings it"
    expect 0 "GPU 0 simulated GPU, compute capability 7.5, 2 multiprocessors: GPU 0 (simulated GPU) has" \
        TRIREME_SIM_CAPABILITY=75 "$trireme" devices
    expect 0 "GPU 0 simulated GPU, compute capability 9.0, 2 multiprocessors: a small kernel does not run on it" \
        TRIREME_SIM_FAIL=gone:1 "$trireme" devices
}
check "devices tells of every kind" tells_kinds
check "devices --json is JSON" tells_json
check "devices says what is missing" tells_what_is_missing

# ---- a run that cannot start -------------------------------------------------------------------------------
refuses() {
    local few=("${run[@]}" --train-iters 1)
    expect 69 "needs NVIDIA's driver, and there is none here" TRIREME_SIM_DRIVER=0 "${few[@]}"
    expect 69 "is built with CUDA 13.0, and NVIDIA's driver here is too old for that: it knows CUDA up to 12.2" \
        TRIREME_SIM_DRIVER=12020 "${few[@]}"
    expect 69 "CUDA_VISIBLE_DEVICES is set to nothing" TRIREME_SIM_GPUS=0 CUDA_VISIBLE_DEVICES= "${few[@]}"
    expect 69 "has compute capability 7.5, and --device cuda-sim has no kernels for it" TRIREME_SIM_CAPABILITY=75 "${few[@]}"
    expect 69 "has compute capability 8.6, and --fp8-format needs 8.9 or later" TRIREME_SIM_CAPABILITY=86 "${few[@]}" \
        --bf16 --fp8-format hybrid
    expect 71 "out of memory; 1.0 of its 1.0 GiB are free" TRIREME_SIM_MEMORY=1024 "${few[@]}" --num-layers 8 \
        --hidden-size 2048
    expect 69 "--target trireme_cuda_sim" TRIREME_CUDA="$empty" "${few[@]}"
    expect 69 "needs cuBLASLt, and there is no libcublasLt.so.13 in the folders of TRIREME_CUDA_LIBS" TRIREME_SIM_FAIL=libcublasLt.so.13:1 "${few[@]}"
    expect_again "and TRIREME_CUDA_LIBS can name its folder"
    [[ $(grep -c "^trireme: error" out.log) == 1 ]] || complain "not one error: $(cat out.log)"
    # Every rank finds the same; one tells.
    expect 69 "needs NVIDIA's driver, and there is none here" TRIREME_SIM_DRIVER=0 "${few[@]}" --ranks 2 --pp 2
    [[ $(grep -c "^trireme: error" out.log) == 1 ]] || complain "not one error: $(cat out.log)"
    expect 71 "out of memory" TRIREME_SIM_MEMORY=1024 "${few[@]}" --num-layers 8 --hidden-size 2048 --ranks 2 --pp 2
    [[ $(grep -c "^trireme: error" out.log) == 1 ]] || complain "not one error: $(cat out.log)"
    # The real module says so, too, where it is built and there is no driver.
    [[ ! -e ${trireme%/*}/trireme_cuda.so ]] || ldconfig -p | grep -q 'libcuda\.so\.1' ||
        expect 69 "--device cuda needs NVIDIA's driver, and there is none here" "${few[@]}" --device cuda
}
check "a run on a GPU says what is missing" refuses

attends() {
    local few=("${run[@]}" --train-iters 1 --bf16 --attention-dropout 0)
    expect 0 "attention: by cuDNN 9.19.0, or by kernels of the program" "${few[@]}"
    expect 0 "attention: by kernels of the program memory of rank 0" "${few[@]}" --attention-backend flash
    expect 0 "which are slower on this GPU than cuDNN: attention by cuDNN needs cuDNN, and there is no libcudnn.so.9" \
        TRIREME_SIM_CUDNN=0 "${few[@]}"
    expect 69 "TRIREME_CUDA_LIBS can name its folder" TRIREME_SIM_CUDNN=0 "${few[@]}" --attention-backend fused
    expect 0 "library cuDNN (libcudnn.so.9), for faster attention: missing; NVIDIA's package" TRIREME_SIM_CUDNN=0 \
        "$trireme" devices
}
check "a run says who computes attention" attends

# Plans of attention and of products are made before the first step: one message, and nobody has trained.
refuses_plans() {
    local few=("${run[@]}" --train-iters 1 --bf16 --attention-dropout 0) ranks
    for ranks in 1 2; do
        local these=("${few[@]}" --ranks "$ranks" --pp "$ranks")
        expect_before_a_step 69 "cuDNN 9.19.0 wants 10" TRIREME_SIM_FAIL=workspace:1 "${these[@]}"
        expect_again "bytes of workspace for attention forward in bf16"
        expect_before_a_step 69 "no engine for this graph, in cuDNN 9.19.0 for attention forward in bf16" \
            TRIREME_SIM_FAIL=plan:1 "${these[@]}" --attention-backend fused
        expect_before_a_step 71 "cublasLtMatmulAlgoGetHeuristic failed on GPU 0 (simulated GPU): CUBLAS_STATUS_INTERNAL" \
            TRIREME_SIM_FAIL=cublasLtMatmulAlgoGetHeuristic:1 "${these[@]}"
    done
    # What the GPU has chosen, and cuDNN does not take, the program computes.
    expect 0 "trireme: warning: the kernels of the program compute what cuDNN does not: CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN" \
        TRIREME_SIM_FAIL=plan:1 "${few[@]}"
    expect_again "iteration 1/ 1 "
}
# As expect, of a run that ends when it opens.
expect_before_a_step() {
    expect "$@"
    [[ $(grep -c "^trireme: error" out.log) == 1 ]] || complain "not one error: $(cat out.log)"
    grep -qE "iteration +1/| at F|last events" out.log && complain "a step was begun: $(cat out.log)"
    grep -q "still at work" out.log && complain "the ranks did not agree: $(cat out.log)"
}
check "a run makes its plans before its first step" refuses_plans

shares() {
    local two=("${run[@]}" --train-iters 1 --ranks 3 --tp 1 --pp 1 --global-batch-size 3)
    expect 78 "2 ranks would share GPU 0 (simulated GPU) of rank 0's machine, and --ranks-per-gpu is 1" TRIREME_SIM_GPUS=2 \
        "${two[@]}" --ranks-per-gpu 1
    [[ $(grep -c "^trireme: error" out.log) == 1 ]] || complain "not one error: $(cat out.log)"
    expect_again "or --ranks-per-gpu 2, which divides"
    expect 0 "iteration 1/ 1 " TRIREME_SIM_GPUS=2 "${two[@]}" --ranks-per-gpu 2
    expect 0 "iteration 1/ 1 " TRIREME_SIM_GPUS=3 "${two[@]}" --ranks-per-gpu 1
    expect 0 "iteration 1/ 1 " TRIREME_SIM_GPUS=1 "${two[@]}"
    expect 0 "iteration 1/ 1 " "${two[@]}" --device cpu --ranks-per-gpu 1
}
check "ranks share a GPU only if they may" shares

# ---- ranks linked by NCCL ----------------------------------------------------------------------------------
# A run and its losses are the same, whatever carries the tensors.
links() {
    local eight=("${run[@]}" --train-iters 3 --log-interval 1 --num-layers 4 --global-batch-size 8 --ranks 8 --tp 2 --pp 2
        --use-distributed-optimizer --overlap-grad-reduce) nccl=(--device-transport nccl) losses
    expect 0 "iteration 3/ 3 " TRIREME_SIM_GPUS=8 "${eight[@]}" --device-transport peer
    losses=$(grep -o "lm loss: [^|]*" out.log)
    expect 0 "iteration 3/ 3 " TRIREME_SIM_GPUS=8 "${eight[@]}" "${nccl[@]}"
    [[ -n $losses && $losses == "$(grep -o "lm loss: [^|]*" out.log)" ]] || complain "not the losses $losses: $(cat out.log)"
    expect 78 "CUDA_DEVICE_MAX_CONNECTIONS=1 would make the messages of a pipeline wait" TRIREME_SIM_GPUS=8 \
        CUDA_DEVICE_MAX_CONNECTIONS=1 "${eight[@]}" "${nccl[@]}"
    [[ $(grep -c "^trireme: error" out.log) == 1 ]] || complain "not one error: $(cat out.log)"
    expect 69 "needs NCCL, and there is no libnccl.so.2" TRIREME_SIM_GPUS=8 TRIREME_SIM_FAIL=libnccl.so.2:1 \
        "${eight[@]}" "${nccl[@]}"
    expect 78 "ranks 0 and 4 share GPU 0" TRIREME_SIM_GPUS=4 "${eight[@]}" "${nccl[@]}"
    expect 69 "has no links between its ranks" "${eight[@]}" "${nccl[@]}" --device check
    expect 0 "(--device-transport staged), which is slow: [rank 0] --device cuda-sim needs NCCL, and there is no libnccl" \
        TRIREME_SIM_GPUS=2 TRIREME_SIM_FAIL=libnccl.so.2:1 "$here/tcprun.sh" 2 "${run[@]}" --train-iters 1
    [[ $(grep -c "which is slow" out.log) == 1 ]] || complain "not one warning: $(cat out.log)"
    expect 0 "library NCCL (libnccl.so.2), for ranks that are processes: found, 2.28.9" "$trireme" devices
}
check "NCCL links ranks, and a run says why it does not" links

# ---- memory, and algorithms of products --------------------------------------------------------------------
# What is predicted is what the run says that it takes.
predicts_memory() {
    local small=("${corpus[@]}" --num-layers 2 --bf16 --device cuda-sim --threads 1) total
    expect 0 "come on top, on each GPU once for each rank: allow 668 MiB for them (an allowance that is not measured yet)" \
        "$trireme" memory "${small[@]}"
    total=$(awk '$1 == "pp" { getline; print $NF }' out.log)
    expect 0 "total $total " "$trireme" train "${small[@]}" "${no_evaluation[@]}" --train-iters 1
    expect 0 "take 12.0 MiB more for the staging buffers of their groups" "$trireme" memory "${small[@]}" --ranks 2 --pp 2
    expect_again "take 4.0 MiB more where GPUs do not reach each other"
    expect 0 "stashes x MiB" "$trireme" memory "${small[@]}" --device cpu
    grep -q "come on top" out.log && complain "an allowance on a CPU: $(cat out.log)"
    # The GPU that is here chooses who computes attention; where there is none there is room for either.
    local long=("${small[@]}" --attention-dropout 0 --seq-length 2048) of=() count
    for gpu in TRIREME_SIM_CAPABILITY=80 TRIREME_SIM_CUDNN=0 TRIREME_SIM_CAPABILITY=90 TRIREME_SIM_GPUS=0; do
        expect 0 "stashes x MiB" "$gpu" "$trireme" memory "${long[@]}"
        total=$(awk '$1 == "pp" { getline; print $NF }' out.log)
        of+=("$total")
        [[ $gpu == *GPUS=0 ]] ||
            expect 0 "workspace $(awk '$1 == "pp" { getline; print $(NF - 1) }' out.log), total $total " "$gpu" \
                "$trireme" train "${long[@]}" "${no_evaluation[@]}" --train-iters 1 --dry-run
    done
    count=$(printf '%s\n' "${of[@]}" | uniq | wc -l)
    [[ ${of[0]} == "${of[1]}" && ${of[2]} == "${of[3]}" && $count == 2 ]] || complain "totals of ${of[*]} MiB"
}
check "memory on a GPU is exact but for an allowance" predicts_memory

# With state on the host a run makes the losses of one without, and either goes on from the other's checkpoint.
losses_of() { grep -o 'lm loss: [^|]*| *loss scale: [^|]*| *grad norm: [^|]*' "$1"; }
offloads() {
    local two=("${run[@]}" --bf16 --ranks 2 --use-distributed-optimizer --log-interval 1 --save-interval 2)
    local to_host=(--optimizer-cpu-offload --optimizer-offload-fraction 0.6)
    expect 0 " MiB of optimizer state in the host's memory, and the host steps it" TRIREME_SIM_GPUS=2 "${two[@]}" --train-iters 4 --save there "${to_host[@]}"
    losses_of out.log >there.txt
    expect 0 "lm loss" TRIREME_SIM_GPUS=2 "${two[@]}" --train-iters 4 --save here
    losses_of out.log >here.txt
    [[ $(wc -l <here.txt) == 4 ]] || complain "not four steps: $(cat here.txt)"
    cmp -s here.txt there.txt || complain "losses: $(cat here.txt there.txt)"
    expect 0 " tensors and 0 values of state and model differ" "$trireme" checkpoint diff here there
    rm -r here/step-00000004 there/step-00000004
    expect 0 "lm loss" TRIREME_SIM_GPUS=2 "${two[@]}" --train-iters 4 --save here --load here "${to_host[@]}"
    losses_of out.log | cmp -s - <(tail -2 here.txt) || complain "going on with it: $(losses_of out.log)"
    expect 0 "lm loss" TRIREME_SIM_GPUS=2 "${two[@]}" --train-iters 4 --save there --load there
    losses_of out.log | cmp -s - <(tail -2 here.txt) || complain "going on without it: $(losses_of out.log)"
    expect 0 "With --optimizer-cpu-offload each rank also takes up to " "$trireme" memory "${corpus[@]}" --bf16 --device cuda-sim --optimizer-cpu-offload
    expect 71 "no memory for the host arena: " TRIREME_SIM_FAIL=pinned:1 "${run[@]}" --train-iters 1 --optimizer-cpu-offload
    expect_again "pinned memory of the host: cudaErrorMemoryAllocation"
    expect_again "a smaller --optimizer-offload-fraction takes less of the host's memory"
    expect 78 "--optimizer-cpu-offload cannot be used with --optimizer muon" "${run[@]}" \
        --train-iters 1 --optimizer-cpu-offload --optimizer muon
    expect 0 "optimizer-cpu-offload has no effect: the optimizer works on the processor, in its memory" "${run[@]}" \
        --train-iters 1 --optimizer-cpu-offload --device cpu
}
check "optimizer state on the host changes neither losses nor checkpoints" offloads

measures_algorithms() {
    local model=(--num-layers 1 --hidden-size 32 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1
        --global-batch-size 2 --bf16 --device cuda-sim --threads 1)
    expect 0 "table.txt has the fastest algorithms of" "$trireme" bench --product-algorithms table.txt "${model[@]}" \
        --vocab-size 384
    grep -q "^cublaslt 130100$" table.txt || complain "no version in $(head -5 table.txt)"
    [[ $(grep -c "^m .* algorithm [0-9a-f]\{128\}$" table.txt) -gt 10 ]] || complain "few rows: $(cat table.txt)"
    local one=("${run[@]}" "${model[@]}" --train-iters 1)
    expect 0 "matrix products: by the algorithms of table.txt, $(tail -1 table.txt)" "${one[@]}" \
        --product-algorithms table.txt
    for join in 0 1 2 3; do # products alone, with sums, with GELU, with its slope
        grep -q " join $join " table.txt || complain "no row of join $join: $(cat table.txt)"
    done
    expect 0 "eight.txt has the fastest algorithms of" "$trireme" bench --product-algorithms eight.txt "${model[@]}" \
        --vocab-size 384 --fp8-format hybrid
    [[ $(grep -c "factor_a 6 factor_b 6 " eight.txt) -ge 3 && $(grep -c "factor_a 6 factor_b 7 .* accumulate 0 " eight.txt) -ge 6 &&
        $(grep -c "factor_a 6 factor_b 7 .* accumulate 1 " eight.txt) -ge 3 ]] || complain "few rows in 8 bits: $(cat eight.txt)"
    expect 0 "matrix products: by the algorithms of eight.txt, $(tail -1 eight.txt)" "${one[@]}" --fp8-format hybrid \
        --product-algorithms eight.txt
    expect 65 "table.txt:4: 'cublaslt 130100' is not 'cublaslt 130200', as it is here" TRIREME_SIM_CUBLASLT=130200 \
        "${one[@]}" --product-algorithms table.txt
    sed 's/^m 32 /m 64 /' table.txt >changed.txt
    expect 65 "is not the checksum of the others" "${one[@]}" --product-algorithms changed.txt
    expect 78 "the device cpu chooses no algorithms of matrix products" "${one[@]}" --device cpu \
        --product-algorithms table.txt
    expect 78 "the device cpu has no algorithms of matrix products to choose from: cuda has" "$trireme" bench \
        --product-algorithms other.txt "${model[@]}" --vocab-size 384 --device cpu
    expect 64 "by a command each: leave out one" "$trireme" bench --product-algorithms other.txt --machine other.yaml
    expect 73 "--product-algorithms nowhere/table.txt: cannot create" "$trireme" bench \
        --product-algorithms nowhere/table.txt "${model[@]}" --vocab-size 384
}
check "bench measures the algorithms of a run's products, and a run takes them" measures_algorithms

# ---- a machine's file and a stack --------------------------------------------------------------------------
# The numbers of a simulated GPU mean nothing; the files are read back and used.
measures_machine() {
    local ask=(--model gpt2-124m --gpus 2 --global-batch-size 8 --seq-length 64)
    mkdir files
    expect 0 "bench: messages, 2 ranks at work" TRIREME_SIM_GPUS=2 "$trireme" bench --machine files/two.yaml \
        --stack files/program.yaml --device cuda-sim
    for row in matmul_nt matmul_tn attention_backward norm_forward adamw swiglu_forward; do
        grep -q "^$row " out.log || complain "no $row in $(cat out.log)"
    done
    grep -q "^devices_per_node: 2$" files/two.yaml || complain "not two GPUs: $(head -5 files/two.yaml)"
    expect 0 "trireme train --device cuda-sim" "$trireme" plan --machine files/two.yaml "${ask[@]}"
    expect_again "program: its constants were never compared with measured runs."
    expect_again "an allowance for CUDA's context and libraries"
    expect 0 "megatron-lm-2022: over" "$trireme" plan --machine files/two.yaml --stack megatron-lm-2022 "${ask[@]}"
    mv files/program.yaml files/away.yaml
    expect 66 "--machine files/two.yaml: its stack: " "$trireme" plan --machine files/two.yaml "${ask[@]}"
    # The 19th piece of memory is for messages between the GPUs.
    expect 71 "no memory for messages of group" TRIREME_SIM_GPUS=2 TRIREME_SIM_PEERS=0 TRIREME_SIM_FAIL=memory:19 "$trireme" \
        bench --machine two.yaml --stack other.yaml --device cuda-sim
    [[ ! -e two.yaml ]] || complain "a machine that was not measured is written"
    expect 64 "--stack FILE.yaml is required" "$trireme" bench --machine one.yaml --device cuda-sim
    expect 64 "it must be another file in the folder of --machine files/two.yaml" "$trireme" bench \
        --machine files/two.yaml --stack program.yaml --device cuda-sim
    expect 64 "leave out --num-layers" "$trireme" bench --machine one.yaml --num-layers 3
    expect 64 "leave it out" "$trireme" bench --machine one.yaml --stack other.yaml
    expect 69 "needs NVIDIA's driver" TRIREME_SIM_DRIVER=0 "$trireme" bench --machine one.yaml --stack other.yaml \
        --device cuda-sim
}
check "bench writes a machine and a stack that a plan uses" measures_machine

# ---- a GPU that is gone in a run ---------------------------------------------------------------------------
loses_gpu() {
    local small=(--num-layers 1 --global-batch-size 1)
    local saves=("${small[@]}" --train-iters 6 --save-interval 2 --save saved --load saved)
    train undisturbed "${no_evaluation[@]}" "${small[@]}" --device cuda-sim --threads 1 --train-iters 6
    expect 71 "cudaErrorUnknown, unknown error. The GPU is broken or gone" TRIREME_SIM_FAIL=gone:260 \
        "${run[@]}" "${saves[@]}" --metrics before.jsonl
    expect_again "the same command with --load goes on from the newest checkpoint"
    local steps
    steps=$(rows before)
    ((steps >= 2 && steps < 6)) || complain "$steps steps before the GPU was gone, not 2 to 5"
    expect 0 "every byte is as it was written" "$trireme" checkpoint verify saved
    expect 0 "iteration 6/ 6 " "${run[@]}" "${saves[@]}" --metrics after.jsonl
    # Both have the losses of the undisturbed run, to the bit.
    metric lm_loss undisturbed | head -n "$steps" | cmp -s - <(metric lm_loss before) ||
        complain "before: $(metric lm_loss before), undisturbed: $(metric lm_loss undisturbed)"
    metric lm_loss undisturbed | tail -n "$(rows after)" | cmp -s - <(metric lm_loss after) ||
        complain "after: $(metric lm_loss after), undisturbed: $(metric lm_loss undisturbed)"
}
# Of two GPUs one goes: the job ends everywhere, and the message says which rank and which GPU.
loses_one_of_two() {
    expect 71 "The GPU is broken or gone" TRIREME_SIM_GPUS=2 TRIREME_SIM_FAIL=gone:400 "${run[@]}" --train-iters 20 --ranks 2 \
        --pp 2
    [[ $(grep -c "^trireme: error" out.log) == 1 ]] || complain "not one error: $(cat out.log)"
    grep -qE '^trireme: error: \[rank ([01]) .* failed on GPU \1 \(simulated GPU\)' out.log || complain "no rank and GPU: $(head -3 out.log)"
}
check "a rank whose GPU is gone ends the job" loses_one_of_two
check "a run whose GPU is gone keeps what it saved, and goes on with the same bits" loses_gpu
finish
