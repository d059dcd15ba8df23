"""`env: ssh`: a scheduler on the first host, workers on the others, each in an SSH session.

The options are SSHCluster's own. What differs: `n_workers` workers are spread over the hosts, a host
that cannot be reached does not end the others, a session that dies is opened again, and what
the remote side said before it failed is part of the message.
"""

from __future__ import annotations

import logging
import sys
from itertools import cycle
from typing import Any

import dask
from distributed.deploy.spec import SpecCluster

from espnet3.parallel.backends import Backend, load_cluster_class
from espnet3.parallel.backends.ssh_hosts import PER_HOST, SshHost, ssh_hosts, worker_hosts
from espnet3.parallel.clusters.security import (
    PRELOAD,
    RunCertificate,
    is_encrypted,
    make_certificate,
    warn_of_off,
)
from espnet3.parallel.clusters.ssh_process import RemoteError, RemoteScheduler, RemoteWorker
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.dask_compat import ClosesMore, LostWorkersStay
from espnet3.parallel.errors import NoWorkersError
from espnet3.parallel.pilots.worker_cluster import (
    GivenUp,
    Missing,
    MissingWorker,
    StartFailure,
    WorkerCluster,
)

logger = logging.getLogger(__name__)


class SSHCluster(ClosesMore, LostWorkersStay, SpecCluster, WorkerCluster):
    """The cluster; knows what keeps its workers. One that went away comes back by itself."""

    certificate: RunCertificate | None = None

    async def after_closing(self) -> None:
        """Remove the run's certificate."""
        if self.certificate is not None:
            self.certificate.remove()

    @property
    def serves_https(self) -> bool:
        """Whether its dashboard is encrypted."""
        return self.certificate is not None

    def given_up(self) -> GivenUp | None:
        """Return why no worker will come, once every host is given up."""
        workers: list[Any] = list(self.workers.values())
        if workers and all(worker.failure for worker in workers):
            detail = "\n".join(str(worker.failure) for worker in workers)
            return GivenUp(StartFailure.WORKER, detail)
        return None

    def went_with_job(self, worker: str, address: str) -> bool | None:
        """Tell whether a lost worker went with its session; None: not known yet."""
        for each in list(self.workers.values()):
            remote: Any = each
            mine = worker.split(".", maxsplit=1)[0] == remote.name
            if mine and (worker != remote.turn_name or remote.ended.is_set()):
                return True
        restarted = any(
            str(each["name"]) == worker and there != address
            for there, each in list(self.scheduler_info["workers"].items())
        )
        return False if restarted else None

    def missing(self) -> Missing:
        """Return what is wrong with each host whose worker has not come."""
        workers: list[Any] = list(self.workers.values())
        return Missing(
            tuple(
                MissingWorker(f"worker {each.name}", "is not up", detail=each.trying)
                for each in workers
                if each.trying
            )
        )


def start_ssh(row: Backend, config: ParallelConfig) -> SSHCluster:
    """Start the scheduler on the first host, and begin to start the workers."""
    load_cluster_class(row)  # raises if asyncssh is missing
    options = dict(config.options)
    hosts = ssh_hosts(options)
    spread = worker_hosts(hosts)
    for name in ("hosts", *PER_HOST):
        options.pop(name, None)
    worker_options = options.pop("worker_options", None) or {}
    scheduler_options = options.pop("scheduler_options", None) or {"port": 0}
    worker_class = options.pop("worker_class", None) or "distributed.Nanny"
    scheduler_options.setdefault("dashboard_address", "127.0.0.1:0")
    worker_options.setdefault("dashboard_address", "127.0.0.1:0")
    worker_options.setdefault("nthreads", 1)
    if worker_class == "distributed.Nanny":
        preloads = worker_options.get("preload_nanny") or dask.config.get("distributed.nanny.preload", [])
        worker_options["preload_nanny"] = [*([preloads] if isinstance(preloads, str) else preloads), PRELOAD]
    patience = config.start_timeout / 2
    certificate = None
    given = options.get("security") is not None
    if config.security == "off" if not given else not is_encrypted(options):
        warn_of_off("these hosts")
    elif not given:
        certificate = make_certificate(None)
        options["security"] = certificate.security
        scheduler_options.setdefault("protocol", "tls")

    def where(host: SshHost) -> dict[str, Any]:
        chosen = dict(host.connect_options)
        chosen.setdefault("connect_timeout", patience)  # a host that is off never answers
        # a session whose machine is gone stays silent: ask for a sign of life
        chosen.setdefault("keepalive_interval", 15)
        return {
            "host": host.name,
            "connect_options": chosen,
            "python": host.python or sys.executable,
            "config": {} if certificate is None else certificate.config,
        }

    workers = {
        f"ssh-{n}": {
            "cls": RemoteWorker,
            "options": {"options": worker_options, "worker_class": worker_class, **where(host)},
        }
        for n, host in zip(range(config.n_workers), cycle(spread), strict=False)
    }
    scheduler = {"cls": RemoteScheduler, "options": {"options": scheduler_options, **where(hosts[0])}}
    try:
        cluster = SSHCluster(workers, scheduler, name="SSHCluster", **options)
    except RuntimeError as error:
        if certificate is not None:
            certificate.remove()
        if isinstance(error.__cause__, RemoteError):
            raise NoWorkersError(
                f"the scheduler of the workers could not be started over SSH: {error.__cause__}"
            ) from error.__cause__  # Dask's own error only says that a cluster failed
        raise
    cluster.certificate = certificate
    return cluster
