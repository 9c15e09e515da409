#!/usr/bin/env bash
# Tries every option that a checkout of Megatron-LM declares and that tests/golden/megatron_options.txt lacks,
# and prints what `trireme train` answers to each. Options of a later version are found so.
#   tools/megatron_options.sh PATH/trireme MEGATRON_LM_FOLDER
set -euo pipefail
trireme=$1 folder=$2
known=$(dirname "$0")/../tests/golden/megatron_options.txt

# The first words of add_argument(...) in the two files of the trainer and in the tool that makes data sets.
declared() {
    cat "$folder"/megatron/{training,post_training}/arguments.py "$folder"/tools/preprocess_data.py |
        tr '\n' ' ' | grep -oE "add_argument\( *(['\"]--[^'\"]+['\"],? *)+" | grep -oE -- "--[A-Za-z0-9_-]+" | sort -u
}

count=0
while read -r name; do
    if grep -qE -- " $name( |\$)" "$known"; then continue; fi
    count=$((count + 1))
    answer=$("$trireme" train "$name" 1 2>&1 </dev/null || true)
    printf '%s: %s\n' "$name" "$(grep -F -- "$name" <<<"$answer" | head -1)"
done < <(declared)
echo "$count options are not in ${known##*/}"
