#!/usr/bin/env bash
# The Python of docs/checkpoints.md reads every tensor of a checkpoint: of a SwiGLU model on several grids the
# same numbers, whether the tensors are in slices or whole.
# Usage: checkpoint_snippet.sh PATH/trireme FOLDER
# Python is the one of the ecosystem test (FOLDER/venv), of $TRIREME_VENV, or python3; 77: none has NumPy.
set -uo pipefail
document=$(realpath "${BASH_SOURCE%/*}/../docs/checkpoints.md")
venvs=$(realpath -m "$2")
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$1"

python=
for candidate in "${TRIREME_VENV:-$venvs/venv}/bin/python" python3; do
    [[ -n $python ]] || { "$candidate" -c "import numpy" 2>/dev/null && python=$candidate; }
done
[[ -n $python ]] || { echo "skipped: no python3 with NumPy"; exit 77; }

awk '/^```/ { inside = /python$/; next } inside' "$document" >snippet.py
grep -q "def read_tensor" snippet.py || complain "docs/checkpoints.md has no read_tensor"
grep -v '"step-00000500"' snippet.py >reader.py # its last line is an example: run below with its folder
cat >compare.py <<'END'
import json, sys
import numpy
from reader import read_tensor

sliced, whole = sys.argv[1:]
entries = json.load(open(f"{sliced}/manifest.json"))["tensors"]
print(max(len(entry["slices"]) for entry in entries if "linear_fc1" in entry["name"]))
for entry in entries:
    a, b = read_tensor(sliced, entry["name"]), read_tensor(whole, entry["name"])
    assert list(a.shape) == entry["shape"] and numpy.array_equal(a, b), entry["name"]
    assert numpy.isfinite(a).all() and (a.any() or "bias" in entry["name"] or "exp_avg" in entry["name"]), entry["name"]
END

for grid in "--ranks 1" "--ranks 4 --tp 2 --dp 2 --use-distributed-optimizer"; do
    rm -rf save whole
    # shellcheck disable=SC2086 # options
    train swiglu "${no_evaluation[@]}" --train-iters 2 --swiglu --save save $grid
    "$trireme" checkpoint reshard save --output whole >reshard.log 2>&1 || complain "reshard: $(cat reshard.log)"
    slices=$("$python" compare.py save/step-00000002 whole/step-00000002 2>compare.log) ||
        complain "$grid: $(tail -2 compare.log)"
    [[ ${slices:-0} -gt 1 ]] || complain "$grid: fc1 has ${slices:-no} slices: nothing was put together"
done
sed -i 's/step-00000500/step-00000002/' snippet.py
(cd save && "$python" ../snippet.py) >example.log 2>&1 || complain "the example: $(tail -2 example.log)"
finish
