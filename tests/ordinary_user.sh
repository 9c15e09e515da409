#!/usr/bin/env bash
# Where packages are missing and the user is not root: ./run names the packages to ask for, once and all of them, and ends.
# Usage: ordinary_user.sh
set -uo pipefail
root=$(realpath "${BASH_SOURCE%/*}/..")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 1
# The commands of a machine without compilers, on which `id` says that this is user 1000.
mkdir bin
for name in bash env grep sed paste mktemp rm cat sleep tail tr date dirname python3; do
    ln -s "$(command -v "$name")" bin/
done
printf '#!/bin/sh\necho 1000\n' >bin/id
printf '#!/bin/sh\nexit 0\n' | tee bin/apt-get >bin/apt-cache
chmod +x bin/*

# expect COMMAND STATUS WORDS...: of ./run COMMAND.
expect() {
    local command=$1 want=$2 words status=0
    shift 2
    env -i PATH="$folder/bin" HOME="$folder" bash "$root/run" "$command" >said 2>&1 </dev/null || status=$?
    for words in "$@"; do
        grep -qF -- "$words" said || { echo "FAILED: '$words' is not in:" && cat said && exit 1; }
    done
    [[ $status == "$want" ]] || { echo "FAILED: status $status, not $want:" && cat said && exit 1; }
}

names=("ask whoever administers this machine for" "install --no-install-recommends gcc libc6-dev cmake g++"
    "and to build all of it for: ninja-build libopenmpi-dev openmpi-bin libdnnl-dev")
expect build 69 "there is no sudo: " "${names[@]}"
expect demo 69 "there is no sudo: " "install --no-install-recommends gcc libc6-dev cmake g++ procps libopenmpi-dev openmpi-bin" \
    "and to build all of it for: ninja-build libdnnl-dev"
printf '#!/bin/sh\nexit 1\n' >bin/sudo
chmod +x bin/sudo
expect build 77 "sudo does not let you install packages: " "${names[@]}"
