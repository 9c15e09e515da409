#!/usr/bin/env bash
# Weights in MXFP4 against the libraries of others: transformers' for Hugging Face folders, the package gguf for GGUF files.
# Usage: mxfp4.sh PATH/trireme FOLDER
#
# Python lives in FOLDER, or in $TRIREME_VENV, as for families.sh. Exit code 77: what is needed cannot be had here.
set -uo pipefail
here=$(cd "${BASH_SOURCE%/*}" && pwd)
trireme=$(readlink -f "$1")
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
export PYTHONDONTWRITEBYTECODE=1

# shellcheck source=tests/ecosystem/venv.sh
source "$here/ecosystem/venv.sh"
new_venv "$2" families transformers==5.23.0 safetensors gguf
"$venv/bin/python" -c 'import torch, gguf, safetensors, transformers.integrations.mxfp4
gguf.GGMLQuantizationType.MXFP4' 2>/dev/null || skip "$venv has no torch, safetensors, and gguf and transformers that know MXFP4"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
"$venv/bin/python" "$here/ecosystem/mxfp4.py" "$trireme"
