# shellcheck shell=bash
# ./run demo: from text to a trained GPT, through the death of a rank, over several grids, to text again and to
# other people's formats; every number is taken from the runs' own files.

demo_folder=demo-run
demo_text_bytes=8000000
demo_vocabulary=4096
demo_minutes=1
steps_before_death=30
save_interval=10
patience_s=120 # without a new step
compared_steps=10

# The model and its training, the same on every grid: 4 layers of width 256, 4.2 million parameters.
demo_options=(
    --data-path "$demo_folder/text" --split "100,0,0" --eval-iters 0
    --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128
    --attention-dropout 0 --hidden-dropout 0
    --micro-batch-size 4 --global-batch-size 32 --train-iters 250
    --lr 2e-3 --min-lr 2e-4 --lr-decay-style cosine --lr-warmup-iters 10 --weight-decay 0.1 --adam-beta2 0.95
    --seed 1234
)
first_grid=(--tp 2 --pp 2)
main_grid=(--ranks 8 --tp 2 --pp 2 --vp 2 --schedule interleaved --sequence-parallel --use-distributed-optimizer)
saving=(--save "$demo_folder/checkpoints" --load "$demo_folder/checkpoints" --save-interval "$save_interval"
    --keep-last 3 --async-save)

# demo FOLDER [PATH]: a relative PATH starts at FOLDER.
demo() {
    [[ $# -le 2 ]] || die 64 "usage: ./run demo [PATH]"
    local path=${2:-}
    [[ -z $path || $path == /* ]] || path=$1/$path
    mkdir -p "$demo_folder"
    demo_dataset "$path"
    demo_write_script
    demo_until_death
    demo_go_on
    demo_compare
    demo_use
    demo_summary
}

# The files that ./run demo reads when it is given none, up to demo_text_bytes, in the same order everywhere.
c_headers() {
    find /usr/include -name '*.h' -type f -not -path '*/c++/*' -printf '%p\t%s\n' | sort |
        awk -F '\t' -v most="$demo_text_bytes" '(sum += $2) > most { exit } { print $1 }'
}

# fingerprint PATH...: changes with the name, the size or the date of any file that can be read.
fingerprint() { { find -L "$@" -type f -printf '%p %s %T@\n' 2>/dev/null || true; } | sort | cksum; }

# demo_dataset PATH, "" for the default: text.bin, text.idx and the tokenizer, made again only when the
# source has changed.
demo_dataset() {
    local source=${1:-"the C headers under /usr/include"} inputs=("$1") made_of
    [[ -z $1 || -e $1 ]] || die 66 "'$1' does not exist; give a text file or a folder of them"
    [[ -n $1 ]] || mapfile -t inputs < <(c_headers)
    made_of="$source $(fingerprint "${inputs[@]}")"
    if [[ -f $demo_folder/text.idx && $(cat "$demo_folder/text.source" 2>/dev/null) == "$made_of" ]]; then
        say "Text: the tokens of $source are in $demo_folder/ from an earlier run."
        return
    fi
    say "Text: training a tokenizer on $source, up to 8 MB, and turning the text into tokens."
    rm -f "$demo_folder"/text.*
    build/trireme preprocess --input "${inputs[@]}" --max-bytes "$demo_text_bytes" \
        --vocab-size "$demo_vocabulary" --append-eod --output-prefix "$demo_folder/text"
    printf '%s\n' "$made_of" >"$demo_folder/text.source"
}

# What is run is what the reader can run: the model's options in one place, the grid's as arguments.
demo_write_script() {
    cat >"$demo_folder/train.sh" <<END
#!/bin/sh
# Trains the model of ./run demo; the grid is given as arguments, such as: ${main_grid[*]}
cd "\$(dirname "\$0")/.." && exec build/trireme train ${demo_options[*]} "\$@"
END
    chmod +x "$demo_folder/train.sh"
}

# demo_run NAME OPTION...: trains, leaving the metrics in demo-run/NAME.jsonl.
demo_run() {
    local metrics=$demo_folder/$1.jsonl
    rm -f "$metrics"
    "$demo_folder/train.sh" --metrics "$metrics" "${@:2}"
}

newest_checkpoint() { find "$demo_folder/checkpoints" -maxdepth 1 -name 'step-*' 2>/dev/null | sort | tail -n 1; }

steps_made() { wc -l 2>/dev/null <"$demo_folder/metrics.jsonl" || echo 0; }

# wait_for_checkpoint LAUNCHER STEP LOG: until one of STEP or later is there, however slow the machine is.
wait_for_checkpoint() {
    local name steps seen=-1 changed=$SECONDS
    name=$(printf '%s/checkpoints/step-%08d' "$demo_folder" "$2")
    until [[ ! $(newest_checkpoint) < $name ]]; do
        kill -0 "$1" 2>/dev/null || die 70 "training ended by itself:" "$(tail -n 5 "$3")"
        steps=$(steps_made)
        ((steps == seen)) || { seen=$steps changed=$SECONDS; }
        ((SECONDS - changed < patience_s)) ||
            die 70 "training has made no step for $patience_s seconds, after $steps steps; see $3"
        sleep 0.2
    done
}

# Four processes train until one of them is killed, as machines are: without a warning. However the demo ends,
# none of them stays.
demo_until_death() {
    local log=$demo_folder/killed.log victim launcher
    rm -rf "$demo_folder/checkpoints" "$demo_folder/metrics.jsonl"
    say "" "Training on 4 ranks, MPI processes: tensor 2 x pipeline 2. Every $save_interval steps a checkpoint is written" \
        "while training goes on. After step $steps_before_death one rank is killed with kill -9."
    mpirun -n 4 "$demo_folder/train.sh" "${first_grid[@]}" "${saving[@]}" --plain \
        --metrics "$demo_folder/metrics.jsonl" >"$log" 2>&1 &
    launcher=$!
    # shellcheck disable=SC2064 # this job's number, now
    trap "kill $launcher 2>/dev/null; wait $launcher" EXIT
    wait_for_checkpoint "$launcher" "$steps_before_death" "$log"
    victim=$(pid_of_rank "$launcher" 1)
    [[ -n $victim ]] || die 70 "rank 1 of the job was not found; see $log"
    kill -9 "$victim"
    wait "$launcher" || true
    trap - EXIT
    grep -E 'iteration +(1|[0-9]*0)/|saved' "$log" | cut -c 1-100 | tail -n 6
    steps_on_4_ranks=$(steps_made)
    say "Killed process $victim (rank 1). The job has ended; the newest whole checkpoint is $(newest_checkpoint)."
}

# The options of the numbers that this CPU multiplies fastest.
fastest_numbers() {
    if grep -qsw avx512_bf16 /proc/cpuinfo; then echo --bf16; fi
}

demo_go_on() {
    local numbers
    numbers=$(fastest_numbers)
    say "" "Going on from there for about $demo_minutes minute on another grid: 8 ranks, threads of one process," \
        "tensor 2 x pipeline 2 (2 chunks each, interleaved) x data 2, with sequence parallelism and the distributed" \
        "optimizer${numbers:+, and in bf16, which this CPU multiplies}."
    "$demo_folder/train.sh" "${main_grid[@]}" ${numbers:+"$numbers"} "${saving[@]}" --metrics "$demo_folder/metrics.jsonl" \
        --exit-duration-in-mins "$demo_minutes" | tee "$demo_folder/log.txt" ||
        die $? "training did not come to its end; the reason is above"
    grep -q 'successfully loaded' "$demo_folder/log.txt" || die 70 "the checkpoint was not loaded"
}

demo_compare() {
    say "" "The same training on two other grids, $compared_steps steps each: the losses must be the same."
    local until=(--plain --exit-interval "$compared_steps")
    stage "1 rank" demo_run serial --ranks 1 "${until[@]}"
    stage "8 ranks: pipeline 4 x data 2" demo_run pipeline --ranks 8 --tp 1 --pp 4 "${until[@]}"
    demo_print_losses
}

# metric KEY FILE: the values of a numeric key, one per line, in the order of the lines that have it.
metric() { sed -n "s/.*\"$1\": *\\(-\\{0,1\\}[0-9][0-9.eE+-]*\\).*/\\1/p" "$2"; }

demo_print_losses() {
    local name columns=()
    for name in metrics serial pipeline; do
        metric lm_loss "$demo_folder/$name.jsonl" | head -n "$compared_steps" >"$demo_folder/$name.losses"
        columns+=("$demo_folder/$name.losses")
    done
    # shellcheck disable=SC2016 # the program is awk's
    paste "${columns[@]}" | awk -v steps="$compared_steps" '
        function abs(x) { return x < 0 ? -x : x }
        function max(x, y) { return x > y ? x : y }
        BEGIN { printf "\n  step        t2 p2       1 rank        p4 d2   relative difference\n" }
        NF == 3 {
            difference = max(abs($1 - $2), abs($1 - $3)) / abs($2)
            worst = max(worst, difference)
            printf "  %4d %12.7f %12.7f %12.7f   %.1e\n", NR, $1, $2, $3, difference
            compared++
        }
        END {
            if (compared < 1 || compared < NR) { print "  steps are missing: the runs ended early"; exit 1 }
            printf "\n  The grids agree to %.1e; the promise is 1e-5.\n", worst
            exit (worst > 1e-5)
        }' || die 76 "the grids do not agree: that is a bug of trireme" \
        "The losses are in $demo_folder/*.jsonl."
    rm -f "${columns[@]}"
}

# The same text from our checkpoint and from the exported model, and one drawn at random. The export keeps every bit: of a
# model that has learned little, several tokens are nearly as likely, and weights rounded to bf16 may choose another one.
demo_use() {
    local prompt="#define " model=$demo_folder/checkpoints hf=$demo_folder/hugging-face ours theirs
    say "" "Generating text from the newest checkpoint, and exporting the model."
    rm -rf "$hf" "$demo_folder/model.gguf"
    stage "Hugging Face folder" build/trireme export --load "$model" --to hf --dtype f32 --output "$hf"
    stage "GGUF file for llama.cpp" build/trireme export --load "$model" --to gguf --dtype f16 \
        --output "$demo_folder/model.gguf"
    ours=$(demo_generate "$model" "$prompt" --temperature 0 --max-new-tokens 40)
    theirs=$(demo_generate "$hf" "$prompt" --temperature 0 --max-new-tokens 40 --ranks 2 --tp 2)
    [[ $ours == "$theirs" ]] || die 76 "the exported model does not say what the checkpoint says"
    say "The most likely text after '$prompt' is the same from the checkpoint and from the exported model." "" \
        "Drawn with --temperature 0.8 --top-p 0.9 --seed 1:"
    demo_generate "$model" "$prompt" --temperature 0.8 --top-p 0.9 --seed 1 --max-new-tokens 100 | sed 's/^/  | /'
}

demo_generate() { build/trireme generate --load "$1" --prompt "$2" "${@:3}" 2>"$demo_folder/generate.log"; }

demo_summary() {
    local mpi_options
    mpi_options=$(mpirun_options)
    say "" "What happened"
    paste <(metric lm_loss "$demo_folder/metrics.jsonl") <(metric tokens_per_s "$demo_folder/metrics.jsonl") |
        awk -v before="$steps_on_4_ranks" '
        NR == 1 { first = $1 }
        { loss[NR] = $1; time[NR > before] += 1 / $2 } # of a token: all steps have as many
        END {
            n = NR < 10 ? NR : 10
            for (i = NR - n + 1; i <= NR; i++) mean += loss[i] / n
            printf "  loss: %.4f at the first of %d steps, %.4f over the last %d\n", first, NR, mean, n
            printf "  speed: %.0f tokens/s on 4 ranks", before / time[0]
            if (time[1]) printf ", %.0f on 8", (NR - before) / time[1]
            printf "\n"
        }'
    sed -n -E '/^(pipeline bubble|waiting for other stages): /s/^/  /p' "$demo_folder/log.txt"
    cat <<END

Where things are, in $demo_folder/
  text.bin, text.idx                 the tokens, in Megatron-LM's format
  text.tokenizer.json                the tokenizer, as Hugging Face's tokenizers reads it
  metrics.jsonl                      every step of the run, one JSON object per line
  log.txt                            what the run printed
  train.sh                           the command that was run; it takes other options behind its own
  checkpoints/                       the last three checkpoints; build/trireme checkpoint list shows them
  hugging-face/, model.gguf          the model for transformers and for llama.cpp

What to try next
  build/trireme schedule --pp 4 --vp 2 --microbatches 8    a pipeline schedule, drawn
  mpirun ${mpi_options:+$mpi_options }-n 4 $demo_folder/train.sh --pp 4       the same training as four MPI processes
  ./run demo ~/some/folder                                 your own text
END
}
