#!/usr/bin/env bash
# LoRA adapters against PEFT, in both directions.
# Usage: peft.sh PATH/trireme PATH/print_logits FOLDER
#
# Python lives in a virtual environment in FOLDER, or in $TRIREME_VENV (ecosystem/venv.sh). FAMILIES="Qwen2|Phi-3" checks
# some alone. Exit code 77: what is needed cannot be had here.
set -uo pipefail
here=$(cd "${BASH_SOURCE%/*}" && pwd)
programs=()
for program in "$1" "$2"; do programs+=("$(readlink -f "$program")"); done
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
export PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore
# shellcheck source=tests/ecosystem/venv.sh
source "$here/ecosystem/venv.sh"
new_venv "$3" peft transformers==5.24.0 peft==0.21.2 safetensors
"$venv/bin/python" -c 'import torch, peft, safetensors, transformers; assert transformers.__version__ >= "5."' 2>/dev/null ||
    skip "$venv has no torch, peft, safetensors and transformers of version 5 or later"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
"$venv/bin/python" "$here/ecosystem/peft_adapters.py" "${programs[@]}"
