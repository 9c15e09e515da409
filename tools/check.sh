# shellcheck shell=bash
# ./run test, ./run seeds and ./run lint: everything that is checked, cheapest first. CTest's summary comes last, and the
# tests that took more time than their budgets.

# Programs of several threads: what the thread sanitizer is for. Of training, those that take every path; the
# others ask for numbers. libraries.sh and what tests the own code in place of libraries: see `sanitized`.
threaded_tests='^test_(base_(trace|hash|beat)|comm|device_cuda$|parallel_(pipeline|grads)|corpus_(preprocess|chat)$|train_(covering|checkpoint|head)|infer_generate)|^libraries$'
# The other sanitizers leave out: scripts that drive whole programs (slow, and MPI leaks by design); tests of numbers
# on paths that other tests take; tests that differ from comm_laws_*_3 in the number of processes alone, or from
# test_device_matmul in oneDNN's kernels alone, which are not sanitized; and tests on the simulated GPUs, whose paths others
# take. The thread sanitizer leaves out the slowest of the tests on the check device, too.
unsanitized_tests='_(mpi|long|2|4|8|on_gpus)$|^test_train_laws$|_onednn_avx2$'
unthreaded_tests='^test_(train|infer|parallel_pipeline).*_on_check$|_on_gpus$'

stage() { quietly "$@" || die 1 "stopped at: $1"; }

lint() {
    stage "includes go downward" lint_with layers
    stage "files of a folder include no circle" lint_with circles
    stage "functions and files are small" lint_with sizes
    stage "each type has a name of its own" lint_with types
    stage "each file says what it is for" lint_with heads
    if command -v clang-format-14 >/dev/null; then
        stage "formatting (clang-format-14 -i repairs it)" lint_format
    else
        say "  formatting is not checked: this release has no clang-format-14, and other versions format differently"
    fi
    stage "shell scripts (shellcheck)" lint_scripts
}

lint_scripts() {
    printf '%s\n' run .ci/run tools/lint_* tools/test_times tools/megatron_options.sh tools/same_bits.sh tools/gpu_check.sh tools/reference.sh cmake/*.sh \
        tests/*.sh examples/*/*.sbatch |
        xargs -P "$(cores)" -n 1 shellcheck -x -a
}

# lint_with NAME [WORD...]: shows first that the lint finds what it is for.
lint_with() { "tools/lint_$1" --self-test && "tools/lint_$1" "${@:2}"; }

lint_format() {
    find src tests bench fuzz -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' | sort |
        xargs -P "$(cores)" -n 64 clang-format-14 --dry-run --Werror
}

run_checks() {
    local start=$SECONDS
    require_packages "to build and test" "${build_packages[@]}" "${library_packages[@]}" "${lint_packages[@]}" \
        "${test_packages[@]}"
    (require_packages "to compare with Python's libraries" "${ecosystem_packages[@]}") ||
        say "  that comparison will be left out"
    lint
    configure_and_build build/gcc "warnings are errors: gcc" "all benches" -DCMAKE_C_COMPILER=gcc -DTRIREME_WERROR=ON \
        -DCMAKE_BUILD_TYPE=Release -DTRIREME_TEST_FLAGS=-O1
    check_kernels build/gcc
    sanitized address,undefined 1 build/asan all -E "$unsanitized_tests"
    sanitized thread 2 build/tsan "$(threaded_programs)" -R "$threaded_tests" -E "$unthreaded_tests"
    say "  the tests, seed 3; everything before took $((SECONDS - start)) s"
    TRIREME_CHECK_SEED=3 TRIREME_SIM_SEED=3 run_tests build/gcc --repeat until-pass:2
    check_arm64
    tools/test_times build/gcc
}

# The tests of what differs between processors, their short form, that run on arm64: with NEON, where a CPU has SVE of a
# width that no kernels are for.
arm64_tests='test_base_(hash|rng|float8|blocks)|test_device_(cpu|cpu_types|attention|numbers|float8)'
arm64_cpu='max,sve128=on'
# Those of the kernels for SVE alone, and CPUs with each width and a unit for bf16; on CPUs without one bf16 differs.
arm64_kernels='test_device_(cpu|cpu_types|attention|numbers|float8|limit)'
arm64_kernel_cpus=('max,sve256=on' 'max,sve512=on')
arm64_bf16='test_device_(cpu_types|attention|numbers)'
arm64_bf16_cpus=('a64fx,sve512=off' a64fx)
# Those of products, and CPUs that differ in them: without a unit for bf16, with one, and SVE of each width.
arm64_products='test_device_(product|limit|matmul)(_piece)?'
arm64_product_cpus=(cortex-a72 "$arm64_cpu" "${arm64_bf16_cpus[@]}")

# The program and these tests for arm64, under an emulator, where the compiler and QEMU are. Optimised little but for the
# kernels' vectors: that takes half of the time, and bits do not depend on it.
check_arm64() {
    local cpu programs tools=(aarch64-linux-gnu-gcc aarch64-linux-gnu-g++ qemu-aarch64)
    if (($(command -v "${tools[@]}" | wc -l) < ${#tools[@]})); then
        say "  arm64 is not tested: that takes Debian's gcc-aarch64-linux-gnu, g++-aarch64-linux-gnu and qemu-user"
        return
    fi
    programs=$(basename -s .c tests/test_*.c | grep -xE "$arm64_tests|$arm64_products")
    configure_and_build build/arm64 "warnings are errors: gcc for arm64" "trireme $programs" \
        -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/arm64.cmake" -DTRIREME_WERROR=ON -DTRIREME_TEST_FLAGS=-O0 -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_C_FLAGS_DEBUG="-O1 -ftree-vectorize -Wno-format-truncation" -DCMAKE_CXX_FLAGS_DEBUG=-O1
    arm64_stage "tests on arm64" "$arm64_cpu" "$arm64_tests"
    for cpu in "${arm64_kernel_cpus[@]}"; do
        TRIREME_TEST_VARIANTS=sve TRIREME_TEST_DEVICE=cpu \
            arm64_stage "kernels for SVE on arm64" "$cpu" "$arm64_kernels"
    done
    for cpu in "${arm64_bf16_cpus[@]}"; do
        TRIREME_TEST_VARIANTS=sve TRIREME_TEST_DEVICE=cpu \
            arm64_stage "kernels for SVE on arm64" "$cpu" "$arm64_bf16"
    done
    for cpu in "${arm64_product_cpus[@]}"; do
        arm64_stage "products on arm64" "$cpu" "$arm64_products" -E "^test_device_matmul\$"
    done
    stage "training on arm64, emulated" tests/arm64.sh build/gcc/trireme build/arm64/trireme
}

# arm64_stage LABEL CPU TESTS CTEST_OPTION...
arm64_stage() {
    QEMU_CPU=$2 TRIREME_TEST_SHORT=1 stage "$1 ($2), emulated" run_tests build/arm64 -R "^($3)\$" "${@:4}"
}

# The kernels of the GPU that a build has, where there is nvcc.
check_kernels() {
    if [[ ! -d $1/cuda ]]; then
        say "  kernels of GPUs are not checked: there is no nvcc here"
        return
    fi
    stage "the kernels' PTX" ninja -C "$1" -j "$(cores)" trireme_cuda_ptx
    stage "kernels keep their budgets" lint_with kernels "$1"
}

# What each kernel takes on each GPU.
print_kernels() {
    command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]] ||
        die 69 "the kernels are built by NVIDIA's compiler nvcc, and there is none here: install the CUDA toolkit"
    configure_and_build build "building the GPU's kernels" "trireme_cuda trireme_cuda_ptx" -DCMAKE_BUILD_TYPE=Release
    tools/lint_kernels --table build
    stage "kernels keep their budgets" lint_with kernels build
}

# The tests on devices that draw the order of their work, with three seeds; also those for which there is no time in
# every run.
run_seeds() {
    local seed
    require_packages "to build and test" "${build_packages[@]}" "${library_packages[@]}" "${test_packages[@]}"
    configure_and_build build/gcc "building the tests" "all benches" -DCMAKE_C_COMPILER=gcc -DTRIREME_WERROR=ON \
        -DCMAKE_BUILD_TYPE=Release -DTRIREME_TEST_FLAGS=-O1
    for seed in 1 2 3; do
        say "  seed $seed"
        TRIREME_CHECK_SEED=$seed TRIREME_SIM_SEED=$seed run_tests build/gcc -C campaign -L drawn
    done
}

threaded_programs() { basename -s .c tests/test_*.c | grep -E "$threaded_tests" && echo trireme; }

# sanitized SANITIZERS SEED FOLDER TARGETS CTEST_OPTION...   The tests' short form, and little optimisation: half
# of the time is the compiler's. Each build has another seed.
sanitized() {
    local sanitizers=$1 seed=$2 folder=$3 targets=$4 label compiler options=()
    shift 4
    if [[ $sanitizers == thread ]]; then
        compiler=gcc
        label="building with -fsanitize=thread"
        # Races do not depend on the instruction set of the kernels, nor on the libraries, none of which is built
        # for this sanitizer: so this is also the build that tests what takes their places.
        options=(-DTRIREME_BASELINE_KERNELS=ON
            "-DTRIREME_WITHOUT=MPI;oneDNN;libyaml;zstd;zlib;xxHash;SentencePiece")
    else
        compiler=clang
        label="warnings are errors: clang, -fsanitize=$sanitizers"
        # lld links a hundred programs in a third of the time that ld takes.
        options=(-DCMAKE_CXX_COMPILER=clang++ -DTRIREME_WERROR=ON
            -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld -DCMAKE_SHARED_LINKER_FLAGS=-fuse-ld=lld)
    fi
    # CMake forgets all options when the compiler changes.
    grep -qs "^CMAKE_C_COMPILER:.*[/=]$compiler$" "$folder/CMakeCache.txt" || rm -rf "$folder"
    quietly "$label" configure_and_build_aloud "$folder" "$targets" "${options[@]}" \
        -DCMAKE_C_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O1 -g1" \
        -DCMAKE_CXX_FLAGS_DEBUG="-O1 -g1" -DTRIREME_TEST_FLAGS=-O0 -DTRIREME_SANITIZE="$sanitizers" ||
        die 1 "$label: failed"
    TRIREME_TEST_SHORT=1 TRIREME_CHECK_SEED=$seed TRIREME_SIM_SEED=$seed ASAN_OPTIONS=allow_addr2line=1:malloc_context_size=2 \
        LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0 \
        TSAN_OPTIONS=suppressions=$PWD/tests/tsan.supp \
        stage "tests with -fsanitize=$sanitizers, seed $seed" run_tests "$folder" --repeat after-timeout:2 "$@"
}

# run_tests FOLDER CTEST_OPTION...   More tests than cores, as some of them wait. Without address
# randomisation, where that may be switched off: gcc's thread sanitizer does not know newer kernels' layouts.
# Processes that wait for each other miss their times where a machine has other things to do. So without sanitizers a
# test that fails runs once more, and tools/test_times names it where it then passes. With them only one that takes too
# long does: a report of theirs counts at once.
run_tests() {
    local fixed_addresses=(setarch "$(uname -m)" -R)
    "${fixed_addresses[@]}" true 2>/dev/null || fixed_addresses=()
    "${fixed_addresses[@]}" ctest --test-dir "$1" --output-on-failure --no-tests=error \
        -j "$(($(cores) * 2))" "${@:2}" </dev/null
}
