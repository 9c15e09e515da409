#!/usr/bin/env bash
# What a training run leaves behind: rows of metrics, lines of the log, evaluations, and when it ends. The numbers are
# compared as they are printed: nine digits tell every float from its neighbours.
# Usage: train_runs.sh PATH/trireme
set -uo pipefail
trireme=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
failures=0

complain() {
    echo "$*"
    failures=$((failures + 1))
}

# train NAME OPTION...: leaves NAME.log and NAME.jsonl; with $launcher in front.
launcher=()
train() {
    local name=$1
    shift
    timeout -k 5 60 "${launcher[@]}" "$trireme" train "${corpus[@]}" "$@" --metrics "$name.jsonl" >"$name.log" 2>&1 </dev/null ||
        complain "$name: exit $?: $(tail -3 "$name.log")"
}

metric() { sed -n "s/.*\"$1\": \\([^,}]*\\).*/\\1/p" "$2.jsonl"; } # metric KEY NAME: one value per row that has it
rows() { metric lm_loss "$1" | wc -l; }                            # of training
expect_rows() { [[ $(rows "$1") == "$2" ]] || complain "$1: $(rows "$1") rows, not $2"; }

# expect_same KEY NAME OTHER: the same text in every row, and rows.
expect_same() {
    local one other
    one=$(metric "$1" "$2")
    other=$(metric "$1" "$3")
    [[ -n $one && $one == "$other" ]] || complain "$1 of $2 and $3 differ: $(paste <(echo "$one") <(echo "$other"))"
}

# expect_close NAME OTHER: losses, to 1e-5.
expect_close() {
    paste <(metric lm_loss "$1") <(metric lm_loss "$2") | awk '
        { difference = ($1 - $2) / $1; if (NF != 2 || difference > 1e-5 || difference < -1e-5) bad = 1 }
        END { exit bad || !NR }' || complain "losses of $1 and $2 are not within 1e-5"
}

# A corpus of many documents, each shorter than two samples.
for i in $(seq 600); do
    printf '{"text": "document %d: int f_%d(int a) { return a + %d; } and %d words more, then others"}\n' "$i" "$i" $((i * i)) "$i"
done >documents.jsonl
"$trireme" preprocess --input documents.jsonl --output-prefix documents --vocab-size 400 --append-eod >log 2>&1 || complain "$(cat log)"
corpus=(--data-path documents --num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 32
    --micro-batch-size 1 --global-batch-size 8 --lr "1e-3")
no_evaluation=(--split "100,0,0" --eval-iters 0)

# ---- rows and lines ---------------------------------------------------------------------------------------------
train threads "${no_evaluation[@]}" --train-iters 20 --ranks 4 --tp 2 --pp 2
expect_rows threads 20
number='-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?'
row='^\{"iteration": [0-9]+, "consumed_samples": [0-9]+'
for key in lm_loss grad_norm learning_rate elapsed_ms tokens_per_s tflops_per_rank; do row+=", \"$key\": $number"; done
row+=', "loss_scale": 1, "global_batch_size": 8, "skipped": 0'
complain_of_others() { # NAME: rows that are neither of training nor of validation
    local others
    others=$(grep -vE "$row\}\$|^\{\"iteration\": [0-9]+, \"consumed_samples\": [0-9]+, \"validation_loss\": $number\}\$" "$1.jsonl")
    [[ -z $others ]] || complain "$1.jsonl has rows of another form: $others"
}
complain_of_others threads
awk -F '[:,}]' '
    { tokens_per_s = 8 * 32 / ($12 / 1000); error = $14 / tokens_per_s - 1 }
    $2 != NR || $4 != 8 * NR || error > 1e-6 || error < -1e-6 { bad = 1 }
    END { exit bad }' threads.jsonl || complain "iterations, samples and speeds do not belong together"
digits=$(metric lm_loss threads | tr -d '.-' | awk '{ if (length($1) > most) most = length($1) } END { print most }')
[[ $digits == 9 ]] || complain "losses of $digits digits"

line='^ \[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\] iteration +[0-9]+/ +20 \| consumed samples: +[0-9]+ \|'
line+=' elapsed time per iteration \(ms\): [0-9]+\.[0-9] \| throughput per GPU \(TFLOP/s/GPU\): [0-9]+\.[0-9]{3} \|'
line+=' learning rate: [0-9]\.[0-9]{6}E[-+][0-9]{2} \| global batch size: +8 \| lm loss: [0-9]\.[0-9]{6}E[-+][0-9]{2} \|'
line+=' loss scale: 1\.0 \| grad norm: [0-9]+\.[0-9]{3} \| number of skipped iterations: +0 \| number of nan iterations: +0 \|'
lines=$(grep -cE "$line" threads.log)
[[ $lines == 3 ]] || complain "$lines lines of the log have Megatron-LM's form, not those of iterations 1, 10, 20"

# ---- the same run otherwise started -------------------------------------------------------------------------------
launcher=(mpirun --oversubscribe -n 4)
train mpi "${no_evaluation[@]}" --train-iters 20 --tp 2 --pp 2
launcher=()
for key in lm_loss grad_norm learning_rate; do expect_same "$key" threads mpi; done

train saving "${no_evaluation[@]}" --train-iters 6 --ranks 4 --pp 4 --lr-warmup-iters 3 --lr-decay-style cosine --seed 7 --save-config saved.yaml
corpus_of_options=("${corpus[@]}")
corpus=()
train loaded --config saved.yaml --ranks 4
corpus=("${corpus_of_options[@]}")
for key in lm_loss grad_norm learning_rate; do expect_same "$key" saving loaded; done

# ---- evaluation -----------------------------------------------------------------------------------------------------
train evaluating --train-iters 10 --eval-interval 4 --eval-iters 2
expect_rows evaluating 10
complain_of_others evaluating
found=$(sed -n 's/.*"iteration": \([0-9]*\), "consumed_samples": \([0-9]*\), "validation_loss".*/\1:\2/p' evaluating.jsonl | xargs)
[[ $found == "4:32 8:64 10:80" ]] || complain "evaluations at '$found'"
[[ $(grep -c '^ validation loss at iteration' evaluating.log) == 3 ]] || complain "not three evaluations in the log"
train grid --train-iters 10 --eval-interval 4 --eval-iters 2 --ranks 8 --tp 2 --pp 2
expect_close evaluating grid
paste <(metric validation_loss evaluating) <(metric validation_loss grid) |
    awk '{ if (NF != 2 || $1 / $2 > 1 + 1e-5 || $2 / $1 > 1 + 1e-5 || $1 < 1) bad = 1 } END { exit bad || NR != 3 }' ||
    complain "the grids differ in the validation loss"

# ---- where a run ends -------------------------------------------------------------------------------------------------
train interval "${no_evaluation[@]}" --train-iters 20 --exit-interval 3 --ranks 4 --tp 2 --pp 2
expect_rows interval 3
[[ $(metric lm_loss interval) == "$(metric lm_loss threads | head -3)" ]] || complain "--exit-interval changes losses"

start=$SECONDS
train duration "${no_evaluation[@]}" --train-iters 1000000 --exit-duration-in-mins 0.02 --ranks 2 --tp 2
((SECONDS - start < 20 && $(rows duration) > 0)) || complain "--exit-duration-in-mins 0.02: $((SECONDS - start)) s"

train dry "${no_evaluation[@]}" --train-iters 20 --dry-run --ranks 4 --tp 2
grep -q "nothing was trained (--dry-run)" dry.log || complain "--dry-run does not say that nothing was trained"
grep -q "iteration  " dry.log && complain "--dry-run trains"
[[ ! -s dry.jsonl ]] || complain "--dry-run writes metrics"

# ---- masked losses ----------------------------------------------------------------------------------------------------
train masked "${no_evaluation[@]}" --train-iters 5 --eod-mask-loss
train unmasked "${no_evaluation[@]}" --train-iters 5
[[ $(metric lm_loss masked) != "$(metric lm_loss unmasked)" ]] || complain "--eod-mask-loss changes nothing"
for grid in "2 --tp 2" "2 --pp 2" "2" "4 --tp 2 --pp 2" "8 --tp 2 --pp 2" "4 --pp 2 --vp 2"; do
    # shellcheck disable=SC2086 # several words
    train "masked $grid" "${no_evaluation[@]}" --train-iters 5 --eod-mask-loss --ranks $grid
    expect_close masked "masked $grid"
done

[[ $failures == 0 ]] || { echo "$failures failures"; exit 1; }
