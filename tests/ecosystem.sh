#!/usr/bin/env bash
# What others read: transformers, tokenizers and gguf on what trireme wrote, and trireme on what they wrote.
# Usage: ecosystem.sh PATH/trireme PATH/print_logits FOLDER
#
# Python lives in a virtual environment in FOLDER, on top of Debian's python3-torch, or in $TRIREME_VENV, which
# is used as it is. Exit code 77: what is needed cannot be had here.
set -uo pipefail
trireme=$(readlink -f "$1")
print_logits=$(readlink -f "$2")
here=$(cd "${BASH_SOURCE%/*}" && pwd)
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error TOKENIZERS_PARALLELISM=false
export TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1

# They work with the torch 1.13, NumPy 1.24 and Python 3.11 of Debian 12, and with torch 2.6, NumPy 2.2 and Python 3.13
# of Debian 13. NumPy is the distribution's: pip leaves one that is there.
packages=(transformers==4.46.3 jinja2==3.1.6 tokenizers==0.20.3 safetensors==0.4.5 gguf==0.17.1
    sentencepiece==0.2.1 tiktoken==0.8.0)

skip() {
    echo "skipped: $*"
    exit 77
}

venv=${TRIREME_VENV:-$3/venv}
complete=$venv/complete-$(cksum <<<"${packages[*]}" | cut -d ' ' -f 1) # with these packages
if [[ -z ${TRIREME_VENV:-} && ! -e $complete ]]; then
    /usr/bin/python3 -c 'import torch, ensurepip' 2>/dev/null || skip "python3-torch and python3-venv are not installed"
    rm -rf "$venv"
    mkdir -p "$venv"
    log=$3/install.log
    /usr/bin/python3 -m venv --system-site-packages "$venv" >"$log" 2>&1 || skip "no virtual environment: $(tail -1 "$log")"
    timeout 120 "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 15 \
        "${packages[@]}" >>"$log" 2>&1 || skip "packages of the Python index: $(tail -1 "$log")"
    touch "$complete"
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
"$venv/bin/python" "$here/ecosystem/ecosystem.py" "$trireme" "$print_logits" || exit 1
"$venv/bin/python" "$here/ecosystem/tokenizer_ids.py" "$trireme" 0.4 || exit 1
"$venv/bin/python" "$here/ecosystem/chat_templates.py" "$trireme" || exit 1
"$venv/bin/python" "$here/ecosystem/sft_losses.py" "$trireme" || exit 1
"$venv/bin/python" "$here/ecosystem/dpo_losses.py" "$trireme" || exit 1
"$venv/bin/python" "$here/ecosystem/tasks.py" "$trireme" || exit 1
