#!/usr/bin/env bash
# Photographs the page of a plan for the documentation, docs/plan.png and the top of it as docs/plan-dark.png. A
# developer's tool: it needs Chromium, and is no part of `./run test`.
#
#   tools/screenshots.sh [PAGE.html]     without a page, of the plan below by build/trireme
set -euo pipefail
export LC_ALL=C
cd "$(dirname "$0")/.."

plan=(--model gpt3-175b --gpus 1024 --machine dgx-a100 --global-batch-size 1536 --tokens 300B --price 2.10)

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
    { echo "tools/screenshots.sh: Chromium is missing: apt-get install chromium" >&2; exit 69; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# FILE WIDTH HEIGHT SCHEME; of the scheme, 0 is dark and 1 is light.
photograph() {
    "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$work/profile" \
        --blink-settings=preferredColorScheme="$4" --window-size="$2,$3" --virtual-time-budget=3000 \
        --screenshot="$work/shot.png" "file://$work/page.html" >"$work/log" 2>&1 ||
        { cat "$work/log" >&2; exit 70; }
    mv "$work/shot.png" "$1"
    echo "$1"
}

if [[ $# -gt 0 ]]; then
    cp "$1" "$work/page.html"
else
    build/trireme plan "${plan[@]}" --html "$work/page.html" >/dev/null
fi
photograph docs/plan.png 1280 4200 1
photograph docs/plan-dark.png 1280 2030 0
