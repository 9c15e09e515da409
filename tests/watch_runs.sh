#!/usr/bin/env bash
# `trireme watch` says what a run does, and how it ended; `trireme report` makes one page of the files of runs.
# Usage: watch_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
export LC_ALL=C
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
# shellcheck source=tests/jobs.sh
source "$here/jobs.sh"

# start_bare NAME OPTION...: a run as $pid that lasts until it is ended.
start_bare() {
    name=$1
    out=$1.log
    "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 1000000 --save "$1" "${@:2}" >"$1.log" 2>&1 </dev/null &
    pid=$!
}
start() { start_bare "$@" --metrics "$1.jsonl"; }
has_trained() { [[ -e $name.jsonl ]] && (($(rows "$name") >= $1)); }
picture() { "$trireme" watch "$@" --once >picture.txt 2>&1; }
shows() { grep -qE -- "$1" picture.txt || complain "no '$1' in: $(cat picture.txt)"; }

if check "a running job shows each rank, then how it ended"; then
    start live --ranks 4 --tp 2 --pp 2
    until_true has_trained 5
    picture live || complain "exit $?"
    shows "^live: running on $(hostname), process $pid, since 20"
    shows "^step [0-9]+/1000000  loss [0-9.]+ .* tokens/s .* left"
    shows "^[0-9] ranks? at work, [0-9] waits?"
    shows "^ rank     step  part              since  does$"
    for rank in 0 1 2 3; do shows "^ +$rank +[0-9]+  training +[0-9.]+ s  [A-Za-z]"; done
    COLUMNS=30 picture live
    for rank in 0 1 2 3; do shows "^$rank .* [0-9.]+ s$"; done
    picture live.jsonl
    shows "^step [0-9]+  loss"
    kill -TERM "$pid"
    wait "$pid"
    picture live/run.json
    shows "^live/run.json: interrupted at 20.*, status 1[0-9]*: stopped by a signal \(SIGTERM\)"
    grep -q "at work" picture.txt && complain "ranks of a run that has ended: $(cat picture.txt)"
fi
# at_step STEP: the picture says that the run has reached this step.
at_step() {
    picture "$name"
    step=$(sed -n 's,^step \([0-9]*\)/1000000.*,\1,p' picture.txt)
    ((${step:-0} >= $1))
}
if check "a run without metrics has the step of its ranks, and says what is not known"; then
    start_bare bare --ranks 2
    until_true at_step 5
    most=$(sed -nE 's/^ +[0-9]+ +([0-9]+)  training .*/\1/p' picture.txt | sort -n | tail -1)
    [[ $step == "$most" ]] || complain "not the step of the foremost rank: $(cat picture.txt)"
    shows "^loss and speed are not known without --metrics FILE$"
    kill -TERM "$pid"
    wait "$pid"
    picture bare
    shows "^loss and speed are not known without --metrics FILE$"
fi
if check "a run that was killed is said to be dead"; then
    start dead --ranks 2 --tp 2
    until_true has_trained 5
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null
    picture dead || complain "exit $?"
    shows "^dead: DEAD: run.json says that it runs, but its process $pid is not there"
fi
if check "watching leaves the files of a run as they are, and ends with it"; then
    start short --ranks 2 --tp 2
    until_true has_trained 3
    sums=$(sha256sum short/run.json)
    for _ in 1 2 3; do picture short; done
    [[ $(sha256sum short/run.json) == "$sums" ]] || complain "run.json has changed"
    kill -TERM "$pid"
    wait "$pid"
    timeout 20 "$trireme" watch short >picture.txt || complain "exit $? on a run that has ended"
    shows "interrupted at"
fi
if check "a supervised run is seen, whose files are in the supervisor's folder"; then
    name=supervised
    out=supervised.log
    "$trireme" supervise -- train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 1000000 --save supervised --ranks 2 \
        --metrics supervised.jsonl >supervised.log 2>&1 </dev/null &
    pid=$!
    until_true has_trained 5
    picture supervised || complain "exit $?"
    shows "^supervised: running on $(hostname)"
    for rank in 0 1; do shows "^ +$rank +[0-9]+  training "; done
    kill -TERM "$pid"
    wait "$pid"
    picture supervised
    shows "^supervised: interrupted"
fi
if check "ranks that are processes show for whom they wait"; then
    name=waits
    out=waits.log
    "$trireme" supervise -- "$here/tcprun.sh" 3 "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --global-batch-size 6 \
        --train-iters 1000000 --save "$PWD/waits" --metrics waits.jsonl >waits.log 2>&1 </dev/null &
    pid=$!
    until_true has_trained 5
    for victim in $(pgrep -f -- "train .*--save $PWD/waits "); do
        grep -qz '^RANK=1$' "/proc/$victim/environ" && [[ $(cat "/proc/$victim/comm") == trireme ]] && kill -STOP "$victim" && break
    done
    sleep 1
    picture waits
    kill -CONT "$victim"
    shows "^1 rank at work, 2 wait, 2 of them for rank 1"
    shows "^ +1 +[0-9]+  training +[0-9.]+ s  is stopped by a signal$"
    for rank in 0 2; do shows "^ +$rank +[0-9]+  training +[0-9.]+ s  waits for ranks? [0-9, ]*1[0-9, ]* in [a-z]"; done
    kill -TERM "$pid"
    wait "$pid"
fi
if check "what is no run is refused"; then
    picture documents.jsonl
    [[ $? == 66 ]] || complain "$(cat picture.txt)"
    shows "documents.jsonl: this is no run: no --save folder, run.json, metrics or ledger"
    mkdir empty
    picture empty
    [[ $? == 66 ]] || complain "$(cat picture.txt)"
    "$trireme" report documents.jsonl --html x.html >picture.txt 2>&1
    [[ $? == 66 && ! -e x.html ]] || complain "$(cat picture.txt)"
fi
if check "a page has curves, a step, the time, events and options, and loads nothing"; then
    steps=(--train-iters 30 --eval-interval 10 --eval-iters 1 --save-interval 10)
    train one "${steps[@]}" --ranks 2 --pp 2 --save one --trace one.trace --ledger one.ledger
    train two "${steps[@]}" --lr 5e-4 --save two --load two --train-iters 20
    "$trireme" train "${corpus[@]}" "${steps[@]}" --lr 5e-4 --save two --load two --metrics two.jsonl >log 2>&1 || complain "$(cat log)"
    "$trireme" report one --html one.html >log 2>&1 || complain "$(cat log)"
    for word in '<h2>Curves</h2>' 'class="line run0"' 'validation loss [0-9.]* at iteration 20' 'One step, simulated and measured' \
        'Where the time went' 'All options of one' 'of rank 0'; do
        grep -q -- "$word" one.html || complain "no '$word' in the page of one"
    done
    "$trireme" report one two --html both.html >log 2>&1 || complain "$(cat log)"
    for word in 'Side by side' 'class="line run1"' 'went on from the checkpoint of iteration 20' '<th>lr</th>'; do
        grep -q -- "$word" both.html || complain "no '$word' in the page of both"
    done
    for page in one.html both.html; do
        grep -Eo '(src|href)="[^"]{0,40}|url\([^)]{0,40}|@import.{0,40}|https?://[a-z./]{0,40}' "$page" | grep -v '="data:' |
            grep -v 'http://www.w3.org/' && complain "$page loads something"
    done
fi
if check "a page has the step of a run with context parallelism, or says why there is none"; then
    train context "${no_evaluation[@]}" --train-iters 4 --ranks 2 --cp 2 --save context --trace context.trace
    "$trireme" report context --html context.html >log 2>&1 || complain "$(cat log)"
    grep -q '^note:' log && complain "$(cat log)"
    for word in 'One step, simulated and measured' '1f1b on tp 1, cp 2, dp 1, pp 1'; do
        grep -q -- "$word" context.html || complain "no '$word' in the page of a run with cp"
    done
    sed -i 's/"cp":2/"cp":1/' context.trace
    "$trireme" report context --html context.html >log 2>&1 || complain "$(cat log)"
    grep -q '^note: the page shows no traced step: .*context.trace: line .*: an event of rank 1, but the "grid" of line 1 has 1 rank:' log ||
        complain "$(cat log)"
    grep -q 'One step, simulated' context.html && complain "a step of a trace that cannot be read"
fi
finish
