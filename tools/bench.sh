# shellcheck shell=bash
# ./run bench [PART...]: what the machine can do, and what share of it the program reaches. Every part writes its
# tables to build/bench as JSON; together with a description of the machine they are its results, and those
# of one machine are kept in bench/results.
# shellcheck source=tools/bench_instructions.sh
source tools/bench_instructions.sh
# shellcheck source=tools/bench_costs.sh
source tools/bench_costs.sh

bench_parts=(ops steps scaling growth documents experts pairs predictions others)

bench_usage() {
    cat <<'END_OF_USAGE'
./run bench                 every part but the last six, one after the other; two hours
./run bench PART...         ops           operations at GPT-2's shapes beside the machine's ceilings; two minutes
                            steps         training steps of GPT-2 124M; ten minutes
                            scaling       two ranks of one thread against one rank of two; an hour
                            growth        the cost of a token as a model or its grid grows, and the planner's word; half an hour
                            documents     the cost of a token with short documents and windows; three minutes
                            experts       layers and steps with experts beside dense ones and their own products; two minutes
                            pairs         the travel of rows to experts that paired steps hide; a minute
                            predictions   runs on ten grids against the planner; five minutes
                            others        tokenizers, checkpoints, plans, messages; five minutes
                            pytorch       steps beside PyTorch's, from the package index; ten minutes
                            lora          adapters beside a model of 1.1 billion parameters, and PyTorch's; half an hour
                            gpu           operations and training steps on an NVIDIA GPU, kept apart; five minutes
                            costs         memory and planned steps of long sequences, experts, shards; a minute
                            counts        operations and bytes of a step on a GPU, recorded without one; seconds
                            instructions  counted, not timed, against those kept; fails beyond 2 % more
./run bench steps:bf16      a part's own words follow its name: steps:fp32, scaling:bf16:p, scaling:fp32:td, growth:context, pytorch:bf16,
                            instructions:keep, experts:bf16:one-thread, gpu:ops, gpu:steps, gpu:pytorch, gpu:compare, gpu:keep
./run bench compare         what changed by more than 10 % against the results kept for this machine
./run bench keep            keeps these results, and writes docs/performance.md from them
./run bench page            writes docs/performance.md from the results kept
END_OF_USAGE
}

bench() {
    local part measured=
    mkdir -p build/bench-results
    case ${1:-} in help | -h | --help) bench_usage && return ;; esac
    quietly "building the benchmarks" cmake --build build --target bench_device bench_train bench_train_save \
        bench_corpus bench_plan bench_plan_cpu bench_plan_growth bench_comm bench_report bench_train_documents \
        bench_train_experts bench_train_pairs
    bench_machine=$(build/bench/bench_report name)
    [[ $# -gt 0 ]] || set -- "${bench_parts[@]}"
    for part in "$@"; do
        # shellcheck disable=SC2046 # a part's words
        bench_part $(tr ':' ' ' <<<"$part")
        case $part in compare | keep | page | others | lora | costs | counts | instructions* | gpu*) ;; *) measured=1 ;; esac
    done
    [[ -z $measured ]] || { bench_join && bench_compare; }
}

# bench_part NAME WORD...
bench_part() {
    local name=$1
    shift
    case $name in
    ops) bench_device "$@" ;;
    steps | scaling) bench_steps "$name" "$@" ;;
    growth) bench_growth bench_plan_growth growth "$@" ;;
    documents) bench_documents ;;
    experts) bench_experts "$@" ;;
    pairs) bench_pairs ;;
    predictions) bench_growth bench_plan_cpu predictions ;;
    others) bench_others ;;
    pytorch) bench_pytorch "$@" ;;
    lora) bench_lora ;;
    gpu) bench_gpu "$@" ;;
    counts) bench_counts ;;
    costs) bench_costs ;;
    instructions) bench_instructions "$@" ;;
    compare) bench_join && bench_compare ;;
    keep) bench_keep ;;
    page) bench_page_write ;;
    *) die 64 "bench: no part '$name'; ./run bench help lists them" ;;
    esac
}

# result_of NAME WORD...: the part's file; of a piece of it one beside that of all, which is named before it: where
# both have a table bench_report takes the piece's. What is measured now replaces its own pieces.
result_of() {
    local words=$*
    rm -f "build/bench-results/${words// /-}"-*.json
    echo "build/bench-results/${words// /-}.json"
}

bench_device() {
    say "" "Operations at the shapes of GPT-2 124M, against this machine's ceilings"
    build/bench/bench_device --json "$(result_of ops)"
}

bench_counts() {
    quietly "building the device of its GPU" cmake --build build --target bench_train_counts trireme_cuda_sim
    TRIREME_CUDA=build build/bench/bench_train_counts
}

bench_steps() {
    say "" "Training steps of GPT-2 124M: $* (nothing else should run; 8 GB of memory)"
    build/bench/bench_train "$1" build/trireme "${@:2}" --json "$(result_of "$@")"
}

# bench_growth PROGRAM NAME [TABLE]: the machine is measured once for both programs, and again when the program has changed.
bench_growth() {
    if [[ ! build/this-machine.yaml -nt build/trireme ]]; then
        say "" "This machine, for the planner (two minutes)"
        build/trireme bench --machine build/this-machine.yaml >build/bench_machine.log
    fi
    say "" "Training steps against their predictions: $2"
    "build/bench/$1" build/trireme build/this-machine.yaml "${@:3}" --json "$(result_of "${@:2}")"
}

bench_documents() {
    say "" "The cost of a token with documents and windows"
    build/bench/bench_train_documents --json "$(result_of documents)"
}

# bench_experts [fp32|bf16] [one-thread]: one thread has tables of its own, of processor time.
bench_experts() {
    local name=experts word words=()
    for word in "$@"; do
        case $word in
        one-thread) name=one-thread-experts ;;
        fp32 | bf16) words+=("$word") ;;
        *) die 64 "bench: experts has no word '$word'; there are fp32, bf16 and one-thread" ;;
        esac
    done
    set -- "${words[@]}"
    [[ $name == experts ]] || set -- "$@" one-thread
    say "" "Layers with experts beside dense ones"
    build/bench/bench_train_experts "$@" --json "$(result_of "$name" "${words[@]}")"
}

bench_pairs() {
    say "" "Rows that travel to experts while another microbatch computes"
    build/bench/bench_train_pairs --json "$(result_of pairs)"
}

bench_others() {
    say "" "Text to tokens, vocabulary 32000"
    build/bench/bench_corpus
    say "" "Checkpoints: the disk, and steps during a save"
    build/bench/bench_train_save build
    say "" "Plans: replays, bounds, searches"
    build/bench/bench_plan
    say "" "Messages under way while a rank computes, of threads and of processes"
    build/bench/bench_comm
    mpirun --bind-to core -n 2 build/bench/bench_comm </dev/null
    build/bench/bench_train trace build/trireme
}

# TRIREME_TORCH_PYTHON names a Python that has PyTorch already.
bench_pytorch() {
    local python=${TRIREME_TORCH_PYTHON:-build/torch/bin/python}
    if [[ ! -x $python ]]; then
        say "Installing PyTorch's newest release into build/torch from the Python package index (a few GB, minutes)."
        if ! { python3 -m venv build/torch && build/torch/bin/pip install --quiet torch numpy; }; then
            rm -rf build/torch
            say "Skipped: PyTorch could not be installed. Is the package index reachable? PIP_INDEX_URL names another."
            return
        fi
    fi
    say "" "GPT-2 124M without dropout beside PyTorch (nothing else should run; 8 GB of memory)"
    build/bench/bench_train pytorch build/trireme "$@" "$python" --json "$(result_of pytorch "$@")"
}

# Prints alone: no table is kept of it.
bench_lora() {
    local python=${TRIREME_TORCH_PYTHON:-build/torch/bin/python}
    if ! "$python" -c 'import torch, transformers, peft' 2>/dev/null; then
        say "Skipped: $python has no torch, transformers and peft. TRIREME_TORCH_PYTHON names another Python."
        return
    fi
    say "" "Adapters beside a Llama of 1.1 billion parameters in bf16, and PyTorch with PEFT (8 GB of memory, 2.2 GB of disk)"
    HF_HUB_OFFLINE=1 "$python" -B bench/pytorch_lora.py build/trireme
}

# ---- on a GPU -------------------------------------------------------------------------------------------

# bench_gpu [ops|steps|pytorch|compare|keep]: its tables lie apart from those of the machine's processor. TRIREME_BENCH_DEVICE
# names another kind of device than cuda: on cuda-sim the same is done with small sizes.
bench_gpu() {
    local device=${TRIREME_BENCH_DEVICE:-cuda} what=${1:-} folder=build/bench-results-gpu machine
    quietly "building the benchmarks of GPUs" cmake --build build --target bench_device_gpu bench_train_gpu bench_train_ops
    machine=$(build/bench/bench_report --device "$device" name) || die 69 "bench gpu: there is no GPU to measure"
    mkdir -p "$folder"
    [[ -n $what && $what != ops ]] || bench_gpu_ops "$device" "$folder"
    [[ -n $what && $what != steps ]] || bench_gpu_steps "$device" "$folder"
    [[ $what != pytorch ]] || bench_gpu_pytorch "$device" "$folder"
    case $what in "" | ops | steps | pytorch | compare | keep) ;; *) die 64 "bench gpu: no part '$what'; ./run bench help" ;; esac
    build/bench/bench_report --device "$device" join "$(git describe --always --dirty 2>/dev/null || echo unknown)" \
        "build/$machine.json" "$folder"/*.json || die 66 "bench gpu: nothing has been measured yet"
    if [[ $what == keep ]]; then
        cp "build/$machine.json" "bench/results/$machine.json"
        say "Wrote bench/results/$machine.json."
    elif [[ -r bench/results/$machine.json ]]; then
        say "" && build/bench/bench_report compare "bench/results/$machine.json" "build/$machine.json"
    else
        say "" "No results are kept for this GPU (bench/results/$machine.json); ./run bench gpu:keep does that."
    fi
}

# bench_gpu_words DEVICE WORD...: the words, or "tiny" for a simulated GPU.
bench_gpu_words() { if [[ $1 == cuda ]]; then echo "${@:2}"; else echo tiny; fi; }

bench_gpu_ops() {
    local model
    say "" "Operations at the shapes of models, against the GPU's copies and best product"
    for model in $(bench_gpu_words "$1" gpt2-124m gpt2-1558m llama3-8b); do
        build/bench/bench_device_gpu --device "$1" --model "$model" --json "$2/ops-$model.json"
    done
}

bench_gpu_steps() {
    local set
    say "" "Training steps of whole models (nothing else should run on the GPU)"
    for set in $(bench_gpu_words "$1" small large); do
        build/bench/bench_train_gpu "$set" build/trireme --device "$1" --json "$2/steps-$set.json"
    done
    for set in $(bench_gpu_words "$1" gpt2-124m llama3); do
        build/bench/bench_train_ops "$set" --device "$1" --json "$2/operations-$set.json"
    done
}

# TRIREME_TORCH_PYTHON names a Python with PyTorch for this GPU; python3 unless set.
bench_gpu_pytorch() {
    [[ $1 == cuda ]] || die 69 "bench gpu:pytorch needs a GPU"
    build/bench/bench_train_gpu pytorch small build/trireme "${TRIREME_TORCH_PYTHON:-python3}" --device "$1" --json "$2/pytorch.json"
}

# ---- results --------------------------------------------------------------------------------------------

bench_join() {
    local files=(build/bench-results/*.json)
    [[ -r ${files[0]} ]] || die 66 "nothing has been measured yet: ./run bench"
    build/bench/bench_report join "$(git describe --always --dirty 2>/dev/null || echo unknown)" \
        "build/$bench_machine.json" "${files[@]}"
}

bench_compare() {
    local kept=bench/results/$bench_machine.json
    if [[ -r $kept ]]; then
        say "" && build/bench/bench_report compare "$kept" "build/$bench_machine.json"
    else
        say "" "No results are kept for this machine ($kept); ./run bench keep does that."
    fi
}

bench_keep() {
    bench_join
    mkdir -p bench/results
    cp "build/$bench_machine.json" "bench/results/$bench_machine.json"
    say "Wrote bench/results/$bench_machine.json."
    bench_page_write
}

bench_page_write() {
    bench_page "bench/results/$bench_machine.json" >build/performance.md
    mv build/performance.md docs/performance.md
    say "Wrote docs/performance.md."
}

# bench_page FILE: docs/performance.md. Its words are tools/performance.md, where a line "{{PART}}" stands for tables.
bench_page() {
    local line
    while IFS= read -r line; do
        case $line in
        "{{machine}}") build/bench/bench_report machine "$1" ;;
        "{{instructions}}") echo '```' && cat "$instructions_file" && echo '```' ;;
        "{{"*"}}") line=${line#\{\{} && build/bench/bench_report tables "$1" "${line%\}\}}" ;;
        *) printf '%s\n' "$line" ;;
        esac
    done <tools/performance.md
}
