#!/usr/bin/env bash
# Supervised runs as jobs of Slurm, by the script of docs/supervise.md: asked to stop by the scheduler, preempted, and on
# nodes that are lost and come back, they end with the parameters of the undisturbed run, byte for byte. The cluster is
# three virtual machines (nodes.sh), each with a slurmd of its own.
# Usage: slurm.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
#   77: Slurm's daemons are not installed (Debian: slurmctld slurmd slurm-client munge), or this system gives no nodes
set -uo pipefail
export LC_ALL=C
daemons=(munged slurmctld slurmd srun sbatch scontrol squeue sinfo scancel)
if ((EUID)) || (($(command -v "${daemons[@]}" | wc -l) < ${#daemons[@]})); then
    echo "skipped: needs root and Slurm's daemons (Debian: slurmctld slurmd slurm-client munge)"
    exit 77
fi
# shellcheck source=tests/nodes.sh
source "${BASH_SOURCE%/*}/nodes.sh"
nodes_inside "$@"
# A job in which the tests themselves run is another one.
unset "${!SLURM_@}" "${!SBATCH_@}"
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
# shellcheck source=tests/jobs.sh
source "$here/jobs.sh"
nodes=(n1 n2 n3)
faults=$(dirname "$trireme")/tests/libfaults.so

# ---- the cluster ------------------------------------------------------------------------------------------

# Each machine has its own munged, as credentials are read once on each. TmpFS: where srun --mpi=pmix has its sockets.
mkdir state spool
head -c 1024 /dev/urandom >key
chmod 600 key
cat >slurm.conf <<END_OF_FILE
ClusterName=trireme
SlurmctldHost=head
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge.socket,cred_expire=5
StateSaveLocation=$PWD/state
SlurmdSpoolDir=$PWD/spool/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
TmpFS=/run
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
ReturnToService=2
SlurmdTimeout=20
KillWait=5
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-3] CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
END_OF_FILE
export SLURM_CONF=$PWD/slurm.conf
munge=(munged --force --socket=/run/munge.socket "--key-file=$PWD/key" --log-file=/run/munged.log
    --pid-file=/run/munged.pid --seed-file=/run/munged.seed)
slurm_node() {
    node_up "$1"
    mkdir -p "spool/$1"
    on_node "$1" sh -c "${munge[*]} && exec slurmd -D -N $1" >>"$1.log" 2>&1 </dev/null &
    disown
}
idle_nodes() { [[ $(sinfo --noheader --states=idle --format=%D 2>>sinfo.log | head -1) == "${#nodes[@]}" ]]; }
nodes_named "${nodes[@]}"
"${munge[@]}"
slurmctld -c -D >slurmctld.log 2>&1 &
for node in "${nodes[@]}"; do slurm_node "$node"; done
for _ in $(seq 300); do
    idle_nodes && break
    sleep 0.1
done
if ! idle_nodes; then
    echo "skipped: Slurm does not start here: $(tail -n 3 ./*.log)"
    exit 77
fi

# ---- jobs -------------------------------------------------------------------------------------------------

by=(srun)
if "$trireme" --version | grep -q "^built with.*MPI"; then
    srun --mpi=list 2>&1 | grep -q pmix && by=(srun --mpi=pmix) || by=()
fi
options=("${corpus[@]}" --num-layers 2 --global-batch-size 4 "${no_evaluation[@]}" --plain --tp 2 --pp 2 --train-iters 120
    --save-interval 10 --keep-last 3)
reference() {
    "$trireme" train "${options[@]}" --ranks 4 --save reference >reference.log 2>&1 || complain "$(tail -3 reference.log)"
}
expect_reference() { # FOLDER
    need reference
    "$trireme" checkpoint diff reference "$1" >diff.log 2>&1 || complain "$1 differs from the undisturbed run: $(tail -1 diff.log)"
}
has_saved() { [[ $(compgen -G "$1/step-*" | sed 's/.*step-0*//' | sort -n | tail -1) -ge $2 ]]; }
# until_job JOB STATE: waits until it is in a state that this expression matches; a question costs more than a look at a file.
until_job() {
    for _ in $(seq 400); do
        [[ $(squeue --noheader --states=all --jobs="$1" --format=%T 2>/dev/null) =~ ^($2)$ ]] && return
        sleep 0.3
    done
    complain "job $1 is not $2 after two minutes: $(tail -3 "$out")"
}
until_over() { until_job "$1" "COMPLETED|CANCELLED|FAILED|NODE_FAIL"; }
count() { grep -c -- "$1" "$out" || true; }

# The two scripts: that of the documentation, and that of the examples with the options of the first.
of_documentation() { sed -n '/^    #!\/bin\/bash/,/^$/s/^    //p' "$here/../docs/supervise.md"; }
of_examples() {
    sed '/^#SBATCH --\(nodes\|cpus-per-task\|time\|output\)/d; /^options=(/,/^)/d; /^exit/d
        s/ train "[^ ]*"/ train ... --save checkpoints/' "$here/../examples/slurm/train.sbatch"
}

# submit NAME [COMMAND]: the script that $script names as job $id, whose output goes to $out. Its first start runs the
# command before all others.
script=of_documentation
submit() {
    out=$1.log
    {
        "$script" | sed "s|--ntasks=8|--ntasks=4 --nodes=2|; s|srun --mpi=pmix -n 8|srun --mpi=pmix -n 4|
                s|srun --overlap --mpi=pmix -n 8|srun --overlap --mpi=pmix -n 4|
                s|srun \(.*\)--mpi=pmix|srun \1${by[1]:-}|
                s|trireme supervise|$trireme supervise|; s| trireme train| $trireme train|
                s|train \.\.\.|train ${options[*]}|; s|--save checkpoints|--save $1|
                s|^trap |((SLURM_RESTART_COUNT)) \|\| ${2:-true}\ntrap |"
        echo "echo \"the supervisor ended with \$status\""
    } >"$1.sh"
    id=$(sbatch --parsable --output="$out" --open-mode=append "$1.sh") || complain "$(cat "$1.sh")"
}
# A job that was put back waits for as long as its credentials last, unless it is told not to; the nodes must have heard of
# its end in an earlier second.
at_once() {
    until_job "$id" PENDING
    sleep 2
    scontrol update JobId="$id" StartTime=now >/dev/null 2>&1
}
expect_end() { # NAME
    until_over "$id"
    grep -q "the supervisor ended with 0" "$out" || complain "$(grep -v iteration "$out" | tail -5)"
    expect_reference "$1"
}
nobody_is_left() {
    local node left
    for node in n2 n3; do
        left=$(on_node "$node" pgrep -a '^(trireme|srun)') && complain "on $node is left: $left"
    done
}

if check "ranks on two nodes by srun compute what threads do"; then
    few=("${no_evaluation[@]}" --plain --tp 2 --pp 2 --train-iters 10 --log-interval 1)
    train threads "${few[@]}" --ranks 4 --save threads
    cat >by_rank <<'END_OF_FILE'
#!/bin/bash
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS MASTER_ADDR=n1 MASTER_PORT=29500
exec "$@"
END_OF_FILE
    chmod +x by_rank
    for way in "${by[*]}" "srun ./by_rank"; do
        [[ -n $way ]] || continue
        # shellcheck disable=SC2206 # words
        launcher=(${way/srun/srun --nodes=2 --ntasks=4})
        name=${way//[^a-z]/_}
        train "$name" "${few[@]}" --save "$name"
        expect_same lm_loss threads "$name"
        "$trireme" checkpoint diff threads "$name" >diff.log 2>&1 || complain "$way: $(tail -1 diff.log)"
    done
    launcher=()
fi

((${#by[@]})) || echo "no jobs: this Slurm has no --mpi=pmix, which the build's MPI needs"
if ((${#by[@]})); then
    if check "asked by the scheduler: saved, requeued, goes on"; then
        submit asked
        until_true has_saved asked 10
        scancel --batch --signal=USR1 "$id"
        at_once
        expect_end asked
        [[ $(count "asked to stop by SIGUSR1") == 1 && $(count "successfully loaded") == 1 ]] ||
            complain "$(grep -v iteration "$out" | tail)"
    fi

    if check "the example is asked by the scheduler: saved, requeued, goes on"; then
        sbatch --test-only --nodes=3 --ntasks=3 --cpus-per-task=1 "$here/../examples/slurm/train.sbatch" >log 2>&1 || complain "$(cat log)"
        script=of_examples
        submit example
        script=of_documentation
        until_true has_saved example 10
        scancel --batch --signal=USR1 "$id"
        at_once
        expect_end example
    fi

    if check "preempted: saved within the time that is left, requeued, goes on when there is room"; then
        # The save of step 20, by its fourth rename, takes ten seconds, so that the run has not ended before Slurm preempts it.
        submit preempted "export LD_PRELOAD=$faults TRIREME_FAULT=rename@preempted/.tmp-step:4:DELAY10000"
        until_true has_saved preempted 10
        urgent=$(sbatch --parsable --partition=urgent --nodes=3 --output=urgent.log --wrap "echo urgent")
        until_over "$urgent"
        grep -q urgent urgent.log || complain "the other job did not run: $(cat urgent.log)"
        at_once
        expect_end preempted
        [[ $(count "asked to stop") == 1 && $(count "successfully loaded") == 1 ]] ||
            complain "$(grep -v iteration "$out" | tail)"
    fi

    # For about a minute Slurm counts the processors of the lost step as taken: the next step shares them (--overlap).
    if check "a node is lost and is back at once: the same job goes on"; then
        submit short
        until_true has_saved short 10
        node_down n2
        slurm_node n2
        expect_end short
        [[ $(count "it starts again") -ge 1 && $(count "successfully loaded") -ge 1 ]] ||
            complain "$(grep -v iteration "$out" | tail)"
    fi

    if check "the node of the supervisor is lost: Slurm starts the job again, on other nodes"; then
        submit lost
        until_true has_saved lost 10
        node_down n1
        scontrol update NodeName=n1 State=DOWN Reason=lost # Slurm sees it by itself after SlurmdTimeout
        at_once
        expect_end lost
        [[ $(count "successfully loaded") -ge 1 ]] || complain "$(grep -v iteration "$out" | tail)"
    fi
    nobody_is_left
fi
finish
