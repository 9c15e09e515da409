#!/usr/bin/env bash
# A job on two machines, which are network namespaces with a cable between them: it trains as one process does, and when
# the cable is cut, or nobody listens, each machine's ranks say so and end.
# Usage: tcp_hosts.sh PATH/trireme     77: this system gives no namespaces
set -uo pipefail
if [[ ${TCP_HOSTS_INSIDE:-} != yes ]]; then
    unshare --user --map-root-user --net --mount --pid --fork true 2>/dev/null || unshare --net --mount true 2>/dev/null ||
        exit 77
    options=(--net --mount)
    ((EUID == 0)) || options+=(--user --map-root-user)
    TCP_HOSTS_INSIDE=yes exec unshare "${options[@]}" "$0" "$@"
fi
command -v ip >/dev/null || exit 77
mount -t tmpfs none /run 2>/dev/null || exit 77 # where `ip netns` keeps its names, for this script alone
ip netns add left 2>/dev/null && ip netns add right || exit 77
ip link add cable netns left type veth peer name cable netns right 2>/dev/null || exit 77
for host in left right; do
    address=10.77.0.1
    [[ $host == left ]] || address=10.77.0.2
    ip -n $host address add $address/24 dev cable && ip -n $host link set cable up && ip -n $host link set lo up ||
        exit 77
done
# shellcheck source=tests/cases.sh
source "${BASH_SOURCE%/*}/cases.sh" "$1"

for i in $(seq 30); do echo "{\"text\": \"document $i: int f_$i(int a) { return a + $i; } and others\"}"; done >text.jsonl
"$trireme" preprocess --input text.jsonl --output-prefix text --vocab-size 270 --append-eod >log 2>&1 || complain "$(cat log)"
model=(--data-path text --num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 16
    --micro-batch-size 1 --global-batch-size 4 --lr "1e-3" --threads 1 --split "100,0,0" --eval-iters 0 --log-interval 1)
export WORLD_SIZE=4 MASTER_ADDR=10.77.0.1 MASTER_PORT=29500

# on_hosts NAME OPTION...: ranks 0 and 1 on the left machine, 2 and 3 on the right one; NAME.RANK is what each says.
on_hosts() {
    local name=$1 rank host
    shift
    pids=()
    for rank in 0 1 2 3; do
        host=left
        ((rank < 2)) || host=right
        RANK=$rank timeout -k 5 120 ip netns exec $host "$trireme" train "${model[@]}" "$@" >"$name.$rank" 2>&1 </dev/null &
        pids+=($!)
    done
}
# ends STATUS: every rank of the job does.
ends() {
    local want=$1 pid status
    for pid in "${pids[@]}"; do
        status=0
        wait "$pid" || status=$?
        [[ $status == "$want" ]] || complain "a rank ended with $status, not $want: $(tail -n 3 ./*.[0-3])"
    done
}

if check "two machines train as one process does"; then
    on_hosts two --tp 2 --pp 2 --train-iters 3 --metrics two.jsonl
    ends 0
    env -u WORLD_SIZE "$trireme" train "${model[@]}" --tp 2 --pp 2 --ranks 4 --train-iters 3 --metrics one.jsonl >one 2>&1 ||
        complain "$(tail -3 one)"
    losses() { sed -n 's/.*"lm_loss": \([^,}]*\).*/\1/p' "$1"; }
    [[ -n $(losses one.jsonl) && $(losses one.jsonl) == "$(losses two.jsonl)" ]] ||
        complain "losses differ: $(losses one.jsonl) and $(losses two.jsonl)"
fi

# Neither machine hears of the other's end.
if check "a cable that is cut ends the job on both machines"; then
    on_hosts cut --tp 2 --pp 2 --train-iters 100000 --distributed-timeout-minutes 0.1
    for _ in $(seq 600); do
        grep -qs "iteration        3/" cut.0 && break
        sleep 0.05
    done
    ip -n left link set cable down
    ends 79
    grep -q "hang: \[rank [01].*for rank [23]" cut.0 cut.1 || complain "the left machine says: $(tail -n 3 cut.0 cut.1)"
    grep -q "hang: \[rank [23].*for rank [01]" cut.2 cut.3 || complain "the right machine says: $(tail -n 3 cut.2 cut.3)"
    ip -n left link set cable up
fi
finish
