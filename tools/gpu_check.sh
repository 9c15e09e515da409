#!/usr/bin/env bash
# Everything that only a GPU can say, in one command of ten minutes: builds the program, checks its numbers, measures it.
#
#   tools/gpu_check.sh [--device cuda|cuda-sim] [--out FOLDER] [--budget SECONDS] [--build FOLDER] [--only STAGE,...]
#                      [--commit NAME]  where the tree is a copy without its history
#   tools/gpu_check.sh --list          the stages in their order, with the seconds that each may take
#
# Each stage is a process of its own with a limit, and leaves one line of JSON in FOLDER/results.jsonl, which is on the disk
# before the next begins: what happens later takes no result away. A stage begins only if its time is left of the budget
# (570 s), and what fails in one leaves the others. FOLDER is build/gpu-check unless given. It gets results.jsonl, summary.txt,
# log.txt (all that the stages print), trace.json, bench.json, which ./run bench would keep as bench/results/GPU.json,
# compared.txt, what changed against that file, machine.yaml and stack.yaml for plans, and algorithms.txt of GPT-2 124M.
# --device cuda-sim rehearses all of it with small sizes on the simulated GPU, in some minutes.
#
# A new stage is a row of `stages` and a function stage_NAME (with _ for -). In it `number NAME VALUE` adds to its line, `skip
# WHY` ends it as not done, `note WORDS` is for a stage that passes, and any other status than 0 is a failure, whose last line
# with "error", or last line, is the note.
set -uo pipefail
export LC_ALL=C
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 70

# Name, seconds at most, the same in a rehearsal on a slow and busy machine, what it is. In the order of what is lost most if
# time runs out.
stages="
facts         20    90  what the machine has
build        180  400  the program, its tests and benchmarks
ops           90   300  every operation against the reference, each case in a process of its own
bits          45   300  bits that the simulated GPU predicts, and that operations repeat
numerics      60   300  the laws of operations: attention, caches, extreme numbers
curve         60   300  the first steps of GPT-2 124M against the cpu's losses
steps-small   60   300  GPT-2 124M: tokens per second
steps-large  120   300  models of billions of parameters: tokens per second
laws          75  300  ranks that share a GPU: grids, schedules, sharding, ways of messages against one rank
nccl          30   300  the functions of NVIDIA's NCCL, by a link of one rank; with several GPUs ranks that it links
saved         60  300  a run that goes on from its checkpoint, and text from it
faults        40  300  a run on the device that looks at every operation
rates         90   300  every operation beside copies and the best product
operations    40   300  where a step's time goes, operation by operation, and where the GPU waits for the host
algorithms    40   300  algorithms of a run's products by their time, and a run that takes them
machine       90  300  a machine's file and a stack for plans, measured
trace         30   150  forwards, backwards and the optimizer in a trace of five steps
sanitizer     60   300  memory errors and races in small cases
ncu           30   300  counters of the slowest kernels
pytorch       80   300  PyTorch's steps on the same GPU
"

die() {
    printf 'gpu_check: %s\n' "$1" >&2
    exit "${2:-64}"
}

# ---- what a stage uses ------------------------------------------------------------------------------------

number() { printf '%s %s\n' "$1" "$2" >>"$work/numbers"; }
skip() {
    echo "$*"
    exit 77
}
note() { printf '%s\n' "$*" >"$work/note"; }
rehearsal() { [[ $device != cuda ]]; }
# limit SECONDS: what one command may take; a rehearsal's machine is slow and busy.
limit() { if rehearsal; then echo $((5 * $1)); else echo "$1"; fi; }
# need_build [PROGRAM...]: beside trireme, in the build folder; and that there is the device, without which tests that choose
# their devices have nothing to do.
need_build() {
    local program
    for program in trireme "$@"; do
        [[ -x $build/$program ]] || skip "$build/$program is not built"
    done
    is_available || skip "--device $device is not available; the build has the reason"
}

# device_row: what `trireme devices` says of the device, in a line.
device_row() { "$build/trireme" devices --json | grep '"kind": "'"$device"'"'; }
is_available() { device_row | grep -q '"available": true'; }
have() { command -v "$1" >/dev/null; }

# folders_with FILE: where the CUDA toolkit and python3's packages of NVIDIA have it, one a line; FILE may be a pattern.
folders_with() {
    local root file
    {
        dirname "$(dirname "$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")"
        python3 -c 'import sys; print("\n".join(p + "/nvidia" for p in sys.path if p))' 2>/dev/null
    } | while read -r root; do
        for file in "$root"/{lib64,lib,include,targets/*/lib,*/lib,*/include}/$1; do
            [[ ! -e $file ]] || dirname "$file"
        done
    done | awk '!seen[$0]++'
}

# Python's packages are found without an active environment, too.
use_libraries() {
    rehearsal || [[ -n ${TRIREME_CUDA_LIBS:-} ]] ||
        TRIREME_CUDA_LIBS=$(for file in libcublasLt.so.* libcudnn.so.* libnccl.so.*; do folders_with "$file"; done |
            awk '!seen[$0]++' | paste -sd :)
    export TRIREME_CUDA_LIBS
}

# table_numbers FILE COLUMN [PREFIX]: adds that column of each row of a benchmark's tables; the names begin with PREFIX.
table_numbers() {
    [[ -s $1 ]] || return 0
    awk -v column="$2" -v prefix="${3:-}" '
        /"columns": \[/ {
            at = 0
            text = $0
            sub(/.*"columns": \[/, "", text)
            count = split(text, cells, /\], \[/)
            for (i = 1; i <= count; i++) if (index(cells[i], "\"" column "\"")) at = i
        }
        /^    \["/ && at {
            name = $0
            sub(/^    \["/, "", name)
            values = name
            sub(/".*/, "", name)
            sub(/^[^"]*", /, "", values)
            gsub(/\].*/, "", values)
            split(values, of, ", ")
            name = prefix name
            gsub(/[^A-Za-z0-9]+/, "_", name)
            if (of[at] != "null" && of[at] != "") print name, of[at]
        }' "$1" >>"$work/numbers"
}

# ---- stages -----------------------------------------------------------------------------------------------

stage_facts() {
    rehearsal || nvidia-smi || echo "nvidia-smi does not answer"
    rehearsal || number gpus "$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | wc -l)"
    uname -a
    for tool in gcc g++ cmake ninja make nvcc cuobjdump compute-sanitizer ncu python3; do
        have "$tool" && echo "$tool: $(command -v "$tool"), $("$tool" --version 2>&1 | grep -m 1 -E '[0-9]\.[0-9]')"
    done
    echo "TRIREME_CUDA_LIBS=${TRIREME_CUDA_LIBS:-}"
    ldconfig -p 2>/dev/null | grep -E 'libcublasLt|libcudnn\.|libnccl|libcuda\.' || true
    python3 -c 'import torch; print("PyTorch", torch.__version__, torch.version.cuda)' 2>/dev/null || true
    number cores "$(nproc)"
    # What is copied to a GPU machine: such machines often take little.
    local tree most=64
    tree=$(git ls-files -z 2>/dev/null | xargs -0 -r du -ck --apparent-size 2>/dev/null | awk 'END { printf "%.1f", $1 / 1024 }')
    number tree_mib "$tree"
    awk -v tree="$tree" -v most=$most 'BEGIN { exit tree > most }' || { echo "the tree has $tree MiB, more than $most" && return 1; }
}

targets="trireme test_device_ops test_device_bits test_device_laws test_device_numbers test_device_attention test_device_cached
    test_device_float8 test_device_link test_train_covering bench_device_gpu bench_train_gpu bench_train_ops bench_report"

stage_build() {
    local generator=() launcher=() wanted headers
    read -rd '' -a wanted <<<"$targets"
    rehearsal || wanted+=(trireme_cuda)
    have ninja && generator=(-G Ninja)
    # A toolkit may come without the headers of cuBLASLt.
    headers=$(rehearsal || folders_with cublasLt.h | head -n 1)
    have ccache && launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    cmake "${generator[@]}" "${launcher[@]}" ${headers:+"-DCUBLASLT_INCLUDE=$headers"} -S . -B "$build" -DCMAKE_BUILD_TYPE=Release || return 1
    cmake --build "$build" -j "$(nproc)" --target "${wanted[@]}" || return 1
    "$build/trireme" devices || return 1
    "$build/trireme" devices --json >"$work/devices.json"
    is_available || { "$build/trireme" devices | grep -A 3 "^$device " | tr '\n' ' ' && return 1; }
}

# each_case COMMAND: for every case of the operations' tests, in a process each, as a fault stays with its process.
each_case() {
    local bad
    "$build/tests/test_device_bits" list | if rehearsal; then awk 'NR % 12 == 1'; else cat; fi >"$work/cases"
    # shellcheck disable=SC2016 # for the inner shell
    xargs -a "$work/cases" -d '\n' -P "$(($(nproc) < 8 ? $(nproc) : 8))" -I @@ env TRIREME_TEST_DEVICE="$device" \
        TRIREME_TEST_CASE=@@ OMP_NUM_THREADS=1 timeout -k 5 "$(limit 30)" sh -c '"$@" || echo "FAILED $TRIREME_TEST_CASE"' \
        - "$@" >"$work/cases.log" 2>&1
    cat "$work/cases.log"
    number cases "$(wc -l <"$work/cases")"
    number failed "$(grep -c '^FAILED' "$work/cases.log")"
    bad=$(sed -n 's/^FAILED //p' "$work/cases.log" | paste -sd ';')
    [[ -z $bad ]] || { echo "failed: $bad" && return 1; }
}

stage_ops() {
    need_build tests/test_device_ops tests/test_device_bits
    each_case "$build/tests/test_device_ops" cuda_agrees
}

stage_bits() {
    need_build tests/test_device_bits
    each_case "$build/tests/test_device_bits"
}

stage_numerics() {
    need_build
    local failed=() name
    for name in attention cached float8 numbers laws; do
        rehearsal && [[ $name == laws || $name == numbers ]] && continue
        TRIREME_TEST_DEVICE=$device TRIREME_TEST_SHORT=$(rehearsal && echo 1) timeout -k 5 "$(limit 60)" "$build/tests/test_device_$name" ||
            failed+=("$name")
    done
    number failed ${#failed[@]}
    ((${#failed[@]} == 0)) || { echo "failed: ${failed[*]}" && return 1; }
}

curve_file=bench/results/curve-gpt2-124m.txt

# The words of the run are in the file: the same on the cpu and here.
stage_curve() {
    need_build
    local words
    read -ra words <<<"$(sed -n 's/^# trireme train //p' "$curve_file")"
    # A simulated GPU would take hours for that model.
    rehearsal && words=(--mock-data --tokenizer-type NullTokenizer --vocab-size 100 --num-layers 2 --hidden-size 32
        --num-attention-heads 2 --seq-length 16 --micro-batch-size 2 --global-batch-size 4 --lr 1e-3 --bf16 --seed 3
        --eval-iters 0 --plain --log-interval 1 --train-iters 3)
    "$build/trireme" train "${words[@]}" --device "$device" --metrics "$work/curve.jsonl" || return 1
    if rehearsal; then
        "$build/trireme" train "${words[@]}" --metrics "$work/cpu.jsonl" >/dev/null || return 1
        losses "$work/cpu.jsonl" >"$work/kept"
    else
        grep -v '^#' "$curve_file" | awk '{ print $2 }' >"$work/kept"
    fi
    losses "$work/curve.jsonl" | paste - "$work/kept" | compare_curves ||
        { echo "losses are further than 1 % from the cpu's" && return 1; }
}

# compare_curves: of pairs of losses, each within 1 %.
compare_curves() {
    awk -v numbers="$work/numbers" '
        NF != 2 || $1 !~ /^[0-9.e+-]+$/ { bad = 1; next }
        { far = $1 / $2 - 1; if (far < 0) far = -far; if (far > most) most = far }
        ++n == 10 { first = most }
        END {
            printf("steps %d\nlargest_of_10_steps %g\nlargest_of_steps %g\n", n, first, most) >>numbers
            exit bad || !n || most > 1e-2
        }'
}

losses() { sed -n 's/.*"lm_loss": \([^,}]*\).*/\1/p' "$1"; }

stage_steps_small() { measured_steps small; }
stage_steps_large() {
    rehearsal && skip "the rehearsal has one model"
    measured_steps large
}

measured_steps() {
    local set=$1 status=0
    need_build bench/bench_train_gpu
    rehearsal && set=tiny
    "$build/bench/bench_train_gpu" "$set" "$build/trireme" --device "$device" --json "$work/steps-$1.json" || status=1
    table_numbers "$work/steps-$1.json" tokens/s
    return $status
}

# Name, then "same" (the bits of one rank) or "near" (rounding apart), then the words that differ from one rank's. Ways of
# messages between GPUs have rows with their option: without it ranks that share a GPU take "peer". Those whose names end in
# -float8 are compared with one rank in 8 bits.
laws="
p2            same --ranks 2 --pp 2
p4            same --ranks 4 --pp 4
p2-v2         same --ranks 2 --pp 2 --num-layers-per-virtual-pipeline-stage 1
gpipe         same --ranks 2 --pp 2 --schedule gpipe
zb-h1         same --ranks 2 --pp 2 --schedule zb-h1
recompute     same --recompute-granularity full --recompute-method uniform
t2            near --ranks 2 --tp 2
t2-sequence   near --ranks 2 --tp 2 --sequence-parallel
d2            near --ranks 2
d2-sharded    near --ranks 2 --use-distributed-optimizer
d2-overlap    near --ranks 2 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
t2-p2         near --ranks 4 --tp 2 --pp 2
p2-peer       same --ranks 2 --pp 2 --device-transport peer
d2-peer       near --ranks 2 --use-distributed-optimizer --device-transport peer
p2-staged     same --ranks 2 --pp 2 --device-transport staged
d2-staged     near --ranks 2 --use-distributed-optimizer --device-transport staged
p2-float8     same --ranks 2 --pp 2 --bf16 --fp8-format hybrid
"

law_run() { # NAME WORD...
    local name=$1
    shift
    timeout -k 5 "$(limit 60)" "$build/trireme" train --mock-data --tokenizer-type NullTokenizer --vocab-size 500 --num-layers 4 \
        --hidden-size 128 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 --global-batch-size 4 --lr 1e-3 --seed 3 \
        --eval-iters 0 --plain --log-interval 1 --train-iters "$law_steps" --device "$device" --ranks-per-gpu 4 "$@" \
        --metrics "$work/law-$name.jsonl" >"$work/law-$name.log" 2>&1 || {
        echo "$name: $(tail -n 3 "$work/law-$name.log" | tr '\n' ' ')"
        return 1
    }
}

law_holds() { # NAME same|near
    local one=one
    [[ $1 != *-float8 ]] || one='one-float8'
    losses "$work/law-$one.jsonl" | paste - <(losses "$work/law-$1.jsonl") | awk -v want="$2" '
        NF != 2 { bad = 1 }
        want == "same" && $1 != $2 { bad = 1 }
        want == "near" { d = $1 / $2 - 1; if (!(d < 1e-5 && d > -1e-5)) bad = 1 }
        END { exit bad || !NR }' || { echo "$1: losses are not $2 as one rank's" && return 1; }
}

stage_laws() {
    need_build
    local name want words failures count law_steps=10
    rehearsal && law_steps=2 && laws=$(grep -E '^(p2|t2|d2-sharded|p2-peer|d2-staged|p2-float8) ' <<<"$laws")
    law_run one && law_run one-float8 --bf16 --fp8-format hybrid || return 1
    while read -r name want words; do
        [[ -n $name ]] || continue
        while (($(jobs -rp | wc -l) >= 4)); do wait -n; done
        # shellcheck disable=SC2086 # words
        { law_run "$name" $words && law_holds "$name" "$want"; } || echo "failed: $name" &
    done <<<"$laws" >"$work/laws.log" 2>&1
    wait
    cat "$work/laws.log"
    count=$(grep -c ' \(same\|near\) ' <<<"$laws")
    failures=$(grep -c '^failed' "$work/laws.log")
    number laws "$count"
    number failed "$failures"
    ((failures == 0)) || return 1
    rehearsal || TRIREME_TEST_DEVICE=$device TRIREME_TEST_SHORT=1 timeout -k 5 40 "$build/tests/test_train_covering"
}

# With one GPU no rank can be linked with another: then a link of one rank meets the library.
stage_nccl() {
    need_build tests/test_device_link
    local gpus law_steps=10
    "$build/trireme" devices
    device_row | grep -q '"found": true, "name": "NCCL"' || skip "there is no NCCL here"
    TRIREME_TEST_DEVICE=$device timeout -k 5 "$(limit 60)" "$build/tests/test_device_link" || { echo "failed: a link of one rank" && return 1; }
    rehearsal && law_steps=2 && export TRIREME_SIM_GPUS=${TRIREME_SIM_GPUS:-2}
    gpus=$(device_row | grep -o '"uuid"' | wc -l)
    number gpus "$gpus"
    ((gpus > 1)) || { note "ranks that NCCL links were not run: they need two GPUs" && return; }
    law_run one || return 1
    law_run p2-nccl --ranks 2 --pp 2 --ranks-per-gpu 1 --device-transport nccl && law_holds p2-nccl same || return 1
    law_run d2-nccl --ranks 2 --use-distributed-optimizer --ranks-per-gpu 1 --device-transport nccl && law_holds d2-nccl near
}

# What a run of four steps has saved after two goes on with the same losses, and makes text.
stage_saved() {
    need_build
    local law_steps=4 saved=$work/saved
    rm -rf "$saved"
    law_run whole && law_run first --save "$saved" --save-interval 2 --exit-interval 2 &&
        law_run second --save "$saved" --load "$saved" || return 1
    "$build/trireme" checkpoint verify "$saved" || return 1
    number steps "$(losses "$work/law-second.jsonl" | wc -l)"
    cmp <(losses "$work/law-whole.jsonl" | tail -n 2) <(losses "$work/law-second.jsonl") ||
        { echo "failed: losses after the checkpoint are not those of the whole run" && return 1; }
    "$build/trireme" generate --load "$saved" --device "$device" --prompt "1 2 3" --max-new-tokens 8 --temperature 0 >"$work/text" || return 1
    number words "$(wc -w <"$work/text")"
    rm -rf "$saved"
}

stage_faults() {
    need_build
    local law_steps=3 plain=$device
    rehearsal && law_steps=1
    law_run plain --bf16 || return 1
    device=$plain-check law_run checked --bf16 || return 1
    cmp <(losses "$work/law-plain.jsonl") <(losses "$work/law-checked.jsonl") ||
        { echo "failed: losses on $plain-check are not those on $plain" && return 1; }
}

stage_algorithms() {
    need_build
    local words=(--model gpt2-124m --micro-batch-size 16 --global-batch-size 16 --bf16)
    rehearsal && words=(--num-layers 1 --hidden-size 32 --num-attention-heads 2 --seq-length 16 --micro-batch-size 1
        --global-batch-size 1 --bf16)
    "$build/trireme" bench --product-algorithms "$out/algorithms.txt" --device "$device" "${words[@]}" --vocab-size 500 || return 1
    number rows "$(grep -c '^m ' "$out/algorithms.txt")"
    "$build/trireme" train "${words[@]}" --mock-data --tokenizer-type NullTokenizer --vocab-size 500 --lr 1e-4 --eval-iters 0 \
        --plain --train-iters 2 --device "$device" --product-algorithms "$out/algorithms.txt"
}

stage_machine() {
    need_build
    "$build/trireme" bench --machine "$out/machine.yaml" --stack "$out/stack.yaml" --device "$device" || return 1
    number rates "$(grep -c '{op: ' "$out/machine.yaml")"
    "$build/trireme" plan --machine "$out/machine.yaml" --model gpt2-124m --gpus 1 --global-batch-size 8 --seq-length 64
}

stage_rates() {
    need_build bench/bench_device_gpu
    local model models="gpt2-124m llama3-8b gpt2-1558m" status=0
    rehearsal && models=tiny
    for model in $models; do
        "$build/bench/bench_device_gpu" --device "$device" --model "$model" --json "$work/rates-$model.json" || status=1
        table_numbers "$work/rates-$model.json" "% of copy" "${model}_"
    done
    return $status
}

stage_operations() {
    need_build bench/bench_train_ops
    local model models="gpt2-124m llama3" status=0
    rehearsal && models=tiny
    for model in $models; do
        "$build/bench/bench_train_ops" "$model" --device "$device" --json "$work/operations-$model.json" || status=1
        table_numbers "$work/operations-$model.json" "% of step" "${model}_"
    done
    return $status
}

stage_trace() {
    need_build
    local words=(--model gpt2-124m --vocab-size 50256 --micro-batch-size 16 --global-batch-size 64)
    rehearsal && words=(--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 32 --vocab-size 500
        --micro-batch-size 2 --global-batch-size 8)
    "$build/trireme" train "${words[@]}" --mock-data --tokenizer-type NullTokenizer --lr 1e-4 --bf16 --hidden-dropout 0 \
        --attention-dropout 0 --eval-iters 0 --plain --train-iters 5 --device "$device" --trace "$out/trace.json" || return 1
    "$build/trireme" schedule --trace "$out/trace.json" || true
    shares "$out/trace.json" >>"$work/numbers"
}

# shares TRACE: of the last step, in parts of a hundred: forwards, backwards, the optimizer, and what none of them covers.
shares() {
    awk '
        function of(field,    text) { text = $0; sub(".*\"" field "\":", "", text); return text + 0 }
        /"name":"step"/ { step = of("dur"); f = b = o = 0 }
        /"name":"F"/ { f += of("dur") }
        /"name":"B"/ { b += of("dur") }
        /"name":"optimizer"/ { o += of("dur") }
        END {
            if (!step) exit 1
            print "step_ms", step / 1e3
            print "forward_percent", 100 * f / step
            print "backward_percent", 100 * b / step
            print "optimizer_percent", 100 * o / step
            print "rest_percent", 100 * (1 - (f + b + o) / step)
        }' "$1"
}

stage_sanitizer() {
    need_build tests/test_device_ops
    rehearsal && skip "compute-sanitizer needs a GPU"
    have compute-sanitizer || skip "there is no compute-sanitizer here"
    local name failures
    # The smallest cases: the tool makes kernels a hundred times slower, and takes seconds to begin.
    # shellcheck disable=SC2016 # for the inner shell
    for name in "bias_gelu 1x1" norm_backward attention "embedding of a slice" loss "column_sum tall" adamw; do
        printf '%s\n' "memcheck:$name" "racecheck:$name"
    done | TRIREME_TEST_DEVICE=cuda test=$build/tests/test_device_ops xargs -d '\n' -P 4 -n 1 timeout -k 5 45 bash -c '
        TRIREME_TEST_CASE=${0#*:} compute-sanitizer --tool "${0%%:*}" --error-exitcode 9 "$test" cuda_agrees ||
            echo "failed: $0"' >"$work/sanitizer.log" 2>&1
    cat "$work/sanitizer.log"
    failures=$(grep -c '^failed' "$work/sanitizer.log")
    number failed "$failures"
    ((failures == 0))
}

stage_ncu() {
    need_build bench/bench_device_gpu
    rehearsal && skip "ncu needs a GPU"
    have ncu || skip "there is no ncu here"
    # Clocks stay as they are.
    ncu --clock-control none --section SpeedOfLight --section Occupancy --launch-count 12 \
        --kernel-name 'regex:attention|norm_backward|loss' "$build/bench/bench_device_gpu" --model gpt2-124m
}

stage_pytorch() {
    need_build bench/bench_train_gpu
    rehearsal && skip "PyTorch is measured on a GPU"
    python3 -c 'import torch; exit(not torch.cuda.is_available())' 2>/dev/null || skip "python3 has no PyTorch for this GPU"
    "$build/bench/bench_train_gpu" pytorch small "$build/trireme" python3 --json "$work/pytorch.json" || return 1
    table_numbers "$work/pytorch.json" tokens/s
}

# ---- running them -----------------------------------------------------------------------------------------

json_string() { printf '"%s"' "$(printf '%s' "$1" | tr '\n\t' '  ' | tr -d '\000-\037' | sed 's/\\/\\\\/g; s/"/\\"/g')"; }

# write_line STAGE RESULT SECONDS NOTE: and waits until it is on the disk.
write_line() {
    local numbers
    numbers=$(awk '{ printf("%s\"%s\": %s", separator, $1, $2 ~ /^-?[0-9.]+(e[-+]?[0-9]+)?$/ ? $2 : "null"); separator = ", " }' \
        "$work/numbers" 2>/dev/null)
    printf '{"stage": "%s", "result": "%s", "seconds": %s, "device": "%s", "note": %s, "numbers": {%s}}\n' "$1" "$2" "$3" \
        "$device" "$(json_string "${4:-}")" "$numbers" >>"$out/results.jsonl"
    sync "$out/results.jsonl" 2>/dev/null || sync
}

now() { date +%s.%N; }
since() { awk -v a="$1" -v b="$(now)" 'BEGIN { printf "%.1f", b - a }'; }

# run_stage NAME SECONDS: a process of its own, ended with its children at its limit.
run_stage() {
    local name=$1 seconds=$2 left status start result text
    left=$(awk -v budget="$budget" -v used="$(since "$began")" 'BEGIN { printf "%d", budget - used }')
    rm -f "$work"/{numbers,note}
    if ((left < seconds)); then
        write_line "$name" skipped 0 "no time: $seconds s of $left s that are left"
        return
    fi
    start=$(now)
    printf '==== %s\n' "$name" >>"$out/log.txt"
    timeout -k 5 "$seconds" bash tools/gpu_check.sh --device "$device" --out "$out" --build "$build" --stage "$name" \
        >"$work/output" 2>&1 </dev/null
    status=$?
    # Not more than a machine takes back.
    tail -c 1000000 "$work/output" >>"$out/log.txt"
    text=$( (grep -v '^ *$' "$work/output" | tail -n 1 && grep -E 'error|^failed' "$work/output") | tail -n 1 | cut -c1-300)
    case $status in
    0) result=passed text=$(cat "$work/note" 2>/dev/null) ;;
    77) result=skipped ;;
    124 | 137) result=failed text="it took more than its $seconds s; $text" ;;
    *) result=failed text="status $status; $text" ;;
    esac
    write_line "$name" "$result" "$(since "$start")" "$text"
    printf '%-12s %-8s %6.1f s  %s\n' "$name" "$result" "$(since "$start")" "${text:0:120}"
}

# join_tables: what was measured, in one file as ./run bench keeps them, beside what was kept of this GPU.
join_tables() {
    local files=() file name
    for file in "$work"/steps-*.json "$work"/rates-*.json "$work"/operations-*.json "$work"/pytorch.json; do
        [[ ! -s $file ]] || files+=("$file")
    done
    ((${#files[@]})) && [[ -x $build/bench/bench_report ]] || return 0
    "$build/bench/bench_report" --device "$device" join "${commit:-$(git describe --always --dirty 2>/dev/null || echo unknown)}" \
        "$out/bench.json" "${files[@]}" || return 0
    name=$("$build/bench/bench_report" --device "$device" name)
    [[ ! -r bench/results/$name.json ]] ||
        "$build/bench/bench_report" compare "bench/results/$name.json" "$out/bench.json" | tee "$out/compared.txt"
}

summary() {
    sed -E 's/.*"stage": "([^"]*)", "result": "([^"]*)", "seconds": ([^,]*),.*"note": "(.*)", "numbers": \{(.*)\}\}/\1\t\2\t\3\t\4\t\5/' \
        "$out/results.jsonl" | awk -F '\t' '
        { printf "%-12s %-8s %7.1f s  %s%s%s\n", $1, $2, $3, substr($4, 1, 200), $4 && $5 ? "; " : "", substr($5, 1, 600)
          count[$2]++ }
        END { printf "%d passed, %d failed, %d skipped\n", count["passed"], count["failed"], count["skipped"] }'
}

check() {
    local name seconds rehearsed
    began=$(now)
    mkdir -p "$out" "$work"
    rm -rf "$out"/{results.jsonl,summary.txt,log.txt,trace.json,bench.json,compared.txt,machine.yaml,stack.yaml,algorithms.txt} \
        "${work:?}"/*
    while read -r name seconds rehearsed _; do
        [[ -n $name && (-z $only || ,$only, == *",$name,"*) ]] || continue
        [[ $device == cuda ]] || seconds=$rehearsed
        run_stage "$name" "$seconds"
    done <<<"$stages"
    join_tables
    summary | tee "$out/summary.txt"
    # Where there is no device, nothing fails, but nothing is checked either.
    ! grep -q '"result": "failed"' "$out/results.jsonl" && is_available
}

main() {
    device=cuda out=build/gpu-check budget=570 build=build/gpu only='' commit=''
    local stage=
    while (($#)); do
        case $1 in
        --device | --out | --budget | --build | --only | --stage | --commit) [[ $# -gt 1 ]] || die "$1 needs a value" ;;
        esac
        case $1 in
        --device) device=$2 && shift 2 ;;
        --out) out=$2 && shift 2 ;;
        --budget) budget=$2 && shift 2 ;;
        --build) build=$2 && shift 2 ;;
        --only) only=$2 && shift 2 ;;
        --stage) stage=$2 && shift 2 ;;
        --commit) commit=$2 && shift 2 ;;
        --list) echo "${stages:1:-1}" && return ;;
        *) die "unknown word '$1'; the first lines of tools/gpu_check.sh say which there are" ;;
        esac
    done
    [[ $device == cuda || $device == cuda-sim ]] || die "--device is cuda or cuda-sim, not $device"
    [[ $budget =~ ^[0-9]+$ ]] || die "--budget is a number of seconds, not $budget"
    local word
    for word in ${only//,/ } $stage; do
        grep -q "^$word " <<<"$stages" || die "there is no stage '$word'; --list says which there are"
    done
    work=$build/gpu-check-work
    if [[ -n $stage ]]; then
        use_libraries
        "stage_${stage//-/_}"
    else
        check
    fi
}

main "$@"
