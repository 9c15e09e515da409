#!/usr/bin/env bash
# What a training run leaves behind: rows of metrics, lines of the log, evaluations, and when it ends. The
# numbers are compared as they are printed: nine digits tell every float from its neighbours.
# Usage: train_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

# ---- rows and lines --------------------------------------------------------------------------------------
run_threads() { train threads "${no_evaluation[@]}" --train-iters 20 --ranks 4 --tp 2 --pp 2; }
number='-?[0-9]+(\.[0-9]+)?(e[-+][0-9]+)?'
row='^\{"iteration": [0-9]+, "consumed_samples": [0-9]+'
for key in lm_loss grad_norm learning_rate elapsed_ms tokens_per_s tflops_per_rank; do
    row+=", \"$key\": $number"
done
validation="^\{\"iteration\": [0-9]+, \"consumed_samples\": [0-9]+, \"validation_loss\": $number"
row+=', "loss_scale": 1, "global_batch_size": 8, "skipped": 0, "from_checkpoint": null'
row+='(, "parameters_checksum": "[0-9a-f]{16}")?'
complain_of_others() { # NAME: rows that are neither of training nor of validation
    local others
    others=$(grep -vE -e "$row\}\$" -e "$validation\}\$" "$1.jsonl")
    [[ -z $others ]] || complain "$1.jsonl has rows of another form: $others"
}
if check "metrics are rows of training and validation"; then
    need run_threads
    expect_rows threads 20
    complain_of_others threads
fi
if check "iterations, samples and speeds of the metrics belong together"; then
    need run_threads
    awk -F '[:,}]' '
        { tokens_per_s = 8 * 32 / ($12 / 1000); error = $14 / tokens_per_s - 1 }
        $2 != NR || $4 != 8 * NR || error > 1e-6 || error < -1e-6 { bad = 1 }
        END { exit bad }' threads.jsonl || complain "iterations, samples and speeds do not belong together"
fi
if check "losses have nine digits"; then
    need run_threads
    digits=$(metric lm_loss threads | tr -d '.-' |
        awk '{ if (length($1) > most) most = length($1) } END { print most }')
    [[ $digits == 9 ]] || complain "losses of $digits digits"
fi

line='^ \[[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\] iteration +[0-9]+/ +20 \|'
line+=' consumed samples: +[0-9]+ \| elapsed time per iteration \(ms\): [0-9]+\.[0-9] \|'
line+=' throughput per rank \(TFLOP/s/rank\): [0-9]+\.[0-9]{3} \|'
line+=' learning rate: [0-9]\.[0-9]{6}E[-+][0-9]{2} \| global batch size: +8 \|'
line+=' lm loss: [0-9]\.[0-9]{6}E[-+][0-9]{2} \|'
line+=' loss scale: 1\.0 \| grad norm: [0-9]+\.[0-9]{3} \| number of skipped iterations: +0 \|'
line+=' number of nan iterations: +0 \|'
if check "the log has lines of Megatron-LM's form"; then
    need run_threads
    lines=$(grep -cE "$line" threads.log)
    grep -q "^peak resident memory of all ranks: .*; program and data took .* before the model" threads.log ||
        complain "no program's memory beside the model's: $(tail -1 threads.log)"
    [[ $lines == 3 ]] ||
        complain "$lines lines of the log have Megatron-LM's form, not those of iterations 1, 10, 20"
fi

# ---- the same run otherwise started ----------------------------------------------------------------------
if check "processes give the losses of threads"; then
    need run_threads
    launcher=(mpirun -n 4)
    train mpi "${no_evaluation[@]}" --train-iters 20 --tp 2 --pp 2
    launcher=()
    for key in lm_loss grad_norm learning_rate; do expect_same "$key" threads mpi; done
fi

if check "a saved configuration gives the same run"; then
    train saving "${no_evaluation[@]}" --train-iters 6 --ranks 4 --pp 4 --lr-warmup-iters 3 \
        --lr-decay-style cosine --seed 7 --save-config saved.yaml
    corpus_of_options=("${corpus[@]}")
    corpus=()
    train loaded --config saved.yaml --ranks 4
    corpus=("${corpus_of_options[@]}")
    for key in lm_loss grad_norm learning_rate; do expect_same "$key" saving loaded; done
fi

# ---- evaluation ------------------------------------------------------------------------------------------
run_evaluating() { train evaluating --train-iters 10 --eval-interval 4 --eval-iters 2; }
if check "the log says what evaluation costs"; then
    train usual --train-iters 6 --eval-interval 4
    grep -q "^evaluation: 200 batches in all will take about .* s, 92 % of this run; --eval-iters 100 is the default" \
        usual.log || complain "the log does not say what evaluation costs: $(tail -3 usual.log)"
fi
if check "evaluations come at their steps and at the end"; then
    need run_evaluating
    grep "^evaluation:" evaluating.log && complain "--eval-iters was given"
    expect_rows evaluating 10
    complain_of_others evaluating
    found=$(sed -n 's/.*"iteration": \([0-9]*\), "consumed_samples": \([0-9]*\), "validation_loss".*/\1:\2/p' \
        evaluating.jsonl | xargs)
    [[ $found == "4:32 8:64 10:80" ]] || complain "evaluations at '$found'"
    [[ $(grep -c '^ validation loss at iteration' evaluating.log) == 3 ]] ||
        complain "not three evaluations in the log"
fi
if check "grids have the same validation loss"; then
    need run_evaluating
    train grid --train-iters 10 --eval-interval 4 --eval-iters 2 --ranks 8 --tp 2 --pp 2
    expect_close evaluating grid
    paste <(metric validation_loss evaluating) <(metric validation_loss grid) |
        awk '{ if (NF != 2 || $1 / $2 > 1 + 1e-5 || $2 / $1 > 1 + 1e-5 || $1 < 1) bad = 1 }
            END { exit bad || NR != 3 }' ||
        complain "the grids differ in the validation loss"
fi

# ---- where a run ends ------------------------------------------------------------------------------------
if check "--exit-interval ends a run and changes no loss"; then
    need run_threads
    train interval "${no_evaluation[@]}" --train-iters 20 --exit-interval 3 --ranks 4 --tp 2 --pp 2
    expect_rows interval 3
    [[ $(metric lm_loss interval) == "$(metric lm_loss threads | head -3)" ]] ||
        complain "--exit-interval changes losses"
fi

# Who leaves early leaves without a last evaluation; one that is due at that step is made, and a run that
# is over evaluates.
if check "a run that leaves early does not evaluate"; then
    train leaving --train-iters 20 --exit-interval 3 --eval-interval 9 --eval-iters 2
    [[ -z $(metric validation_loss leaving) ]] || complain "--exit-interval evaluates"
fi
if check "an evaluation that is due is made before a run leaves"; then
    train due --train-iters 20 --exit-interval 4 --eval-interval 4 --eval-iters 2
    [[ $(metric validation_loss due | wc -l) == 1 ]] ||
        complain "--exit-interval passes over an evaluation that is due"
fi
if check "a run that is over evaluates"; then
    train over --train-iters 4 --exit-interval 4 --eval-interval 9 --eval-iters 2
    [[ $(metric validation_loss over | wc -l) == 1 ]] ||
        complain "a run that is over at its --exit-interval does not evaluate"
fi

# All of its iterations would take minutes, on a busy machine some of them take longer than the time given.
if check "--exit-duration-in-mins ends a run"; then
    train duration "${no_evaluation[@]}" --train-iters 20000 --exit-duration-in-mins 0.02 --ranks 2 --tp 2
    (($(rows duration) > 0 && $(rows duration) < 20000)) ||
        complain "--exit-duration-in-mins 0.02: $(rows duration) iterations"
fi

# Time counts from the program's start: here the opening of the metrics takes longer than there is.
if check "the duration counts from the program's start"; then
    mkfifo slow.jsonl
    (sleep 2; timeout 60 cat slow.jsonl >rows.jsonl) &
    train slow --train-iters 20000 --exit-duration-in-mins 0.02 --eval-iters 2
    wait
    expect_rows rows 1
    [[ -z $(metric validation_loss rows) ]] || complain "--exit-duration-in-mins evaluates"
fi

# A run that is ended by its numbers tells of the steps since the last line, too.
if check "a run that its numbers end logs the steps since the last line"; then
    timeout 60 "$trireme" train "${corpus[@]}" "${no_evaluation[@]}" --train-iters 20 --lr "1e30" \
        --lr-decay-style constant --clip-grad 0 >ended.log 2>&1
    [[ $? == 76 ]] || complain "a loss that is not finite does not end the run: $(tail -2 ended.log)"
    last=$(sed -nE 's/.*error: .*iteration ([0-9]+): lm loss (nan|inf).*/\1/p' ended.log)
    { [[ -n $last && $last -gt 1 ]] && grep -qE "iteration +$last/" ended.log; } ||
        complain "iteration '$last' has no line: $(tail -3 ended.log)"
fi

# Steps that changed nothing are counted, and their losses are not the run's.
if check "skipped steps are counted"; then
    train skipping "${no_evaluation[@]}" --train-iters 6 --fp16 --initial-loss-scale "1e12" --hysteresis 1
    skipped=$(metric skipped skipping | grep -c 1)
    counted=$(paste <(metric skipped skipping) <(metric lm_loss skipping) | awk '
        !$1 { last = $2; if (!n++) first = $2 }
        END { printf n ? ": lm loss %.4f -> %.4f" : "", first, last }')
    told=", $skipped of them skipped (they changed nothing)$counted; "
    { [[ $skipped -gt 0 ]] && grep -qF "$told" skipping.log; } ||
        complain "$skipped steps were skipped, losses '$counted': $(tail -1 skipping.log)"
fi
if check "losses of skipped steps are not the run's"; then
    train counting "${no_evaluation[@]}" --train-iters 12 --fp16 --initial-loss-scale "16777216" --hysteresis 1
    counted=$(paste <(metric skipped counting) <(metric lm_loss counting) | awk '
        !$1 { last = $2; if (!n++) first = $2 }
        END { printf ": lm loss %.4f -> %.4f", first, last }')
    grep -qF "(they changed nothing)$counted; " counting.log ||
        complain "losses '$counted': $(tail -1 counting.log)"
fi

if check "--dry-run trains nothing"; then
    train dry "${no_evaluation[@]}" --train-iters 20 --dry-run --ranks 4 --tp 2
    grep -q "nothing was trained (--dry-run)" dry.log ||
        complain "--dry-run does not say that nothing was trained"
    grep -q "iteration  " dry.log && complain "--dry-run trains"
    [[ ! -s dry.jsonl ]] || complain "--dry-run writes metrics"
fi

# It judges the options first and makes no index of samples, which takes minutes for a long run.
if check "--dry-run makes no index of samples"; then
    train dry "${no_evaluation[@]}" --train-iters 20 --dry-run --data-cache-path cache
    [[ ! -e cache ]] || complain "--dry-run leaves $(ls cache)"
    "$trireme" train --model llama3-8b --mock-data --micro-batch-size 1 --global-batch-size 1024 --lr 1e-4 --bf16 \
        --train-iters 1000000 --dry-run >dry.log 2>&1 || complain "--dry-run of Llama-3 8B: $(tail -1 dry.log)"
    grep -q "vocabulary 128256" dry.log || complain "--dry-run of Llama-3 8B has another vocabulary"
fi

# ---- predicted and taken with the threads that a run has -------------------------------------------------
numbers='s/^memory of rank 0 \(MiB\)[^0-9]*|^   0 / /;s/[^0-9.]+/ /gp'
for options in "" "--threads 2" "--threads 2 --ranks 2 --pp 2"; do
    if check "memory predicts what a run takes, options: $options"; then
        # shellcheck disable=SC2086 # several words
        train taking "${no_evaluation[@]}" --train-iters 1 $options
        # shellcheck disable=SC2086
        "$trireme" memory "${corpus[@]}" $options >memory.log || complain "memory $options: exit $?"
        taken=$(grep '^memory of rank 0' taking.log | sed -nE "$numbers" | xargs)
        said=$(grep '^   0 ' memory.log | sed -nE "$numbers" | xargs)
        threads=$(sed -nE 's/.*device cpu[a-z0-9_ ]*, ([0-9]+ threads?) per rank.*/\1/p' taking.log)
        [[ -n $taken && $taken == "$said" ]] || complain "memory $options says '$said', a run takes '$taken'"
        grep -qF "with $threads," memory.log ||
            complain "memory $options is not for $threads: $(head -1 memory.log)"
    fi
done

# Of one layer the matrix of the MLP's first half is the second replica's, which takes more for it.
if check "memory shows the replica that takes most with Muon"; then
    muon=(--num-layers 1 --hidden-size 256 --swiglu --ffn-hidden-size 1024 --optimizer muon --ranks 2 --threads 1)
    train muon "${no_evaluation[@]}" --train-iters 1 "${muon[@]}"
    "$trireme" memory "${corpus[@]}" "${muon[@]}" >memory.log || complain "memory: exit $?"
    both=$(sed -nE 's/^peak resident memory .* predicted: ([0-9.]+) MiB.*/\1/p' muon.log)
    most=$(awk '/^   0 / { print $NF }' memory.log)
    awk -v both="$both" -v most="$most" 'BEGIN { exit !(most > both / 2 + 0.5) }' || complain "'$most' of the two ranks' '$both' MiB"
fi

# Opening a run takes less than its steps do, though the largest parameter's initial values lie beside it.
if check "opening a run takes less memory than its steps"; then
    train opening "${no_evaluation[@]}" --train-iters 1 --num-layers 12 --hidden-size 320 \
        --num-attention-heads 5 --make-vocab-size-divisible-by 50000 --global-batch-size 1 --bf16 --threads 1
    resident='s/^peak resident memory of all ranks: ([0-9]+).* predicted: ([0-9]+).*/\1 \2/p'
    resident=$(sed -nE "$resident" opening.log)
    awk '{ if (NF != 2 || $1 > $2 + 64) exit 1 }' <<<"$resident" ||
        complain "resident and predicted memory: $resident MiB"
fi

# ---- masked losses ---------------------------------------------------------------------------------------
run_masked() { train masked "${no_evaluation[@]}" --train-iters 5 --eod-mask-loss; }
if check "--eod-mask-loss changes the loss"; then
    need run_masked
    train unmasked "${no_evaluation[@]}" --train-iters 5
    [[ $(metric lm_loss masked) != "$(metric lm_loss unmasked)" ]] || complain "--eod-mask-loss changes nothing"
fi
for grid in "2 --tp 2" "2 --pp 2" "2" "4 --tp 2 --pp 2" "8 --tp 2 --pp 2" "4 --pp 2 --vp 2"; do
    if check "grids have the same masked loss: $grid"; then
        need run_masked
        # shellcheck disable=SC2086 # several words
        train "masked $grid" "${no_evaluation[@]}" --train-iters 5 --eod-mask-loss --ranks $grid
        expect_close masked "masked $grid"
    fi
done

# ---- documents -------------------------------------------------------------------------------------------
documents=(--reset-attention-mask --reset-position-ids --eod-mask-loss --calculate-per-token-loss)
run_documents() { train documents "${no_evaluation[@]}" --train-iters 5 "${documents[@]}"; }
for option in --reset-attention-mask --reset-position-ids --calculate-per-token-loss; do
    if check "$option changes the loss of documents"; then
        need run_documents
        train "without $option" "${no_evaluation[@]}" --train-iters 5 "${documents[@]/$option/--eod-mask-loss}"
        [[ $(metric lm_loss documents) != "$(metric lm_loss "without $option")" ]] || complain "$option changes nothing"
    fi
done
for grid in "2 --tp 2" "2 --tp 2 --sequence-parallel" "4 --pp 4" "2" "4 --tp 2 --pp 2" "4 --pp 2 --vp 2"; do
    if check "grids have the same loss of documents: $grid"; then
        need run_documents
        # shellcheck disable=SC2086 # several words
        train "documents $grid" "${no_evaluation[@]}" --train-iters 5 "${documents[@]}" --ranks $grid
        expect_close documents "documents $grid"
    fi
done

finish
