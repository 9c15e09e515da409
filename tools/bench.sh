# shellcheck shell=bash
# ./run bench: each operation at GPT-2's shapes, then whole training steps, as fractions of what
# this machine can do.

bench() {
    local folder=build/bench
    quietly "building the benchmarks" cmake --build build --target bench_device bench_train bench_train_save \
        bench_data bench_plan bench_plan_cpu
    say "" "Operations at the shapes of GPT-2 124M (a minute)"
    "$folder/bench_device" --json build/bench_device.json
    say "" "Text to tokens, vocabulary 32000 (half a minute)"
    "$folder/bench_data"
    say "" "Checkpoints: the disk, and steps during a save (a minute and a half)"
    "$folder/bench_train_save" build
    say "" "Plans: replays, bounds, searches (seconds)"
    "$folder/bench_plan"
    say "" "This machine, measured, and training steps on 10 grids against their predictions (four minutes)"
    rm -f build/this-machine.yaml
    build/trireme bench --machine build/this-machine.yaml >build/bench_machine.log
    (cd build && bench/bench_plan_cpu ./trireme ./this-machine.yaml)
    say "" "Training steps of GPT-2 124M (about ten minutes, 8 GB of memory)"
    bench_steps "$folder/bench_train" | tee build/bench_train.log
}

# Ranks as threads first; the last line of each type says with which figures the same cases run
# as MPI processes.
bench_steps() {
    local log type peak base
    log=$(mktemp)
    "$1" | tee "$log"
    while read -r type peak base; do
        say "" "$type, ranks as MPI processes"
        for case in 0 1 2; do mpirun --bind-to core -n 2 "$1" "$type" "$case" "$peak" "$base" </dev/null; done
    done < <(sed -n 's/^base for MPI: //p' "$log")
    rm -f "$log"
}
