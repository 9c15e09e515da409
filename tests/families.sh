#!/usr/bin/env bash
# Every family of models against transformers: logits, gradients, steps, files, text.
# Usage: families.sh PATH/trireme PATH/print_logits PATH/family_steps FOLDER
#
# Python is that of $TRIREME_VENV, or of the virtual environment that ecosystem.sh has made in FOLDER. Families that its
# transformers does not have yet are left out; 5.23 has all. TABLE=FILE receives the table of docs/formats.md, and
# FAMILIES="Qwen3|Phi-3" checks some alone. Exit code 77: there is no such environment.
set -uo pipefail
here=$(cd "${BASH_SOURCE%/*}" && pwd)
programs=()
for program in "$1" "$2" "$3"; do programs+=("$(readlink -f "$program")"); done
venv=${TRIREME_VENV:-$4/venv}
table=${TABLE:+$(readlink -f "$TABLE")}
"$venv/bin/python" -c 'import torch, transformers, safetensors, gguf' 2>/dev/null || {
    echo "skipped: no virtual environment with torch, transformers, safetensors and gguf in $venv"
    exit 77
}
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
export PYTHONDONTWRITEBYTECODE=1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
"$venv/bin/python" "$here/ecosystem/families.py" "${programs[@]}" ${table:+"$table"}
