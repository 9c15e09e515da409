# shellcheck shell=bash
# ./run test and ./run lint: everything that is checked, cheapest first; CTest's summary comes last.

# Programs whose ranks share memory: what the thread sanitizer is for. Of training those that take every path;
# the others ask for numbers.
threaded_tests='^test_(base|comm|parallel|data|train_(laws|covering|checkpoint|head)|infer_generate)'
# Scripts that drive whole programs: slow, and MPI leaks by design.
unsanitized_tests='_(mpi|long)$'

# Open MPI as root, in containers, and with more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
# Tests run side by side: a rank that waits gives up its core.
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none

stage() { quietly "$@" || die 1 "stopped at: $1"; }

lint() {
    stage "includes go downward" lint_layers
    stage "functions and files are small" lint_sizes
    stage "formatting (clang-format-14)" lint_format
    stage "shell scripts (shellcheck)" shellcheck -x -a run .ci/run tools/lint_* tests/*.sh
}

lint_layers() { tools/lint_layers --self-test && tools/lint_layers; }
lint_sizes() { tools/lint_sizes --self-test && tools/lint_sizes; }

# Says which command repairs it.
lint_format() {
    # shellcheck disable=SC2016 # the inner shell's variables
    find src tests bench fuzz -name '*.[ch]' -o -name '*.cc' | sort |
        xargs -P "$(cores)" -n 16 sh -c 'for file; do
            clang-format-14 "$file" | cmp -s - "$file" || { echo "clang-format-14 -i $file" && wrong=1; }
        done; exit ${wrong:-0}' sh
}

run_checks() {
    local start=$SECONDS
    require_packages "to build and test" "${build_packages[@]}" "${lint_packages[@]}" "${test_packages[@]}"
    (require_packages "to compare with Python's libraries" "${ecosystem_packages[@]}") ||
        say "  that comparison will be left out"
    lint
    configure_and_build build/gcc "warnings are errors: gcc" -DCMAKE_C_COMPILER=gcc -DTRIREME_WERROR=ON \
        -DCMAKE_BUILD_TYPE=Release
    stage "warnings are errors: clang" warn_with_clang
    sanitized address,undefined build/asan all -E "$unsanitized_tests"
    sanitized thread build/tsan "$(threaded_programs)" -R "$threaded_tests" -E "$unsanitized_tests"
    say "  the tests; everything before took $((SECONDS - start)) s"
    run_tests build/gcc
}

# Its front end gives all of its warnings: objects are empty files, and nothing is linked.
warn_with_clang() {
    local compile='<CMAKE_C_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -fsyntax-only <SOURCE>'
    configure_and_build_aloud build/clang all -DCMAKE_C_COMPILER=clang -DTRIREME_WERROR=ON \
        -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILE_OBJECT="$compile && touch <OBJECT>" \
        -DCMAKE_C_CREATE_SHARED_LIBRARY="touch <TARGET>" -DCMAKE_C_LINK_EXECUTABLE="touch <TARGET>" \
        -DCMAKE_CXX_LINK_EXECUTABLE="touch <TARGET>"
}

threaded_programs() { basename -s .c tests/test_*.c | grep -E "$threaded_tests"; }

# sanitized SANITIZERS FOLDER TARGETS CTEST_OPTION...   The tests' short form, and little optimisation: half of
# the time is the compiler's.
sanitized() {
    local sanitizers=$1 folder=$2 targets=$3 options=()
    shift 3
    # The products that need nothing undeclared of oneDNN, whose own locks the thread sanitizer does not know.
    [[ $sanitizers == thread ]] || options=(-DTRIREME_HAVE_BF16_GEMM=OFF)
    quietly "building with -fsanitize=$sanitizers" configure_and_build_aloud "$folder" "$targets" \
        -DCMAKE_C_COMPILER=gcc -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -g1" \
        -DTRIREME_SANITIZE="$sanitizers" "${options[@]}" || die 1 "building with -fsanitize=$sanitizers failed"
    TRIREME_TEST_SHORT=1 stage "tests with -fsanitize=$sanitizers" run_tests "$folder" "$@"
}

# run_tests FOLDER CTEST_OPTION...   More tests than cores, as some of them wait. Without address randomisation,
# where that may be switched off: gcc's thread sanitizer does not know the layouts of newer kernels.
run_tests() {
    local fixed_addresses=(setarch "$(uname -m)" -R)
    "${fixed_addresses[@]}" true 2>/dev/null || fixed_addresses=()
    "${fixed_addresses[@]}" ctest --test-dir "$1" --output-on-failure --no-tests=error \
        -j "$(($(cores) * 2))" "${@:2}" </dev/null
}
