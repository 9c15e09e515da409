#!/usr/bin/env bash
# One program serves every kind of MPI: under the mpirun of each that is here it computes what threads do. Where the
# library or the module of a launcher's MPI is missing, damaged or of another build, it says so and what to do.
# Usage: kinds_mpi.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
folder=${trireme%/*}
run=("${no_evaluation[@]}" --train-iters 3 --log-interval 1 --threads 1 --tp 2 --pp 2)

# refused STATUS WORDS COMMAND...: the process of rank 0 alone, with the variables of a launcher that the caller sets.
refused() {
    local want=$1 words=$2 status=0
    shift 2
    timeout -k 5 60 "$@" train "${corpus[@]}" "${run[@]}" >said 2>&1 </dev/null || status=$?
    [[ $status == "$want" ]] || complain "status $status, not $want: $(tail -3 said)"
    grep -qF -- "$words" said || complain "'$words' is not in: $(cat said)"
    grep -qF "needs MPI" said || complain "it is not said what needs MPI: $(cat said)"
}
by_openmpi=(env OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0)
by_mpich=(env PMI_SIZE=2 PMI_RANK=0)

train threads "${run[@]}" --ranks 4
for kind in openmpi mpich; do
    [[ -f $folder/trireme_mpi_$kind.so ]] || continue
    command -v "mpirun.$kind" >/dev/null || continue
    if check "under the mpirun of $kind"; then
        launcher=("mpirun.$kind" -n 4)
        train "$kind" "${run[@]}"
        launcher=()
        expect_same lm_loss threads "$kind"
    fi
done

if check "no library"; then
    export TRIREME_MPI=$PWD/nowhere
    for kind in openmpi mpich; do
        [[ -f $folder/trireme_mpi_$kind.so ]] || continue
        by=("${by_mpich[@]}") package=mpich
        [[ $kind == mpich ]] || by=("${by_openmpi[@]}") package=openmpi-bin
        refused 69 "Debian's package is $package" "${by[@]}" "$trireme"
        refused 69 "$PWD/nowhere/libmpi" "${by[@]}" "$trireme"
    done
    mkdir nowhere
    echo "no library" >nowhere/libmpi.so.40
    [[ ! -f $folder/trireme_mpi_openmpi.so ]] || refused 69 "libmpi.so.40: " "${by_openmpi[@]}" "$trireme"
    unset TRIREME_MPI
fi

# A program that was copied without its modules, then with wrong ones.
mkdir alone
cp "$trireme" alone/trireme
if check "no module"; then
    refused 69 "Open MPI needs the file trireme_mpi_openmpi.so" "${by_openmpi[@]}" alone/trireme
    refused 69 "Debian's package is libmpich-dev" "${by_mpich[@]}" alone/trireme
    alone/trireme --version >said
    grep -q "Open MPI needs the file" said || complain "--version says nothing of it: $(cat said)"
fi
own=$folder/trireme_mpi_openmpi.so
if [[ -f $own ]] && check "a wrong module"; then
    : >alone/trireme_mpi_openmpi.so
    refused 65 "the module cannot be loaded" "${by_openmpi[@]}" alone/trireme
    cp "$folder/tests/libfaults.so" alone/trireme_mpi_openmpi.so
    refused 65 "is no module of trireme" "${by_openmpi[@]}" alone/trireme
    # The interface is 16 hexadecimal digits in the module.
    interface=$(strings -n 16 "$own" | grep -xE '[0-9a-f]{16}' | head -1)
    sed "s/$interface/0123456789abcdef/" "$own" >alone/trireme_mpi_openmpi.so
    refused 65 "belongs to another build of trireme (interface 0123456789abcdef" "${by_openmpi[@]}" alone/trireme
    # The other kind's module is no way out: Open MPI's library is loaded by then.
    [[ ! -f $folder/trireme_mpi_mpich.so ]] || cp "$folder/trireme_mpi_mpich.so" alone/
    refused 65 "belongs to another build of trireme" env SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2 alone/trireme
fi
finish
