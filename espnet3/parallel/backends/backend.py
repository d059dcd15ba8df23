"""The record of a backend: the meaning of an `env`, its package and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from espnet3.parallel.backends.scheduler import Scheduler  # read with the rows that have one


GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"  # also an option of the envs of this machine
PER_HOST = (
    "connect_options",
    "remote_python",
)  # options of ssh that may be lists, with an entry for each host


class Kind(Enum):
    """How the workers of a backend are started."""

    LOCAL = "processes of this machine"
    GPU = "a process for each GPU of this machine"
    BATCH = "jobs of a batch scheduler"
    SSH = "sessions on other machines"
    KUBERNETES = "pods"


@dataclass(frozen=True, slots=True)
class Backend:
    """One row of the table: how an `env` becomes a Dask cluster.

    Raises:
        ValueError: A row of the kind `BATCH` has no scheduler, or another one has one.
    """

    name: str  # the value of `env`
    title: str  # description in a few words
    kind: Kind  # how its workers are started
    package: str  # import name of the package that must be installed to start it
    # the extra of `espnet3-parallel` that installs the package; None: it is installed by its own name
    extra: str | None
    cluster: str  # "module:Class" of the cluster, imported when it is used
    # "module:Class.method" or "module:function", outermost first, each handing its `**kwargs` to the next:
    # together their parameters are the options
    signatures: tuple[str, ...]
    # options that must be given, with an example of each
    required: Mapping[str, str] = field(default_factory=dict)
    # parameters that are not options here, with the reason
    controlled: Mapping[str, str] = field(default_factory=dict)
    # options of other backends, with their equivalents here
    instead: Mapping[str, str] = field(default_factory=dict)
    scheduler: Scheduler | None = None  # the batch scheduler, for rows of the kind `BATCH` and for no other
    known: frozenset[str] = frozenset()  # options that are accepted without importing the package

    def __post_init__(self) -> None:
        if (self.kind is Kind.BATCH) != (self.scheduler is not None):
            raise ValueError(f"backend {self.name!r}: the kind BATCH has a scheduler, other kinds have none")

    @property
    def is_local(self) -> bool:
        """Return whether the workers are processes of this machine."""
        return self.kind in (Kind.LOCAL, Kind.GPU)


LAYER = {
    "n_workers": "set n_workers beside env",
    "worker_class": "espnet3.parallel chooses the class of the workers",
    "loop": "espnet3.parallel runs the cluster on its own event loop",
    "asynchronous": "espnet3.parallel runs the cluster from synchronous code",
}


def batch_backend(
    name: str,
    title: str,
    cluster: str,
    job: str,
    scheduler: Scheduler,
    *,
    required: Mapping[str, str] | None = None,
    package: str = "dask_jobqueue",
    extra: str | None = "jobqueue",
) -> Backend:
    """Make the row of a batch scheduler, whose cluster and job are classes of dask-jobqueue's kind."""
    return Backend(
        name=name,
        title=f"jobs of {title}",
        kind=Kind.BATCH,
        package=package,
        extra=extra,
        cluster=cluster,
        signatures=(
            "dask_jobqueue.core:JobQueueCluster.__init__",
            f"{job}.__init__",
            "dask_jobqueue.core:Job.__init__",
        ),
        required={"cores": "cores: 4 (per job)", "memory": "memory: 16GB (per job)", **(required or {})},
        controlled={
            **LAYER,
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
        scheduler=scheduler,
    )
