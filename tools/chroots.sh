# shellcheck shell=bash
# ./run chroots: makes fresh, minimal Debian systems with debootstrap and runs there what users run first: the demo, the
# tests, the installation of the packages, and the demo of an ordinary user. Sourced by ./run.
#
# build/chroots/RELEASE/ has base/, the minimal system; archives/, the packages that apt has downloaded; for each part a
# copy of base/, which is removed when the part has passed, and its log. The network's configuration comes from this machine:
# names of hosts, certificates, and the variables of proxies and package indexes. Nothing else does.

chroots_folder=$PWD/build/chroots
declare -A debian_names=([12]=bookworm [13]=trixie)
chroot_parts=(user demo packages test)
debian_mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
chroot_tools=(
    "debootstrap command:debootstrap"
    "git command:git"
)

# run_in_chroots [RELEASE|PART]...: without a release all of them, without a part all of them.
run_in_chroots() {
    local word release part releases=() parts=()
    for word in "$@"; do
        case " ${!debian_names[*]} / ${chroot_parts[*]} " in
        *" $word "*/*) releases+=("$word") ;;
        */*" $word "*) parts+=("$word") ;;
        *) die 64 "chroots: '$word' is neither a release of Debian (12, 13) nor a part (${chroot_parts[*]})" ;;
        esac
    done
    [[ ${#releases[@]} -gt 0 ]] || releases=(12 13)
    [[ ${#parts[@]} -gt 0 ]] || parts=("${chroot_parts[@]}")
    [[ $(id -u) -eq 0 ]] || die 77 "chroots: making and entering a Debian system takes root: sudo ./run chroots $*"
    require_packages "to make Debian systems" "${chroot_tools[@]}"
    [[ -z $(git status --porcelain) ]] || say "Changes that are not committed are left out: each system gets a clone of HEAD."
    for release in "${releases[@]}"; do
        make_base "$release"
        for part in "${parts[@]}"; do
            say "Debian $release, $part:"
            "try_$part" "$release"
        done
    done
}

# make_base RELEASE
make_base() {
    local folder=$chroots_folder/$1
    [[ ! -e $folder/base.complete ]] || return 0
    rm -rf "$folder/base"
    mkdir -p "$folder/archives/partial"
    stage "a minimal Debian $1" debootstrap --variant=minbase "${debian_names[$1]}" "$folder/base" "$debian_mirror"
    [[ ! -d /usr/local/share/ca-certificates ]] ||
        cp -rL /usr/local/share/ca-certificates "$folder/base/usr/local/share/"
    touch "$folder/base.complete"
}

# fresh RELEASE NAME: sets `root`, the folder of a new system.
fresh() {
    root=$chroots_folder/$1/$2
    rm -rf "$root" "$root.log"
    cp -a "$chroots_folder/$1/base" "$root"
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
}

# clone_to FOLDER, a folder of the new system
clone_to() { git clone --quiet --depth 1 "file://$PWD" "$root$1"; }

# What a running system has mounted; mounts and processes end with the command.
# shellcheck disable=SC2016 # the inner shell expands it
enter_script='set -e
mount --bind "$1/../archives" "$1/var/cache/apt/archives"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount -t tmpfs tmpfs "$1/dev/shm"
mount -t devpts -o newinstance,ptmxmode=666 devpts "$1/dev/pts"
chroot "$@" <&- || exit'

# enter COMMAND...: runs it in the new system, as root in its home, with standard input closed.
enter() {
    local name kept=()
    for name in http_proxy https_proxy no_proxy PIP_INDEX_URL; do
        [[ -z ${!name:-} ]] || kept+=("$name=${!name}")
    done
    env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 "${kept[@]}" \
        unshare --mount --pid --fork --kill-child bash -c "$enter_script" enter "$root" \
        bash -c 'cd && exec "$@"' enter "$@"
}

# inside LABEL COMMAND...: a step in the new system; its output is added to the log.
inside() {
    stage "$1" enter_and_log "${@:2}"
}

enter_and_log() { enter "$@" 2>&1 | tee -a "$root.log"; }

# apt_inside LABEL PACKAGE...: as apt's users install.
apt_inside() {
    inside "$1" bash -c 'apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"' \
        apt "${@:2}"
}

try_demo() {
    fresh "$1" demo
    clone_to /root/trireme
    inside "./run demo" trireme/run demo
    rm -rf "$root"
}

try_test() {
    fresh "$1" test
    clone_to /root/trireme
    inside "./run test" trireme/run test
    rm -rf "$root"
}

# An ordinary user without sudo is told which packages to ask for; with these alone the demo works.
try_user() {
    local said status=0 asked
    fresh "$1" user
    clone_to /home/ordinary/trireme
    inside "an ordinary user" bash -c 'useradd --shell /bin/bash ordinary && chown -R ordinary: /home/ordinary'
    said=$(enter su - ordinary -c 'trireme/run demo' 2>&1) || status=$?
    [[ $status == 69 && $said == *"ask whoever administers this machine for"* ]] ||
        die 1 "./run demo did not say which packages to ask for. It ended with status $status and said:" "$said"
    say "$said"
    mapfile -t asked < <(sed -nE 's/.*(--no-install-recommends|to build all of it for:) //p' <<<"$said" | tr ' ' '\n')
    apt_inside "the administrator installs these" "${asked[@]}"
    inside "./run demo, as the ordinary user" su - ordinary -c 'trireme/run demo'
    rm -rf "$root"
}

# The package and the wheel are made in one system and tried in others, which have no compiler and nothing of the build.
try_packages() {
    local release=$1 made=$chroots_folder/$1/packages.made
    fresh "$release" packages
    clone_to /root/trireme
    inside "./run package" trireme/run package
    rm -rf "$made"
    mkdir "$made"
    mv "$root"/root/trireme/build/packages/*.{deb,whl} "$made"
    rm -rf "$root"
    try_deb "$release" "$made"
    try_wheel "$release" "$made"
}

# try_deb RELEASE FOLDER
try_deb() {
    fresh "$1" deb
    cp "$2"/*.deb tests/smoke.sh tools/mpi.sh "$root/root/"
    apt_inside "apt-get install ./trireme_*.deb" "/root/$(basename "$2"/*.deb)"
    inside "the installed program" ./smoke.sh trireme
    apt_inside "apt-get install openmpi-bin" openmpi-bin
    inside "the installed program under mpirun" bash -c 'source mpi.sh && ./smoke.sh trireme mpirun -n 2'
    rm -rf "$root"
}

# try_wheel RELEASE FOLDER
try_wheel() {
    fresh "$1" wheel
    cp "$2"/*.whl tests/smoke.sh tests/ecosystem/notebook.py docs/example.ipynb "$root/root/"
    apt_inside "apt-get install python3-venv" python3-venv
    inside "pip install trireme-*.whl" bash -c 'python3 -m venv venv && venv/bin/pip install --quiet ./*.whl'
    inside "the wheel's program" ./smoke.sh venv/bin/trireme
    inside "the notebook with the wheel's module" venv/bin/python notebook.py example.ipynb
    rm -rf "$root"
}
