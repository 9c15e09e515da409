#!/usr/bin/env bash
# The files of examples/: each is read as its tool reads it, as far as that can be done without the tool, and the commands
# that it runs train here, with a smaller model. slurm.sh runs the one for Slurm as a job.
# Usage: examples.sh PATH/trireme [WORD...]    with words: only the cases whose names contain one of them
set -uo pipefail
# shellcheck source=tests/script.sh
source "${BASH_SOURCE%/*}/script.sh" "$@"
examples=$(realpath "$here/../examples")
mkdir bin data
ln -s "$trireme" bin/trireme
export PATH=$PWD/bin:$PATH
for file in documents*; do cp "$file" "data/corpus${file#documents}"; done

# The command with a model that trains in a second, and with this folder's data.
smaller() {
    sed "s|/data/|$PWD/data/|g; s/--num-layers 12/--num-layers 2/; s/--hidden-size 768/--hidden-size 32/
        s/--num-attention-heads 12/--num-attention-heads 4/; s/--seq-length 1024/--seq-length 32/
        s/--micro-batch-size 4 --global-batch-size 64/--micro-batch-size 1 --global-batch-size 8/
        s/--train-iters 10000/--train-iters 4 --eval-iters 0 --threads 1/; s/--lr-warmup-iters 500/--lr-warmup-iters 1/
        s/--save-interval 200/--save-interval 2/"
}
read_job() { python3 -B "$here/ecosystem/examples.py" "$1" >job 2>log || complain "$1: $(tail -1 log)"; }
expect_trained() { # LOG
    grep -q "trained 4 iterations" "$1" || complain "$(tail -3 "$1")"
    [[ -d data/checkpoints/step-00000004 ]] || complain "no checkpoint"
    rm -rf data/checkpoints
}
has_yaml() { python3 -c "import yaml" 2>/dev/null || { echo "not run: Python's yaml is not here" && false; }; }

if check "Kubeflow's PyTorchJob" && has_yaml; then
    read_job "$examples/kubeflow/pytorchjob.yaml"
    ranks=$(awk '{ sum += $2 } END { print sum }' job)
    export WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000))
    rank=0
    while read -r _ replicas command; do
        for ((i = 0; i < replicas; i++)); do
            RANK=$rank timeout 120 bash -c "$(smaller <<<"$command")" >pod.$rank 2>&1 </dev/null &
            ((++rank))
        done
    done <job
    wait
    unset WORLD_SIZE MASTER_ADDR MASTER_PORT
    [[ $ranks == 4 ]] || complain "$ranks ranks"
    expect_trained pod.0
fi
if check "Kubeflow's TrainJob" && has_yaml; then
    read_job "$examples/kubeflow/trainjob.yaml"
    read -r _ ranks command <job
    # Kubernetes replaces $(NAME) in the words of a command by the value of the container's variable.
    command=${command//\$(PET_NNODES)/$ranks}
    command=${command//\$(PET_MASTER_ADDR)/127.0.0.1}
    command=${command//\$(PET_MASTER_PORT)/$((20000 + $$ % 10000))}
    for ((rank = 0; rank < ranks; rank++)); do
        timeout 120 bash -c "$(smaller <<<"${command//\$(PET_NODE_RANK)/$rank}")" >pod.$rank 2>&1 </dev/null &
    done
    wait
    [[ $ranks == 4 ]] || complain "$ranks ranks"
    expect_trained pod.0
    grep -q "using world size: 4," pod.0 || complain "$(head -1 pod.0)"
fi
if check "Kubeflow's MPIJob" && has_yaml; then
    read_job "$examples/kubeflow/mpijob.yaml"
    command=$(sed -n 's/^Launcher 1 //p' job | smaller | sed 's/ -n 8 / -n 4 /')
    if command -v mpirun >/dev/null; then
        mpirun --version | grep -q "Open MPI" || command=${command/--bind-to none/}
        timeout 120 bash -c "$command" >pod 2>&1 </dev/null
        expect_trained pod
    fi
    grep -q "^Worker 2 /usr/sbin/sshd -De$" job || complain "$(cat job)"
    grep -q "openssh-server" "$examples/container/Dockerfile" || complain "the image has no sshd"
fi
if check "SkyPilot" && has_yaml; then
    read_job "$examples/skypilot/train.yaml"
    smaller <job | sed "s|build/trireme|trireme|; s/MASTER_PORT=29500/MASTER_PORT=$((20000 + $$ % 10000))/" >run
    for rank in 1 0; do
        FOLDER=$PWD/data SKYPILOT_NODE_RANK=$rank SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_IPS=$'127.0.0.1\n127.0.0.1' \
            timeout 120 bash run >node.$rank 2>&1 </dev/null &
    done
    wait
    expect_trained node.0
fi
if check "Slurm's job, without Slurm"; then
    smaller <"$examples/slurm/train.sbatch" | sed 's/srun .*-n 8 //; s/--bf16/& --ranks 2/' >job
    FOLDER=$PWD/data timeout 120 bash job >job.log 2>&1 </dev/null || complain "status $?"
    expect_trained job.log
fi

# The commands in an image's file as one script: Dockerfile or Apptainer's %post.
script_of() {
    if [[ $1 == *.def ]]; then
        sed -n '/^%post/,/^%/{/^%/d;p}' "$1"
    else
        sed -e ':join' -e '/\\$/{N;s/\\\n//;b join' -e '}' "$1" | sed -n 's/^RUN //p'
    fi
}
if check "images"; then
    grep -vE '^(#|$| )' "$examples/container/Dockerfile" | awk '{ print $1 }' | sort -u >words
    ! grep -vxE 'FROM|RUN|COPY|ENV|WORKDIR|ENTRYPOINT|CMD' words || complain "unknown instructions: $(cat words)"
    for file in "$examples"/container/{Dockerfile,trireme.def}; do
        script_of "$file" >script.sh
        [[ -s script.sh ]] || complain "$file: no commands"
        bash -n script.sh 2>log || complain "$file: $(cat log)"
        ! command -v shellcheck >/dev/null || shellcheck -s sh script.sh >log || complain "$file: $(cat log)"
        # All packages of a build.
        sed -n '/^library_packages/,/^)/s/^ *"\([^ ?]*\).*/\1/p' "$here/../tools/packages.sh" | while read -r package; do
            grep -qw -- "$package" "$file" || complain "$file: $package is not installed"
        done
        grep -o -- '--target [a-z]*' script.sh | while read -r _ target; do
            grep -q "add_custom_target($target " "$here/../cmake/install.cmake" || complain "$file: no target $target"
        done
    done
fi
# The patterns of Apptainer's %files, each of which is copied into /source/.
files_of() { sed -n '/^%files/,/^$/s/^ *\([^ ]*\) \/source\/$/\1/p' "$1"; }
if check "images get the whole source, and not what was built"; then
    root=$(realpath "$here/..")
    # Docker leaves out what git ignores, and nothing else: the commit would be a modified one where a file is lacking.
    grep -v '^#' "$root/.dockerignore" | sort | diff <(tr -d / <"$root/.gitignore" | sort) - >log ||
        complain ".dockerignore: $(cat log)"
    def=$examples/container/trireme.def
    [[ $(sed -n '/^%files/,/^$/p' "$def" | grep -c "^ ") == "$(files_of "$def" | wc -l)" ]] || complain "$def: another form in %files"
    if git -C "$root" ls-files 2>/dev/null | cut -d/ -f1 | sort -u >tracked && [[ -s tracked ]]; then
        mkdir source
        (cd source && xargs mkdir .git build build-cuda demo-run .venv) <tracked
        while read -r pattern; do (cd source && compgen -G "$pattern") || complain "$def: nothing is $pattern"; done \
            < <(files_of "$def") | sort >copied
        (cat tracked && echo .git) | sort | diff - copied >log || complain "$def: $(cat log)"
        rmdir source/.git # as in an archive of the source
        [[ $(cd source && compgen -G ".git*") == .gitignore ]] || complain "$def: it needs .git"
    fi
fi
if check "Spack's recipe"; then
    recipe=$examples/spack/packages/trireme/package.py
    python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$recipe" 2>log || complain "$(tail -1 log)"
    # What it leaves out are libraries of this program; and each library is one that it depends on.
    for name in $(sed -n 's/.*names = {\(.*\)}/\1/p' "$recipe" | tr ',' '\n' | sed 's/.*: "\(.*\)"/\1/'); do
        grep -q "\"$name\"" "$here/../src/base/libraries.def" || complain "no library is named $name"
    done
    sed -n 's/^LIBRARY([A-Z0-9]*, "\([^"]*\)".*/\1/p' "$here/../src/base/libraries.def" | while read -r name; do
        grep -qi "depends_on(\"$name" "$recipe" || complain "it does not depend on $name"
    done
fi
finish
