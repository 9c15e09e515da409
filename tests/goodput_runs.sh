#!/usr/bin/env bash
# What runs leave for those who look back at them: the ledger and its sums, checksums of the parameters in the metrics,
# and saves at intervals that the run chooses itself.
# Usage: goodput_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

# member NAME FILE: the number of a member of the JSON that `trireme goodput --json` prints.
member() { sed -n "s/.*\"$1\": \\(-\\?[0-9.]*\\).*/\\1/p" "$2" | head -1; }
adds_up() { # FILE: the seconds of all parts are the wall time, to a microsecond
    awk -F'"seconds": {' '
        /"wall_s"/ { match($0, /"wall_s": [0-9.]+/); wall = substr($0, RSTART + 10, RLENGTH - 10) }
        NF > 1 && !sum { n = split($2, part, /[:,}]/); for (i = 2; i <= 26; i += 2) sum += part[i] }
        END { exit !(wall > 0 && sum - wall < 1e-6 && wall - sum < 1e-6) }' "$1" ||
        complain "the parts do not add up: $(cat "$1")"
}
checksums() { # NAME: "ITERATION CHECKSUM" of every row that has one
    sed -nE 's/.*"iteration": ([0-9]+).*"parameters_checksum": "([0-9a-f]*)".*/\1 \2/p' "$1.jsonl" | sort -n -u
}

# ---- the ledger ------------------------------------------------------------------------------------------
run_killed() {
    local run=("$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --save kept --load kept --ledger ledger.jsonl)
    "${run[@]}" --ranks 2 --train-iters 1000000 --save-interval 20 >killed.log 2>&1 &
    local pid=$!
    for _ in $(seq 600); do
        grep -qs '"event": "save"' ledger.jsonl && break
        sleep 0.1
    done
    kill -KILL $pid
    wait $pid 2>/dev/null
    printf '{"at": "torn' >>ledger.jsonl
    local last
    last=$(sed -n 's/.*"event": "save", "iteration": \([0-9]*\).*/\1/p' ledger.jsonl | tail -1)
    timeout 100 "${run[@]}" --ranks 2 --tp 2 --train-iters $((last + 100)) >after.log 2>&1 ||
        complain "after the kill: $(tail -2 after.log)"
    "$trireme" goodput ledger.jsonl --json --html page.html >goodput.json 2>goodput.err ||
        complain "goodput: $(cat goodput.err)"
}
if check "a run that is killed and goes on adds up"; then
    need run_killed
    adds_up goodput.json
    [[ $(member failures goodput.json) == 1 ]] || complain "failures: $(member failures goodput.json)"
    [[ $(grep -c '"at_s"' goodput.json) == 2 ]] || complain "starts: $(grep '"at_s"' goodput.json)"
    [[ $(member damaged_lines goodput.json) == 1 ]] || complain "damaged lines: $(member damaged_lines goodput.json)"
    grep -q '"tp": 2.*"ended": true, "failed": false, "status": 0' goodput.json || complain "the second start: $(cat goodput.json)"
    for part in productive down start load save_stall waiting; do
        awk "BEGIN { exit !($(member "$part" goodput.json) > 0) }" || complain "no time for $part"
    done
fi
if check "goodput prints a table and a page"; then
    need run_killed
    "$trireme" goodput . >goodput.txt || complain "of a folder: exit $?"
    grep -q "effective training time: [0-9.]* %" goodput.txt || complain "$(cat goodput.txt)"
    grep -q "^     2 .* t2 p1 d1 .* done " goodput.txt || complain "$(cat goodput.txt)"
    grep -q "</html>" page.html || complain "the page has no end"
fi
if check "a ledger that cannot be written ends a run before it trains"; then
    "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 1 --ledger missing/ledger.jsonl >refused.log 2>&1
    [[ $? == 73 ]] || complain "another exit status: $(tail -2 refused.log)"
    grep -q "[-]-ledger missing/ledger.jsonl" refused.log || complain "$(tail -2 refused.log)"
fi
if check "the environment names the ledger, and signals end it"; then
    TRIREME_LEDGER=named.jsonl train named "${no_evaluation[@]}" --train-iters 5 --exit-interval 3
    grep -q '"event": "end", "iteration": 3, "status": 0}' named.jsonl || complain "$(cat named.jsonl)"
fi

if check "a save that is not needed is no save in the ledger"; then
    train once "${no_evaluation[@]}" --train-iters 9 --save once --save-interval 4 --exit-interval 8 --ledger once.ledger
    [[ $(grep -c '"event": "save"' once.ledger) == 2 ]] || complain "$(grep save once.ledger)"
fi

# ---- checksums of the parameters -------------------------------------------------------------------------
checked=("${no_evaluation[@]}" --train-iters 12 --metrics-checksum-interval 3)
run_summed() { train whole "${checked[@]}" --ranks 2 --pp 2 --save whole --save-interval 4; }
if check "every grid with the same bits has the same checksums"; then
    need run_summed
    [[ $(checksums whole | cut -d' ' -f1 | tr '\n' ' ') == "3 4 6 8 9 12 " ]] || complain "$(checksums whole)"
    [[ $(checksums whole | cut -d' ' -f2 | sort -u | wc -l) == 6 ]] || complain "they do not change: $(checksums whole)"
    train alone "${checked[@]}" --save alone --save-interval 4
    train virtual "${checked[@]}" --ranks 2 --pp 2 --vp 2 --schedule interleaved --save virtual --save-interval 4
    diff <(checksums whole) <(checksums alone) >differs || complain "alone: $(cat differs)"
    diff <(checksums whole) <(checksums virtual) >differs || complain "interleaved: $(cat differs)"
fi
if check "a run that goes on begins with the checksum that was saved"; then
    need run_summed
    train parts "${checked[@]}" --save parts --save-interval 4 --exit-interval 8
    train parts "${checked[@]}" --ranks 2 --pp 2 --save parts --load parts --save-interval 4
    diff <(checksums whole) <(checksums parts) >differs || complain "$(cat differs)"
    grep -q '"event": "parameters", "iteration": 8,' parts.jsonl || complain "nothing at the start: $(grep event parts.jsonl)"
    grep -q '"iteration": 8, .*"from_checkpoint": null' parts.jsonl || complain "the first part"
    grep -q '"iteration": 9, .*"from_checkpoint": 8' parts.jsonl || complain "the second part"
fi
if check "without an interval there are no checksums"; then
    train bare "${no_evaluation[@]}" --train-iters 2 --metrics-checksum-interval 0 --save bare
    grep -q checksum bare.jsonl && complain "$(grep checksum bare.jsonl)"
fi

# ---- intervals of saves ----------------------------------------------------------------------------------
# A made-up ledger of a run that has failed 20,000 times makes saves frequent.
if check "saves at chosen intervals change no bit"; then
    yes '{"at": "2026-11-24T00:00:00.000Z", "mono_s": 0, "event": "opening"}' | head -20000 >failing.jsonl
    for variant in "" "--async-save"; do
        rm -rf chosen
        # shellcheck disable=SC2086 # no word, or one
        train chosen "${no_evaluation[@]}" --train-iters 400 --ranks 2 --save chosen --save-interval auto --keep-last 2 \
            --ledger failing.jsonl $variant
        grep -q "saving every [0-9]* iterations from here on (--save-interval auto)" chosen.log || complain "$(tail -3 chosen.log)"
        [[ $(grep -c "successfully saved" chosen.log) -gt 1 ]] || complain "no saves $variant: $(grep sav chosen.log)"
        train fixed "${no_evaluation[@]}" --train-iters 400 --ranks 2
        expect_same lm_loss chosen fixed
        expect_same grad_norm chosen fixed
    done
fi
finish
