#!/usr/bin/env bash
# What other programs watch of a run: TensorBoard and Prometheus read what a run wrote that was killed, went on from an
# older step, and went back after a spike of the loss.
# Usage: monitors.sh PATH/trireme FOLDER
#
# Python lives in a virtual environment in FOLDER. Exit code 77: what is needed cannot be had here.
set -uo pipefail
here=$(cd "${BASH_SOURCE%/*}" && pwd)
folder=$2
# shellcheck source=tests/ecosystem/venv.sh
source "$here/ecosystem/venv.sh"
# TensorBoard imports pkg_resources, which is setuptools': Python has had none of its own since 3.12.
plain_venv "$folder" monitors tensorboard==2.20.0 prometheus_client==0.21.1 setuptools==80.9.0
set -- "$1"
# shellcheck source=tests/script.sh
source "$here/script.sh" "$@"

watched=(--train-iters 400 --eval-interval 80 --eval-iters 2 --save-interval 50 --save run --load run
    --metrics run.jsonl --tensorboard-dir events --metrics-prom 'run "one".prom')

if check "TensorBoard and Prometheus read what a killed run wrote, and it is one curve"; then
    # It is killed some steps after its second save, so that it trains these again.
    timeout 60 "$trireme" train "${corpus[@]}" "${watched[@]}" >killed.log 2>&1 </dev/null &
    pid=$!
    for _ in $(seq 600); do
        (($(rows run) >= 113)) && break
        sleep 0.05
    done 2>/dev/null
    kill -9 "$pid"
    wait "$pid" 2>/dev/null
    (($(rows run) < 400)) || complain "the run ended before it was killed"
    # A record that was cut, as after a loss of power.
    printf 'abc' >>"$(find events -type f)"
    train run "${watched[@]}"
    "$venv/bin/python" "$here/ecosystem/monitors.py" events run.jsonl 'run "one".prom' || complain "they differ"
    [[ $(find events -type f | wc -l) == 2 ]] || complain "there are $(ls events), not one file for each start"
fi
if check "a folder for events that cannot be made ends the run before it starts"; then
    timeout 60 "$trireme" train "${corpus[@]}" --train-iters 1 --tensorboard-dir documents.idx/x >refused.log 2>&1
    (($? == 73)) || complain "$(cat refused.log)"
    grep -q -e "--tensorboard-dir documents.idx" refused.log || complain "$(cat refused.log)"
fi
finish
