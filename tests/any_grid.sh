#!/usr/bin/env bash
# Starts a training command on a grid, a transport and with ways of saving that are drawn by chance, of those that
# change no bit; and may make one of its calls on files fail (faults.c). A launcher for `trireme supervise`.
# Usage: any_grid.sh FOLDER PROGRAM train OPTION...
#   FOLDER  has the file `draw`: T, the transports, the path of the faults' library or -, how many of a hundred starts
#           have a fault, a seed; and gets `starts`, a line for each start, and `fired`, one for each call that failed
# With `source`: the functions alone.

# one_of WORD...: sets $drawn to one of them.
one_of() {
    local words=("$@")
    drawn=${words[RANDOM % $#]}
}

# draw_way T: sets $ranks and the options $way.
draw_way() {
    local t=$1 p d
    while :; do
        one_of 1 2 2 4 && p=$drawn
        one_of 1 2 4 && d=$drawn
        ranks=$((t * p * d))
        ((ranks <= 8)) && break
    done
    way=(--tp "$t" --pp "$p")
    case $p in
    1) one_of "--schedule gpipe" "--schedule 1f1b" ;;
    2) one_of "--schedule gpipe" "--schedule 1f1b" "--schedule zb-h1" "--schedule zb-v" "--schedule interleaved --vp 2" ;;
    4) one_of "--schedule gpipe" "--schedule 1f1b" "--schedule zb-h1" ;;
    esac
    # shellcheck disable=SC2206 # words
    way+=($drawn)
    one_of "" "--use-distributed-optimizer" "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
    # shellcheck disable=SC2206
    way+=($drawn)
    one_of "" "" "--async-save"
    # shellcheck disable=SC2206
    way+=($drawn)
}

# draw_fault: sets $fault to what faults.c is to do; most calls of a short run are saves'. By MPI only calls that MPI
# itself does not make: it can hang in its start after a failure.
draw_fault() {
    case $drawn in
    MPI) one_of fsync rename posix_fadvise ;;
    *) one_of open write write write pwrite fsync fsync rename mkdir close close unlink posix_fadvise ;;
    esac
    fault=$drawn:$((1 + RANDOM % 40))
    case $drawn in
    write) one_of EIO ENOSPC SHORT KILL EINTR DELAY20 ;;
    posix_fadvise) one_of FLIP KILL ;;
    *) one_of EIO ENOSPC KILL KILL DELAY20 ;;
    esac
    fault+=:$drawn
}

# draw_command FOLDER PROGRAM train OPTION...: sets $command to what is to run.
draw_command() {
    local folder=$1 t transports library share seed starts launch=()
    read -r t transports library share seed <"$folder/draw"
    shift
    mapfile -t starts < <(cat "$folder/starts" 2>/dev/null)
    RANDOM=$(((seed * 1009 + ${#starts[@]} * 31 + 7) % 32768))
    draw_way "$t"
    # shellcheck disable=SC2086 # words
    one_of ${transports//,/ }
    case $drawn in
    THREADS) way=(--ranks "$ranks" "${way[@]}") ;;
    MPI) launch=(mpirun -n "$ranks") ;;
    TCP) launch=("${BASH_SOURCE%/*}/tcprun.sh" "$ranks") ;;
    esac
    command=("$@" "${way[@]}")
    fault=
    if [[ $library != - && $((RANDOM % 100)) -lt $share ]]; then
        draw_fault
        command=(env "LD_PRELOAD=$library" "TRIREME_FAULT=$fault" "TRIREME_FAULT_FIRED=$folder/fired" "${command[@]}")
    fi
    echo "${launch[0]:-threads} $ranks ${way[*]} $fault" >>"$folder/starts"
    command=("${launch[@]}" "${command[@]}")
}

[[ ${BASH_SOURCE[0]} == "$0" ]] || return 0
draw_command "$@"
exec "${command[@]}"
