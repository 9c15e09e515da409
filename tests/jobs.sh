# shellcheck shell=bash
# Waiting for what a program in the background does. Sourced by scripts that have `complain`, and for the last two
# the process $pid (of "start") whose output goes to the file $out.

# until_true CONDITION...: tried for at most two minutes.
until_true() {
    for _ in $(seq 2400); do
        "$@" && return
        sleep 0.05
    done
    complain "in vain: $* -- $(tail -3 "${out:-/dev/null}" 2>/dev/null)"
}

is_training() { grep -qs "iteration        1/" "$out"; }
# shellcheck disable=SC2154 # pid is of the sourcing script
has_ended() { ! kill -0 "$pid" 2>/dev/null; }
