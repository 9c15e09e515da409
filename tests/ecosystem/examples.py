"""Reads the examples of jobs: checks what a cluster would refuse, and prints the commands that they run.

examples.py FILE: for Kubeflow's jobs a line for each kind of pod, "NAME REPLICAS COMMAND..."; for SkyPilot the script."""
import re
import shlex
import sys

import yaml


def only(mapping, *names):
    unknown = set(mapping) - set(names)
    assert not unknown, f"unknown fields: {sorted(unknown)}"


def container_of(pod, name):
    only(pod, "metadata", "spec")
    spec = pod["spec"]
    only(spec, "containers", "volumes", "terminationGracePeriodSeconds")
    (container,) = spec["containers"]
    only(container, "name", "image", "command", "args", "resources", "volumeMounts")
    assert name in (None, container["name"]), f"the container's name is {container['name']}"
    words = container["command"] + container.get("args", [])
    for word in words:
        assert isinstance(word, str), f"{word!r} is no text"
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    assert mounted == {volume["name"] for volume in spec.get("volumes", [])}, "volumes and mounts differ"
    for amounts in container["resources"].values():
        only(amounts, "cpu", "memory")
    return shlex.join(words)


def print_pods(replicas, name):
    for kind, replica in replicas.items():
        only(replica, "replicas", "restartPolicy", "template")
        assert replica["restartPolicy"] in ("Never", "OnFailure", "Always", "ExitCode")
        print(kind, int(replica["replicas"]), container_of(replica["template"], name))


def pytorch_job(job):
    assert job["apiVersion"] == "kubeflow.org/v1"
    only(job["spec"], "runPolicy", "pytorchReplicaSpecs")
    only(job["spec"]["runPolicy"], "backoffLimit", "cleanPodPolicy")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    only(replicas, "Master", "Worker")
    assert replicas["Master"]["replicas"] == 1
    print_pods(replicas, "pytorch")


def mpi_job(job):
    assert job["apiVersion"] == "kubeflow.org/v2beta1"
    only(job["spec"], "slotsPerWorker", "mpiImplementation", "sshAuthMountPath", "runPolicy", "mpiReplicaSpecs")
    assert job["spec"]["mpiImplementation"] in ("OpenMPI", "Intel", "MPICH")
    replicas = job["spec"]["mpiReplicaSpecs"]
    only(replicas, "Launcher", "Worker")
    words = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]
    ranks = int(words[words.index("-n") + 1])
    assert ranks == job["spec"]["slotsPerWorker"] * replicas["Worker"]["replicas"], f"{ranks} ranks"
    print_pods(replicas, None)


def train_job(runtime, job):
    """A TrainingRuntime and the TrainJob that names it: the trainer puts the job's command into the runtime's container."""
    for one in (runtime, job):
        only(one, "apiVersion", "kind", "metadata", "spec")
        assert one["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
        assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", one["metadata"]["name"])
    assert runtime["kind"] == "TrainingRuntime"
    only(job["spec"], "runtimeRef", "trainer")
    reference = {"apiGroup": "trainer.kubeflow.org", "kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    assert job["spec"]["runtimeRef"] == reference, f"the runtime is {reference}"

    only(runtime["spec"], "mlPolicy", "template")
    only(runtime["spec"]["mlPolicy"], "numNodes", "torch")
    assert runtime["spec"]["mlPolicy"]["torch"] == {}, "numProcPerNode is the TrainJob's since version 2.2"
    jobs = runtime["spec"]["template"]["spec"]
    only(jobs, "failurePolicy", "replicatedJobs")
    only(jobs["failurePolicy"], "maxRestarts")
    (replicated,) = jobs["replicatedJobs"]
    only(replicated, "name", "template")
    only(replicated["template"], "metadata", "spec")
    only(replicated["template"]["spec"], "backoffLimit", "template")
    assert replicated["name"] == "node", "the address of rank 0 has this name"
    assert replicated["template"]["metadata"]["labels"]["trainer.kubeflow.org/trainjob-ancestor-step"] == "trainer"

    trainer = job["spec"]["trainer"]
    only(trainer, "numNodes", "numProcPerNode", "command", "args", "resourcesPerNode")
    assert trainer["numProcPerNode"] == 1 and trainer["numNodes"] == runtime["spec"]["mlPolicy"]["numNodes"]
    known = ("PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
    for word in trainer["command"] + trainer["args"]:
        assert set(re.findall(r"\$\((\w+)\)", word)) <= set(known), f"{word}: the policy sets {known}"
    pod = replicated["template"]["spec"]["template"]
    assert pod["spec"].pop("restartPolicy") in ("Never", "OnFailure")
    (container,) = pod["spec"]["containers"]
    container.update(command=trainer["command"], args=trainer["args"], resources=trainer["resourcesPerNode"])
    print("node", trainer["numNodes"], container_of(pod, "node"))


def sky_task(task):
    only(task, "name", "num_nodes", "resources", "envs", "file_mounts", "workdir", "setup", "run")
    only(task["resources"], "cpus", "memory", "use_spot")
    for mount in task["file_mounts"].values():
        only(mount, "name", "mode")
    print(task["run"])


with open(sys.argv[1]) as file:
    documents = list(yaml.safe_load_all(file))
kinds = {"PyTorchJob": pytorch_job, "MPIJob": mpi_job, "TrainJob": train_job, None: sky_task}
kinds[documents[-1].get("kind")](*documents)
