# shellcheck shell=bash
# The packages that trireme needs and how each is recognised: only what is really missing is installed.
#
#   PACKAGE command:NAME   present when NAME can be run
#   PACKAGE header:FILE    present when the C compiler finds FILE
#   PACKAGE c++:FILE       present when the C++ compiler finds FILE
#   PACKAGE openmp:CC      present when CC compiles OpenMP
#   PACKAGE sanitizer:CC   present when CC links with the address sanitizer
#   PACKAGE fuzzer:CC      present when CC links with libFuzzer
#   PACKAGE python:MODULE  present when python3 imports MODULE
#
# A name that ends in "?" is one that some releases do not have: where it is unknown, the check that needs it is skipped.

build_packages=(
    "gcc command:gcc"
    "libc6-dev header:stdio.h"
    "cmake command:cmake"
    "g++ command:g++"
)
# What a build is faster or does more with; it is made without those that cannot be had (cmake/libraries.cmake).
library_packages=(
    "ninja-build command:ninja"
    "libopenmpi-dev command:mpicc"
    "openmpi-bin command:mpirun"
    "libdnnl-dev header:dnnl.h"
    "libyaml-dev header:yaml.h"
    "libpcre2-dev header:pcre2.h"
    "libzstd-dev header:zstd.h"
    "zlib1g-dev header:zlib.h"
    "libxxhash-dev header:xxhash.h"
    "libsentencepiece-dev c++:sentencepiece_processor.h"
)
lint_packages=(
    "clang-format-14? command:clang-format-14"
    "shellcheck command:shellcheck"
)
# The demo starts processes by MPI.
demo_packages=(
    "${build_packages[@]}"
    "procps command:pgrep"
    "libopenmpi-dev command:mpicc"
    "openmpi-bin command:mpirun"
)
test_packages=(
    "pkgconf command:pkg-config"
    "clang command:clang++"
    "lld command:ld.lld"
    "libclang-rt-dev sanitizer:clang"
    "libomp-dev openmp:clang"
    "procps command:pgrep"
)
fuzz_packages=(
    "clang command:clang++"
    "libclang-rt-dev fuzzer:clang"
    "libomp-dev openmp:clang"
)
golden_packages=(
    "python3-venv python:ensurepip"
)
ecosystem_packages=(
    "python3-venv python:ensurepip"
    "python3-torch python:torch"
)

is_present() {
    local kind=${1%%:*} what=${1#*:}
    case $kind in
    command) command -v "$what" >/dev/null ;;
    header) echo "#include <$what>" | gcc -DPCRE2_CODE_UNIT_WIDTH=8 -E - >/dev/null 2>&1 ;;
    c++) echo "#include <$what>" | g++ -E -x c++ - >/dev/null 2>&1 ;;
    python) python3 -c "import $what" 2>/dev/null ;;
    sanitizer)
        echo 'int main(void) { return 0; }' | "$what" -fsanitize=address -x c -o /dev/null - >/dev/null 2>&1
        ;;
    fuzzer)
        echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
            "$what" -fsanitize=fuzzer -x c -o /dev/null - >/dev/null 2>&1
        ;;
    openmp) echo '#include <omp.h>' | "$what" -fopenmp -E - >/dev/null 2>&1 ;;
    esac
}

# is_unknown PACKAGE: it may be missing from a release, and is from this one, as far as apt's lists say.
is_unknown() {
    [[ $1 == *\? ]] || return 1
    command -v apt-cache >/dev/null || return 0
    compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null && [[ -z $(apt-cache show "${1%\?}" 2>/dev/null) ]]
}

# missing_of ROW...: the packages of those rows that are missing, a line each.
missing_of() {
    local row
    for row in "$@"; do
        is_present "${row#* }" || is_unknown "${row%% *}" || echo "${row%% *}"
    done
}

# require_packages PURPOSE ROW...: returns when all are there, having installed those that were missing.
require_packages() {
    local purpose=$1 missing
    shift
    mapfile -t missing < <(missing_of "$@")
    [[ ${#missing[@]} -gt 0 ]] || return 0
    say "Missing $purpose: ${missing[*]%\?}"
    case " ${missing[*]} " in
    *[!?]\ *) install_packages "${missing[@]}" ;;
    *) (install_packages "${missing[@]}") || say "  what needs it will be left out" ;; # a release may lack it
    esac
}

# want_packages PURPOSE ROW...: as require_packages, but what cannot be installed is left out.
want_packages() {
    (require_packages "$@") || say "  what needs them will be left out"
}

apt_get() {
    local as_root=()
    [[ $(id -u) -eq 0 ]] || as_root=(sudo)
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@"
}

# die_asking STATUS REASON PACKAGE...: ends with what to ask for: these, and once for all what a build is better with.
die_asking() {
    local lines=("$2: ask whoever administers this machine for" "apt-get install --no-install-recommends ${*:3}") more
    more=$(missing_of "${build_packages[@]}" "${library_packages[@]}" | grep -vxF -- "$(printf '%s\n' "${@:3}")" | paste -sd ' ')
    lines[1]=${lines[1]//\?/}
    [[ -z $more ]] || lines+=("and to build all of it for: ${more//\?/}")
    die "$1" "${lines[@]}"
}

apt_is_updated=

install_packages() {
    local package packages=()
    command -v apt-get >/dev/null ||
        die 69 "this is no Debian or Ubuntu: install the equivalents of those packages and try again."
    if [[ $(id -u) -ne 0 ]]; then
        command -v sudo >/dev/null ||
            die_asking 69 "installing takes root, which you are not, and there is no sudo" "$@"
        say "Installing them with apt-get takes root; sudo may ask for your password."
        sudo -v || die_asking 77 "sudo does not let you install packages" "$@"
    fi
    [[ -n $apt_is_updated ]] || quietly "apt-get update" apt_get update ||
        die 69 "apt-get update failed: is the network, or the mirror in /etc/apt, reachable?"
    apt_is_updated=yes
    for package in "$@"; do is_unknown "$package" || packages+=("${package%\?}"); done
    [[ ${#packages[@]} -gt 0 ]] || return 0
    quietly "apt-get install (a minute or two)" apt_get install -y --no-install-recommends "${packages[@]}" ||
        die 69 "installing failed; try by hand: apt-get install --no-install-recommends ${packages[*]}"
}
