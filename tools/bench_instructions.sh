# shellcheck shell=bash
# ./run bench instructions[:keep]: how many instructions small, fixed workloads take. Unlike times they are the same
# on a busy machine, so 2 % more is a change of the program. Counted by valgrind, which knows AVX2 at most: of the
# kernels these are those of x86-64-v3.

instructions_file=bench/results/instructions.txt

# count_instructions COMMAND...: of it and its threads.
count_instructions() {
    local log status=0
    log=$(mktemp)
    # With a policy of the user's the program does not start itself again, where valgrind would lose it.
    OMP_WAIT_POLICY=passive valgrind --tool=callgrind --callgrind-out-file=/dev/null --log-file="$log" "$@" >/dev/null </dev/null || status=$?
    sed -n 's/.*Collected : //p' "$log"
    rm -f "$log"
    return $status
}

# One workload a line: name and words. What trains, trains one step of one rank on one thread: ranks that wait for each
# other take as many instructions as they have time for.
# shellcheck disable=SC2086 # the options are words
instruction_workloads() {
    local folder=$1
    local tiny="--mock-data --tokenizer-type NullTokenizer --vocab-size 255 --num-layers 2 --hidden-size 128
        --num-attention-heads 2 --seq-length 128 --micro-batch-size 1 --global-batch-size 2 --lr 1e-4 --train-iters 1
        --eval-iters 0 --threads 1 --plain"
    echo train-fp32 train $tiny
    echo train-bf16 train $tiny --bf16
    echo checkpoint train $tiny --save "$folder/checkpoint"
    echo schedule schedule --schedule zb-h1 --pp 8 --microbatches 64
    echo schedule-auto schedule --schedule auto --pp 4 --microbatches 16
    echo tokenizer preprocess --input LICENSE --output-prefix "$folder/text" --vocab-size 512 --workers 1 --append-eod
    echo plan plan --model gpt3-1.3b --gpus 16 --machine dgx-a100 --global-batch-size 64
}

# "NAME COUNT" a line.
count_workloads() {
    local folder line name count
    folder=$(mktemp -d)
    while read -r line; do
        name=${line%% *}
        # shellcheck disable=SC2086 # the workload is words
        count=$(count_instructions build/trireme ${line#* }) || die 1 "failed: build/trireme ${line#* }"
        echo "$name $count"
    done < <(instruction_workloads "$folder")
    rm -rf "$folder"
}

instruction_tools() { echo "# $(cc --version | head -1); $(valgrind --version); $(getconf GNU_LIBC_VERSION)"; }

bench_instructions() {
    command -v valgrind >/dev/null || die 69 "counting instructions needs valgrind: apt-get install valgrind"
    local found=build/instructions.txt
    say "Counting instructions (a minute or two)"
    { instruction_tools && count_workloads; } >"$found"
    if [[ ${1:-} == keep ]]; then
        cp "$found" "$instructions_file"
        say "Wrote $instructions_file."
    elif [[ $(head -1 "$found") != "$(head -1 "$instructions_file")" ]]; then
        cat "$found"
        say "Not compared: $instructions_file was counted with $(head -1 "$instructions_file")."
    else
        compare_instructions "$instructions_file" "$found"
    fi
}

compare_instructions() {
    awk 'NR == FNR { kept[$1] = $2; next }
        /^#/ { next }
        !($1 in kept) { printf "%-16s %15d  new\n", $1, $2; next }
        {
            change = 100 * ($2 / kept[$1] - 1)
            printf "%-16s %15d  %+6.2f %%%s\n", $1, $2, change, (change > 2 ? "  MORE" : "")
            if (change > 2) more++
        }
        END { exit (more > 0) }' "$1" "$2" ||
        die 1 "more than 2 % more instructions than $instructions_file has; if that is right: ./run bench instructions:keep"
}
