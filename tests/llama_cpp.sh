#!/usr/bin/env bash
# llama.cpp on the GGUF files that trireme exports: the tokenizers' own tokens, and trireme's text.
# Usage: llama_cpp.sh PATH/trireme
#
# Python with llama-cpp-python, tokenizers and sentencepiece, which are in the Python package index, is that of the virtual
# environment $TRIREME_VENV, else python3. Exit code 77: they are not there.
set -uo pipefail
trireme=$(readlink -f "$1")
here=$(cd "${BASH_SOURCE%/*}" && pwd)
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=1
python=${TRIREME_VENV:+$TRIREME_VENV/bin/}python3
"$python" -c 'import llama_cpp, sentencepiece, tokenizers' 2>/dev/null || {
    echo "skipped: $python has no llama_cpp, sentencepiece and tokenizers"
    exit 77
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
"$python" "$here/ecosystem/gguf_answers.py" "$trireme" 2>errors || {
    grep -v n_ctx_train errors
    exit 1
}
