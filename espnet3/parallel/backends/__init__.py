"""The table of backends: a row for each `env`.

Modules about batch schedulers are imported when a block names one: a run on this machine starts sooner.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache

from espnet3.parallel.backends.backend import LAYER, Backend, Kind, batch_backend, load_cluster_class
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown

__all__ = ["BACKENDS", "Backend", "Kind", "batch_backend", "load_cluster_class", "row"]

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"  # also an option of the envs of this machine
# Options that worker processes of our own understand; any other is one of Dask's cluster.
WITHOUT_DASK = {"threads_per_worker", "memory_limit", "env", "preload", "processes", "silence_logs"}
PER_HOST = ("connect_options", "remote_python")  # options of ssh that may be lists, an entry for each host

_LOCAL = {
    **LAYER,
    **dict.fromkeys(
        ("start", "nanny", "supervisor", "scheduler", "scheduler_ip"), "the cluster sets it itself"
    ),
    "ip": "LocalCluster replaced it: use host",
    "nthreads": "LocalCluster overwrites it: use threads_per_worker",
    "dashboard": "LocalCluster overwrites it: use dashboard_address and worker_dashboard_address",
    "gpus": "env: local_gpu has one worker for each GPU",
}

# LocalCluster hands unknown parameters to its worker class (ours, or a Nanny under dask-cuda), which hands on to Worker
# what is unknown to it as well.
_LOCAL_ROWS = (
    Backend(
        name="local",
        title="processes of this machine",
        kind=Kind.LOCAL,
        package="distributed",
        extra=None,
        cluster="distributed.deploy.local:LocalCluster",
        signatures=(
            "distributed.deploy.local:LocalCluster.__init__",
            "espnet3.parallel.local.dask.cluster:ForkedWorker.__init__",
            "distributed.worker:Worker.__init__",
        ),
        controlled=_LOCAL,
        known=WITHOUT_DASK,
    ),
    Backend(
        name="local_gpu",
        title="one process for each GPU of this machine",
        kind=Kind.GPU,
        package="dask_cuda",
        extra="gpu",
        cluster="dask_cuda:LocalCUDACluster",
        signatures=(
            "dask_cuda.local_cuda_cluster:LocalCUDACluster.__init__",
            "distributed.deploy.local:LocalCluster.__init__",
            "distributed.nanny:Nanny.__init__",
            "distributed.worker:Worker.__init__",
        ),
        controlled={
            **_LOCAL,
            "processes": "a GPU worker is always a process",
            **dict.fromkeys(("config", "plugins"), "LocalCUDACluster sets it itself"),
            "env": "LocalCUDACluster overwrites it; workers inherit the variables of this process",
        },
        known=(WITHOUT_DASK - {"env", "processes"}) | {GPU_VARIABLE},
    ),
)
_REMOTE_ROWS = (
    Backend(
        name="ssh",
        title="machines reached over SSH",
        kind=Kind.SSH,
        package="asyncssh",
        extra="ssh",
        cluster="distributed.deploy.ssh:SSHCluster",
        signatures=("distributed.deploy.ssh:SSHCluster", "distributed.deploy.spec:SpecCluster.__init__"),
        required={"hosts": "hosts: [node1, node2] (the first runs the scheduler)"},
        controlled={
            **LAYER,
            **dict.fromkeys(("workers", "worker", "scheduler"), "SSHCluster makes it from hosts"),
            "name": "SSHCluster names itself",
        },
    ),
    Backend(
        name="kube",
        title="pods of Kubernetes",
        kind=Kind.KUBERNETES,
        package="dask_kubernetes",
        extra="kube",
        cluster="dask_kubernetes.operator:KubeCluster",
        signatures=(
            "dask_kubernetes.operator.kubecluster.kubecluster:KubeCluster.__init__",
            "espnet3.parallel.kube.manifests:OPTIONS",
            "distributed.deploy.cluster:Cluster.__init__",
        ),
        controlled=LAYER,
    ),
)

# Kaldi's scripts, which ESPnet2 recipes name as their command, and the env that does the same.
KALDI_SCRIPTS = {
    "run.pl": "local",
    "queue.pl": "sge",
    "queue-freegpu.pl": "sge",
    "slurm.pl": "slurm",
    "pbs.pl": "pbs",
    "ssh.pl": "ssh",
    "stdout.pl": "local",
}

# Submit commands, and systems by another name.
_COMMANDS = {
    "qsub": "sge or env: pbs",
    **dict.fromkeys(("sbatch", "srun", "salloc"), "slurm"),
    "bsub": "lsf",
    "condor_submit": "htcondor",
    "oarsub": "oar",
    "msub": "moab",
    **dict.fromkeys(("kubectl", "k8s"), "kube"),
    **dict.fromkeys(("cpu", "serial", "threads", "multiprocessing", "joblib"), "local"),
    "torque": "pbs",
    "uge": "sge",
}

STRATEGIES = ("ddp", "fsdp", "deepspeed")  # of Lightning

_WITHOUT_SCHEDULER = {row.name: row for row in (*_LOCAL_ROWS, *_REMOTE_ROWS)}


@cache
def _own() -> dict[str, Backend]:
    from espnet3.parallel.backends.schedulers import SCHEDULERS  # a tenth of what a local run has to load

    return {row.name: row for row in (*_LOCAL_ROWS, *SCHEDULERS, *_REMOTE_ROWS)}


class _Table(Mapping[str, Backend]):
    def __getitem__(self, name: str) -> Backend:
        return _WITHOUT_SCHEDULER.get(name) or _own()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_own())

    def __len__(self) -> int:
        return len(_own())


BACKENDS: Mapping[str, Backend] = _Table()


def row(env: str) -> Backend:
    """Return the row of an `env`."""
    found = BACKENDS.get(env) if isinstance(env, str) else None
    if found is None:
        raise ConfigError(unknown_env(env))
    return found


def unknown_env(env: object) -> str:
    """Return the message for a value of `env` that no row has."""
    script = os.path.basename(env.split()[0]) if isinstance(env, str) and env.split() else ""
    whole = " (espnet3-parallel migrate cmd.sh makes the whole block)" if script in KALDI_SCRIPTS else ""
    if instead := KALDI_SCRIPTS.get(script) or _COMMANDS.get(script.lower()):
        fix = f": write env: {instead} in place of {script}{whole}."
    elif script in STRATEGIES:
        fix = (
            f": {script} belongs to trainer, not to parallel: write strategy: {script} in the trainer block."
        )
    else:  # 0.5 rather than the usual 0.6: "gpu" and "kubernetes" should find local_gpu and kube
        fix = f".{did_you_mean(env, BACKENDS, cutoff=0.5)}"
    return f"Unknown env {shown(env)}{fix} Known: {', '.join(BACKENDS)}"
