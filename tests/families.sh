#!/usr/bin/env bash
# Every family of models against transformers: logits, gradients, steps, files, text.
# Usage: families.sh PATH/trireme PATH/print_logits PATH/family_steps FOLDER
#
# Python lives in a virtual environment in FOLDER, on top of a python3-torch of version 2.4 or later (Debian 13 has one), or
# in $TRIREME_VENV, which is used as it is. Older versions of transformers compute some families otherwise. TABLE=FILE
# receives the table of docs/formats.md, and FAMILIES="Qwen3|Phi-3" checks some alone. Exit code 77: what is needed cannot
# be had here.
set -uo pipefail
here=$(cd "${BASH_SOURCE%/*}" && pwd)
programs=()
for program in "$1" "$2" "$3"; do programs+=("$(readlink -f "$program")"); done
table=${TABLE:+$(readlink -f "$TABLE")}
packages=(transformers==5.23.0 safetensors gguf)
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
export PYTHONDONTWRITEBYTECODE=1

# shellcheck source=tests/ecosystem/venv.sh
source "$here/ecosystem/venv.sh"
new_venv "$4" families "${packages[@]}"
"$venv/bin/python" -c 'import torch, gguf, safetensors, transformers; assert transformers.__version__ >= "5."' 2>/dev/null ||
    skip "$venv has no torch, gguf, safetensors and transformers of version 5 or later"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
"$venv/bin/python" "$here/ecosystem/families.py" "${programs[@]}" ${table:+"$table"}
