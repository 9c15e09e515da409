#!/usr/bin/env bash
# The page of a plan, in Chromium: its reader's choices are made in the page's own controls, and everything that it then
# says is what the command line says to the same question. Without Chromium: 77, skipped.
# Usage: plan_page.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/cases.sh
source "${BASH_SOURCE%/*}/cases.sh" "$@"

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
    { echo "skipped: no Chromium"; exit 77; }

# render PAGE: the document as the browser has it when the scripts have run. What it says on its console, or asks for
# from elsewhere, is an error.
render() {
    timeout -k 5 300 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/profile" --virtual-time-budget=5000 \
        --enable-logging=stderr --dump-dom "file://$PWD/$1" 2>browser.log
    ! grep -qE 'CONSOLE|ERR_' browser.log
}

# words FILE: what the command line answers, from its page without any script: the advice and each figure, a line each,
# or what standard error says.
words() { sed -n '/<p class="advice">/s|</*p[^>]*>||gp; /^<div><dt>/p; /^<\/dl>/q' "$1" | sed 's/&nbsp;/\xc2\xa0/g'; }

# ask FILE QUESTION...: writes what the page says to each question, "machine|gpus|batch|seq|tokens|price|goodput|pue".
ask() {
    local page=$1
    shift
    {
        cat "$page"
        echo "<script>{ const said = [];"
        printf 'ask("%s");\n' "$@"
        cat <<'SCRIPT'
function ask(question) {
  const box = document.getElementById("explore"), keys = ["machine", "gpus", "batch", "seq", "tokens", "price", "goodput", "pue"];
  question.split("|").forEach((value, i) => {
    const control = box.querySelector(`.ask [name="${keys[i]}"]`);
    control.value = value;
    control.dispatchEvent(new Event(i < 4 ? "change" : "input"));
  });
  const advice = box.querySelector(".advice"), figures = box.querySelector(".figures");
  said.push(question, advice.innerHTML, figures.innerHTML.trim());
}
const all = document.body.appendChild(document.createElement("pre"));
all.textContent = said.join("\n").replace(/^/gm, "SAI" + "D "); }</script>
SCRIPT
    } >asked.html
    render asked.html >asked.dom || complain "the page complains: $(grep -E 'CONSOLE|ERR_' browser.log)" >&2
    grep -o 'SAID .*' asked.dom | sed 's/^SAID //; s/&lt;/</g; s/&gt;/>/g; s/&amp;nbsp;/\xc2\xa0/g; s/&nbsp;/\xc2\xa0/g; s/&amp;/\&/g
        s|</pre>.*||; s|</body>.*||' | sed '/^$/d'
}

# compare NAME QUESTION... -- OPTION...: the page says to each what `trireme plan OPTION...` with its values says.
compare() {
    local name=$1 question machine gpus batch seq tokens price goodput pue
    local questions=()
    shift
    while [[ $1 != -- ]]; do questions+=("$1") && shift; done
    shift
    ask "$name.html" "${questions[@]}" >"$name.said"
    for question in "${questions[@]}"; do
        IFS='|' read -r machine gpus batch seq tokens price goodput pue <<<"$question"
        local values=(--machine "$machine" --gpus "$gpus" --global-batch-size "$batch" --seq-length "$seq" --goodput "$goodput" --pue "$pue")
        [[ -z $tokens ]] || values+=(--tokens "$tokens")
        [[ -z $price ]] || values+=(--price "$price")
        echo "$question"
        if "$trireme" plan "$@" "${values[@]}" --html answer.html >answer.out 2>answer.err </dev/null; then
            words answer.html
        else
            sed 's/^trireme: error: //' answer.err
        fi
    done >"$name.told"
    cmp -s "$name.said" "$name.told" || complain "$name: the page (<) and the command line (>): $(diff "$name.said" "$name.told" | head -20)"
    [[ $(wc -l <"$name.told") -ge $((${#questions[@]} * 2)) ]] || complain "$name: too little was compared: $(cat "$name.told")"
}

if check "every number of the page is the command line's"; then
    model=(--model gpt3-175b)
    "$trireme" plan "${model[@]}" --gpus 1024 --global-batch-size 1536 --tokens 300B --machine dgx-a100 --html page.html \
        --vary machine=dgx-a100@2.10,dgx-h100,mi300x@4 gpus=256,1024,1100,4096 global-batch-size=512,1536 \
        seq-length=1024,2048 >/dev/null || complain "no page"
    questions=()
    more=("300B|2.1|1|1" "1.4T|0.125|0.9|1.25" "2500M||0.5|2" "|3|1|1" "123456789|99.995|0.97|1.07")
    i=0
    for machine in dgx-a100 dgx-h100 mi300x; do
        for sizes in "256|512|1024" "1024|512|2048" "1024|1536|1024" "4096|1536|2048" "1100|512|2048" "256|1536|2048" \
            "4096|512|1024" "1024|1536|2048"; do
            questions+=("$machine|$sizes|${more[i++ % 5]}")
        done
    done
    compare page "${questions[@]}" -- "${model[@]}"
fi
if check "so it is where the configuration is asked about"; then
    given=(--model gpt2-124m --tp 2 --pp 2 --micro-batch-size 2)
    "$trireme" plan "${given[@]}" --gpus 16 --global-batch-size 64 --machine dgx-a100 --html given.html >/dev/null ||
        complain "no page"
    compare given "dgx-a100|16|64|1024|10B|1.5|1|1" "dgx-a100|4|32|1024|||1|1" "dgx-a100|64|128|1024|1B||0.5|1.1" \
        "dgx-a100|2|64|1024|1B|1|1|1" -- "${given[@]}"
fi

# A value that makes no sense changes nothing; the front is that of --vary.
if check "the page's front is the command line's"; then
    question=(--model gpt3-175b --global-batch-size 1536 --tokens 300B --vary "machine=dgx-a100@2.10,dgx-h100@3.5"
        "gpus=256,512,1024,2048")
    "$trireme" plan "${question[@]}" --html front.html >front.out || complain "no page"
    render front.html >front.dom || complain "the page complains: $(grep -E 'CONSOLE|ERR_' browser.log)"
    grep -o '<tr[^>]*><td class="">●</td><td class="">[a-z0-9-]*</td><td class="n"><button[^>]*>[0-9]*<' front.dom |
        sed 's/.*<td class="">\([a-z].*\)<\/td>.*>\([0-9]*\)<$/\1 \2/' | sort >front.page
    sed -n 's/^\* \([^ ]*\) *\([0-9]*\) .*/\1 \2/p' front.out | sort >front.told
    [[ -s front.told ]] || complain "no front: $(cat front.out)"
    cmp -s front.page front.told || complain "the front: $(diff front.page front.told)"
fi

finish
