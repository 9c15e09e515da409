#!/usr/bin/env bash
# Photographs pages for the documentation: of a plan, docs/plan.png and the top of it as docs/plan-dark.png; of a run,
# docs/report.png, the same on a dark screen and on a phone's. A developer's tool: it needs Chromium, and is no part of
# `./run test`.
#
#   tools/screenshots.sh [PLAN.html [RUN.html]]     without pages, of the plan and the run below by build/trireme
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."
trireme=$PWD/build/trireme

plan=(--model gpt3-175b --gpus 1024 --machine dgx-a100 --global-batch-size 1536 --tokens 300B --price 2.10
    --vary "machine=dgx-a100@2.10,dgx-h100@3.50,dgx-b200@5" "gpus=256,512,1024,2048,4096" "global-batch-size=768,1536,3072")

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
    { echo "tools/screenshots.sh: Chromium is missing: apt-get install chromium" >&2; exit 69; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# PAGE FILE WIDTH HEIGHT SCHEME; of the scheme, 0 is dark and 1 is light. What the page says on its console, or asks for
# from elsewhere, is an error.
photograph() {
    local page=$1
    shift
    "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" \
        --blink-settings=preferredColorScheme="$4" --window-size="$2,$3" --virtual-time-budget=3000 \
        --screenshot="$work/shot.png" "file://$page" --enable-logging=stderr >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; exit 70; }
    if grep -E 'CONSOLE|ERR_' "$work/log"; then exit 1; fi
    mv "$work/shot.png" "$1"
    echo "$1"
}

# A small run of four ranks, on what the program says of its verbs.
write_report() (
    cd "$work"
    mkdir text
    for verb in $("$trireme" help --verbs); do "$trireme" "$verb" --help-all >"text/$verb"; done
    "$trireme" preprocess --input text --output-prefix corpus --vocab-size 400 --append-eod
    "$trireme" train --data-path corpus --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 \
        --micro-batch-size 1 --global-batch-size 8 --lr 3e-3 --lr-warmup-iters 20 --lr-decay-style cosine --train-iters 150 \
        --eval-iters 2 --eval-interval 25 --split 90,10,0 --ranks 4 --tp 2 --pp 2 --threads 1 --save run --save-interval 50 \
        --metrics run.jsonl --ledger ledger.jsonl --trace trace.json --log-interval 1
    "$trireme" report run --html "$1"
)

plan_page=${1:-$work/plan.html} run_page=${2:-$work/run.html}
[[ $# -gt 0 ]] || "$trireme" plan "${plan[@]}" --html "$plan_page" >/dev/null
[[ $# -gt 1 ]] || write_report "$run_page" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 70; }
photograph "$(realpath "$plan_page")" docs/plan.png 1280 4200 1
photograph "$(realpath "$plan_page")" docs/plan-dark.png 1280 2480 0
photograph "$(realpath "$run_page")" docs/report.png 1280 2400 1
photograph "$(realpath "$run_page")" docs/report-dark.png 1280 1200 0
photograph "$(realpath "$run_page")" docs/report-phone.png 390 1200 1
