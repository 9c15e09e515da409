# A virtual environment of Python for tests, on top of a python3-torch of version 2.4 or later, or $TRIREME_VENV.

skip() {
    echo "skipped: $*"
    exit 77
}

# new_venv FOLDER NAME PACKAGE...: sets $venv to FOLDER/NAME, with these packages, or to $TRIREME_VENV as it is. Skips the
# test where that cannot be had.
new_venv() {
    local folder=$1 name=$2
    shift 2
    venv=${TRIREME_VENV:-$folder/$name}
    if [[ -n ${TRIREME_VENV:-} || -e $venv/complete ]]; then return; fi
    /usr/bin/python3 -c 'import torch, ensurepip; assert tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4)' \
        2>/dev/null || skip "python3-torch is not installed, or older than 2.4"
    rm -rf "$venv"
    mkdir -p "$venv"
    local log=$folder/$name.log
    /usr/bin/python3 -m venv --system-site-packages "$venv" >"$log" 2>&1 || skip "no virtual environment: $(tail -1 "$log")"
    timeout 120 "$venv/bin/pip" install --quiet --disable-pip-version-check --retries 1 --timeout 15 \
        "$@" >>"$log" 2>&1 || skip "packages of the Python index: $(tail -1 "$log")"
    touch "$venv/complete"
}
