# shellcheck shell=bash
# What the parts of ./run share: speaking, running a step quietly, configuring and building a folder.

# say LINE...
say() { printf '%s\n' "$@"; }

# die STATUS LINE...
die() {
    local status=$1
    shift
    printf 'run: %s\n' "$1" >&2
    [[ $# -lt 2 ]] || printf '     %s\n' "${@:2}" >&2
    exit "$status"
}

# quietly LABEL COMMAND...: one line with the time it took; the command's output only when it fails,
# and then its status.
quietly() {
    local label=$1 log start=$SECONDS status=0
    shift
    log=$(mktemp)
    printf '  %-58s' "$label"
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if ((status)); then
        printf 'failed after %d s\n' $((SECONDS - start))
        cat "$log" >&2
    else
        printf '%4d s\n' $((SECONDS - start))
    fi
    rm -f "$log"
    return $status
}

cores() { nproc 2>/dev/null || echo 1; }

# configure_and_build FOLDER LABEL CMAKE_OPTION...
configure_and_build() {
    local folder=$1 label=$2
    shift 2
    quietly "$label" configure_and_build_aloud "$folder" all "$@" ||
        die 1 "$label failed; the compiler's output is above." \
            "After a change of compiler or machine: rm -rf $folder"
}

# configure_and_build_aloud FOLDER TARGETS CMAKE_OPTION...
configure_and_build_aloud() {
    local folder=$1 targets
    read -rd '' -a targets <<<"$2" || true
    shift 2
    cmake -S . -B "$folder" -G Ninja "$@" && ninja -C "$folder" -j "$(cores)" "${targets[@]}"
}
