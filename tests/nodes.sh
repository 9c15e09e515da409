# shellcheck shell=bash
# Machines of one cluster, which are namespaces of this one: each has its own network card, processes, host name, /dev/shm
# and /run, and they share its disks. All hang on one bridge; the script itself is the machine `head` there. A script calls
# nodes_inside with its arguments first, and sources cases.sh after it: when the script ends, however it ends, nothing is
# left of the machines.

nodes_net=10.78.0
nodes_folder=/run/nodes
node_options=(--net --mount --pid --uts --ipc --fork --kill-child --mount-proc)

nodes_skip() {
    echo "skipped: $*"
    exit 77
}

# nodes_inside ARGUMENT...: starts the calling script again in namespaces of its own; 77 where there are none.
nodes_inside() {
    if [[ ${NODES_INSIDE:-} != yes ]]; then
        command -v ip nsenter >/dev/null || nodes_skip "needs ip (iproute2)"
        unshare "${node_options[@]}" true 2>/dev/null || nodes_skip "this system gives this user no namespaces: root has them"
        NODES_INSIDE=yes exec unshare "${node_options[@]}" "$0" "$@"
    fi
    { hostname head && mount -t tmpfs none /dev/shm && mount -t tmpfs none /run && mkdir "$nodes_folder"; } 2>/dev/null ||
        nodes_skip "this system allows no names and mounts in namespaces"
    { ip link set lo up && ip link add hub type bridge && ip address add "$nodes_net.254/24" dev hub &&
        ip link set hub up; } 2>/dev/null || nodes_skip "this system has no bridges between network namespaces"
}

# nodes_named NAME...: their addresses, in the file /etc/hosts that this script and its machines see.
nodes_named() {
    local name number=0
    {
        echo "127.0.0.1 localhost"
        echo "$nodes_net.254 head"
        for name in "$@"; do echo "$nodes_net.$((number += 1)) $name"; done
    } >"$nodes_folder/hosts"
    mount --bind "$nodes_folder/hosts" /etc/hosts
}

node_address() { awk -v name="$1" '$2 == name { print $1 }' /etc/hosts; }

# node_up NAME: a machine starts, with nothing on it. Its first process waits for those that have lost their parent.
node_up() {
    # shellcheck disable=SC2016
    unshare "${node_options[@]}" bash -c '
        hostname "$0" && mount -t tmpfs none /dev/shm && mount -t tmpfs none /run
        while :; do sleep 1000; done' "$1" >/dev/null 2>&1 </dev/null &
    local parent=$! pid
    disown
    until pid=$(pgrep -P $parent) && [[ $(nsenter --target "$pid" --uts hostname) == "$1" ]]; do sleep 0.02; done
    ip link add "to-$1" type veth peer name eth0 netns "$pid"
    ip link set "to-$1" master hub up
    nsenter --target "$pid" --net sh -c "ip link set lo up
        ip address add $(node_address "$1")/24 dev eth0
        ip link set eth0 up"
    echo "$pid" >"$nodes_folder/$1"
}
# node_down NAME: it loses its power: nobody on it does anything any more, and nobody is told.
node_down() {
    local pid
    pid=$(cat "$nodes_folder/$1")
    rm "$nodes_folder/$1"
    ip link delete "to-$1"
    kill -9 "$pid"
    while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
}
node_cut() { ip link set "to-$1" down; } # its cable is pulled
node_joined() { ip link set "to-$1" up; } # and put back
# on_node NAME COMMAND...: runs it there, in this folder.
on_node() {
    local pid
    pid=$(cat "$nodes_folder/$1") || return 255
    # shellcheck disable=SC2016
    nsenter --target "$pid" --all bash -c 'cd "$0" && exec "$@"' "$PWD" "${@:2}"
}
