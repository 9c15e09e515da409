#!/usr/bin/env bash
# Supervised runs: what is killed, frozen or stopped goes on, on fewer cores too, and its parameters are those of the
# undisturbed run, byte for byte; what cannot go on is told; nothing is left behind.
# Usage: supervise.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
#   TRIREME_TEST_TRIALS, TRIREME_TEST_SEED: runs under random failures (1 of each kind unless set), and their seed
set -uo pipefail
export LC_ALL=C
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
# shellcheck source=tests/jobs.sh
source "$here/jobs.sh"
RANDOM=${TRIREME_TEST_SEED:-1}
iterations=240
options=("${corpus[@]}" "${no_evaluation[@]}" --plain --tp 2 --train-iters "$iterations" --save-interval 20 --keep-last 3)

# start NAME OPTION... -- COMMAND...: a supervisor as $pid; what is printed goes to NAME.log.
start() {
    out=$1.log
    "$trireme" supervise "${@:2}" >"$out" 2>&1 </dev/null &
    pid=$!
}
# expect_end CODE
expect_end() {
    local code
    until_true has_ended
    kill -KILL "$pid" 2>/dev/null
    wait "$pid"
    code=$?
    [[ $code == "$1" ]] || complain "exit $code, not $1: $(tail -4 "$out")"
}
expect_said() { grep -qE -- "$1" "$out" || complain "$out does not say '$1': $(grep supervise: "$out" | tail -5)"; }
# of the ledger of a folder: how many lines have the text
events() { grep -cF -- "$2" "$1/supervise/ledger.jsonl" 2>/dev/null || true; }
records() { grep -F '"start": ' "$1/supervise/ledger.jsonl"; } # the supervisor's own lines
iteration_of() { compgen -G "$1/step-*" | sed 's/.*step-0*//' | sort -n | tail -1; }
has_saved() { [[ $(iteration_of "$1") -ge ${2:-1} ]]; }
has_started() { [[ $(events "$1" '"started"') -ge $2 ]]; }
reference() {
    "$trireme" train "${options[@]}" --pp 2 --ranks 8 --save reference >reference.log 2>&1 || complain "$(tail -3 reference.log)"
}
expect_reference() { # FOLDER
    need reference
    "$trireme" checkpoint diff reference "$1" >diff.log 2>&1 || complain "$1 differs from the undisturbed run: $(tail -3 diff.log)"
}
descendants() { # PID
    local child
    for child in $(pgrep -P "$1"); do
        echo "$child"
        descendants "$child"
    done
}
ranks_of() { # PID: of its descendants those that train
    local child
    for child in $(descendants "$1"); do
        [[ $(tr '\0' ' ' <"/proc/$child/cmdline" 2>/dev/null) == "$trireme train "* ]] && echo "$child"
    done
}
nothing_is_left() { # FOLDER
    [[ -z $(pgrep -f -- "--save $PWD/$1( |\$)") ]]
}
threads=(train "${options[@]}" --pp 2 --ranks 8)

if check "an undisturbed run ends with 0 and the same bits"; then
    start calm -- "${threads[@]}" --save "$PWD/calm"
    expect_end 0
    expect_reference calm
    [[ $(events calm '"ended"') == 1 && $(events calm '"kind": "done"') == 1 ]] || complain "$(records calm)"
fi

if check "a killed run starts again and its first end is recorded"; then
    start killed -- "${threads[@]}" --save "$PWD/killed"
    until_true has_saved killed 40
    victim=$(ranks_of "$pid")
    kill -9 "$victim"
    expect_end 0
    expect_reference killed
    expect_said "start 1 was ended by SIGKILL in iteration"
    [[ $(events killed '"signal": "KILL"') == 1 &&
        $(events killed "\"first\": {\"rank\": null, \"pid\": $victim,") == 1 ]] ||
        complain "$(records killed)"
fi

if check "a stopped process is told in seconds; one that is stopped for less goes on"; then
    start frozen -- "${threads[@]}" --save "$PWD/frozen"
    until_true has_saved frozen 40
    victim=$(ranks_of "$pid")
    kill -STOP "$victim"
    sleep 2 # 0.4 of the limit
    kill -CONT "$victim"
    before=$(iteration_of frozen)
    until_true has_saved frozen $((before + 40))
    [[ $(events frozen '"started"') == 1 ]] || complain "a false alarm: $(grep supervise: "$out")"
    kill -STOP "$victim"
    SECONDS=0
    until_true has_started frozen 2
    ((SECONDS <= 9)) || complain "told after $SECONDS s"
    expect_end 0
    expect_said "rank [0-7] \(process $victim on .*\) makes no progress: .*its process is stopped"
    expect_reference frozen
    [[ $(events frozen '"kind": "hang"') == 1 && $(events frozen '"frozen": true') == 1 ]] ||
        complain "$(records frozen)"
fi

# The signal comes while all ranks are at work, and the supervisor itself is the only one that is told.
if check "TERM saves and asks for the same command again; INT twice ends at once"; then
    start asked -- "${threads[@]}" --save "$PWD/asked"
    until_true has_saved asked 20
    kill -TERM "$pid"
    expect_end 75
    expect_said "asked to stop by SIGTERM"
    start asked -- "${threads[@]}" --save "$PWD/asked"
    until_true has_saved asked 60
    kill -INT "$pid"
    expect_end 130
    start asked -- "${threads[@]}" --save "$PWD/asked"
    expect_end 0
    expect_reference asked
    grep -q '"event": "started", "start": 3' asked/supervise/ledger.jsonl || complain "starts are not numbered on"
fi

if check "a supervisor that is killed leaves nobody, and another goes on"; then
    start orphan -- "${threads[@]}" --save "$PWD/orphan"
    until_true has_saved orphan 40
    kill -9 "$pid"
    wait "$pid" 2>/dev/null
    sleep 0.5
    nothing_is_left orphan || complain "left: $(pgrep -af -- "--save $PWD/orphan")"
    start orphan -- "${threads[@]}" --save "$PWD/orphan"
    expect_end 0
    expect_reference orphan
fi

if check "a run that begins with another's weights does so once"; then
    other=(--load "$PWD/base" --finetune)
    "$trireme" "${threads[@]}" --train-iters 20 --save base >base.log 2>&1 || complain "$(tail -3 base.log)"
    "$trireme" "${threads[@]}" "${other[@]}" --save tuned.reference >tuned.reference.log 2>&1 || complain "$(tail -3 tuned.reference.log)"
    start tuned -- "${threads[@]}" "${other[@]}" --save "$PWD/tuned"
    until_true has_saved tuned 60
    kill -9 "$(ranks_of "$pid")"
    expect_end 0
    "$trireme" checkpoint diff tuned.reference tuned >diff.log 2>&1 || complain "tuned differs: $(tail -3 diff.log)"
    [[ $(events tuned '"resumes": false') == 1 && $(events tuned '"resumes": true') == 1 &&
        $(events tuned '"event": "loaded", "iteration": 0,') == 1 ]] || complain "$(records tuned)"
    start tuned -- "${threads[@]}" "${other[@]}" --save "$PWD/tuned"
    expect_end 0
    [[ $(iteration_of tuned) == "$iterations" && $(events tuned '"resumes": true') == 2 ]] || complain "it began anew: $(records tuned)"
    start mixed -- "${threads[@]}" "${other[@]}" --save "$PWD/tuned.reference"
    expect_end 78
    expect_said "tuned.reference holds checkpoints that a run with --load .*/base --finetune does not go on from"
    echo "finetune: true" >tune.yaml
    start file -- "${threads[@]}" --config tune.yaml --load base --save "$PWD/file"
    expect_end 78
    expect_said "on the command line instead of into the file"
fi

if check "a folder that another run holds is waited for; a second supervisor is refused; a ledger of one's own"; then
    "$trireme" "${threads[@]}" --save "$PWD/held" >holder.log 2>&1 </dev/null &
    holder=$!
    until_true has_saved held 20
    kill -STOP "$holder"
    start held -- "${threads[@]}" --lock-timeout 0.1 --save "$PWD/held" --ledger "$PWD/own.jsonl"
    has_waited() { [[ $(grep -c '"status": 69' own.jsonl 2>/dev/null) -ge 1 ]]; }
    until_true has_waited
    start_log=$out
    "$trireme" supervise -- "${threads[@]}" --save "$PWD/held" >second.log 2>&1
    code=$?
    { [[ $code == 69 ]] && grep -q "another supervisor works in .*held/supervise" second.log; } || complain "$(cat second.log)"
    kill -9 "$holder"
    wait "$holder" 2>/dev/null
    out=$start_log
    expect_end 0
    [[ -e held/supervise/run.json && ! -e held/supervise/ledger.jsonl ]] || complain "$(ls held/supervise)"
    grep -q '"event": "first_step"' own.jsonl || complain "the run's own lines are elsewhere: $(cut -c -150 own.jsonl)"
fi

if check "fewer cores: another pipeline, no other bit; and back"; then
    start elastic --cores 2 --grow-interval-s 0.3 -- "${threads[@]}" --save "$PWD/elastic"
    until_true has_saved elastic 20
    all=$(taskset -pc "$pid" | sed 's/.*: //')
    taskset -pc "${all%%[-,]*}" "$pid" >/dev/null
    kill -9 "$(ranks_of "$pid")"
    until_true has_started elastic 2
    before=$(iteration_of elastic)
    until_true has_saved elastic $((before + 20))
    taskset -pc "$all" "$pid" >/dev/null
    expect_end 0
    expect_said "room for 4 ranks instead of 8: t = 2, p = 1, v = 1, d = 2 instead of t = 2, p = 2, .*no bit changes"
    expect_reference elastic
    if [[ $all == *[-,]* ]]; then
        expect_said "there is room for 8 ranks again"
        [[ $(events elastic '"ranks": 8, "grid"') == 2 && $(events elastic '"ranks": 4, "grid"') == 1 ]] ||
            complain "$(records elastic)"
    fi
fi

# A program that takes the place of trireme: ./fake CODE [SIGNAL]
cat >fake <<'END'
#!/bin/bash
[[ -z ${FAKE_SIGNAL:-} ]] || kill "-$FAKE_SIGNAL" $$
exit "${FAKE_CODE:-0}"
END
chmod +x fake
if check "a failure that would come again is not tried again"; then
    for row in "78 1" "65 1" "73 1" "76 1" "70 2" "74 2"; do
        read -r code starts <<<"$row"
        FAKE_CODE=$code start "fake.$code" -- ./fake "${threads[@]}" --save "$PWD/fake.$code"
        expect_end "$code"
        [[ $(events "fake.$code" '"started"') == "$starts" ]] || complain "$code: $(events "fake.$code" '"started"') starts"
    done
    FAKE_SIGNAL=SEGV start crash -- ./fake "${threads[@]}" --save "$PWD/crash"
    expect_end 139
    [[ $(events crash '"started"') == 2 ]] || complain "SEGV: $(events crash '"started"') starts"
    FAKE_SIGNAL=KILL start most --max-restarts 2 -- ./fake "${threads[@]}" --save "$PWD/most"
    expect_end 137
    [[ $(events most '"started"') == 3 ]] || complain "KILL: $(events most '"started"') starts"
    start wrong -- train "${options[@]}" --ranks 7 --save "$PWD/wrong"
    expect_end 78
    [[ ! -e wrong ]] || complain "a wrong configuration was started"
    start nowhere -- train "${options[@]}" --ranks 8
    expect_end 64
    expect_said "needs --save"
fi

if check "a request to stop while it waits before a start is no end of the run"; then
    FAKE_SIGNAL=KILL start pause -- ./fake "${threads[@]}" --save "$PWD/pause"
    waits_long() { [[ $(events pause '"wait_s": 2.000') == 1 ]]; }
    until_true waits_long
    kill -TERM "$pid"
    expect_end 75
fi

if check "hosts: as many as needed, those that pass the check"; then
    cat >launch <<'END'
#!/bin/bash
echo "hosts $1 of $3"
exit 76
END
    printf '#!/bin/bash\n[[ %s != b ]]\n' "\$1" >up
    chmod +x launch up
    start hosts --hosts a:4,b:4,c:4 --host-check ./up -- ./launch "{hosts}" -n 8 "$trireme" "${threads[@]}" --save "$PWD/hosts"
    expect_end 76
    expect_said "hosts a:4,c:4 of 8"
    start few --hosts a:4,b:4 --spares 1 -- ./launch "{hosts}" -n 8 "$trireme" "${threads[@]}" --save "$PWD/few"
    expect_end 78
fi

# start_on_hosts HOSTS -n RANKS COMMAND...: ranks connected by TCP, two on each host; those of the first have heartbeats, and the
# others are seen as on other machines: through what the first ones say of them.
cat >start_on_hosts <<'END'
#!/bin/bash
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000)) WORLD_SIZE=$3
for ((r = 0; r < WORLD_SIZE; r++)); do
    ((r < 2)) || unset TRIREME_BEATS
    RANK=$r "${@:4}" &
    ranks+=($!)
    echo $! >"process.$r"
done
for rank in "${ranks[@]}"; do
    wait "$rank"
    status=$?
    ((status == 0 || status == 137)) || worst=$status
done
exit "${worst:-0}"
END
chmod +x start_on_hosts
if check "a rank of another host that is killed is blamed, and its host is struck out after the second time"; then
    start spread --hosts a:2,b:2,c:2 -- ./start_on_hosts "{hosts}" -n 4 "$trireme" train "${options[@]}" --save "$PWD/spread"
    for starts in 1 2; do
        until_true has_saved spread $((40 * starts))
        kill -9 "$(<process.3)"
        until_true has_started spread $((starts + 1))
    done
    expect_end 0
    expect_reference spread
    expect_said "start 1 ended with status 71 in iteration [0-9]+, because of rank 3 on b"
    [[ $(events spread '"hosts": "a:2,b:2"') == 2 && $(events spread '"hosts": "a:2,c:2"') == 1 ]] || complain "$(records spread)"
fi

# ---- random failures --------------------------------------------------------------------------------------

random_seconds() { awk -v r="$RANDOM" -v least="$1" -v most="$2" 'BEGIN { print least + r / 32768 * (most - least) }'; }

# Disturbs the supervisor $pid until it has ended, or so many times; CORES: also by having fewer of them.
disturb() { # TIMES [CORES]
    local all victims
    all=$(taskset -pc "$pid" | sed 's/.*: //')
    for _ in $(seq "$1"); do
        sleep "$(random_seconds 0.05 1.2)"
        has_ended && return
        [[ -z ${2:-} ]] || taskset -pc "$([[ $((RANDOM % 2)) == 0 ]] && echo "$all" || echo "${all%%[-,]*}")" "$pid" >/dev/null 2>&1
        mapfile -t victims < <(ranks_of "$pid")
        [[ ${#victims[@]} -gt 0 ]] || victims=("$(pgrep -P "$pid" | head -1)")
        case $((RANDOM % 6)) in
        0) kill -9 "$(pgrep -P "$pid" | head -1)" ;; # the launcher, or all
        1) kill -STOP "${victims[RANDOM % ${#victims[@]}]}" ;;
        *) kill -9 "${victims[RANDOM % ${#victims[@]}]}" ;;
        esac 2>/dev/null
    done
    taskset -pc "$all" "$pid" >/dev/null 2>&1
}

random_run() { # NAME TIMES CORES COMMAND...
    start "$1" --cores 2 --grow-interval-s 0.5 -- "${@:4}" --save "$PWD/$1"
    disturb "$2" "$3"
    expect_end 0
    expect_reference "$1"
    nothing_is_left "$1" || complain "left: $(pgrep -af -- "--save $PWD/$1")"
    compgen -G "$1/.tmp*" >/dev/null && complain "$(ls -A "$1") are left"
    echo "$1: $(events "$1" '"started"') starts, $(events "$1" '"kind": "killed"') kills, $(events "$1" '"kind": "hang"') hangs" >>random.log
}

if check "random failures of threads change no bit"; then
    for trial in $(seq "${TRIREME_TEST_TRIALS:-1}"); do random_run "threads$trial" 4 cores "${threads[@]}"; done
fi

# As a launcher that waits for ever when a process of its job is killed: the first start has rank 0 alone.
cat >launch <<'EOF'
#!/bin/bash
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$1 WORLD_SIZE=4
shift
RANK=0 "$@" &
[[ -e again ]] || { touch again && exec sleep 1000; }
for rank in 1 2 3; do RANK=$rank "$@" & done
wait
EOF
chmod +x launch
is_connecting() { victim=$(ranks_of "$pid") && grep -qs "trireme beats" "/proc/$victim/maps"; }

if check "a rank that is killed before all are connected is seen, though its launcher stays"; then
    start early -- "$PWD/launch" "$((10000 + $$ % 20000))" "$trireme" train "${options[@]}" --save "$PWD/early"
    until_true is_connecting
    kill -9 "$victim"
    expect_end 0
    expect_said "rank 0 \\(process $victim on .* its process is gone"
    expect_reference early
    [[ $(events early '"started"') == 2 ]] || complain "$(records early)"
fi

if "$trireme" --version | grep -q "^built with.*MPI" && command -v mpirun >/dev/null; then
    if check "a rank of mpirun that is killed, or stopped, is named, and all start again"; then
        start mpi -- mpirun -n 4 "$trireme" train "${options[@]}" --save "$PWD/mpi"
        until_true has_saved mpi 20
        mapfile -t victims < <(ranks_of "$pid")
        [[ ${#victims[@]} == 4 ]] || complain "ranks: ${victims[*]}"
        kill -9 "${victims[2]}"
        until_true has_started mpi 2
        expect_said "rank 2 \(process ${victims[2]} on .* its process is gone"
        before=$(iteration_of mpi)
        until_true has_saved mpi $((before + 20))
        mapfile -t victims < <(ranks_of "$pid")
        kill -STOP "${victims[1]}"
        until_true has_started mpi 3
        expect_said "rank 1 \(process ${victims[1]} on .* its process is stopped"
        expect_end 0
        expect_reference mpi
    fi
    if check "random failures of mpirun change no bit"; then
        for trial in $(seq "${TRIREME_TEST_TRIALS:-1}"); do
            random_run "processes$trial" 3 "" mpirun -n 4 "$trireme" train "${options[@]}"
        done
    fi
fi
[[ ${TRIREME_TEST_TRIALS:-1} == 1 ]] || cat random.log
finish
