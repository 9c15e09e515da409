# shellcheck shell=bash
# ./run fuzz: every parser of what comes from outside, against inputs that libFuzzer makes up. The targets, and
# their laws, are in fuzz/. What is found is kept in build/fuzz/findings, inputs that reached new code in
# build/fuzz/corpus: a second run goes on where the first ended.

# Of every input: 1 s, and memory beyond what the sanitizers take themselves.
fuzz_limits=(-timeout=1 -rss_limit_mb=768 -malloc_limit_mb=256 -max_len=16384)

# fuzz SECONDS [TARGET...]
fuzz() {
    local seconds=${1:-} all target found=0
    [[ $seconds =~ ^[1-9][0-9]*$ ]] || die 64 "fuzz: how many seconds per target? ./run fuzz 60"
    shift
    all=$(fuzz_targets)
    for target in "$@"; do
        grep -qx "$target" <<<"$all" ||
            die 64 "fuzz: no target '$target'; there are:" "$(tr '\n' ' ' <<<"$all")"
    done
    [[ $# -gt 0 ]] || mapfile -t all <<<"$all"
    [[ $# -eq 0 ]] || all=("$@")
    require_packages "to fuzz" "${build_packages[@]}" "${library_packages[@]}" "${fuzz_packages[@]}"
    build_fuzzers "${all[@]}"
    fuzz_scratch=$(mktemp -d "$([[ -w /dev/shm ]] && echo /dev/shm || echo "${TMPDIR:-/tmp}")/trireme-fuzz-XXXXXX")
    trap 'rm -rf "$fuzz_scratch"' EXIT
    for target in "${all[@]}"; do fuzz_one "$target" "$seconds" "$fuzz_scratch" || found=1; done
    ((!found)) || die 1 "the inputs that did it are in build/fuzz/findings; to see one again:" \
        "build/fuzz/fuzz/fuzz_TARGET build/fuzz/findings/TARGET-..."
}

fuzz_targets() { sed -n 's/^add_fuzzer(\([a-z]*\) .*/\1/p' fuzz/CMakeLists.txt; }

build_fuzzers() {
    quietly "building the fuzzers" build_fuzzers_aloud "$@" ||
        die 1 "building the fuzzers failed; the compiler's output is above."
}

build_fuzzers_aloud() {
    cmake -S . -B build/fuzz -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ \
        -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -g1" -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" \
        -DTRIREME_FUZZ=ON -DTRIREME_SANITIZE=fuzzer-no-link,address,undefined &&
        ninja -C build/fuzz -j "$(cores)" "${@/#/fuzz_}"
}

# fuzz_one TARGET SECONDS SCRATCH_FOLDER: one line; the log only when something was found
fuzz_one() {
    local target=$1 own=build/fuzz/corpus/$1 findings=build/fuzz/findings log status=0 executions before
    mkdir -p "$own" "$findings"
    log=$findings/$target.log
    before=$(count_findings "$target")
    TMPDIR=$3 build/fuzz/fuzz/fuzz_"$target" "${fuzz_limits[@]}" -max_total_time="$2" -print_final_stats=1 \
        -artifact_prefix="$findings/$target-" "$own" "fuzz/corpus/$target" >"$log" 2>&1 </dev/null || status=$?
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    printf '  %-14s %10s executions  %d findings\n' "$target" "${executions:-0}" \
        $(($(count_findings "$target") - before))
    ((!status)) || tail -n 40 "$log" >&2
    return $status
}

count_findings() { find build/fuzz/findings -name "$1-*" | wc -l; }
