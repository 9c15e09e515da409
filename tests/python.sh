#!/usr/bin/env bash
# libtrireme: the Python module does what the program does, to the same bits; its notebook runs; a program in C links.
# Usage: python.sh PATH/trireme PATH/libtrireme.so.0 FOLDER_OF_SOURCES
#
# It needs Python's NumPy. Exit code 77: it is not there.
set -uo pipefail
library=$(realpath "$2")
sources=$(realpath "$3")
set -- "$1"
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
/usr/bin/python3 -c 'import numpy' 2>/dev/null || {
    echo "skipped: python3-numpy is not installed"
    exit 77
}
export PYTHONPATH=$sources/python TRIREME_LIBRARY=$library PYTHONDONTWRITEBYTECODE=1
PATH=$(dirname "$trireme"):$PATH

if check "runs, weights and text are those of the program"; then
    train program --train-iters 6 --eval-iters 2 --eval-interval 100
    /usr/bin/python3 "$here/ecosystem/library.py" program.jsonl 2>log >out || complain "$(tail -5 log)"
    grep -q "^library: " out || complain "it did not come to its end: $(cat out)"
fi
if check "the notebook of the documentation runs"; then
    /usr/bin/python3 "$here/ecosystem/notebook.py" "$sources/docs/example.ipynb" >log 2>&1 || complain "$(tail -5 log)"
fi
if check "a program in C links, and C++ takes the header"; then
    cat >reader.c <<'C'
#include "trireme.h"
#include <stdio.h>
int main(int argc, char **argv) {
    TriremeModel *model;
    if (argc < 2 || trireme_model_open(&model, argv[1])) {
        fprintf(stderr, "%s\n", trireme_message());
        return 1;
    }
    printf("%d tensors, the first is %s\n", trireme_model_tensors(model), trireme_model_tensor(model, 0).name);
    trireme_model_close(model);
    return 0;
}
C
    train saved "${no_evaluation[@]}" --train-iters 1 --save saved
    gcc -std=c99 -Wall -Wextra -Werror -I"$sources/src/api" reader.c "$library" -Wl,-rpath,"${library%/*}" -o reader 2>log ||
        complain "$(cat log)"
    g++ -fsyntax-only -Wall -Wextra -Werror -x c++ "$sources/src/api/trireme.h" 2>log || complain "$(cat log)"
    [[ $(./reader saved) == *"tensors, the first is embedding.word_embeddings.weight" ]] || complain "$(./reader saved 2>&1)"
    [[ $(./reader nothing 2>&1) == *"there is no such folder"* ]] || complain "$(./reader nothing 2>&1)"
fi
finish
