#!/usr/bin/env bash
# A trained model at work, as people use it: the same text with and without a cache, on every grid and
# launcher; perplexities that are the trainer's; log-likelihoods; what is refused.
# Usage: generate_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"

# run VERB NAME OPTION...: leaves NAME.out and NAME.err; with $launcher in front.
run() {
    local verb=$1 name=$2
    shift 2
    timeout -k 5 180 "${launcher[@]}" "$trireme" "$verb" "$@" >"$name.out" 2>"$name.err" ||
        complain "$name: exit $?: $(tail -3 "$name.err")"
}

# expect_out NAME OTHER: the same output, and some.
expect_out() {
    [[ -s $1.out ]] || complain "$1 gives nothing: $(cat "$1.err")"
    cmp -s "$1.out" "$2.out" || complain "$1 and $2 differ: '$(cat "$1.out")' and '$(cat "$2.out")'"
}

# refused CODE WORDS VERB OPTION...: ends with the code and says the words.
refused() {
    local code=$1 words=$2 status
    shift 2
    timeout -k 5 180 "$trireme" "$@" >refused.out 2>refused.err </dev/null
    status=$?
    [[ $status == "$code" ]] || complain "$*: exit $status, not $code: $(cat refused.err)"
    grep -q -e "$words" refused.err || complain "$*: '$words' is not in $(cat refused.err)"
    [[ -s refused.out ]] && complain "$*: printed $(cat refused.out)"
}

grids=("1 1" "2 1" "1 2" "4 1" "2 2" "1 4")

# ---- text ------------------------------------------------------------------------------------------------
train_start() { train start "${no_evaluation[@]}" --train-iters 30 --save saved; }
need train_start # almost every case
from=(--load saved --prompt "document 7: int f_" --max-new-tokens 12 --threads 1)
drawn=(--temperature 0.9 --top-k 40 --top-p 0.95 --seed 11 --num-samples 3)
generate_both() {
    run generate greedy "${from[@]}" --temperature 0
    run generate drawn "${from[@]}" "${drawn[@]}"
}
if check "samples are counted"; then
    need generate_both
    [[ $(grep -c '^--- sample [123] of 3 ---$' drawn.out) == 3 ]] || complain "no three samples: $(cat drawn.out)"
fi
for grid in "${grids[@]}"; do
    read -r t p <<<"$grid"
    if check "the text of tp $t, pp $p is the text of one rank, with and without a cache"; then
        need generate_both
        shape=(--tp "$t" --pp "$p" --ranks $((t * p)))
        run generate "greedy$t$p" "${from[@]}" --temperature 0 "${shape[@]}"
        run generate "uncached$t$p" "${from[@]}" --temperature 0 --no-kv-cache "${shape[@]}"
        run generate "drawn$t$p" "${from[@]}" "${drawn[@]}" "${shape[@]}"
        expect_out "greedy$t$p" greedy
        expect_out "uncached$t$p" greedy
        expect_out "drawn$t$p" drawn
    fi
done
if check "the text of two processes is the text of one rank"; then
    need generate_both
    launcher=(mpirun -n 2)
    run generate mpi "${from[@]}" --temperature 0 --tp 2
    expect_out mpi greedy
    launcher=()
fi
# Under a launcher only one process has a standard input.
if check "one process reads the prompt for all"; then
    need generate_both
    launcher=(mpirun -n 2)
    printf 'document 7: int f_' | run generate piped_mpi "${from[@]}" --prompt - --temperature 0 --pp 2
    expect_out piped_mpi greedy
    launcher=()
fi
if check "a prompt may come through a pipe"; then
    need generate_both
    printf 'document 7: int f_' | run generate piped "${from[@]}" --prompt - --temperature 0 --ranks 2 --tp 2
    expect_out piped greedy
fi
for precision in bf16 fp16; do
    if check "text can be generated in $precision"; then
        run generate "$precision" "${from[@]}" --temperature 0 --$precision
        [[ -s $precision.out ]] || complain "no text in $precision"
    fi
done
if check "another seed draws another text"; then
    need generate_both
    run generate other_seed "${from[@]}" "${drawn[@]}" --seed 12
    cmp -s other_seed.out drawn.out && complain "another seed draws the same text"
fi

if check "an empty prompt gives a text"; then
    run generate empty --load saved --max-new-tokens 4 --temperature 0
    [[ -s empty.out ]] || complain "an empty prompt gives nothing"
fi
if check "a prompt may have lines"; then
    run generate lines "${from[@]}" --prompt $'two\nlines' --temperature 0
fi
if check "prompts of a file are continued one after the other"; then
    need generate_both
    printf '\n{"prompt": "%s", "max_new_tokens": 12}\n \n{"prompt": "%s", "max_new_tokens": 12, "adapter": null}\n' "${from[3]}" "${from[3]}" >prompts.jsonl
    run generate prompts --load saved --prompts prompts.jsonl --threads 1 --temperature 0
    [[ $(cat prompts.out) == "$(sed 's/.*/{"adapter": null, "text": "&"}/; p' greedy.out)" ]] || complain "$(cat prompts.out greedy.out)"
    run generate piped --load saved --prompts - --threads 1 --temperature 0 <prompts.jsonl
    expect_out piped prompts
    # bad WORDS LINE...: a file of these lines is refused.
    bad() { printf '%s\n' "${@:2}" >bad_prompts.jsonl && refused 65 "$1" generate --load saved --prompts bad_prompts.jsonl; }
    bad 'bad_prompts.jsonl:3: "prompt" is missing' '{"prompt": "x"}' "" '{"text": "x"}'
    bad 'bad_prompts.jsonl:1: "n" is no member' '{"prompt": "x", "n": 1}'
    bad 'bad_prompts.jsonl:1: "max_new_tokens" is no whole number' '{"prompt": "x", "max_new_tokens": 0}'
    bad 'bad_prompts.jsonl:1: no adapter is named "al"' '{"prompt": "x", "adapter": "al"}'
    bad "bad_prompts.jsonl:1: a list over many lines" "[" '{"prompt": "x"}' "]"
    bad "bad_prompts.jsonl: it contains no prompt" ""
fi
if check "--stop ends a text before its words"; then
    need generate_both
    text=$(cat greedy.out)
    stop=${text:5:2}
    run generate stopped "${from[@]}" --temperature 0 --stop "never this" "$stop"
    [[ $(cat stopped.out) == "${text%%"$stop"*}" ]] || complain "--stop '$stop' gives '$(cat stopped.out)'"
fi
if check "a text ends with the positions of the model"; then
    run generate long --load saved --prompt "document 7" --max-new-tokens 100 --temperature 0
    grep -qE "end of the model's positions|the end token" long.err || complain "no end: $(cat long.err)"
fi

# A model without a tokenizer.
corpus_of_documents=("${corpus[@]}")
train_wordless() {
    local corpus=("${corpus_of_documents[@]}")
    for file in bin idx; do cp "documents.$file" "bare.$file"; done
    train wordless "${no_evaluation[@]}" --data-path bare --vocab-size 400 --train-iters 30 --save wordless
}
if check "a model without a tokenizer takes one"; then
    need generate_both
    need train_wordless
    run generate named "${from[@]}" --load wordless --tokenizer-model documents --temperature 0
    expect_out named greedy
fi

# ---- a model without a limit of length, and the trainer's validation loss --------------------------------
# Two documents, of which the second, three windows of 32 and a token, is all that is validated.
awk 'BEGIN {
    for (d = 0; d < 2; d++) {
        printf "{\"text\": \""
        for (i = 0; i < (d ? 97 : 2000); i++) printf "%d ", x = (3 * x + 1 + i % 5 % 2) % 50
        print "\"}"
    }
}' >numbers.jsonl
"$trireme" preprocess --input numbers.jsonl --output-prefix numbers --tokenizer-type NullTokenizer \
    --vocab-size 50 >log 2>&1 || complain "$(cat log)"
corpus=(--data-path numbers --tokenizer-type NullTokenizer --vocab-size 50 --num-layers 4 --hidden-size 32
    --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 --global-batch-size 3 --lr "1e-2")
train_numbers() {
    train numbers --position-embedding-type rope --train-iters 10 --split "1,1,0" --eval-iters 1 --save numbered
    loss=$(metric validation_loss numbers)
}
for options in "" "--tp 2 --ranks 2 --mbs 2" "--pp 4 --ranks 4 --mbs 3" "--device reference --mbs 4"; do
    if check "evaluate gives the trainer's validation loss, options: $options"; then
        need train_numbers
        # shellcheck disable=SC2086 # several words
        run evaluate perplexity --load numbered --data-path numbers --split "1,1,0" $options
        grep -q ' 96 tokens in windows of 32$' perplexity.out || complain "$(cat perplexity.out)"
        awk -v loss="$loss" '/^nats/ { d = $2 - loss } END { exit !(NR && d < 2e-5 && d > -2e-5) }' \
            perplexity.out || complain "validation loss $loss, but $options $(cat perplexity.out)"
    fi
done
# The average of weights that never change is the weights.
if check "--use-ema takes the average of the weights"; then
    for rate in 1e-3 0; do
        train averaged-$rate --train-iters 10 --split "1,1,0" --eval-iters 1 --lr $rate \
            --ema-decay 0.8 --save averaged-$rate
        run evaluate weights-$rate --load averaged-$rate --data-path numbers --split "1,1,0"
        run evaluate ema-$rate --load averaged-$rate --data-path numbers --split "1,1,0" --use-ema --tp 2 --ranks 2
        run export "out-$rate" --load averaged-$rate --to hf --output "hf-$rate" --use-ema
    done
    cmp -s weights-1e-3.out ema-1e-3.out && complain "the average is the weights: $(cat ema-1e-3.out)"
    awk 'NR == FNR { if (/^nats/) w = $2 } NR != FNR && /^nats/ { d = $2 - w } END { exit !(d < 2e-5 && d > -2e-5) }' \
        weights-0.out ema-0.out || complain "weights $(cat weights-0.out), average $(cat ema-0.out)"
fi
if check "evaluate takes shorter windows"; then
    need train_numbers
    run evaluate shorter --load numbered --data-path numbers --split "0,1,0" --seq-length 7
    grep -q ' 2096 tokens in windows of 7$' shorter.out || complain "$(cat shorter.out)"
fi

# A signal ends with what there is, on all ranks: it comes once there is something.
if check "a signal ends with the text that there is, on all ranks"; then
    need train_numbers
    timeout --foreground -k 20 60 "$trireme" generate --load numbered --prompt "1 4" --tokenizer-model numbers \
        --temperature 0 --max-new-tokens 200000 --ranks 2 --tp 2 --threads 1 >cut.out 2>cut.err </dev/null &
    pid=$!
    until [[ -s cut.out ]] || ! kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
    kill -INT "$pid"
    wait "$pid"
    status=$?
    [[ $status == 130 && -s cut.out ]] || complain "a signal: exit $status, $(wc -c <cut.out) bytes"
    grep -q 'stopped by a signal after' cut.err || complain "a signal: $(cat cut.err)"
fi

# ---- log-likelihoods -------------------------------------------------------------------------------------
for i in $(seq 9); do
    printf '{"context": "document %d: int ", "continuation": "f_%d(int a) { return"}\n' "$i" "$i"
    printf '{"context": "%*s", "continuations": [" then others", "words"], "label": 0}\n' $((i * 9)) "document"
done >requests.jsonl
score_alone() { run evaluate alone --load saved --requests requests.jsonl --mbs 1 --output alone.jsonl; }
if check "log-likelihoods are answers to requests"; then
    need score_alone
    [[ $(wc -l <alone.jsonl) == 18 ]] || complain "$(wc -l <alone.jsonl) answers"
    grep -q '^acc [01].* of 9 with a label$' alone.out || complain "no summary: $(cat alone.out)"
fi
# Numbers to 1e-4, everything else as it is.
close_answers() { # NAME OTHER
    paste -d '\n' <(tr -s ' ,{}[]' '\n' <"$1") <(tr -s ' ,{}[]' '\n' <"$2") | awk '
        NR % 2 { one = $0; next }
        one != $0 { d = one - $0; if (d > 1e-4 || d < -1e-4 || one !~ /[.]/) bad = 1 }
        END { exit bad || !NR }' || complain "answers $1 and $2 differ: $(diff "$1" "$2")"
}
for grid in "${grids[@]}"; do
    read -r t p <<<"$grid"
    if check "log-likelihoods on tp $t, pp $p are those of one rank"; then
        need score_alone
        run evaluate "asked$t$p" --load saved --requests - --mbs $((t + 3 * p)) --tp "$t" --pp "$p" \
            --ranks $((t * p)) --threads 1 <requests.jsonl
        close_answers "asked$t$p.out" alone.jsonl
    fi
done
if check "log-likelihoods of processes are those of one rank"; then
    need score_alone
    launcher=(mpirun -n 2)
    run evaluate asked_mpi --load saved --requests requests.jsonl --tp 2
    close_answers asked_mpi.out alone.jsonl
    launcher=()
fi

# ---- tasks -----------------------------------------------------------------------------------------------
mkdir tasks
for i in $(seq 9); do
    printf '{"context": "document %d: int ", "choices": ["f_%d(int a) {", "return"], "gold": %d}\n' "$i" "$i" $((i % 2))
done >tasks/choice.jsonl
for i in $(seq 9); do printf '{"text": "document %d: int f_%d(int a) { return a + %d; }"}\n' "$i" "$i" "$i"; done >tasks/text.jsonl
for i in $(seq 9); do
    printf '{"prompt": "document %*d", "until": ["("], "target": ": int f_", "max_new_tokens": 9}\n' $((i % 4)) "$i"
done >answers.jsonl
all_tasks=(--task tasks/ --task answers.jsonl)
task_alone() { run evaluate task_alone --load saved "${all_tasks[@]}" --mbs 1 --output task_alone.jsonl --threads 1; }
if check "tasks of a folder and a file make one table"; then
    need task_alone
    [[ $(awk 'NR > 1 { print NF, $NF }' task_alone.out | sort -u | tr '\n' ';') == "4 9;5 9;" ]] ||
        complain "table: $(cat task_alone.out)"
    [[ $(wc -l <task_alone.jsonl) == 27 ]] || complain "$(wc -l <task_alone.jsonl) answers"
    run evaluate task_json --load saved "${all_tasks[@]}" --json --limit 2
    grep -q '"task": "text", "metric": "bits_per_byte", .*"n": 2}' task_json.out || complain "$(cat task_json.out)"
fi
for grid in "${grids[@]}"; do
    read -r t p <<<"$grid"
    if check "tasks on tp $t, pp $p have the results of one rank"; then
        need task_alone
        run evaluate "task$t$p" --load saved "${all_tasks[@]}" --mbs $((t + 2 * p)) --tp "$t" --pp "$p" \
            --ranks $((t * p)) --threads 1 --output "task$t$p.jsonl"
        close_answers "task$t$p.jsonl" task_alone.jsonl
    fi
done
if check "tasks of processes have the results of one rank"; then
    need task_alone
    launcher=(mpirun -n 2)
    run evaluate task_mpi --load saved "${all_tasks[@]}" --pp 2 --output task_mpi.jsonl
    close_answers task_mpi.jsonl task_alone.jsonl
    launcher=()
fi

# ---- what is refused -------------------------------------------------------------------------------------
refuse() { check "refused with: $2" refused "$@"; }
refuse 64 "--load is needed" generate --prompt x
refuse 64 "belongs to no option" generate --load saved word
refuse 66 nowhere generate --load nowhere --prompt x
refuse 78 "use --ranks 2" generate --load saved --prompt x --tp 2
refuse 78 "4 attention heads are not divisible" generate --load saved --prompt x --tp 3 --ranks 3
refuse 78 "the model has 4 layers" generate --load saved --prompt x --pp 5 --ranks 5
refuse 78 "--bf16 and --fp16" generate --load saved --prompt x --bf16 --fp16
refuse 78 "keeps no moving average" generate --load saved --prompt x --use-ema
refuse 78 "--stop is empty" generate --load saved --prompt x --stop a ""
refuse 78 "the model has 32 positions" generate --load saved --prompt "$(seq -s " " 200)"
if check "refused with: do not belong together"; then
    need train_numbers
    refused 78 "do not belong together" generate --load numbered --tokenizer-model documents --prompt x
fi
if check "refused with: no tokenizer lies beside"; then
    need train_wordless
    refused 78 "no tokenizer lies beside" generate --load wordless --prompt x
fi
refuse 64 "--data-path PREFIX" evaluate --load saved
refuse 64 "two evaluations" evaluate --load saved --data-path documents --requests requests.jsonl
refuse 64 "--output" evaluate --load saved --data-path documents --output x
if check "refused with: alone.jsonl"; then
    need score_alone
    refused 73 "alone.jsonl" evaluate --load saved --requests requests.jsonl --output alone.jsonl
fi
refuse 78 "--seq-length 33" evaluate --load saved --data-path documents --seq-length 33
refuse 78 "no validation share" evaluate --load saved --data-path documents --split "1,0,0"
if check "refused with: vocabulary"; then
    need train_numbers
    refused 65 "vocabulary" evaluate --load numbered --data-path documents --split "0,1,0"
fi
refuse 66 "missing" evaluate --load saved --requests missing.jsonl
refuse 64 "give --task FILE, too" evaluate --load saved --data-path documents --limit 3
refuse 64 "two evaluations" evaluate --load saved --data-path documents --task requests.jsonl
mkdir -p empty_folder
refuse 66 "no file that ends in .jsonl" evaluate --load saved --task empty_folder
echo '{"context": "a", "choices": ["b", "c"]}' >bad_task.jsonl
refuse 65 'bad_task.jsonl:1: "gold" is missing' evaluate --load saved --task bad_task.jsonl
refuse 64 "did you mean strip" evaluate --load saved --task bad_task.jsonl --filter stripe
echo '{"context": "a"}' >bad.jsonl
refuse 65 "bad.jsonl:1: needs either" evaluate --load saved --requests bad.jsonl --output never.jsonl
[[ -e never.jsonl ]] && complain "an empty file of answers was left"

finish
