#!/usr/bin/env bash
# A campaign of failures against supervised runs of a small model, for so many seconds. In each trial a run is
# disturbed at random microseconds, several times a second, and its grid is another one at each start (any_grid.sh);
# then it is left alone and has to end: with the parameters of the undisturbed run, byte for byte, with the bits of every
# loss, norm and checksum in each line that was logged, and with nothing left to clean up.
# Usage: campaign.sh PROGRAM SECONDS [SEED] [THREADS|MPI|TCP...]
#   SEED  of the first trial; each trial has the next one. "campaign.sh PROGRAM 1 SEED WORD..." repeats a trial
#   TRIREME_FAULTS     the library of tests/faults.c, unless it is found beside the program
#   TRIREME_CAMPAIGN_KEEP  a folder that keeps what a trial that was wrong has left
set -uo pipefail
export LC_ALL=C
# A full disk is a small one of this script's own.
if [[ ${CAMPAIGN_INSIDE:-} != yes ]] && unshare -rm mount -t tmpfs none /mnt 2>/dev/null; then
    CAMPAIGN_INSIDE=yes exec unshare -rm "$0" "$@"
fi
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1"
# shellcheck source=tests/any_grid.sh
source "$here/any_grid.sh"
seconds=$2 seed=${3:-1}
transports=("${@:4}")
if ((${#transports[@]} == 0)); then
    transports=(THREADS TCP)
    "$trireme" --version | grep -q "^built with.*MPI" && command -v mpirun >/dev/null && transports+=(MPI)
fi
library=${TRIREME_FAULTS:-$(compgen -G "$(dirname "$trireme")/tests/libfaults.so" || echo -)}
iterations=40
common=("${corpus[@]}" --plain --train-iters "$iterations" --eval-interval 7 --eval-iters 2 --virtual-data-parallel 4
    --log-interval 1 --metrics-checksum-interval 1)
declare -A injected ended phases
trials=0 all_starts=0 wrong=0
small=
if [[ ${CAMPAIGN_INSIDE:-} == yes ]] && mkdir small && mount -t tmpfs -o size=24m none small; then
    small=yes
    trap 'umount -l "$cases_folder/small"; rm -rf "$cases_folder"' EXIT
fi
[[ -n $small ]] || echo "no full disks: this system gives no namespaces"
[[ $library != - ]] || echo "no failing calls: the library of faults.c is not built"
# So that waiting takes no process.
mkfifo never && exec 9<>never
pause() { read -rt "$1" -u 9 || true; }
# below MOST_US: sets $moment to seconds.
below() { printf -v moment '%d.%06d' $(((RANDOM * 32768 + RANDOM) % $1 / 1000000)) $(((RANDOM * 32768 + RANDOM) % $1 % 1000000)); }

# ---- processes, without processes -------------------------------------------------------------------------

# below_pid PID: adds its descendants to $descendants, those that train to $ranks_there.
below_pid() {
    local file child name children
    for file in /proc/"$1"/task/*/children; do
        read -ra children 2>/dev/null <"$file" || [[ ${#children[@]} -gt 0 ]] || continue
        for child in "${children[@]}"; do
            descendants+=("$child")
            read -r name 2>/dev/null <"/proc/$child/comm" || continue
            [[ $name != trireme ]] || ranks_there+=("$child")
            below_pid "$child"
        done
    done
}
look() {
    descendants=() ranks_there=() job=
    below_pid "$pid" 2>/dev/null
    [[ ${#descendants[@]} == 0 || ${descendants[0]} == "${ranks_there[0]:-}" ]] || job=${descendants[0]}
}
has_ended() { ! kill -0 "$pid" 2>/dev/null; }
# Nobody whose command names the trial's folder; they have three seconds, and are listed and killed then. A copy of the
# supervisor that was stopped between fork and exec sees when it goes on that its parent has ended.
nobody_is_left() {
    local _
    pkill -CONT -f -- "supervise .*--save $save( |\$)"
    for _ in {1..60}; do
        pgrep -f -- "--save $save( |\$)" >left.txt || return 0
        pause 0.05
    done
    mapfile -t descendants <left.txt
    left=$(ps -o pid=,stat=,etime=,args= "${descendants[@]}" | cut -c -120)
    kill -9 "${descendants[@]}" 2>/dev/null
    return 1
}

# ---- a run ------------------------------------------------------------------------------------------------

start() {
    "$trireme" supervise --elastic off -- "${supervised[@]}" >>"$trial/log" 2>&1 </dev/null 9>&- &
    pid=$!
}
# Every end of a supervisor; those that are no one's fault but the program's are wrong.
take_end() {
    { wait "$pid"; } 2>/dev/null
    code=$?
    ended[$code]=$((${ended[$code]:-0} + 1))
}
bad() {
    echo "WRONG trial $seed: $*"
    echo "$*" >>"$trial/wrong"
}
count() { injected[$1]=$((${injected[$1]:-0} + 1)); }

fill_disk() {
    local room
    room=$(stat -f -c '%a' small)
    fallocate -l $(((room - RANDOM % 100) * 4096 + 4096)) small/filler 2>/dev/null || return 1
}

# inject: one failure, drawn; false where there is nobody for it.
inject() {
    look
    local kind=$((RANDOM % 100))
    if ((kind < 14)); then
        kill -9 "$pid" 2>/dev/null && count supervisor
    elif ((kind < 18)); then
        kill -9 "$pid" "${descendants[@]}" 2>/dev/null
        count everything
    elif ((${#descendants[@]} == 0)); then
        return 1
    elif ((kind < 30)) && [[ -n $job ]]; then
        kill -9 "$job" 2>/dev/null && count launcher
    elif ((kind < 32)); then
        kill -STOP "${ranks_there[@]:-${descendants[0]}}" 2>/dev/null && count "stop all" && hangs=$((hangs + 1))
    elif ((kind < 34)); then
        kill -STOP "${ranks_there[RANDOM % (${#ranks_there[@]} + !${#ranks_there[@]})]:-${descendants[0]}}" 2>/dev/null &&
            count "stop one" && hangs=$((hangs + 1))
    elif ((kind < 40)); then
        one_of "$pid" "${descendants[@]}"
        kill -STOP "$drawn" 2>/dev/null && count "stop for a moment"
        below 500000
        pause "$moment"
        kill -CONT "$drawn" 2>/dev/null
    elif ((kind < 45)); then
        # A child that dies of INT before it can catch it ends a loop of bash, too.
        if ((${#ranks_there[@]})); then one_of TERM USR1 INT; else one_of TERM USR1; fi
        kill "-$drawn" "$pid" 2>/dev/null && count "signal that asks to stop"
    elif ((kind < 52)) && [[ $save == */small/* ]]; then
        fill_disk && count "full disk"
        below 300000
        pause "$moment"
        rm -f small/filler
    elif ((kind < 76)) && ((${#ranks_there[@]} > 1)); then
        one_of "${ranks_there[@]}"
        kill -9 "$drawn" 2>/dev/null && count "one rank"
    else
        kill -9 "${ranks_there[@]:-${descendants[0]}}" 2>/dev/null && count "all ranks"
    fi
}

# Starts the run again until it has ended with 0, and disturbs it so many times.
disturb() { # TIMES
    local more=$1 misses=0 until=$((SECONDS + 240)) restarts=0
    start
    while ((SECONDS < until)); do
        if ((more)); then
            # Half of the failures come while it starts.
            one_of 30000 120000 400000 600000
            below "$drawn"
            pause "$moment"
        else
            pause 0.02
        fi
        if has_ended; then
            take_end
            ((code)) || return 0
            if ((!more && (code != 137 && ++restarts > 12))); then break; fi
            ((code == 137 || code == 0)) || rm -f small/filler
            nobody_is_left || bad "left behind by a supervisor that ended with $code: $left"
            start
        elif ((more)) && inject; then
            more=$((more - 1)) misses=0
        elif ((more && ++misses > 3)); then
            kill -9 "$pid" && count supervisor # it waits before it starts again
            more=$((more - 1)) misses=0
        fi
    done
    bad "it does not end: $(tail -3 "$trial/log")"
    look
    kill -9 "$pid" "${descendants[@]}" 2>/dev/null
    take_end
    return 1
}

# ---- what must hold -----------------------------------------------------------------------------------------

# metrics FILE: iteration and bits, of each line that is whole.
metrics() {
    sed -nE -e 's/^\{"iteration": ([0-9]+),.*"lm_loss": ([^,]*), "grad_norm": ([^,]*),.*"parameters_checksum": ([^,}]*).*\}$/\1 \2 \3 \4/p' \
        -e 's/^\{"iteration": ([0-9]+),.*"validation_loss": ([^,}]*).*\}$/\1 validation \2/p' "$1" | sort -u
}
# From the ledger: how the starts ended, and in what.
tally() {
    awk -v iterations="$iterations" '
        /"event": "started"/ { starts++; phase = "start" }
        /"event": "opening"/ { phase = "connecting, memory" }
        /"event": "ready"/ { phase = "load" }
        /"event": "loaded"/ { phase = "first step" }
        /"event": "first_step"/ { phase = "steps, saves" }
        /"event": "save"/ { phase = $0 ~ "\"iteration\": " iterations "," ? "end" : "steps, saves" }
        /"event": "end"/ { phase = "end" }
        /"event": "ended"/ && /"kind": "(killed|hang|error)"/ { count[phase]++; phase = "" }
        /"event": "ended"/ && /"kind": "hang"/ { hangs++ }
        END { print starts + 0, hangs + 0; for (p in count) print count[p], p }' "$save/supervise/ledger.jsonl"
}
bad_statuses='"status": (1|64|70|76|78|80),|"signal": "(SEGV|BUS|FPE|ILL|ABRT|SYS)"'
examine() {
    local line number phase hung
    nobody_is_left || bad "left: $left"
    "$trireme" checkpoint diff "reference$t" "$save" >"$trial/diff" 2>&1 || bad "parameters differ: $(tail -2 "$trial/diff")"
    diff <(metrics "$trial/metrics.jsonl") "reference$t.txt" >"$trial/differences" ||
        bad "numbers differ: $(head -4 "$trial/differences" | tr '\n' ' ')"
    for line in "$save"/.[!.]*; do
        [[ $line == */.lock || $line == */.id ]] || bad "$line is left"
    done
    # mpirun itself crashes at times when its ranks are killed: then no rank was first.
    line=$(grep '"event": "ended"' "$save/supervise/ledger.jsonl" | grep -E "$bad_statuses" |
        if grep -q ' mpirun(+' "$trial/log"; then grep -v '"signal": "SEGV".*"rank": null'; else cat; fi | head -1)
    [[ -z $line ]] || bad "an end that is a bug: $line"
    while read -r number phase; do
        if [[ $phase =~ ^[0-9]+$ ]]; then
            all_starts=$((all_starts + number)) hung=$phase
        else
            phases[$phase]=$((${phases[$phase]:-0} + number))
        fi
    done < <(tally)
    ((hung <= hangs)) || bad "$hung hangs were told, and $hangs ranks were stopped"
    # What a run has left in memory that was no copy of the last start goes with the next start that copies.
    if [[ ! " ${supervised[*]} $(tail -1 "$trial/starts") " == *memory-save-interval* ]]; then return; fi
    [[ -z $(find memory -type f -path '*step*' 2>/dev/null | head -1) ]] || bad "left in memory: $(find memory -type f | head -3)"
}

trial() {
    local places=("$PWD/trial") number share
    RANDOM=$seed
    one_of 1 1 2 && t=$drawn
    need reference "$t"
    [[ -z $small ]] || places+=("$PWD/small")
    trial=$PWD/trial hangs=0
    rm -rf trial small/* left.txt
    mkdir trial
    one_of "${places[@]}"
    save=$drawn/save
    one_of 0 10 30
    share=$drawn
    one_of "${transports[*]}" "${transports[@]}"
    echo "$t ${drawn// /,} $library $share $seed" >"$trial/draw"
    supervised=("$here/any_grid.sh" "$trial" "$trireme" train "${common[@]}" --metrics "$trial/metrics.jsonl"
        --save-interval $((1 + RANDOM % 4)) --keep-last $((1 + RANDOM % 3)))
    ((RANDOM % 2)) || supervised+=(--memory-save-interval $((1 + RANDOM % 3)) --memory-save-dir "$PWD/memory")
    supervised+=(--save "$save")
    number=$((4 + RANDOM % 12))
    disturb "$number" && examine
    trials=$((trials + 1))
    fired=$(grep -c "" "$trial/fired" 2>/dev/null)
    ((!${fired:-0})) || injected["failing call"]=$((${injected["failing call"]:-0} + fired))
    [[ -e $trial/wrong ]] || return 0
    wrong=$((wrong + 1))
    ((wrong > 1)) || complain "trial $seed was wrong: again: campaign.sh $trireme 1 $seed ${transports[*]}"
    [[ -z ${TRIREME_CAMPAIGN_KEEP:-} ]] || { mkdir -p "$TRIREME_CAMPAIGN_KEEP/$seed" && cp -r trial "$save" "$TRIREME_CAMPAIGN_KEEP/$seed/"; }
}

reference() { # T
    mkdir -p memory
    "$trireme" train "${common[@]}" --tp "$1" --ranks "$1" --save "reference$1" --save-interval 40 \
        --metrics "reference$1.jsonl" >log 2>&1 || complain "$(tail -3 log)"
    metrics "reference$1.jsonl" >"reference$1.txt"
    [[ $(wc -l <"reference$1.txt") -ge $((iterations + 5)) ]] || complain "reference: $(wc -l <"reference$1.txt") lines"
}

report() {
    local kind total=0
    for kind in "${!injected[@]}"; do total=$((total + injected[$kind])); done
    echo "$total failures in $trials trials and $all_starts starts, $SECONDS s: $((total * 3600 / (SECONDS + !SECONDS))) failures an hour; $wrong trials wrong"
    for kind in "${!injected[@]}"; do printf '  %6d  %s\n' "${injected[$kind]}" "$kind"; done | sort -rn
    echo "starts that failed, by what they were in:"
    for kind in "${!phases[@]}"; do printf '  %6d  %s\n' "${phases[$kind]}" "$kind"; done | sort -rn
    echo "supervisors by exit status (137: killed):"
    for kind in "${!ended[@]}"; do printf '  %6d  %s\n' "${ended[$kind]}" "$kind"; done | sort -rn
    ((total >= SECONDS / 4)) || complain "only $total failures in $SECONDS s"
}

SECONDS=0
while ((SECONDS < seconds)); do
    trial
    seed=$((seed + 1))
done
report
finish
