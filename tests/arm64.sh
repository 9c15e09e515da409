#!/usr/bin/env bash
# A program for arm64, under QEMU, trains as this machine's does: losses are equal to four digits in fp32 and bf16, and it
# reads a checkpoint that this machine's has written. ./run test builds both.
# Usage: arm64.sh PATH/trireme PATH/of_arm64/trireme [WORD...]    with words: only the cases whose names contain one
set -uo pipefail
other=$(realpath "$2")
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1" "${@:3}"
here_is=$trireme
on_arm64() {
    trireme=$other launcher=(qemu-aarch64 -L /usr/aarch64-linux-gnu)
    train "$@"
    trireme=$here_is launcher=()
}
few=("${no_evaluation[@]}" --num-layers 2 --log-interval 1 --threads 1)
first() { train "x86.$1" "${few[@]}" "${@:2}" --train-iters 4 --save "$1"; }

for precision in fp32 bf16; do
    check "losses in $precision are equal to four digits" || continue
    flags=() && [[ $precision == fp32 ]] || flags=(--bf16)
    need first "$precision" "${flags[@]}"
    on_arm64 "arm.$precision" "${few[@]}" "${flags[@]}" --train-iters 4 --ranks 2 --pp 2
    expect_rows "arm.$precision" 4
    expect_close "x86.$precision" "arm.$precision" 1e-4
done
if check "a checkpoint of this machine goes on there"; then
    need first fp32
    train x86.on "${few[@]}" --train-iters 6 --load fp32 --save on
    on_arm64 arm.on "${few[@]}" --train-iters 6 --load fp32 --save other
    expect_rows arm.on 2
    expect_close x86.on arm.on 1e-4
fi
finish
