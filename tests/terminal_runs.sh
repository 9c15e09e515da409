#!/usr/bin/env bash
# What a run shows on a terminal: one block under the lines that scroll, at any width, through changes of the width;
# and where nothing may be fancy, nothing is.
# Usage: terminal_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
#
# Exit code 77: there is no Python here to make a terminal.
set -uo pipefail
export LC_ALL=C.UTF-8 TERM=xterm
if ! python3 -c "import pty, fcntl, termios" 2>/dev/null; then
    echo "there is no python3 here, which makes terminals for this test"
    exit 77
fi
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
steps=(--train-iters 600 --eval-interval 250 --eval-iters 1)

# on_terminal WIDTHS OPTION...: leaves screen.txt.
on_terminal() {
    timeout 120 python3 "$here/terminal.py" "$1" "$trireme" train "${corpus[@]}" "${@:2}" >screen.txt 2>&1 ||
        complain "exit $?: $(cat screen.txt)"
}
count() { [[ $(grep -cE -- "$1" screen.txt) == "$2" ]] || complain "not $2 lines with '$1': $(cat screen.txt)"; }
has() { grep -qE -- "$1" screen.txt || complain "no line with '$1': $(cat screen.txt)"; }

if check "the status is one block that leaves no trace, and events stay"; then
    for widths in 80 200 20 80,30,120,25; do
        on_terminal "$widths" "${steps[@]}" --save saved
        rm -rf saved
        count '^step [0-9]+/600' 0 # it is erased at the end
        count 'successfully saved checkpoint' 1
        count 'step (250|500): loss .* on the held-out share' 2
        count 'lm loss:' 0
        count '^trained 600 iterations' 1
        count 'escapes: 0' 0
    done
fi
if check "a terminal that is dumb, --plain and --log-style megatron"; then
    TERM=dumb on_terminal 80 "${steps[@]}"
    has 'escapes: 0$'
    count 'lm loss: ' 61
    on_terminal 80 "${steps[@]}" --plain
    has 'escapes: 0$'
    count 'lm loss: ' 61
    on_terminal 80 "${steps[@]}" --log-style megatron
    count 'escapes: 0$' 0
    count 'iteration +[0-9]+/ +600 .*lm loss: ' 61
    count '^step [0-9]+/600' 0
fi
if check "a file gets Megatron-LM's lines while the terminal has the status"; then
    timeout 120 python3 "$here/terminal.py" 80 bash -c "\"\$@\" >log.txt" bash "$trireme" train "${corpus[@]}" "${steps[@]}" \
        >screen.txt 2>&1 || complain "exit $?: $(cat screen.txt)"
    count 'escapes: 0$' 0
    cp log.txt screen.txt
    count 'lm loss: ' 61
fi
if check "--log-style and --quiet say what is printed"; then
    train short "${steps[@]}" --log-style short
    cp short.log screen.txt
    count '^  step [0-9]+/600  loss [0-9.]+  [0-9]+ tokens/s  eta ' 61
    count 'lm loss: ' 0
    train none "${steps[@]}" --log-style none
    cp none.log screen.txt
    count 'step [0-9]+/600' 0
    has '^trained 600'
    train quiet "${steps[@]}" --quiet
    [[ ! -s quiet.log ]] || complain "$(cat quiet.log)"
    expect_same lm_loss short quiet
    on_terminal 80 "${steps[@]}" --quiet
    [[ $(tr -d '\n' <screen.txt) == "escapes: 0" ]] || complain "$(cat screen.txt)"
fi
finish
