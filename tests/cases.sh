# shellcheck shell=bash
# Named cases of the scripts that drive whole programs. A script sources this with its own arguments, the path of the
# program and then words: only the cases whose sentence contains one of the words run, or all when there are none.
# The script works in a folder of its own, which is removed at the end.
# shellcheck disable=SC2034 # for the scripts
trireme=$(realpath "$1")
chosen=("${@:2}")
here=$(cd "${BASH_SOURCE%/*}" && pwd) # the folder of the tests
# shellcheck source=tools/mpi.sh
source "$here/../tools/mpi.sh"
cases_folder=$(mktemp -d)
trap 'rm -rf "$cases_folder"' EXIT
cd "$cases_folder" || exit 1
export TMPDIR=$cases_folder # a session folder that is not shared: see mpirun.sh
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive

current_case="before the first case"

# check SENTENCE COMMAND...: the case with this name runs the command, unless other cases were asked for.
# if check SENTENCE; then ...; fi: the same for a case of several commands.
check() {
    local sentence=$1 word
    shift
    for word in "${chosen[@]}" ""; do
        [[ $sentence == *"$word"* && (-n $word || ${#chosen[@]} == 0) ]] || continue
        current_case=$sentence
        echo "$sentence" >>"$cases_folder/.cases" # a file, as cases may run in subshells
        "$@"
        return 0
    done
    return 1
}

# need COMMAND...: runs what several cases stand on, once.
declare -A needed
need() {
    [[ -z ${needed[$*]:-} ]] || return 0
    needed[$*]=yes
    "$@"
}

# complain MESSAGE...: the current case has failed. Works in subshells, too.
complain() { echo "FAILED $current_case: $*" | tee -a "$cases_folder/.complaints"; }

# finish: the last command of a script; its exit status.
finish() {
    if [[ ${#chosen[@]} != 0 && ! -s $cases_folder/.cases ]]; then
        echo "no case has one of these words in its name: ${chosen[*]}"
        exit 1
    fi
    [[ ! -s $cases_folder/.complaints ]] || {
        echo "$(grep -c ^FAILED "$cases_folder/.complaints") failures"
        exit 1
    }
}
