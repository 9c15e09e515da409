# A virtual environment of Python for tests, on top of a python3-torch of version 2.4 or later, or $TRIREME_VENV.

skip() {
    echo "skipped: $*"
    exit 77
}

# make_venv FOLDER NAME OPTION PACKAGE...: makes FOLDER/NAME with these packages where it is not there, or has others;
# OPTION is one of venv's. Skips the test where that cannot be had.
make_venv() {
    local folder=$1 name=$2 option=$3 log=$1/$2.log
    shift 3
    if [[ -e $folder/$name/complete && $(<"$folder/$name/complete") == "$*" ]]; then return; fi
    rm -rf "${folder:?}/$name"
    mkdir -p "$folder/$name"
    /usr/bin/python3 -m venv "$option" "$folder/$name" >"$log" 2>&1 || skip "no virtual environment: $(tail -1 "$log")"
    timeout 120 "$folder/$name/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 15 \
        "$@" >>"$log" 2>&1 || skip "packages of the Python index: $(tail -1 "$log")"
    echo "$*" >"$folder/$name/complete"
}

# new_venv FOLDER NAME PACKAGE...: sets $venv to FOLDER/NAME, with these packages, or to $TRIREME_VENV as it is.
new_venv() {
    venv=${TRIREME_VENV:-$1/$2}
    if [[ -n ${TRIREME_VENV:-} ]]; then return; fi
    /usr/bin/python3 -c 'import torch, ensurepip; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)' \
        2>/dev/null || skip "python3-torch is not installed, or older than 2.4"
    make_venv "$1" "$2" --system-site-packages "${@:3}"
}

# plain_venv FOLDER NAME PACKAGE...: sets $venv to FOLDER/NAME, with these packages and none of the system's.
plain_venv() {
    venv=$1/$2
    make_venv "$1" "$2" --clear "${@:3}"
}
