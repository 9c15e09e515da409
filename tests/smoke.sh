#!/usr/bin/env bash
# An installed program trains a step on its own manual page, and generates.
# Usage: smoke.sh PROGRAM [LAUNCHER...]    The launcher, such as mpirun -n 2, starts the training.
set -euo pipefail
program=$1
launcher=("${@:2}")
[[ $program != */* ]] || program=$(realpath "$program")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
"$program" --version
"$program" help --man train >text.txt
"$program" preprocess --input text.txt --output-prefix text --vocab-size 300
"${launcher[@]}" "$program" train --data-path text --layers 1 --hidden 16 --heads 2 --seq 16 --mbs 1 --steps 2 --lr 1e-3 \
    --eval-iters 0 --save saved
"$program" generate --load saved --prompt the --max-new-tokens 2
