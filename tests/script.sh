# shellcheck shell=bash
# What the scripts that drive `trireme train` share: named cases (cases.sh), a small data set, training runs and
# comparisons of their metrics. A script sources this with its own arguments.
# shellcheck source=tests/cases.sh
source "${BASH_SOURCE%/*}/cases.sh" "$@"

# A corpus of many documents, each shorter than two samples.
for i in $(seq 600); do
    printf '{"text": "document %d: int f_%d(int a) { return a + %d; } and %d words more, then others"}\n' \
        "$i" "$i" $((i * i)) "$i"
done >documents.jsonl
"$trireme" preprocess --input documents.jsonl --output-prefix documents --vocab-size 400 \
    --append-eod >log 2>&1 || complain "$(cat log)"
corpus=(--data-path documents --num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32
    --micro-batch-size 1 --global-batch-size 8 --lr "1e-3")
# shellcheck disable=SC2034 # for the scripts
no_evaluation=(--split "100,0,0" --eval-iters 0)

# train NAME OPTION...: leaves NAME.log and NAME.jsonl; with $launcher in front.
launcher=()
train() {
    local name=$1
    shift
    timeout -k 5 180 "${launcher[@]}" "$trireme" train "${corpus[@]}" "$@" \
        --metrics "$name.jsonl" >"$name.log" 2>&1 </dev/null ||
        complain "$name: exit $?: $(tail -3 "$name.log")"
}

# metric KEY NAME: one value per row that has it.
metric() { sed -n "s/.*\"$1\": \\([^,}]*\\).*/\\1/p" "$2.jsonl"; }
rows() { metric lm_loss "$1" | wc -l; }                            # of training
expect_rows() { [[ $(rows "$1") == "$2" ]] || complain "$1: $(rows "$1") rows, not $2"; }

# expect_same KEY NAME OTHER: the same text in every row, and rows.
expect_same() {
    local one other
    one=$(metric "$1" "$2")
    other=$(metric "$1" "$3")
    [[ -n $one && $one == "$other" ]] ||
        complain "$1 of $2 and $3 differ: $(paste <(echo "$one") <(echo "$other"))"
}

# expect_close NAME OTHER [DISTANCE]: losses, to 1e-5.
expect_close() {
    paste <(metric lm_loss "$1") <(metric lm_loss "$2") | awk -v most="${3:-1e-5}" '
        { difference = ($1 - $2) / $1; if (NF != 2 || difference > most || difference < -most) bad = 1 }
        END { exit bad || !NR }' || complain "losses of $1 and $2 are not within ${3:-1e-5}"
}
