#!/usr/bin/env bash
# Prints the manual pages and completions that are installed.   pages.sh FOLDER PROGRAM...
set -euo pipefail
folder=$1
shift
rm -rf "$folder"
mkdir -p "$folder/man1"
"$@" help --man >"$folder/man1/trireme.1"
for verb in $("$@" help --verbs); do "$@" help --man "$verb" >"$folder/man1/trireme-$verb.1"; done
for shell in bash fish; do "$@" help --completion "$shell" >"$folder/trireme.$shell"; done
"$@" help --completion zsh >"$folder/_trireme"
touch "$folder/made"
