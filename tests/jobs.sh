# shellcheck shell=bash
# Waits for events of programs in the background. A script that sources this has `complain`; for the last two functions
# it also has the process $pid, whose output goes to the file $out.

# until_true CONDITION...: tries the condition until it is true, for at most two minutes.
until_true() {
    for _ in $(seq 2400); do
        "$@" && return
        sleep 0.05
    done
    complain "not true after two minutes: $* -- $(tail -3 "${out:-/dev/null}" 2>/dev/null)"
}

is_training() { grep -qs "iteration        1/" "$out"; }
# shellcheck disable=SC2154 # pid is of the sourcing script
has_ended() { ! kill -0 "$pid" 2>/dev/null; }
