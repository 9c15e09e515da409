# shellcheck shell=bash
# ./run demo: from text to a trained GPT on three different grids, with every number taken from
# the runs' own files.

demo_folder=demo-run
demo_text_bytes=8000000
demo_vocabulary=4096
demo_minutes=1.5
compared_steps=10

# The model and its training, the same on every grid: 4 layers of width 256, 4.2 million parameters.
demo_options=(
    --data-path "$demo_folder/text" --split "100,0,0" --eval-iters 0
    --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128
    --attention-dropout 0 --hidden-dropout 0
    --micro-batch-size 2 --global-batch-size 16 --train-iters 250
    --lr 2e-3 --min-lr 2e-4 --lr-decay-style cosine --lr-warmup-iters 10 --weight-decay 0.1 --adam-beta2 0.95
    --seed 1234
)
main_grid=(--ranks 8 --tp 2 --pp 2 --vp 2 --schedule interleaved)

# demo FOLDER [PATH]: a relative PATH starts at FOLDER.
demo() {
    [[ $# -le 2 ]] || die 64 "usage: ./run demo [PATH]"
    local path=${2:-}
    [[ -z $path || $path == /* ]] || path=$1/$path
    mkdir -p "$demo_folder"
    demo_dataset "$path"
    demo_write_script
    demo_train
    demo_compare
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

demo_train() {
    say "" "Training for about $demo_minutes minutes on 8 ranks, threads of one process:" \
        "tensor 2 x pipeline 2 (2 chunks each, interleaved) x data 2."
    demo_run metrics "${main_grid[@]}" --exit-duration-in-mins "$demo_minutes" | tee "$demo_folder/log.txt" ||
        die $? "training did not come to its end; the reason is above"
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
        BEGIN { printf "\n  step   t2 p2 v2 d2       1 rank        p4 d2   relative difference\n" }
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

demo_summary() {
    local mpi_options=--oversubscribe
    ((EUID)) || mpi_options+=" --allow-run-as-root"
    say "" "What happened"
    paste <(metric lm_loss "$demo_folder/metrics.jsonl") <(metric tokens_per_s "$demo_folder/metrics.jsonl") |
        awk '
        NR == 1 { first = $1 }
        { loss[NR] = $1; seconds_per_token += 1 / $2 }
        END {
            n = NR < 10 ? NR : 10
            for (i = NR - n + 1; i <= NR; i++) mean += loss[i] / n
            printf "  loss: %.4f at the first of %d steps, %.4f over the last %d\n", first, NR, mean, n
            printf "  speed: %.0f tokens/s\n", NR / seconds_per_token
        }'
    sed -n -E '/^(pipeline bubble|waiting for other stages): /s/^/  /p' "$demo_folder/log.txt"
    cat <<END

Where things are, in $demo_folder/
  text.bin, text.idx                 the tokens, in Megatron-LM's format
  text.vocab.json, text.merges.txt   the tokenizer, in GPT-2's format
  metrics.jsonl                      every step of the run, one JSON object per line
  log.txt                            what the run printed
  train.sh                           the command that was run; it takes other options behind its own

What to try next
  build/trireme schedule --pp 4 --vp 2 --microbatches 8    a pipeline schedule, drawn
  mpirun $mpi_options -n 4 $demo_folder/train.sh --pp 4       the same training as four MPI processes
  ./run demo ~/some/folder                                 your own text
END
}
