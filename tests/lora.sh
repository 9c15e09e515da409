#!/usr/bin/env bash
# Adapters (LoRA) against PyTorch and PEFT: losses and factors of ten steps. Usage: lora.sh PATH/trireme FOLDER
#
# Python is that of $TRIREME_VENV, with torch, transformers of version 5 or later, peft and safetensors, or that of a virtual
# environment in FOLDER as tests/families.sh makes it. Exit code 77: what is needed cannot be had here.
set -uo pipefail
here=$(cd "${BASH_SOURCE%/*}" && pwd)
program=$(readlink -f "$1")
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
export PYTHONDONTWRITEBYTECODE=1 PYTHONWARNINGS=ignore HF_HUB_DISABLE_PROGRESS_BARS=1

venv=${TRIREME_VENV:-$2/families}
"$venv/bin/python" -c 'import torch, peft, safetensors, transformers; assert transformers.__version__ >= "5."' 2>/dev/null || {
    echo "skipped: $venv has no torch, peft, safetensors and transformers of version 5 or later (TRIREME_VENV names another folder)"
    exit 77
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
"$venv/bin/python" "$here/ecosystem/lora.py" "$program"
