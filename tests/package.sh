#!/usr/bin/env bash
# An installed trireme: the program works from its new place and finds its modules, pages and completions lie in GNU's
# folders, and the package for Debian says what it needs and has the same files.
# Usage: package.sh PATH/trireme BUILD_FOLDER
set -uo pipefail
build=$(realpath "$2")
set -- "$1"
# shellcheck source=tests/cases.sh
source "${BASH_SOURCE%/*}/cases.sh" "$@"

works() { "$here/smoke.sh" "$1" >log 2>&1 || complain "$1: $(tail -3 log)"; }

if check "an installed program works, and finds its modules"; then
    cmake --install "$build" --prefix "$PWD/inst" --strip >log 2>&1 || complain "$(tail -3 log)"
    works inst/bin/trireme
    cmp <("$trireme" --version | grep "mpi (") <(inst/bin/trireme --version | grep "mpi (") >log ||
        complain "it does not find the MPI that the build finds"
    if compgen -G "inst/lib*/trireme/trireme_cuda.so" >/dev/null || compgen -G "inst/lib/*/trireme/trireme_cuda.so" >/dev/null; then
        inst/bin/trireme devices >found.log 2>&1
        ! grep -q "needs the file trireme_cuda.so" found.log || complain "$(cat found.log)"
    fi
fi
if check "pages and completions lie where programs look for them"; then
    for verb in $("$trireme" help --verbs); do
        [[ -s inst/share/man/man1/trireme-$verb.1 ]] || complain "there is no page of $verb"
    done
    for file in man/man1/trireme.1 bash-completion/completions/trireme zsh/site-functions/_trireme \
        fish/vendor_completions.d/trireme.fish doc/trireme/README.md doc/trireme/docs/runs.md \
        doc/trireme/docs/interleaved.svg doc/trireme/docs/report.png; do
        [[ -s inst/share/$file ]] || complain "there is no share/$file"
    done
fi
if check "the installed book is whole" && [[ -d inst ]]; then
    TRIREME_BOOK=$PWD/inst/share/doc/trireme "$here/book.sh" "$trireme" links >log || complain "$(cat log)"
    [[ -s inst/share/doc/trireme/copyright ]] || complain "there is no licence"
fi
if check "a program of C finds the library by pkg-config" && [[ -d inst ]] && command -v pkg-config >/dev/null; then
    printf '#include <trireme.h>\nint main(void) { return !trireme_version(); }\n' >uses.c
    PKG_CONFIG_PATH=$(find "$PWD/inst" -type d -name pkgconfig)
    export PKG_CONFIG_PATH
    # shellcheck disable=SC2046 # options
    cc uses.c -o uses $(pkg-config --cflags --libs trireme) >log 2>&1 || complain "$(tail -3 log)"
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir trireme) ./uses || complain "it does not run"
fi
if check "a package for Debian has the program and what it needs"; then
    if (($(command -v cpack dpkg-shlibdeps file | wc -l) == 3)); then
        cpack --config "$build/CPackConfig.cmake" -B "$PWD/packages" >log 2>&1 || complain "$(tail -3 log)"
        dpkg-deb -x packages/trireme_*.deb unpacked || complain "it cannot be unpacked"
        dpkg-deb -f packages/trireme_*.deb Depends | grep -q libc6 || complain "it depends on no library"
        works unpacked/usr/bin/trireme
        cmp <("$trireme" --version | grep "mpi (") <(unpacked/usr/bin/trireme --version | grep "mpi (") >log ||
            complain "the package's program does not find the MPI that the build finds"
    fi
fi
finish
