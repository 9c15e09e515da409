#!/usr/bin/env bash
# How training runs end that are asked to: each signal saves first, a reader that leaves or pauses does no harm,
# run.json says how it was. And who speaks when a launched job fails.
# Usage: signal_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
# shellcheck source=tests/jobs.sh
source "$here/jobs.sh"
run=("$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --plain)
endless=("${run[@]}" --train-iters 100000)

# start COMMAND...: in the background as $pid; what it prints goes to $out.
runs=0
start() {
    out=out.$((++runs))
    "$@" >"$out" 2>&1 </dev/null &
    pid=$!
}
# expect_end CODE TEXT
expect_end() {
    local code
    until_true has_ended
    kill -KILL "$pid" 2>/dev/null
    wait "$pid"
    code=$?
    [[ $code == "$1" || ($1 == any && $code != 0) ]] || complain "exit $code, not $1: $(tail -3 "$out")"
    grep -qF -- "$2" "$out" || complain "no '$2': $(tail -3 "$out")"
}

# state FILE MEMBER: its value as it is written.
state() { sed -n "s/^[{ ]*\"$2\": \(.*\)[,}]\$/\1/p" "$1"; }
# expect_state FILE MEMBER VALUE
expect_state() {
    [[ $(state "$1" "$2") == "$3" ]] || complain "$1: $2 is $(state "$1" "$2"), not $3: $(cat "$1" 2>&1)"
}
# That the run was saved at the iteration it reached, and that the file says so.
expect_saved() { # FOLDER
    local iteration
    iteration=$(state "$1/run.json" iteration)
    [[ $iteration =~ ^[0-9]+$ ]] || { complain "$1/run.json: $(cat "$1/run.json" 2>&1)"; return; }
    [[ -d $1/$(printf 'step-%08d' "$iteration") ]] || complain "$1: iteration $iteration is not saved: $(ls "$1")"
    expect_state "$1/run.json" saved_iteration "$iteration"
}

# ---- signals ---------------------------------------------------------------------------------------------
for signal in INT TERM HUP USR1 USR2 XCPU; do
    if check "SIG$signal saves and ends a run"; then
        start "${endless[@]}" --save "$signal"
        until_true is_training
        expect_state "$signal/run.json" state '"running"'
        expect_state "$signal/run.json" status null
        kill -"$signal" "$pid"
        [[ $signal == XCPU ]] && kill -XCPU "$pid" # comes every second
        [[ $signal == TERM ]] && kill -TERM "$pid" # a job manager and the launcher under it both send it
        expect_end 130 "stopped by a signal (SIG$signal) after iteration"
        expect_saved "$signal"
        expect_state "$signal/run.json" state '"interrupted"'
        expect_state "$signal/run.json" status 130
        expect_state "$signal/run.json" signal "\"$signal\""
    fi
done

# A signal reaches a run that waits, too; nohup's HUP stays ignored.
if check "a signal reaches a run that waits for a reader"; then
    mkfifo waits
    start "${endless[@]}" --metrics waits
    until_true grep -qs "waiting up to" "$out"
    kill -TERM "$pid"
    expect_end 130 "stopped by a signal while waiting for a reader"
fi
if check "the HUP that nohup ignores does not end a run"; then
    start nohup "${endless[@]}" --save nohup --exit-duration-in-mins 0.03
    until_true is_training
    kill -HUP "$pid"
    expect_end 0 "trained"
    expect_state nohup/run.json state '"interrupted"'
    expect_state nohup/run.json status 0
    expect_state nohup/run.json reason '"--exit-interval or --exit-duration-in-mins ended it"'
fi

if check "a signal to the launcher goes on to the ranks"; then
    out=mpi.log
    start mpirun -n 2 "${endless[@]}" --tp 2 --save mpi
    until_true is_training
    kill -USR1 "$pid" # goes on to the ranks
    expect_end any "stopped by a signal (SIGUSR1)"
    expect_saved mpi
    expect_state mpi/run.json ranks 2
    expect_state mpi/run.json signal '"USR1"'
fi

# ---- other ends ------------------------------------------------------------------------------------------
run_whole() { train whole "${no_evaluation[@]}" --train-iters 5 --save whole; }
if check "run.json says that a run is done"; then
    need run_whole
    expect_state whole/run.json state '"done"'
    expect_state whole/run.json status 0
    expect_state whole/run.json iteration 5
    expect_state whole/run.json train_iters 5
    expect_state whole/run.json signal null
    expect_state whole/run.json ended "$(state whole/run.json updated)"
    train again "${no_evaluation[@]}" --train-iters 7 --save whole --load whole --run-file elsewhere.json
    expect_state elsewhere.json iteration 7
    expect_state whole/run.json iteration 5
fi

if check "run.json says why a run failed"; then
    timeout 60 "${run[@]}" --train-iters 20 --lr "1e30" --lr-decay-style constant --clip-grad 0 --save nan >nan.log 2>&1
    expect_state nan/run.json state '"failed"'
    expect_state nan/run.json status 76
    state nan/run.json reason | grep -q "iteration" || complain "no reason: $(cat nan/run.json)"
fi
if check "--run-file says why a run did not begin"; then
    timeout 60 "${run[@]}" --train-iters 2 --data-path nowhere --run-file early.json >early.log 2>&1
    expect_state early.json state '"failed"'
    expect_state early.json status 66
fi

# A killed run stays "running"; one that finds the folder taken does not touch the other's file.
if check "a killed run stays running, and a refused run does not touch its file"; then
    start "${endless[@]}" --save killed
    until_true is_training
    before=$(cat killed/run.json)
    cp killed/run.json killed.json # as --run-file of both
    timeout 60 "${run[@]}" --train-iters 2 --save killed --run-file killed.json --lock-timeout 0 >taken.log 2>&1 ||
        timeout 60 "${run[@]}" --train-iters 2 --save killed --lock-timeout 1 >taken.log 2>&1
    grep -q "another run" taken.log || complain "not refused: $(tail -1 taken.log)"
    [[ $(cat killed/run.json) == "$before" ]] || complain "a refused run changes the other's file"
    [[ $(cat killed.json) == "$before" ]] || complain "a refused run changes the other's --run-file: $(cat killed.json)"
    { kill -KILL "$pid"; wait "$pid"; } 2>/dev/null
    expect_state killed/run.json state '"running"'
    expect_state killed/run.json pid "$pid"
    timeout 60 "${run[@]}" --train-iters 2 --data-path nowhere --run-file killed.json >early.log 2>&1
    expect_state killed.json state '"failed"'
fi

# ---- readers ---------------------------------------------------------------------------------------------
if check "a log without a reader saves and ends a run"; then
    timeout 60 "${endless[@]}" --save head --log-interval 1 2>head.err | head -8 >head.log
    [[ ${PIPESTATUS[0]} == 130 ]] || complain "| head: exit ${PIPESTATUS[0]}"
    grep -q "the reader of standard output has left) after iteration" head.err || complain "| head: $(cat head.err)"
    expect_saved head
    expect_state head/run.json signal '"PIPE"'
fi

# Other verbs end quietly, as usual.
if check "other verbs end quietly without a reader"; then
    "$trireme" train --help-all 2>quiet.err | head -1 >/dev/null
    "$trireme" models 2>>quiet.err | head -1 >/dev/null
    [[ ! -s quiet.err ]] || complain "| head: $(cat quiet.err)"
fi

# A pager that sleeps holds nothing up, and gets every line: more than a pipe has room for.
if check "a paused reader gets every line"; then
    timeout 60 "${run[@]}" --train-iters 600 --log-interval 1 --save paged 2>paged.err |
        (until_true grep -qs '"done"' paged/run.json; cat) >paged.log
    lines=$(grep -c '^ \[.*\] iteration ' paged.log)
    [[ $lines == 600 ]] || complain "$lines lines of 600"
    [[ ! -s paged.err ]] || complain "a paused reader: $(cat paged.err)"
fi

# Nor does a reader of metrics, nor one that leaves; a run whose metrics sleep still hears signals.
if check "readers of metrics that pause or leave do not stop a run"; then
    mkfifo sleepy
    (exec 3<sleepy; sleep 60) &
    sleeper=$!
    start "${endless[@]}" --train-iters 500 --metrics sleepy --save sleepy.d
    expect_end 74 "--metrics sleepy: not everything could be written"
    expect_state sleepy.d/run.json iteration 500
    start "${endless[@]}" --metrics sleepy
    until_true is_training
    kill -TERM "$pid"
    expect_end 130 "stopped by a signal (SIGTERM)"
    kill "$sleeper"
    (head -1 sleepy >one.row) &
    start "${endless[@]}" --train-iters 20 --metrics sleepy
    expect_end 74 "rows are lost from here on: its reader has left"
    grep -q "trained 20 iterations" "$out" || complain "the run ended with its reader: $(tail -3 "$out")"
fi

# A file that may not grow is no signal that ends the run.
if check "a file that may not grow does not end a run"; then
    (ulimit -f 50; exec timeout 60 "${run[@]}" --train-iters 600 --metrics grown --run-file grown.json) >grown.log 2>&1
    grep -q "trained 600 iterations" grown.log || complain "a limit of files: $(tail -3 grown.log)"
    expect_state grown.json status 74
fi

# ---- files that are pipes --------------------------------------------------------------------------------
# Each of them would block in open for ever.
refused() { # COMMAND...
    timeout 20 "$@" >refused.log 2>&1 </dev/null
    local code=$?
    [[ $code != 124 && $code != 0 ]] || complain "exit $code with a pipe for a file: $*"
    grep -q "regular file\|no folder" refused.log || complain "a pipe for a file: $(tail -1 refused.log)"
}
refuse() { check "a pipe is no file: ${*: -2}" refused "$@"; } # COMMAND...
mkfifo pipe piped.idx config.json
for end in bin tokenizer.json; do cp "documents.$end" "piped.$end"; done
refuse "${run[@]}" --train-iters 1 --data-path piped
refuse "${run[@]}" --train-iters 1 --config pipe
refuse "${run[@]}" --train-iters 1 --tokenizer-model pipe
corpus[1]=pipe
refuse "$trireme" train --data-args-path "${corpus[@]:1}" --train-iters 1
refuse "${run[@]}" --train-iters 1 --save pipe
refuse "${run[@]}" --train-iters 1 --trace pipe
refuse "${run[@]}" --train-iters 1 --save-config pipe
refuse "${run[@]}" --train-iters 1 --run-file pipe
refuse "$trireme" generate --load . --prompt x
refuse "$trireme" schedule --from pipe
refuse "$trireme" schedule --trace pipe
refuse "$trireme" schedule --pp 2 --microbatches 4 --svg pipe
refuse "$trireme" plan --model gpt3-175b --gpus 8 --machine ./pipe
refuse "$trireme" data verify piped
rm config.json

# ---- launchers -------------------------------------------------------------------------------------------
# Process 0 comes late: the others wait until it has spoken.
# shellcheck disable=SC2016 # for the inner shell
late='[ "$OMPI_COMM_WORLD_RANK$PMI_RANK" != 0 ] || sleep 1; exec "$@"'
for bad in "--num-layers 0" "--num-layers 4 --tp 3"; do
    if check "a late process 0 speaks alone: $bad"; then
        # shellcheck disable=SC2086 # several words
        timeout 60 mpirun -n 2 sh -c "$late" sh "${run[@]}" --train-iters 1 $bad >late.log 2>&1
        [[ $(tr -d '\0' <late.log | grep -c "trireme: error:") == 1 ]] ||
            complain "not one error of a late process 0: $(cat late.log)"
    fi
done

# One that fails alone is named.
if check "a rank that fails alone is named"; then
    timeout 60 mpirun -n 2 "$here/by_rank.sh" "${run[@]}" --train-iters 1 --tp 2 // \
        "${run[@]}" --train-iters 1 --tp 2 --num-layers 0 >other.log 2>&1
    tr -d '\0' <other.log | grep -q "trireme: error: \[rank 1\] .*--num-layers: 0 is not allowed" || complain "rank 1 alone: $(cat other.log)"
fi

# What srun starts without an interface for MPI; and processes that MPI does not show each other.
if check "srun without an interface for MPI is named"; then
    SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2 timeout 60 "${run[@]}" --train-iters 1 --tp 2 >srun.log 2>&1
    [[ $? == 69 ]] || complain "srun without PMI: $(tail -1 srun.log)"
    grep -q "srun --mpi=pmix" srun.log || complain "srun without PMI: $(tail -1 srun.log)"
fi
if check "processes that MPI does not show each other are refused"; then
    OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0 timeout 60 "${run[@]}" --train-iters 1 --tp 2 >alone.log 2>&1
    grep -q "the launcher started 2 processes, but MPI shows each of them itself alone" alone.log ||
        complain "alone under a launcher: $(tail -1 alone.log)"
fi

# A small /dev/shm is told once, with what makes it larger. Where nothing can be mounted there is none.
if check "a small /dev/shm is warned about once"; then
    small=(unshare -rm sh -c 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"' sh)
    if "${small[@]}" true 2>/dev/null; then
        timeout 60 "${small[@]}" mpirun -n 4 "${run[@]}" --train-iters 2 --tp 2 >small.log 2>&1 ||
            complain "a small /dev/shm: exit $?: $(tail -3 small.log)"
        [[ $(grep -c "/dev/shm has less than the .* (docker run --shm-size=1g" small.log) == 1 ]] ||
            complain "a small /dev/shm: $(grep -c "/dev/shm" small.log) warnings: $(grep "/dev/shm" small.log)"
    fi
fi

# Under a launcher each write is whole lines: pieces of two streams would meet in one line.
if check "a launched program writes whole lines"; then
    need run_whole
    kinds=(OMPI_COMM_WORLD)
    ! "$trireme" --version | grep "mpi (MPICH" >/dev/null || kinds+=(PMI)
    for kind in "${kinds[@]}"; do
        env "${kind}_SIZE=1" "${kind}_RANK=0" timeout 60 "$trireme" generate --load whole --prompt "document" \
            --max-new-tokens 30 --temperature 2 2>/dev/null | while dd bs=65536 count=1 of=piece status=none && [[ -s piece ]]; do
            printf '%s\n' "$(tail -c 1 piece | od -An -c | tr -d ' ')"
        done >ends
        { [[ -s ends ]] && ! grep -qvxF '\n' ends; } || complain "pieces of lines by $kind: $(sort ends | uniq -c)"
    done
fi
if check "-V is --version"; then
    for words in "-V" "train -V" "plan --version"; do
        # shellcheck disable=SC2086 # several words
        "$trireme" --version | cmp -s - <("$trireme" $words) || complain "$words is not --version"
    done
fi

finish
