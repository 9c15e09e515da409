#!/usr/bin/env bash
# A supervised run on several machines, which are namespaces with a network between them (nodes.sh): when a machine loses its
# cable or its power this is told within the timeout, the run goes on on what is left, and on all of it when the machine
# is back; its parameters are those of the undisturbed run, byte for byte.
# Usage: supervise_net.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
#   77: this system gives no namespaces
set -uo pipefail
export LC_ALL=C
# shellcheck source=tests/nodes.sh
source "${BASH_SOURCE%/*}/nodes.sh"
nodes_inside "$@"
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
# shellcheck source=tests/jobs.sh
source "$here/jobs.sh"
nodes=(a b c)
timeout_s=6
options=("${corpus[@]}" --num-layers 2 --global-batch-size 4 "${no_evaluation[@]}" --plain --tp 2 --train-iters 500
    --save-interval 20 --keep-last 3 --virtual-data-parallel 2 --distributed-timeout-minutes 0.1)

# ---- ways onto the machines -------------------------------------------------------------------------------

nodes_named "${nodes[@]}"
# As ssh: it reaches a machine that has power and a cable, hands on no variables, leaves what it has started there when it
# is killed, and does not notice that a machine has lost its power.
cat >agent <<END_OF_FILE
#!/bin/bash
pid=\$(cat "$nodes_folder/\$1" 2>/dev/null) && ip link show "to-\$1" | grep -q "state UP" || exit 255
nsenter --target "\$pid" --all env -i PATH="$PATH" HOME=/root TMPDIR="$PWD" sh -c "cd '$PWD' && \${*:2}"
status=\$?
[[ \$(cat "$nodes_folder/\$1" 2>/dev/null) == "\$pid" ]] || exec sleep 1000
exit \$status
END_OF_FILE
cat >is_up <<'END_OF_FILE'
#!/bin/bash
exec ./agent "$1" true
END_OF_FILE
# ./by_tcp HOSTS -n RANKS PROGRAM ARGUMENT...: ranks fill the hosts in their order, and are handed USR1. After the first
# that fails the others have a second.
cat >by_tcp <<'END_OF_FILE'
#!/bin/bash
IFS=, read -ra hosts <<<"$1"
ranks=$3 rank=0 port=$((20000 + RANDOM % 10000))
shift 3
trap 'for host in "${hosts[@]}"; do ./agent "${host%:*}" pkill -USR1 trireme; done' USR1
for host in "${hosts[@]}"; do
    for ((slot = 0; slot < ${host#*:} && rank < ranks; slot++)); do
        ./agent "${host%:*}" "RANK=$rank WORLD_SIZE=$ranks MASTER_ADDR=${hosts[0]%:*} MASTER_PORT=$port exec" "$@" &
        rank=$((rank + 1))
    done
done
for ((ended = 0; ended < ranks; ended++)); do
    wait -n
    status=$?
    while ((status == 128 + 10)); do # USR1
        wait -n
        status=$?
    done
    ((!status)) || {
        sleep 1
        exit "$status"
    }
done
END_OF_FILE
chmod +x agent is_up by_tcp
for node in "${nodes[@]}"; do node_up "$node"; done
ways=(tcp)
if "$trireme" --version | grep -q MPI && mpirun --version 2>/dev/null | grep -q "Open MPI"; then
    ways+=(mpi)
    export OMPI_MCA_plm_rsh_agent=$PWD/agent OMPI_MCA_btl=self,vader,tcp
    export OMPI_MCA_btl_tcp_if_include=$nodes_net.0/24 OMPI_MCA_oob_tcp_if_include=$nodes_net.0/24
    # mpirun misses a machine after so many seconds, not after eight minutes.
    export OMPI_MCA_oob_tcp_keepalive_time=3 OMPI_MCA_oob_tcp_keepalive_intvl=1 OMPI_MCA_oob_tcp_keepalive_probes=3
fi

# ---- runs -------------------------------------------------------------------------------------------------

reference() {
    "$trireme" train "${options[@]}" --ranks 4 --save reference >reference.log 2>&1 || complain "$(tail -3 reference.log)"
}
# start WAY NAME HOSTS: four ranks on the machines, as $pid.
start() {
    local launch=(./by_tcp "{hosts}" -n 4)
    [[ $1 == tcp ]] || launch=(mpirun --host "{hosts}" -n 4)
    out=$2.log
    "$trireme" supervise --hosts "$3" --host-check ./is_up --grow-interval-s 0.2 -- "${launch[@]}" "$trireme" train \
        "${options[@]}" --dp 2 --save "$PWD/$2" >"$out" 2>&1 </dev/null &
    pid=$!
}
expect_end() { # NAME
    until_true has_ended
    wait "$pid" || complain "exit $?: $(tail -4 "$out")"
    need reference
    "$trireme" checkpoint diff reference "$1" >diff.log 2>&1 || complain "$1 differs from the undisturbed run: $(tail -1 diff.log)"
}
has_saved() { [[ $(compgen -G "$1/step-*" | sed 's/.*step-0*//' | sort -n | tail -1) -ge $2 ]]; }
# starts NAME: the machines of each start, a line each. On a busy machine a start may fail by itself, and is made again.
starts() { sed -n 's/.*"event": "started".*"hosts": "\([^"]*\)".*/\1/p' "$1/supervise/ledger.jsonl" 2>/dev/null | uniq; }
runs_on() { [[ $(starts "$1" | tail -1) == "$2" ]]; }
expect_starts() { [[ $(starts "$1" | paste -s -d' ') == "$2" ]] || complain "$1 ran on $(starts "$1" | paste -s -d' '), not $2"; }
nobody_is_left() {
    local node left
    for node in "${nodes[@]}"; do
        left=$(on_node "$node" pgrep -a trireme) && complain "on $node is left: $left"
    done
}

# The ranks are told after $timeout_s, the launcher has four seconds to end, and a busy machine takes longer.
expect_told() { ((SECONDS <= timeout_s + 14)) || complain "told after $SECONDS s"; }

for way in "${ways[@]}"; do
    if check "$way: a machine loses its cable: it is told within the timeout, and another takes its place"; then
        start "$way" "$way.cut" a:2,b:2,c:2
        until_true has_saved "$way.cut" 20
        node_cut b
        SECONDS=0
        until_true runs_on "$way.cut" a:2,c:2
        expect_told
        expect_end "$way.cut"
        expect_starts "$way.cut" "a:2,b:2 a:2,c:2"
        node_joined b
    fi
    if check "$way: a machine loses its power: fewer ranks go on, and all of them when it is back"; then
        start "$way" "$way.power" a:2,b:2
        until_true has_saved "$way.power" 20
        node_down b
        SECONDS=0
        until_true runs_on "$way.power" a:2
        expect_told
        until_true has_saved "$way.power" 40
        node_up b
        expect_end "$way.power"
        expect_starts "$way.power" "a:2,b:2 a:2 a:2,b:2"
        grep -q "stopped by a signal (SIGUSR1)" "$out" || complain "the smaller run did not save: $(tail -4 "$out")"
    fi
done
nobody_is_left
finish
