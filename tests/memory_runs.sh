#!/usr/bin/env bash
# Checkpoints in memory (--memory-save-interval) as people meet them: a run that is killed goes on from memory with the
# same bits, on the same grid and on others; what is damaged, incomplete or another run's is not taken; nothing is left
# behind; and on two machines, which are namespaces of this one, the loss of one loses nothing.
# Usage: memory_runs.sh PATH/trireme PATH/libfaults.so [WORD...]    with words: only the cases whose names contain one
set -uo pipefail
faults=$(realpath "$2")
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1" "${@:3}"

steps=60
common=("${corpus[@]}" "${no_evaluation[@]}" --train-iters "$steps" --plain --threads 1)
mkdir memory
saving=(--memory-save-interval 3 --memory-save-dir memory)
says() { grep -q -e "$2" "$1.log" || complain "$1: '$2' is not in $(tail -5 "$1.log")"; }
never_says() { ! grep -q -e "$2" "$1.log" || complain "$1: $(grep -e "$2" "$1.log")"; }
expect_nothing() { [[ -z $(ls -A "${1:-memory}") ]] || complain "left: $(find "${1:-memory}" | tail -3)"; }
# bits NAME: step, loss and norm of all lines that were written, before a kill or after.
bits() {
    sed -nE 's/^\{"iteration": ([0-9]+),.*"lm_loss": ([^,]*), "grad_norm": ([^,]*),.*\}$/\1 \2 \3/p' "$1.jsonl" | sort -un
}
expect_bits() { diff <(bits "$1") <(bits "$2") >differences || complain "$1 and $2 differ: $(head -4 differences)"; }
undisturbed() { train undisturbed --train-iters "$steps" "${no_evaluation[@]}" --threads 1; }

# killed_again NAME COMMAND...: with --save NAME and --load NAME. Rank 0 stops where it is about to commit step 40 to disk,
# and then all are killed. A save to disk first completes the save in memory that is under way. So at this moment, on
# machines of any speed, one that began after the last save to disk is complete, and no other has begun.
killed_again() {
    local name=$1 pid
    shift
    rm -f "$name.fired"
    TRIREME_FAULT="rename@$name/.tmp-step-00000040:1:HOLD" TRIREME_FAULT_FIRED=$PWD/$name.fired LD_PRELOAD=$faults \
        setsid "$@" "${common[@]}" --save-interval 40 "${saving[@]}" --save "$name" --load "$name" \
        --metrics "$name.jsonl" >"$name.log" 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 6000); do
        [[ ! -s $name.fired ]] || break
        kill -0 $pid 2>/dev/null || break
        sleep 0.01
    done
    [[ -s $name.fired ]] || complain "$name: it did not come to step 40: $(tail -3 "$name.log")"
    cp "$name/run.json" "$name.run"
    kill -9 -- -$pid 2>/dev/null
    wait $pid 2>/dev/null
}
killed() { # the same from the beginning
    rm -rf "$1" "$1.jsonl"
    killed_again "$@"
}
# goes_on NAME COMMAND...
goes_on() {
    local name=$1
    shift
    timeout -k 5 180 "$@" "${common[@]}" "${saving[@]}" --save "$name" --load "$name" --metrics "$name.jsonl" \
        >"$name.log" 2>&1 </dev/null || complain "$name: exit $?: $(tail -3 "$name.log")"
}
from_memory() { says "$1" "loaded checkpoint from the memory in .* at iteration [1-9]"; }

# ---- going on -------------------------------------------------------------------------------------------
if check "a killed run goes on from memory with the same bits"; then
    need undisturbed
    killed alone "$trireme" train --ranks 1
    [[ $(compgen -G 'memory/trireme-*/*/step-*' | wc -l) -le 2 ]] || complain "more than two are in memory"
    [[ $(stat -c %a memory/trireme-*) == 700 ]] || complain "others may read the memory"
    goes_on alone "$trireme" train --ranks 1
    from_memory alone
    expect_bits undisturbed alone
    expect_nothing
fi
if check "a run that went on from memory knows the newest step on disk"; then
    saving+=(--save-interval 20)
    killed known "$trireme" train --ranks 2
    killed_again known "$trireme" train --ranks 2
    from_memory known
    grep -q '"saved_iteration": 20' known.run || complain "$(cat known.run)"
    goes_on known "$trireme" train --ranks 2
    expect_nothing
    saving=(--memory-save-interval 3 --memory-save-dir memory)
fi
if check "another grid goes on from memory with the same bits"; then
    need undisturbed
    killed grids "$trireme" train --ranks 2 --pp 2
    goes_on grids "$trireme" train --ranks 4 --pp 4
    from_memory grids
    expect_bits undisturbed grids
fi
if check "processes go on from memory of processes"; then
    need undisturbed
    killed tcp "$here/tcprun.sh" 2 "$trireme" train --pp 2
    goes_on tcp "$here/tcprun.sh" 2 "$trireme" train --pp 2
    from_memory tcp
    expect_bits undisturbed tcp
    expect_nothing
    if type mpirun >/dev/null 2>&1; then
        killed mpi mpirun -n 2 "$trireme" train --pp 2
        goes_on mpi mpirun -n 2 "$trireme" train --pp 2
        from_memory mpi
        expect_bits undisturbed mpi
    fi
fi
if check "a newer checkpoint on disk is read, not the one in memory"; then
    saving=(--memory-save-interval 15 --memory-save-dir memory --save-interval 10)
    killed disk "$trireme" train --ranks 1
    compgen -G "memory/trireme-*/*/step-00000015" >/dev/null || complain "nothing is in memory"
    goes_on disk "$trireme" train --ranks 1
    never_says disk "the memory in"
    need undisturbed
    expect_bits undisturbed disk
    saving=(--memory-save-interval 3 --memory-save-dir memory)
fi

# ---- what is not taken ----------------------------------------------------------------------------------
damages=("printf x | dd of=FOLDER/rank-00000.safetensors bs=1 seek=50000 conv=notrunc status=none"
    "truncate -s -4 FOLDER/rank-00000.safetensors" "rm FOLDER/rank-00000.safetensors" "rm FOLDER/manifest.json"
    "echo >>FOLDER/manifest.json" "rm FOLDER/config.yaml")
if check "what is damaged in memory is told, and older ones are read"; then
    need undisturbed
    saving=(--memory-save-interval 3 --memory-save-dir memory --save-interval 10)
    killed damaged "$trireme" train --ranks 1
    cp -r damaged damaged.save && cp -r memory memory.save && cp damaged.jsonl damaged.jsonl.save
    for damage in "${damages[@]}"; do
        rm -rf damaged memory && cp -r damaged.save damaged && cp -r memory.save memory
        cp damaged.jsonl.save damaged.jsonl
        for folder in memory/trireme-*/*/step-*; do eval "${damage//FOLDER/$folder}"; done
        goes_on damaged "$trireme" train --ranks 1
        says damaged "WARNING: .*memory/trireme"
        says damaged "loaded checkpoint from damaged/step-00000030"
        expect_bits undisturbed damaged
    done
    saving=(--memory-save-interval 3 --memory-save-dir memory)
fi
if check "with nothing on disk and damage in memory the run begins"; then
    need undisturbed
    killed begins "$trireme" train --ranks 1
    for folder in memory/trireme-*/*/step-*; do eval "${damages[0]//FOLDER/$folder}"; done
    goes_on begins "$trireme" train --ranks 1
    says begins "WARNING: .*damaged: tensor"
    [[ $(rows begins) -gt $((steps + 30)) ]] || complain "begins: $(rows begins) rows"
    expect_bits undisturbed begins
fi
if check "memory of a folder that was removed is not taken"; then
    killed removed "$trireme" train --ranks 1
    rm -rf removed
    goes_on removed "$trireme" train --ranks 1
    never_says removed "the memory in"
    expect_nothing
fi
if check "memory is not taken after a run that kept none"; then
    killed without "$trireme" train --ranks 1
    train without_memory --train-iters 2 "${no_evaluation[@]}" --save without --load without
    goes_on without "$trireme" train --ranks 1
    never_says without "the memory in"
fi
if check "a run of another folder removes what a folder that is gone has left"; then
    killed gone "$trireme" train --ranks 1
    rm -rf gone
    compgen -G "memory/trireme-*/*/step-*" >/dev/null || complain "nothing is in memory"
    goes_on others "$trireme" train --ranks 1
    expect_nothing
fi
# Machines that are not part of a job keep what they have. Here a machine is a folder.
if check "memory of a machine that was away is not taken after the run has gone another way"; then
    saving+=(--save-interval 10)
    killed away "$trireme" train --ranks 1
    mkdir elsewhere
    train another "${no_evaluation[@]}" --train-iters "$steps" --save away --load away --ckpt-step 20 --exit-interval 25 \
        --memory-save-interval 3 --memory-save-dir elsewhere
    rm -r away/step-00000030
    goes_on away "$trireme" train --ranks 1
    never_says away "the memory in"
    says away "loaded checkpoint from away/step-00000025"
    saving=(--memory-save-interval 3 --memory-save-dir memory)
fi
if check "memory of a machine that was away is not taken after a rewind"; then
    saving+=(--save-interval 10)
    killed rewound "$trireme" train --ranks 1
    cp -r memory memory.away
    # At this rate the second loss is not finite.
    timeout -k 5 180 "$trireme" train "${common[@]}" "${saving[@]}" --save rewound --load rewound --lr 1e30 --clip-grad 0 \
        --rewind-on-spike --rewind-margin 5 --max-rewinds 1 >hot.log 2>&1 </dev/null
    [[ $? == 76 ]] || complain "hot: $(tail -3 hot.log)"
    says hot "loaded checkpoint from the memory in"
    says hot "the run goes back to iteration 30 "
    rm -r memory && mv memory.away memory
    goes_on rewound "$trireme" train --ranks 1
    never_says rewound "the memory in"
    says rewound "loaded checkpoint from rewound/step-00000030"
    saving=(--memory-save-interval 3 --memory-save-dir memory)
fi

# ---- where it cannot be -----------------------------------------------------------------------------------
# refused CODE WORDS OPTION...
refused() {
    local code=$1 words=$2 status
    shift 2
    timeout -k 5 180 "$trireme" train "${common[@]}" --save refused "$@" >refused.log 2>&1 </dev/null
    status=$?
    [[ $status == "$code" ]] || complain "$*: exit $status, not $code: $(tail -3 refused.log)"
    says refused "$words"
    never_says refused "iteration  "
}
if check "a link, or a folder of another user, in the place of the folder is refused"; then
    mkdir links target
    ln -s "$PWD/target" "links/trireme-$(id -u)"
    refused 77 "it is a link or a file: remove it" --memory-save-interval 1 --memory-save-dir links
    [[ -z $(ls -A target) ]] || complain "the link was followed"
    if ((EUID == 0)); then
        mkdir -p owned/trireme-0 && chown 12345 owned/trireme-0
        refused 77 "it belongs to another user: remove it" --memory-save-interval 1 --memory-save-dir owned
    fi
fi
if check "a folder that is not there is refused"; then
    refused 73 "nowhere/trireme.*--memory-save-dir" --memory-save-interval 1 --memory-save-dir nowhere
fi
if check "no room in memory is told before the first step"; then
    export LD_PRELOAD=$faults TRIREME_FAULT=statvfs:1+:ROOM1500000
    refused 73 "no space for 2 checkpoints .*--shm-size.*--memory-save-dir" "${saving[@]}"
    unset LD_PRELOAD TRIREME_FAULT
fi
if check "a run that goes on without room in memory saves to disk alone"; then
    need undisturbed
    train shrunk "${no_evaluation[@]}" --train-iters "$steps" --save shrunk --exit-interval 20
    LD_PRELOAD=$faults TRIREME_FAULT=statvfs:1+:ROOM1500000 goes_on shrunk "$trireme" train --ranks 1
    says shrunk "WARNING: no checkpoint is saved in memory, the run saves to disk alone: .*no space for 2 checkpoints"
    never_says shrunk "are saved in memory"
    expect_bits undisturbed shrunk
    expect_nothing
fi
if check "a run takes its place in memory also while another one leaves it"; then
    rm -rf memory/trireme-*
    LD_PRELOAD=$faults TRIREME_FAULT=mkdir@memory/trireme:2:ENOENT goes_on beside "$trireme" train --ranks 1
    expect_nothing
fi
# Its folder takes two renames, then each save in memory one. Each save to disk first completes that in memory.
if check "saves in memory that fail are told, training goes on"; then
    LD_PRELOAD=$faults TRIREME_FAULT=rename@memory/trireme:4+:EIO timeout -k 5 180 "$trireme" train "${common[@]}" \
        --save failing --save-interval 10 "${saving[@]}" --trace failing.trace --run-file failing.run >failing.log 2>&1 </dev/null
    says failing "WARNING: iteration [0-9]* was not saved in memory, training goes on: "
    says failing "WARNING: iteration [0-9]* was not saved in memory, training goes on and saves to disk alone: "
    [[ $(grep -c "not saved in memory" failing.log) == 2 ]] || complain "failing: $(grep "not saved" failing.log)"
    says failing "iteration       60/"
    # Replicas are compared at the start and before each save: at most three in memory, six on disk.
    [[ $(grep -o '"compare replicas"' failing.trace | wc -l) -le 10 ]] ||
        complain "replicas were compared $(grep -o '"compare replicas"' failing.trace | wc -l) times"
fi
if check "--save-interval auto leaves the waits for saves in memory out"; then
    yes '{"at": "2026-11-24T00:00:00.000Z", "mono_s": 0, "event": "opening"}' | head -20000 >often.jsonl
    LD_PRELOAD=$faults TRIREME_FAULT=rename@memory/trireme:3+:DELAY1500 timeout -k 5 180 "$trireme" train "${common[@]}" \
        --memory-save-dir memory --memory-save-interval 1 --save-interval auto --save slow --ledger often.jsonl >slow.log 2>&1 \
        </dev/null || complain "slow: $(tail -3 slow.log)"
    says slow "saving checkpoint at iteration "
    ! grep -E "a save takes [1-9][0-9.]* s" slow.log || complain "the wait for a save in memory counts"
fi

# ---- two machines -----------------------------------------------------------------------------------------
# A rank's machine is a namespace with a name and a memory of its own.
inside=(unshare --mount --uts)
((EUID == 0)) || inside+=(--user --map-root-user)
# Rank i is on the machine that is the i-th of the names, again from the first.
cat >on_machine.sh <<'END'
name=$1
shift
mkdir -p "memory.$name" && hostname "$name" && mount --bind "memory.$name" memory || exit 1
exec "$@"
END
# Called with the way into a namespace, the names of the machines, and the command.
cat >on_machines.sh <<'END'
read -ra inside <<<"$1"
read -ra names <<<"$2"
shift 2
exec "${inside[@]}" bash on_machine.sh "${names[RANK % ${#names[@]}]}" "$@"
END
many() { # NAMES RANKS: sets $launch
    launch=("$here/tcprun.sh" "$2" bash on_machines.sh "${inside[*]}" "$1" "$trireme" train)
}
if "${inside[@]}" true 2>/dev/null; then
    if check "two machines have copies of each other's state; one that is lost loses nothing"; then
        need undisturbed
        for lost in left right; do
            many "left right" 4
            killed "$lost" "${launch[@]}" --pp 4
            for machine in left right; do
                [[ $(compgen -G "memory.$machine/trireme-*/*/step-*/rank-*" | wc -l) -ge 4 ]] ||
                    complain "$machine: $(find "memory.$machine" | tail)"
            done
            rm -rf "memory.$lost"
            goes_on "$lost" "${launch[@]}" --pp 4
            from_memory "$lost"
            expect_bits undisturbed "$lost"
            expect_nothing memory.left
            expect_nothing memory.right
        done
    fi
    if check "three machines go on as two, on another grid, when one is lost"; then
        need undisturbed
        many "left right middle" 4
        killed three "${launch[@]}" --pp 4
        mv memory.middle memory.away
        many "right left" 2
        goes_on three "${launch[@]}" --pp 2
        from_memory three
        expect_bits undisturbed three
        rm -rf memory.away
    fi
    if check "of three machines two are lost: the disk is read"; then
        need undisturbed
        saving+=(--save-interval 10)
        many "left right middle" 3
        killed lost_two "${launch[@]}" --pp 3 --decoder-first-pipeline-num-layers 2
        rm -rf memory.middle memory.right
        goes_on lost_two "${launch[@]}" --pp 3 --decoder-first-pipeline-num-layers 2
        says lost_two "WARNING: .*some of its . files are in no machine's memory"
        says lost_two "loaded checkpoint from lost_two/step-00000030"
        expect_bits undisturbed lost_two
    fi
else
    echo "no namespaces here: the cases of several machines are left out"
fi
finish
