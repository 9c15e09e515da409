# shellcheck shell=bash
# Functions that the parts of ./run share: messages, running a step quietly, configuring and building a folder.

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

# quietly LABEL COMMAND...: one line with how far it has come and then the time it took; the command's output only
# when it fails, and then its status.
quietly() {
    local label=$1 log start=$SECONDS status=0 progress
    shift
    log=$(mktemp)
    printf '  %-58s' "$label"
    show_progress "$log" "$label" &
    progress=$!
    "$@" >"$log" 2>&1 </dev/null || status=$?
    kill $progress 2>/dev/null
    wait $progress 2>/dev/null || true
    [[ ! -t 1 ]] || printf '\r\033[K  %-58s' "$label"
    if ((status)); then
        printf 'failed after %d s\n' $((SECONDS - start))
        cat "$log" >&2
    else
        printf '%4d s\n' $((SECONDS - start))
    fi
    rm -f "$log"
    return $status
}

# show_progress LOG LABEL: how far ninja or ctest has come ("[12/345]", "12/345"), by what it has printed last: on a
# terminal always at the same place, elsewhere one after the other, every half minute. It ends with the script.
show_progress() {
    local pause=30 at
    [[ ! -t 1 ]] || pause=1
    trap 'kill $! 2>/dev/null; exit' TERM
    while kill -0 $$ 2>/dev/null; do
        sleep $pause >/dev/null 2>&1 &
        wait $!
        at=$(tail -c 2000 "$1" 2>/dev/null | grep -oE '^ *\[?[0-9]+/[0-9]+' | tail -n 1 | tr -d '[ ') || continue
        if [[ -t 1 ]]; then printf '\r  %-58s%s' "$2" "$at"; else printf '%s ' "$at"; fi
    done
}

cores() { nproc 2>/dev/null || echo 1; }

# configure_and_build FOLDER LABEL TARGETS CMAKE_OPTION...
configure_and_build() {
    local folder=$1 label=$2
    shift 2
    quietly "$label" configure_and_build_aloud "$folder" "$@" ||
        die 1 "$label failed; the compiler's output is above." \
            "After a change of compiler or machine: rm -rf $folder"
}

# configure_and_build_aloud FOLDER TARGETS CMAKE_OPTION...   With ninja, or with make where that is missing; a folder
# keeps the one that it was made for.
configure_and_build_aloud() {
    local folder=$1 targets generator=(-G Ninja)
    read -rd '' -a targets <<<"$2" || true
    shift 2
    command -v ninja >/dev/null || generator=(-G "Unix Makefiles")
    [[ ! -f $folder/CMakeCache.txt ]] || generator=()
    cmake -S . -B "$folder" "${generator[@]}" "$@" &&
        cmake --build "$folder" -j "$(cores)" --target "${targets[@]}"
}
