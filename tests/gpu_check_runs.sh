#!/usr/bin/env bash
# tools/gpu_check.sh on the simulated GPU: its stages pass, what fails in one leaves the others, and its files are as it says.
# Usage: gpu_check_runs.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/cases.sh
source "${BASH_SOURCE%/*}/cases.sh" "$@"
build=${trireme%/*}
check_gpu() { "$here/../tools/gpu_check.sh" --device cuda-sim --build "$build" --out "$PWD/out" --budget 1100 "$@" >out.log 2>&1 </dev/null; }
result_of() { sed -n "s/.*\"stage\": \"$1\", \"result\": \"\\([a-z]*\\)\".*/\\1/p" out/results.jsonl; }
expect_result() { [[ $(result_of "$1") == "$2" ]] || complain "$1 is '$(result_of "$1")', not $2: $(cat out.log out/log.txt)"; }

stages_pass() {
    check_gpu --only facts,ops,bits,curve,trace || complain "exit $?: $(cat out.log)"
    for stage in facts ops bits curve trace; do expect_result $stage passed; done
    grep -q '^5 passed, 0 failed, 0 skipped$' out/summary.txt || complain "summary: $(cat out/summary.txt)"
    grep -q '"stage": "ops".*"numbers": {"cases": [1-9][0-9]*, "failed": 0}' out/results.jsonl || complain "$(cat out/results.jsonl)"
    grep -q '"forward_percent": [1-9]' out/results.jsonl || complain "no shares of a step: $(cat out/results.jsonl)"
    [[ -s out/trace.json && -s out/log.txt ]] || complain "files are missing: $(ls out)"
    python3 - out/results.jsonl <<'END' || complain "not as expected: $(cat out/results.jsonl)"
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert [r["stage"] for r in rows] == ["facts", "ops", "bits", "curve", "trace"], rows
assert rows[0]["numbers"]["tree_mib"] < 64 and all(r["device"] == "cuda-sim" for r in rows), rows
END
}
check "stages pass and leave their lines" stages_pass

# What ranks, runs and benchmarks say of a device.
runs_pass() {
    check_gpu --only laws,saved,faults,algorithms,machine || complain "exit $?: $(cat out.log)"
    for stage in laws saved faults algorithms machine; do expect_result $stage passed; done
    grep -q '"stage": "laws".*"numbers": {"laws": 6, "failed": 0}' out/results.jsonl || complain "$(cat out/results.jsonl)"
    grep -q '"numbers": {"steps": 2, "words": [1-9]' out/results.jsonl || complain "no text: $(cat out/results.jsonl)"
    grep -q '"numbers": {"rows": [1-9]' out/results.jsonl || complain "no algorithms: $(cat out/results.jsonl)"
    grep -q '"numbers": {"rates": [1-9]' out/results.jsonl || complain "no rates: $(cat out/results.jsonl)"
    [[ -s out/machine.yaml && -s out/stack.yaml && -s out/algorithms.txt ]] || complain "files are missing: $(ls out)"
}
check "runs and their benchmarks pass" runs_pass

meets_nccl() {
    [[ -x $build/tests/test_device_link ]] || return 0
    check_gpu --only nccl || complain "exit $?: $(cat out.log)"
    grep -q '"stage": "nccl", "result": "passed".*"note": "", "numbers": {"gpus": 2}' out/results.jsonl || complain "$(cat out/results.jsonl out/log.txt)"
    TRIREME_SIM_GPUS=1 check_gpu --only nccl || complain "exit $?: $(cat out.log)"
    grep -q '"result": "passed".*"note": "ranks that NCCL links were not run: they need two GPUs"' out/results.jsonl || complain "$(cat out/results.jsonl)"
    TRIREME_SIM_FAIL=ncclGetUniqueId:1 check_gpu --only nccl && complain "a library that fails passes"
    expect_result nccl failed
}
check "one GPU and several meet NCCL" meets_nccl

measures() {
    [[ -x $build/bench/bench_train_gpu && -x $build/bench/bench_device_gpu && -x $build/bench/bench_report ]] || return 0 # benchmarks are built on demand
    check_gpu --only steps-small,rates,operations || complain "exit $?: $(cat out.log)"
    grep -q '"stage": "steps-small".*"numbers": {"tiny": [0-9.]*, "tiny_8_bits": [1-9]' out/results.jsonl || complain "$(cat out/results.jsonl)"
    grep -q '"tiny_adamw": [0-9.]' out/results.jsonl || complain "no rates: $(cat out/results.jsonl)"
    grep -q '"tiny_all": 100' out/results.jsonl || complain "no shares of operations: $(cat out/results.jsonl)"
    grep -q '"gpu": "simulated GPU"' out/bench.json || complain "no machine: $(cat out/bench.json)"
    grep -q '"title": "operations bound by memory of tiny in bf16"' out/bench.json || complain "$(cat out/bench.json)"
}
check "what is measured is kept" measures

# Tests that choose their devices would pass where there is none.
needs_device() {
    TRIREME_SIM_DRIVER=0 check_gpu --only facts,ops,bits,numerics,curve && complain "checks of no GPU pass"
    for stage in ops bits numerics curve; do expect_result $stage skipped; done
    grep -q '^1 passed, 0 failed, 4 skipped$' out/summary.txt || complain "summary: $(cat out/summary.txt)"
}
check "nothing passes without a device" needs_device

# Each process of a stage meets a GPU that goes at its first call.
fails_apart() {
    TRIREME_SIM_FAIL=gone:2 check_gpu --only facts,ops,curve,laws && complain "a GPU that is gone passes"
    expect_result facts passed
    for stage in ops curve laws; do expect_result $stage failed; done
    grep -q '"stage": "curve".*"note": "status 1; trireme: error: .*The GPU' out/results.jsonl ||
        grep -q '"stage": "curve".*"note": "status 1; trireme: error: .* failed on GPU 0' out/results.jsonl || complain "$(cat out/results.jsonl)"
    grep -q '"note": "status 1; failed: matmul 1x1x1;.*;attention' out/results.jsonl || complain "failed cases are not named: $(cat out/results.jsonl)"
}
check "a stage that fails leaves the others" fails_apart

keeps_budget() {
    check_gpu --budget 290 --only facts,laws,trace || complain "exit $?: $(cat out.log)"
    expect_result facts passed
    expect_result laws skipped
    expect_result trace passed
    grep -q '"note": "no time: 300 s of 2[0-9]* s that are left"' out/results.jsonl || complain "$(cat out/results.jsonl)"
}
check "a stage begins only if its time is left" keeps_budget

refuses() {
    check_gpu --only nonsense && complain "a stage that there is not passes"
    grep -q "there is no stage 'nonsense'" out.log || complain "$(cat out.log)"
}
check "unknown words are refused" refuses
finish
