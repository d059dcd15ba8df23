"""The one table of backends: a row says what an `env` is, needs and accepts.

To add a backend, add a row. The check of options, the hints in messages, the missing-package
message and the documentation are derived from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from espnet3.parallel.backends import arrays, queues
from espnet3.parallel.backends.arrays import Array
from espnet3.parallel.backends.queues import Queue
from espnet3.parallel.errors import ConfigError
from espnet3.parallel.messages import did_you_mean, shown


@dataclass(frozen=True, slots=True)
class Backend:
    """One row: how an `env` becomes a Dask cluster.

    Attributes:
        name: The value of `env`.
        title: What it is, in a few words.
        package: Import name of the package that must be there to start it.
        extra: The extra of `espnet3-parallel` that installs the package; None: always installed.
        cluster: "module:Class" of the cluster, imported when it is used.
        signatures: "module:Class.method" or "module:function", outermost first, each handing its
            `**kwargs` to the next: together their parameters are the options.
        required: Options that must be given, with an example of each.
        controlled: Parameters that are not options here, with the reason.
        instead: Options of other backends, with what means the same here.
        array: How a batch scheduler runs many jobs as one; None: it is none.
        queue: How a batch scheduler is asked about its jobs; None: it is none.
        logs: Directives that send a job's output to "{folder}", where dask-jobqueue has no option for it.
        minutes_last: A walltime of two numbers is hours and minutes.
    """

    name: str
    title: str
    package: str
    extra: str | None
    cluster: str
    signatures: tuple[str, ...]
    required: Mapping[str, str] = field(default_factory=dict)
    controlled: Mapping[str, str] = field(default_factory=dict)
    instead: Mapping[str, str] = field(default_factory=dict)
    array: Array | None = None
    queue: Queue | None = None
    logs: tuple[str, ...] = ()
    minutes_last: bool = False

    @property
    def is_jobqueue(self) -> bool:
        """Whether dask-jobqueue submits the workers to a batch scheduler."""
        return self.package == "dask_jobqueue"

    @property
    def is_local(self) -> bool:
        """Whether the workers are processes of this machine."""
        return self.name in ("local", "local_gpu")


_LAYER = {
    "n_workers": "set n_workers beside env",
    "worker_class": "espnet3.parallel chooses the class of the workers",
    "loop": "espnet3.parallel runs the cluster on its own event loop",
    "asynchronous": "espnet3.parallel runs the cluster from synchronous code",
}
_LOCAL = {
    **_LAYER,
    "start": "LocalCluster ignores it",
    "ip": "LocalCluster replaced it: use host",
    "nthreads": "LocalCluster overwrites it: use threads_per_worker",
    "dashboard": "LocalCluster overwrites it: use dashboard_address and worker_dashboard_address",
    "scheduler_ip": "the cluster gives each worker the address of its scheduler",
    "nanny": "the cluster connects each worker with its nanny",
    "forkserver": "espnet3.parallel forks the workers itself",
    "scheduler": "the cluster gives each worker the address of its scheduler",
}
_LOCAL_INSTEAD = {
    "cores": "use n_workers and threads_per_worker",
    "memory": "use memory_limit, which is per worker",
}
# LocalCluster hands what it does not know itself to its worker class: ours for `local`, a Nanny for
# `local_gpu`; both hand on to Worker what they do not know.
_LOCAL_SIGNATURES = (
    "distributed.deploy.local:LocalCluster.__init__",
    "espnet3.parallel.local.forked_worker:ForkedWorker.__init__",
    "distributed.worker:Worker.__init__",
)
_NANNY_SIGNATURES = (
    "distributed.deploy.local:LocalCluster.__init__",
    "distributed.nanny:Nanny.__init__",
    "distributed.worker:Worker.__init__",
)


def _jobqueue(
    name: str,
    title: str,
    class_name: str,
    job: str,
    queue: Queue,
    *,
    required: Mapping[str, str] | None = None,
    logs: tuple[str, ...] = (),
    minutes_last: bool = False,
) -> Backend:
    """Make a row of dask-jobqueue: the cluster takes its own options, the job takes the others."""
    return Backend(
        name=name,
        title=f"jobs of {title}",
        package="dask_jobqueue",
        extra="jobqueue",
        cluster=f"dask_jobqueue.{name}:{class_name}",
        signatures=(
            "dask_jobqueue.core:JobQueueCluster.__init__",
            f"{job}.__init__",
            "dask_jobqueue.core:Job.__init__",
        ),
        required={"cores": "cores: 4 (per job)", "memory": "memory: 16GB (per job)", **(required or {})},
        controlled={
            **_LAYER,
            "scheduler": "the cluster gives each job the address of its scheduler",
            "job_cls": f"env: {name} names the class of the job",
            "dashboard_address": "put it in scheduler_options, beside host and interface",
            "host": "put it in scheduler_options, beside interface and dashboard_address",
        },
        instead={
            "threads_per_worker": "use cores and processes: a worker has cores / processes threads",
            "nthreads": "use cores and processes: a worker has cores / processes threads",
            "memory_limit": "use memory, which is per job and shared by its processes",
        },
        array=getattr(arrays, name.upper()),
        queue=queue,
        logs=logs,
        minutes_last=minutes_last,
    )


_ROWS = (
    Backend(
        name="local",
        title="processes of this machine",
        package="distributed",
        extra=None,
        cluster="distributed.deploy.local:LocalCluster",
        signatures=_LOCAL_SIGNATURES,
        controlled=_LOCAL,
        instead=_LOCAL_INSTEAD,
    ),
    Backend(
        name="local_gpu",
        title="one process for each GPU of this machine",
        package="dask_cuda",
        extra="gpu",
        cluster="dask_cuda:LocalCUDACluster",
        signatures=("dask_cuda.local_cuda_cluster:LocalCUDACluster.__init__", *_NANNY_SIGNATURES),
        controlled={
            **_LOCAL,
            "processes": "a GPU worker is always a process",
            "config": "LocalCUDACluster gives it to the workers itself",
            "env": "LocalCUDACluster overwrites it; workers inherit the variables of this process",
            "plugins": "LocalCUDACluster overwrites it with its own",
        },
        instead=_LOCAL_INSTEAD,
    ),
    _jobqueue("slurm", "SLURM", "SLURMCluster", "dask_jobqueue.slurm:SLURMJob", queues.SLURM),
    _jobqueue("pbs", "PBS", "PBSCluster", "dask_jobqueue.pbs:PBSJob", queues.PBS),
    _jobqueue("sge", "SGE", "SGECluster", "dask_jobqueue.sge:SGEJob", queues.SGE),
    _jobqueue("lsf", "LSF", "LSFCluster", "dask_jobqueue.lsf:LSFJob", queues.LSF, minutes_last=True),
    _jobqueue(
        "htcondor",
        "HTCondor",
        "HTCondorCluster",
        "dask_jobqueue.htcondor:HTCondorJob",
        queues.HTCONDOR,
        required={"disk": "disk: 4GB (per job)"},
    ),
    # MoabJob is PBSJob with other commands: it has no __init__ of its own.
    _jobqueue("moab", "Moab", "MoabCluster", "dask_jobqueue.pbs:PBSJob", queues.MOAB),
    _jobqueue(
        "oar",
        "OAR",
        "OARCluster",
        "dask_jobqueue.oar:OARJob",
        queues.OAR,
        logs=("-O {folder}/OAR.%jobid%.out", "-E {folder}/OAR.%jobid%.err"),  # OARJob ignores log_directory
        minutes_last=True,
    ),
    Backend(
        name="ssh",
        title="machines reached over SSH",
        package="asyncssh",
        extra="ssh",
        cluster="distributed.deploy.ssh:SSHCluster",
        signatures=(
            "distributed.deploy.ssh:SSHCluster",
            "distributed.deploy.spec:SpecCluster.__init__",
        ),
        required={"hosts": "hosts: [node1, node2] (the first runs the scheduler)"},
        controlled={
            **_LAYER,
            "workers": "SSHCluster makes it from hosts",
            "worker": "SSHCluster makes it from hosts",
            "scheduler": "SSHCluster makes it from hosts",
            "name": "SSHCluster names itself",
        },
        instead={
            "threads_per_worker": "use worker_options: {nthreads: ...}",
            "nthreads": "use worker_options: {nthreads: ...}",
            "memory_limit": "use worker_options: {memory_limit: ...}",
            "dashboard_address": "use scheduler_options: {dashboard_address: ...}",
        },
    ),
    Backend(
        name="kube",
        title="pods of Kubernetes",
        package="dask_kubernetes",
        extra="kube",
        cluster="dask_kubernetes.operator:KubeCluster",
        signatures=(
            "dask_kubernetes.operator.kubecluster.kubecluster:KubeCluster.__init__",
            "distributed.deploy.cluster:Cluster.__init__",
        ),
        controlled=_LAYER,
        instead={
            "threads_per_worker": "use worker_command: [dask, worker, --nthreads, ...]",
            "memory_limit": "use resources: {limits: {memory: ...}}",
        },
    ),
)

BACKENDS: Mapping[str, Backend] = MappingProxyType({row.name: row for row in _ROWS})


def row(env: str) -> Backend:
    """Return the row of an `env`.

    Raises:
        ConfigError: No backend has this name; the message lists the names and the closest one.
    """
    found = BACKENDS.get(env) if isinstance(env, str) else None
    if found is None:
        raise ConfigError(unknown_env(env))
    return found


def unknown_env(env: object) -> str:
    """Return the message for a value of `env` that no row has."""
    # 0.5 rather than the usual 0.6: "gpu" and "kubernetes" should find local_gpu and kube.
    guess = did_you_mean(env, BACKENDS, cutoff=0.5)
    return f"Unknown env {shown(env)}.{guess} Known: {', '.join(BACKENDS)}"
